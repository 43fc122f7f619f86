//! Sessions: what outlives a connection.
//!
//! One connection at a time owns a session's [`Slots`], and works on them without a lock. When another
//! connection of the same client comes for the session, the first is told to go, hands the slots over and
//! ends; from then on nothing that still lies in the first one's socket can be begun. What is being done
//! by tasks goes on whoever owns the slots, and reports to the session's mail.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use blocker::{Error, Timestamp};
use parking_lot::Mutex;

use super::slots::Slots;
use crate::auth::random;
use crate::codec::{Outcome, RequestId, SessionId};

/// A request that a task has done; `None`: the task has ended without an outcome.
pub(super) type Completion = (RequestId, Option<Outcome>);

pub(super) struct Session {
    /// Drawn when it began.
    generation: u64,
    /// Counts those who have come for the session; the last of them is its owner, or will be.
    turn: AtomicU64,
    has_mail: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// There while nobody owns them.
    slots: Option<Slots>,
    /// What tasks have done and the owner has not seen yet: one per slot at most.
    mail: Vec<Completion>,
    /// Of the owner.
    owner: Option<Waker>,
    /// Of the one who waits to be the owner.
    next: Option<Waker>,
    left_at: Timestamp,
}

impl Session {
    fn new(slots: Slots, now: Timestamp) -> Self {
        let state = State { slots: Some(slots), mail: Vec::new(), owner: None, next: None, left_at: now };
        let generation = u64::from_le_bytes(random());
        Self { generation, turn: AtomicU64::new(0), has_mail: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// Waits until whoever owns the slots has handed them over.
    ///
    /// # Errors
    /// `Retryable` if someone else has come for them since.
    ///
    /// # Cancel safety
    /// Whoever gives up leaves the slots where they are.
    async fn take(self: &Arc<Self>, turn: u64) -> Result<Slots, Error> {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if self.turn.load(Ordering::Acquire) != turn {
                return Poll::Ready(Err(Error::Retryable("another connection has taken the session".into())));
            }
            match state.slots.take() {
                Some(slots) => Poll::Ready(Ok(slots)),
                None => {
                    state.next = Some(cx.waker().clone());
                    if let Some(owner) = state.owner.take() {
                        drop(state);
                        owner.wake();
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn deliver(&self, completion: Completion) {
        let owner = {
            let mut state = self.state.lock();
            state.mail.push(completion);
            self.has_mail.store(true, Ordering::Release);
            state.owner.clone()
        };
        owner.into_iter().for_each(Waker::wake);
    }
}

/// A session that a connection owns; given back when it is dropped.
pub(super) struct Owned {
    session: Arc<Session>,
    turn: u64,
    pub(super) slots: Slots,
    waker: Option<Waker>,
    /// The time of the last activity; when the session was left, in the end.
    pub(super) now: Timestamp,
}

impl Owned {
    /// Tells this session from another one of the same name, before or after.
    pub(super) fn generation(&self) -> u64 {
        self.session.generation
    }

    /// Whether someone else has come for the session.
    pub(super) fn is_replaced(&self) -> bool {
        self.session.turn.load(Ordering::Acquire) != self.turn
    }

    /// Wakes this waker from now on. Whether it is another than before.
    pub(super) fn register(&mut self, waker: &Waker) -> bool {
        if self.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return false;
        }
        self.waker = Some(waker.clone());
        self.session.state.lock().owner = Some(waker.clone());
        true
    }

    /// Takes what tasks have done.
    pub(super) fn take_mail(&self, mail: &mut Vec<Completion>) {
        if self.session.has_mail.swap(false, Ordering::AcqRel) {
            mail.append(&mut self.session.state.lock().mail);
        }
    }

    /// For a task to report to.
    pub(super) fn reporter(&self, id: RequestId) -> Reporter {
        Reporter { session: Arc::clone(&self.session), id, outcome: None }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let mut slots = std::mem::replace(&mut self.slots, Slots::new(0, true));
        slots.disconnect();
        let next = {
            let mut state = self.session.state.lock();
            state.slots = Some(slots);
            state.owner = None;
            state.left_at = self.now;
            state.next.take()
        };
        next.into_iter().for_each(Waker::wake);
    }
}

/// Reports what became of a request, even if its task is stopped or panics.
pub(super) struct Reporter {
    session: Arc<Session>,
    id: RequestId,
    outcome: Option<Outcome>,
}

impl Reporter {
    pub(super) fn report(mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.session.deliver((self.id, self.outcome.take()));
    }
}

/// All sessions of a server.
pub(super) struct Sessions {
    all: Mutex<HashMap<SessionId, Arc<Session>>>,
    count_max: usize,
    linger: Duration,
    ending: AtomicBool,
}

impl Sessions {
    pub(super) fn new(count_max: u32, linger: Duration) -> Self {
        let all = Mutex::default();
        Self { all, count_max: count_max as usize, linger, ending: AtomicBool::new(false) }
    }

    pub(super) fn count(&self) -> usize {
        self.all.lock().len()
    }

    /// Tells all connections to end.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        let owners: Vec<_> = {
            let all = self.all.lock();
            all.values().filter_map(|session| session.state.lock().owner.clone()).collect()
        };
        owners.into_iter().for_each(Waker::wake);
    }

    /// Whether connections are to end.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Goes on with a session, or begins it with what `new` makes. Whether it was known.
    ///
    /// # Errors
    /// `Retryable` if there are too many, or another connection has come for it.
    pub(super) async fn attach(
        &self,
        id: SessionId,
        now: Timestamp,
        new: impl FnOnce() -> Slots,
    ) -> Result<(Owned, bool), Error> {
        let (session, turn, is_known) = {
            let mut all = self.all.lock();
            let known = all.get(&id).cloned();
            let is_known = known.is_some();
            let session = match known {
                Some(session) => session,
                None => {
                    self.make_room(&mut all, now)?;
                    let session = Arc::new(Session::new(new(), now));
                    all.insert(id, Arc::clone(&session));
                    session
                }
            };
            let turn = session.turn.fetch_add(1, Ordering::AcqRel) + 1;
            (session, turn, is_known)
        };
        // One who has waited before has lost his turn.
        let waiting = session.state.lock().next.take();
        waiting.into_iter().for_each(Waker::wake);
        let slots = session.take(turn).await?;
        Ok((Owned { session, turn, slots, waker: None, now }, is_known))
    }

    /// Forgets sessions that were left long ago; beyond the limit, the one that was left first.
    fn make_room(&self, all: &mut HashMap<SessionId, Arc<Session>>, now: Timestamp) -> Result<(), Error> {
        if all.len() < self.count_max {
            return Ok(());
        }
        // Not while something is being done: its outcome may be asked for, and it counts as work.
        let mut left: Vec<_> = all
            .iter()
            .filter_map(|(id, session)| {
                let state = session.state.lock();
                let is_left = state.slots.as_ref().is_some_and(|slots| slots.executing_count() == 0);
                is_left.then_some((state.left_at, *id))
            })
            .collect();
        left.sort_unstable();
        let overdue = left.iter().take_while(|(at, _)| now.since(*at) >= self.linger).count();
        for (_, id) in left.iter().take(overdue.max(1)) {
            all.remove(id);
        }
        if all.len() < self.count_max {
            return Ok(());
        }
        Err(Error::Retryable("the server has too many sessions; raise sessions_max".into()))
    }
}

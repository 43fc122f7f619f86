//! Sessions, which outlive connections.
//!
//! One connection at a time owns a session's [`Slots`], and works on them without a lock. When
//! another connection of the same client attaches the session, the first one is woken, hands over
//! the slots and ends; from then on, unread requests in its socket cannot begin. Tasks continue
//! whichever connection owns the slots, and deliver their outcomes to the session.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use blocker::{Error, Timestamp};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::slots::Slots;
use crate::auth::random;
use crate::codec::{Outcome, RequestId, SessionId};

/// The outcome of a request executed by a task; `None` if the task has ended without one.
pub(super) type Completion = (RequestId, Option<Outcome>);

pub(super) struct Session {
    /// A number that was drawn at random when the session began.
    generation: u64,
    /// The number of connections that have attached the session. The last of them owns it, or will
    /// own it.
    attach_count: AtomicU64,
    has_completions: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// The slots; `None` while a connection owns them.
    slots: Option<Slots>,
    /// Outcomes that the owner has not taken yet: at most one per slot.
    completions: Vec<Completion>,
    /// The waker of the connection that owns the slots.
    owner: Option<Waker>,
    /// The waker of the connection that waits for the slots.
    next: Option<Waker>,
    /// The time at which the last connection ended.
    left_at: Timestamp,
}

impl Session {
    fn new(slots: Slots, now: Timestamp) -> Self {
        let state =
            State { slots: Some(slots), completions: Vec::new(), owner: None, next: None, left_at: now };
        let generation = u64::from_le_bytes(random());
        let (attach_count, has_completions) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { generation, attach_count, has_completions, state: Mutex::new(state) }
    }

    /// Takes the slots, once their owner has handed them over. `attached` is the caller's number
    /// among the session's connections.
    ///
    /// # Errors
    /// Returns `Retryable` if another connection has attached the session since.
    ///
    /// # Cancel safety
    /// When the future is dropped, the slots stay where they are.
    async fn take(self: &Arc<Self>, attached: u64) -> Result<Slots, Error> {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if self.attach_count.load(Ordering::Acquire) != attached {
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

    /// Delivers a task's outcome to the owner. Without an owner, only outcomes that a client may
    /// ask for again are kept.
    fn deliver(&self, completion: Completion) {
        let owner = {
            let mut state = self.state.lock();
            if let Some(slots) = &mut state.slots {
                let (id, outcome) = completion;
                slots.complete(id, outcome);
                return;
            }
            state.completions.push(completion);
            self.has_completions.store(true, Ordering::Release);
            state.owner.clone()
        };
        owner.into_iter().for_each(Waker::wake);
    }
}

/// A session that a connection owns. Dropping this value returns the session.
pub(super) struct Owned {
    session: Arc<Session>,
    attached: u64,
    pub(super) slots: Slots,
    waker: Option<Waker>,
    /// The time of the last activity.
    pub(super) now: Timestamp,
}

impl Owned {
    /// Returns the number that distinguishes this session from earlier and later ones with the same
    /// ID.
    pub(super) fn generation(&self) -> u64 {
        self.session.generation
    }

    /// Returns whether another connection has attached the session.
    pub(super) fn is_replaced(&self) -> bool {
        self.session.attach_count.load(Ordering::Acquire) != self.attached
    }

    /// Registers the waker to wake from now on. Returns whether it differs from the previous one.
    pub(super) fn register(&mut self, waker: &Waker) -> bool {
        if self.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return false;
        }
        self.waker = Some(waker.clone());
        self.session.state.lock().owner = Some(waker.clone());
        true
    }

    /// Moves the outcomes that tasks have delivered into `completions`.
    pub(super) fn take_completions(&self, completions: &mut Vec<Completion>) {
        if self.session.has_completions.swap(false, Ordering::AcqRel) {
            completions.append(&mut self.session.state.lock().completions);
        }
    }

    /// Returns the handle by which a task delivers its outcome. `executing` is dropped after that.
    pub(super) fn reporter(&self, id: RequestId, executing: mpsc::Sender<()>) -> Reporter {
        Reporter { session: Arc::clone(&self.session), id, outcome: None, _executing: executing }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let mut slots = std::mem::replace(&mut self.slots, Slots::new(0, true));
        slots.disconnect();
        let next = {
            let mut state = self.session.state.lock();
            for (id, outcome) in std::mem::take(&mut state.completions) {
                slots.complete(id, outcome);
            }
            state.slots = Some(slots);
            state.owner = None;
            state.left_at = self.now;
            state.next.take()
        };
        next.into_iter().for_each(Waker::wake);
    }
}

/// Delivers the outcome of a request, even if its task is aborted or panics.
pub(super) struct Reporter {
    session: Arc<Session>,
    id: RequestId,
    outcome: Option<Outcome>,
    /// Keeps the connection's memory counted until the reporter is dropped.
    _executing: mpsc::Sender<()>,
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
    /// The sessions. They have one lock instead of a concurrent table, because it is taken only
    /// once per connection, at the handshake, and both the limit and the choice of sessions to
    /// forget need all of them at one moment.
    all: Mutex<HashMap<SessionId, Arc<Session>>>,
    /// The maximum number of sessions, and the time for which a session without a connection is
    /// kept.
    limits: Mutex<(usize, Duration)>,
    ending: AtomicBool,
}

impl Sessions {
    pub(super) fn new(count_max: u32, linger: Duration) -> Self {
        let all = Mutex::default();
        let limits = Mutex::new((count_max as usize, linger));
        Self { all, limits, ending: AtomicBool::new(false) }
    }

    /// Changes the limits for new sessions.
    pub(super) fn set_limits(&self, count_max: u32, linger: Duration) {
        *self.limits.lock() = (count_max as usize, linger);
    }

    pub(super) fn count(&self) -> usize {
        self.all.lock().len()
    }

    /// Makes all connections end.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        let owners: Vec<_> = {
            let all = self.all.lock();
            all.values().filter_map(|session| session.state.lock().owner.clone()).collect()
        };
        owners.into_iter().for_each(Waker::wake);
    }

    /// Returns whether connections must end.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Attaches the session `id`, or begins it with the slots that `new` returns. The flag tells
    /// whether the session was known.
    ///
    /// # Errors
    /// Returns `Retryable` if there are too many sessions, or another connection has attached this
    /// one in the meantime.
    pub(super) async fn attach(
        &self,
        id: SessionId,
        now: Timestamp,
        new: impl FnOnce() -> Slots,
    ) -> Result<(Owned, bool), Error> {
        let (session, attached, is_known) = {
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
            let attached = session.attach_count.fetch_add(1, Ordering::AcqRel) + 1;
            (session, attached, is_known)
        };
        // A connection that waits for the slots finds that another one has attached the session.
        let waiting = session.state.lock().next.take();
        waiting.into_iter().for_each(Waker::wake);
        let slots = session.take(attached).await?;
        Ok((Owned { session, attached, slots, waker: None, now }, is_known))
    }

    /// If there are too many sessions, forgets those that have been without a connection for longer
    /// than the linger time. If that is not enough, forgets those that have been without a
    /// connection for the longest time: several after the limit was lowered.
    fn make_room(&self, all: &mut HashMap<SessionId, Arc<Session>>, now: Timestamp) -> Result<(), Error> {
        let (count_max, linger) = *self.limits.lock();
        if all.len() < count_max {
            return Ok(());
        }
        // A session is kept while one of its requests is being executed, because the outcome may be
        // needed, and while a connection has attached it or is about to take it: the client's next
        // connection must find it, and replace that one. Each of them has a reference.
        let mut left: Vec<_> = all
            .iter()
            .filter(|(_, session)| Arc::strong_count(session) == 1)
            .map(|(id, session)| (session.state.lock().left_at, *id))
            .collect();
        let excess = all.len() - count_max + 1;
        if left.len() < excess {
            return Err(Error::Retryable("the server has too many sessions; raise sessions_max".into()));
        }
        left.sort_unstable();
        let overdue = left.iter().take_while(|(at, _)| now.since(*at) >= linger).count();
        for (_, id) in left.iter().take(overdue.max(excess)) {
            all.remove(id);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blocker::executor::{block_on, poll_times};

    use super::*;

    #[test]
    fn a_session_that_a_connection_is_about_to_take_is_not_forgotten() {
        let sessions = Sessions::new(1, Duration::ZERO);
        let attach = |client| {
            let id = SessionId { client: [client; 16], lane: 0 };
            sessions.attach(id, Timestamp(1), || Slots::new(1, true))
        };
        let (first, _) = block_on(attach(1)).unwrap();
        let mut second = Box::pin(attach(1));
        assert!(poll_times(&mut second, 1, Duration::ZERO).is_none(), "the first connection has the slots");
        drop(first);
        assert!(matches!(block_on(attach(2)), Err(Error::Retryable(_))));
        let (second, is_known) = block_on(second).unwrap();
        assert!(is_known);
        drop(second);
        assert!(!block_on(attach(2)).unwrap().1);
    }

    #[test]
    fn after_the_limit_was_lowered_a_new_session_displaces_all_that_are_too_many() {
        let linger = Duration::from_secs(300);
        let sessions = Sessions::new(4, linger);
        let attach = |client| {
            let id = SessionId { client: [client; 16], lane: 0 };
            block_on(sessions.attach(id, Timestamp(1), || Slots::new(1, true)))
        };
        for client in 1..=4 {
            drop(attach(client).unwrap());
        }
        sessions.set_limits(2, linger);
        let fifth = attach(5).unwrap();
        assert_eq!(sessions.count(), 2);
        drop(fifth);
    }
}

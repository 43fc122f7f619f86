//! Whether requests go through the cache or directly to the store, and the transitions between the
//! two.
//!
//! ```text
//!  attached ─ detach ─> storing ────> transit ─────────────> detached ─ attach ─> attached
//!                       dirty data    changes bypass the      reads bypass the
//!                       are stored    cache, the remaining    cache, and nothing
//!                                     dirty data are stored   is cached
//! ```
//! Each command that changes the direction begins a new turn; work that belongs to an earlier turn
//! ends. Changes go through the cache in every state, so that stamps, conditions on versions,
//! quotas and rates work the same; only their write mode differs. So the cache has learnt of each
//! change by the time it is reattached.

use std::task::{Context, Poll, Waker};

use blocker::{Error, Result};

use super::namespaces::Namespaces;
use crate::object::lock_ranks;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The maximum number of tasks that wait for the next state; when it is reached, all are woken
/// before another is added.
const WAITERS_MAX: usize = 1024;

/// Whether a cache is in the request path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AttachState {
    /// Requests go through the cache.
    #[default]
    Attached,
    /// The cache is being detached: dirty data are being stored. Nothing has changed for requests
    /// yet.
    Storing,
    /// The cache is being detached: changes bypass the cache, and the last dirty data are being
    /// stored. Reads are still served from the cache.
    Transit,
    /// Reads go directly to the store, changes bypass the cache, and the cache keeps nothing.
    Detached,
}

impl AttachState {
    /// Returns the state's name: `attached`, `storing`, `transit` or `detached`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Storing => "storing",
            Self::Transit => "transit",
            Self::Detached => "detached",
        }
    }
}

/// The progress of a cache into or out of the request path.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct AttachStatus {
    /// The state.
    pub state: AttachState,
    /// The reason why the last attempt to proceed failed, while the cache is being detached.
    pub why: Option<String>,
}

/// Whether a cache is attached to its store, and the transition in progress.
pub(crate) struct Attaching {
    /// Whether reads go directly to the store. Written under the lock.
    is_direct: AtomicBool,
    /// Whether the background must begin a turn. Written under the lock.
    asks_for_task: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    now: AttachState,
    /// The number of commands that have changed the direction so far.
    turn: u64,
    why: Option<String>,
    waiters: Vec<Waker>,
    /// Whether the background has ended.
    has_ended: bool,
}

impl Default for Attaching {
    fn default() -> Self {
        Self {
            is_direct: AtomicBool::new(false),
            asks_for_task: AtomicBool::new(false),
            state: Mutex::ranked(State::default(), &lock_ranks::ATTACHING),
        }
    }
}

impl Attaching {
    /// Returns whether reads go directly to the store. If so, everything is stored, and nothing
    /// becomes dirty.
    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct.load(Ordering::Acquire)
    }

    pub(crate) fn status(&self) -> AttachStatus {
        let state = lock(&self.state);
        AttachStatus { state: state.now, why: state.why.clone() }
    }

    /// Returns the state, its turn, and whether reads go directly to the store.
    pub(crate) fn now(&self) -> (AttachState, u64, bool) {
        let state = lock(&self.state);
        (state.now, state.turn, self.is_direct())
    }

    /// Begins to detach the cache, if it is attached. Returns the current turn.
    pub(crate) fn begin_detach(&self) -> u64 {
        let mut state = lock(&self.state);
        if state.now == AttachState::Attached {
            (state.now, state.turn) = (AttachState::Storing, state.turn + 1);
            self.asks_for_task.store(true, Ordering::SeqCst);
        }
        state.turn
    }

    /// Returns the turn that the background must carry out; only once for each turn.
    pub(crate) fn take_turn(&self) -> Option<u64> {
        if !self.asks_for_task.load(Ordering::Relaxed) {
            return None;
        }
        let state = lock(&self.state);
        let is_asked = self.asks_for_task.swap(false, Ordering::SeqCst);
        (is_asked && state.now != AttachState::Attached).then_some(state.turn)
    }

    /// Makes new changes bypass the cache; returns whether the turn is still `turn`.
    pub(crate) fn enter_transit(&self, turn: u64, namespaces: &Namespaces) -> bool {
        self.proceed(turn, |state| {
            (state.now, state.why) = (AttachState::Transit, None);
            namespaces.set_in_transit(true);
        })
    }

    /// Makes new reads go directly to the store, which has everything by now; returns whether the
    /// turn is still `turn`.
    pub(crate) fn begin_direct(&self, turn: u64) -> bool {
        self.proceed(turn, |_| self.is_direct.store(true, Ordering::SeqCst))
    }

    /// Records that nothing in the cache is in use any more; returns whether the turn is still
    /// `turn`.
    pub(crate) fn end_detach(&self, turn: u64) -> bool {
        self.proceed(turn, |state| {
            (state.now, state.why) = (AttachState::Detached, None);
        })
    }

    /// Records why an attempt to proceed failed; returns whether the turn is still `turn`.
    pub(crate) fn note_failure(&self, turn: u64, why: &Error) -> bool {
        let text = why.to_string();
        self.proceed(turn, |state| state.why = Some(text))
    }

    fn proceed(&self, turn: u64, job: impl FnOnce(&mut State)) -> bool {
        self.change(|state| {
            let is_current = state.turn == turn;
            if is_current {
                job(state);
            }
            is_current
        })
    }

    /// Runs `job`, which returns whether it has changed the state; if it has, wakes the waiting
    /// tasks.
    fn change(&self, job: impl FnOnce(&mut State) -> bool) -> bool {
        let mut state = lock(&self.state);
        let has_changed = job(&mut state);
        let woken = if has_changed { std::mem::take(&mut state.waiters) } else { Vec::new() };
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        has_changed
    }

    /// Reattaches the cache, if the turn is still `turn` and reads have not become direct since the
    /// caller looked; returns whether it did. If reads were direct, the caller has dropped the
    /// contents of the cache.
    pub(crate) fn put_back(&self, turn: u64, was_direct: bool, namespaces: &Namespaces) -> bool {
        self.change(|state| {
            if state.turn != turn || self.is_direct() && !was_direct {
                return false;
            }
            (state.now, state.turn, state.why) = (AttachState::Attached, turn + 1, None);
            // Reads go first: a read that begins later must not miss data that are written back.
            self.is_direct.store(false, Ordering::SeqCst);
            namespaces.set_in_transit(false);
            true
        })
    }

    /// Completes when the cache is detached.
    ///
    /// # Errors
    /// `Retryable` if the cache has been reattached since `turn` began.
    pub(crate) fn poll_detached(&self, turn: u64, cx: &Context<'_>) -> Poll<Result<()>> {
        self.poll(cx, |state| match state.now {
            _ if state.turn != turn => {
                let why = "the cache was reattached while it was being detached";
                Some(Err(Error::Retryable(why.into())))
            }
            AttachState::Detached => Some(Ok(())),
            _ => None,
        })
    }

    /// Completes when the turn is over or the background has ended.
    pub(crate) fn poll_over(&self, turn: u64, cx: &Context<'_>) -> Poll<()> {
        self.poll(cx, |state| (state.turn != turn || state.has_ended).then_some(()))
    }

    /// Completes when `outcome` returns a value; until then the task waits for the next state.
    fn poll<T>(&self, cx: &Context<'_>, outcome: impl FnOnce(&State) -> Option<T>) -> Poll<T> {
        let mut state = lock(&self.state);
        if let Some(outcome) = outcome(&state) {
            return Poll::Ready(outcome);
        }
        let waits = state.waiters.iter().any(|waker| waker.will_wake(cx.waker()));
        let is_full = !waits && state.waiters.len() >= WAITERS_MAX;
        let woken = if is_full { std::mem::take(&mut state.waiters) } else { Vec::new() };
        if !waits {
            state.waiters.push(cx.waker().clone());
        }
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        Poll::Pending
    }

    /// Records that the background has ended: no transition will proceed.
    pub(crate) fn end(&self) {
        self.change(|state| {
            state.has_ended = true;
            true
        });
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use blocker::WriteMode;

    use super::*;
    use crate::object::config::ObjectCacheConfig;

    #[test]
    fn what_belongs_to_an_earlier_turn_changes_nothing() {
        let config = ObjectCacheConfig { write: WriteMode::Back, ..ObjectCacheConfig::default() };
        let (attaching, namespaces) = (Attaching::default(), Namespaces::new(&config));
        let cx = Context::from_waker(Waker::noop());
        let turn = attaching.begin_detach();
        assert_eq!((turn, attaching.begin_detach()), (1, 1), "one way out");
        assert_eq!((attaching.take_turn(), attaching.take_turn()), (Some(1), None));
        assert!(attaching.note_failure(turn, &Error::Missing));
        assert!(attaching.status().why.is_some());
        assert!(attaching.enter_transit(turn, &namespaces));
        assert_eq!(namespaces.record(0).write_phases.mode(), WriteMode::Around);
        assert!(attaching.poll_detached(turn, &cx).is_pending());
        assert!(attaching.put_back(turn, false, &namespaces));
        assert_eq!(namespaces.record(0).write_phases.mode(), WriteMode::Back);
        let over = attaching.poll_detached(turn, &cx);
        assert!(matches!(over, Poll::Ready(Err(Error::Retryable(_)))), "{over:?}");
        assert!(attaching.poll_over(turn, &cx).is_ready());
        assert!(!attaching.begin_direct(turn) && !attaching.end_detach(turn));
        assert!(!attaching.is_direct() && attaching.status() == AttachStatus::default());
        let next = attaching.begin_detach();
        assert!(attaching.enter_transit(next, &namespaces) && attaching.begin_direct(next));
        assert!(!attaching.put_back(next, false, &namespaces), "what is cached has not been dropped");
        assert!(attaching.end_detach(next) && attaching.poll_detached(next, &cx).is_ready());
        assert!(attaching.put_back(next, true, &namespaces) && !attaching.is_direct());
    }
}

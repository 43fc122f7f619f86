//! The layer between a cache and its store: the gate through which every load, forwarded change and
//! flush passes, and the epochs and claims under which changes are sent. The requests themselves
//! are made in later chapters.
//!
//! ```text
//!  loads ──────────────┐   requests wait by namespace, class and lane   ┌─> at most load_requests_max
//!  forwarded changes ──┼─> and are let through in the order of          ┼─> store
//!  flushes ────────────┘   `scheduler.rs`, as wide as `width.rs` has it └─> at most flush_requests_max
//! ```
//! While no namespace has its own terms, there is nothing to schedule: loads and flushes take a
//! place in their lane without a lock, or wait first come, first served, and forwarded changes
//! pass. Otherwise the gate also narrows as the store's latency demands (`width.rs`), so that
//! requests wait here and not in the store, where they are not ordered.
//!
//! A waiting task is woken once it has been admitted. One of the waiting tasks, the *keeper*,
//! sleeps until the first limit admits a request. A task that gives up leaves no trace: its charges
//! are refunded.

mod classes;
pub(crate) mod epochs;
mod scheduler;
mod terms;
mod width;

#[cfg(all(test, not(shuttle)))]
mod model_tests;
#[cfg(all(test, not(shuttle)))]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use blocker::clock::Sleep;
use blocker::{Clock, Error, Result, Timestamp};

use classes::Lanes;
pub(crate) use classes::{Class, Lane};
pub(crate) use scheduler::{Ask, Number};
use scheduler::{Granted, Scheduler};
pub use terms::StoreTerms;

use super::lock_ranks;
use crate::ensure;
use crate::sync::{Arc, AtomicBool, AtomicU32, Mutex, Ordering, lock};

/// The maximum number of waiting requests.
const WAITERS_MAX: usize = 64 * 1024;

/// See the module.
pub(crate) struct Gate {
    clock: Arc<dyn Clock>,
    lanes: Lanes,
    /// Whether any namespace has its own terms. Written under the lock.
    is_scheduling: AtomicBool,
    /// The number of waiting requests. Written under the lock.
    waiting: AtomicU32,
    /// The number of waiting requests that are not delayed by the limit of their namespace.
    waiting_for_place: AtomicU32,
    inner: Mutex<Inner>,
}

struct Inner {
    scheduler: Scheduler,
    wakers: HashMap<u64, Waker>,
    /// Admitted requests whose tasks have not noticed yet.
    granted: HashMap<u64, Granted>,
    keeper: Option<Keeper>,
}

/// The request whose task sleeps until a limit admits a request.
#[derive(Clone, Copy)]
struct Keeper {
    id: u64,
    due: Timestamp,
}

fn count(requests: usize) -> u32 {
    u32::try_from(requests).unwrap_or(u32::MAX)
}

impl Gate {
    /// Returns a gate without terms, for at most `loads_max` loads and `flushes_max` flush requests
    /// in flight.
    pub(crate) fn new(clock: Arc<dyn Clock>, loads_max: usize, flushes_max: usize) -> Self {
        let (loads_max, flushes_max) = (count(loads_max), count(flushes_max));
        let now = clock.now();
        let inner = Inner {
            scheduler: Scheduler::new(loads_max.saturating_add(flushes_max), now),
            wakers: HashMap::new(),
            granted: HashMap::new(),
            keeper: None,
        };
        Self {
            clock,
            lanes: Lanes::new(loads_max, flushes_max),
            is_scheduling: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
            waiting_for_place: AtomicU32::new(0),
            inner: Mutex::ranked(inner, &lock_ranks::GATE),
        }
    }

    /// Changes the maximum numbers of loads and flush requests in flight. If there are more, none
    /// begins until enough have ended.
    pub(crate) fn set_max(&self, loads_max: usize, flushes_max: usize) {
        let (loads_max, flushes_max) = (count(loads_max), count(flushes_max));
        self.lanes.set_max(loads_max, flushes_max);
        self.locked(|inner, _| inner.scheduler.width.set_max(loads_max.saturating_add(flushes_max)));
    }

    /// Applies the terms of the namespaces. A namespace that is not listed has the default terms.
    /// Waiting requests continue to wait on the new terms.
    pub(crate) fn set_terms(&self, terms: &[(Number, StoreTerms)]) {
        self.locked(|inner, now| {
            inner.scheduler.set_terms(terms, now);
            self.is_scheduling.store(inner.scheduler.is_scheduling(), Ordering::SeqCst);
        });
    }

    /// Returns the maximum number of requests in flight, in all lanes together.
    pub(crate) fn width(&self) -> u32 {
        lock(&self.inner).scheduler.width.get()
    }

    /// Returns the number of waiting requests.
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Returns whether requests wait for a place, or another load would exceed three quarters of
    /// the maximum: then the next place should go to a request for which a caller waits.
    pub(crate) fn is_crowded(&self) -> bool {
        self.waiting_for_place.load(Ordering::Relaxed) > 0 || self.lanes.is_crowded(Lane::Load)
    }

    /// Runs `work` under the lock, then admits requests that can proceed, and wakes their tasks.
    fn locked<R>(&self, work: impl FnOnce(&mut Inner, Timestamp) -> R) -> R {
        let mut inner = lock(&self.inner);
        let now = self.clock.now();
        let result = work(&mut inner, now);
        let wakers = self.settle(&mut inner, now);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Admits requests that can proceed; returns the tasks to wake.
    fn settle(&self, inner: &mut Inner, now: Timestamp) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let due = loop {
            // This is stored before looking for a place: a place that is returned from now on
            // triggers another call.
            self.waiting.store(count(inner.scheduler.waiting()), Ordering::SeqCst);
            match inner.scheduler.next(&self.lanes, now) {
                Ok(granted) => {
                    wakers.extend(inner.wakers.remove(&granted.id));
                    inner.granted.insert(granted.id, granted);
                }
                Err(due) => break due,
            }
        };
        let limited = if inner.scheduler.waiting() == 0 { 0 } else { inner.scheduler.limited(now) };
        self.waiting_for_place.store(count(inner.scheduler.waiting() - limited), Ordering::Relaxed);
        let keeper = inner.keeper.filter(|keeper| inner.scheduler.is_waiting(keeper.id));
        inner.keeper = match (due, keeper) {
            // No request waits for a point in time.
            (None, _) => None,
            (Some(due), Some(keeper)) if keeper.due <= due && keeper.due > now => Some(keeper),
            (Some(due), keeper) => {
                let id = keeper.map(|keeper| keeper.id).or_else(|| inner.scheduler.first_waiting());
                wakers.extend(id.and_then(|id| inner.wakers.get(&id).cloned()));
                id.map(|id| Keeper { id, due })
            }
        };
        wakers
    }

    /// Returns a place.
    fn end(&self, lane: Lane, granted: Option<Granted>, answer: Option<(u64, Duration)>) {
        self.lanes.give_back(lane);
        if self.waiting.load(Ordering::SeqCst) == 0 && !self.is_scheduling.load(Ordering::SeqCst) {
            return;
        }
        self.locked(|inner, now| {
            let Some((bytes, latency)) = answer.filter(|_| inner.scheduler.is_scheduling()) else { return };
            granted.iter().for_each(|granted| inner.scheduler.adjust(granted, bytes));
            inner.scheduler.width.note_answer((lane, bytes), latency, self.lanes.under_way() + 1, now);
        });
    }

    /// Checks that counts and queues agree.
    #[inline]
    pub(crate) fn validate(&self) -> Result<(), String> {
        let inner = lock(&self.inner);
        inner.scheduler.validate()?;
        let (counted, waiting) = (self.waiting(), inner.scheduler.waiting());
        ensure(counted as usize == waiting, || {
            format!("{waiting} requests wait at the gate, counted {counted}")
        })?;
        let (woken, are_waiting) = (inner.wakers.len(), |id: &u64| inner.scheduler.is_waiting(*id));
        ensure(woken == waiting && inner.wakers.keys().all(are_waiting), || {
            format!("{waiting} requests wait at the gate, and {woken} can be woken")
        })?;
        let (granted, taken) = (inner.granted.len() as u64, u64::from(self.lanes.under_way()));
        ensure(granted <= taken, || format!("{granted} admitted requests have no place"))
    }
}

/// Waits until a request is admitted.
///
/// # Errors
/// `Retryable` if too many requests are waiting.
pub(crate) fn enter(gate: Arc<Gate>, ask: Ask) -> Enter {
    Enter { gate, ask, id: None, waiting_since: None, sleep: None }
}

/// See [`enter`]. Cancel safe: when dropped, the request no longer waits, and nothing is charged.
pub(crate) struct Enter {
    gate: Arc<Gate>,
    ask: Ask,
    id: Option<u64>,
    waiting_since: Option<Timestamp>,
    sleep: Option<(Timestamp, Sleep)>,
}

/// An admitted request. Its place is returned when this is dropped.
pub(crate) struct Pass {
    gate: Arc<Gate>,
    /// The lane of the request's place.
    lane: Option<Lane>,
    granted: Option<Granted>,
    answer: Option<(u64, Duration)>,
    /// The time that the request waited; `None` if it did not.
    pub(crate) waited: Option<Duration>,
}

impl Pass {
    /// Ends the request: the store has completed it, with `bytes` bytes, in the time `latency`.
    pub(crate) fn answered(mut self, bytes: u64, latency: Duration) {
        self.answer = Some((bytes, latency));
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(lane) = self.lane {
            self.gate.end(lane, self.granted, self.answer);
        }
    }
}

impl Enter {
    /// Admits the request at once, if requests need not be scheduled.
    fn at_once(&self) -> Option<Pass> {
        let (gate, lane) = (&self.gate, self.ask.lane);
        if gate.is_scheduling.load(Ordering::SeqCst) {
            return None;
        }
        let pass = |lane| Pass { gate: Arc::clone(gate), lane, granted: None, answer: None, waited: None };
        if lane == Lane::Change {
            return Some(pass(None));
        }
        (gate.waiting.load(Ordering::SeqCst) == 0 && gate.lanes.try_take(lane)).then(|| pass(Some(lane)))
    }

    /// Returns a pass if the request is admitted. Otherwise the gate wakes the task later; if
    /// `self.sleep` is set, the task must also call this again when the sleep ends.
    fn look(&mut self, cx: &Context<'_>) -> Result<Option<Pass>> {
        let gate = &*self.gate;
        let mut inner = lock(&gate.inner);
        let now = gate.clock.now();
        let id = match self.id {
            Some(id) => id,
            None if inner.scheduler.waiting() >= WAITERS_MAX => {
                return Err(Error::Retryable("too many requests wait for the store".into()));
            }
            None => *self.id.insert(inner.scheduler.enqueue(self.ask, now)),
        };
        let mut woken = Vec::new();
        if !inner.granted.contains_key(&id) {
            inner.wakers.insert(id, cx.waker().clone());
            woken = gate.settle(&mut inner, now);
        }
        let granted = inner.granted.remove(&id);
        let due = inner.keeper.filter(|keeper| keeper.id == id).map(|keeper| keeper.due);
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
        if granted.is_none() {
            self.waiting_since.get_or_insert(now);
            if self.sleep.as_ref().map(|(at, _)| *at) != due {
                self.sleep = due.map(|due| (due, gate.clock.sleep_until(due)));
            }
            return Ok(None);
        }
        self.id = None;
        let waited = self.waiting_since.map(|since| now.since(since));
        let lane = Some(self.ask.lane);
        Ok(Some(Pass { gate: Arc::clone(&self.gate), lane, granted, answer: None, waited }))
    }
}

impl Future for Enter {
    type Output = Result<Pass>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.id.is_none()
            && let Some(pass) = this.at_once()
        {
            return Poll::Ready(Ok(pass));
        }
        loop {
            if let Some(pass) = this.look(cx)? {
                return Poll::Ready(Ok(pass));
            }
            let Some((_, sleep)) = &mut this.sleep else { return Poll::Pending };
            std::task::ready!(sleep.as_mut().poll(cx));
            this.sleep = None;
        }
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let gate = &*self.gate;
        gate.locked(|inner, _| {
            inner.wakers.remove(&id);
            if let Some(granted) = inner.granted.remove(&id) {
                inner.scheduler.refund(&granted);
                gate.lanes.give_back(granted.ask.lane);
            } else {
                inner.scheduler.withdraw(id);
            }
        });
    }
}

//! The positions that are durable, and the tasks that wait for positions to become durable.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::error::NotDurable;
use crate::record::Position;

/// The number of separate ranges of failed positions that are remembered. Each range ends with a
/// restart, so there is at most one new range in 5 s. Beyond this number the two oldest ranges are
/// merged, and the positions between them count as failed.
const FAILED_RUNS_MAX: usize = 1024;

/// The outcome of all records up to a position.
#[derive(Default)]
pub(crate) struct Durability {
    /// Every position below this one is either durable or failed.
    decided: AtomicU64,
    has_failed: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Ranges of failed positions, first and last, in ascending order.
    failed: Vec<(u64, u64)>,
    waiters: BTreeMap<(u64, u64), Waker>,
    next_waiter: u64,
}

impl Durability {
    pub(crate) fn new(next_position: u64) -> Self {
        Self { decided: AtomicU64::new(next_position), ..Self::default() }
    }

    /// Returns the first undecided position.
    pub(crate) fn decided(&self) -> u64 {
        self.decided.load(Ordering::Acquire)
    }

    /// Returns the outcome of a record, or `None` while the outcome is undecided.
    pub(crate) fn outcome(&self, position: Position) -> Option<Result<(), NotDurable>> {
        if position.0 >= self.decided.load(Ordering::Acquire) {
            return None;
        }
        if !self.has_failed.load(Ordering::Acquire) {
            return Some(Ok(()));
        }
        let inner = self.inner.lock();
        let run = inner.failed.partition_point(|(_, last)| *last < position.0);
        let is_failed = inner.failed.get(run).is_some_and(|(first, _)| *first <= position.0);
        Some(if is_failed { Err(NotDurable) } else { Ok(()) })
    }

    /// Records that all positions below `next` are durable. Returns the wakers of waiting tasks, in
    /// the order of their positions.
    #[must_use]
    pub(crate) fn advance(&self, next: u64) -> Vec<Waker> {
        self.decided.store(next, Ordering::Release);
        self.inner.lock().take_below(next)
    }

    /// Records that the positions from `first` up to, but not including, `next` have failed.
    #[must_use]
    pub(crate) fn fail(&self, first: u64, next: u64) -> Vec<Waker> {
        let mut inner = self.inner.lock();
        if first < next {
            match inner.failed.last_mut() {
                Some((_, last)) if *last + 1 == first => *last = next - 1,
                _ => inner.failed.push((first, next - 1)),
            }
            if inner.failed.len() > FAILED_RUNS_MAX {
                let (oldest, _) = inner.failed.remove(0);
                inner.failed[0].0 = oldest;
            }
            self.has_failed.store(true, Ordering::Release);
        }
        self.decided.store(next, Ordering::Release);
        inner.take_below(next)
    }
}

impl Inner {
    fn take_below(&mut self, next: u64) -> Vec<Waker> {
        if self.waiters.first_key_value().is_none_or(|(key, _)| key.0 >= next) {
            return Vec::new();
        }
        let later = self.waiters.split_off(&(next, 0));
        std::mem::replace(&mut self.waiters, later).into_values().collect()
    }
}

/// A future that completes when a record is durable or has failed. Returned by
/// [`Journal::wait`](crate::Journal::wait).
///
/// Dropping the future ends the wait; the record becomes durable nevertheless.
#[must_use = "a future does nothing unless it is polled"]
pub struct Wait {
    pub(crate) durability: Arc<Durability>,
    pub(crate) position: Position,
    pub(crate) waiter: Option<u64>,
}

impl Future for Wait {
    type Output = Result<(), NotDurable>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let outcome = this.durability.outcome(this.position).or_else(|| {
            let mut inner = this.durability.inner.lock();
            // A commit stores `decided` before it takes the lock. So either the new value is visible
            // here, or the commit finds the waker that is registered below.
            if this.position.0 < this.durability.decided() {
                drop(inner);
                return this.durability.outcome(this.position);
            }
            let waiter = *this.waiter.get_or_insert_with(|| {
                inner.next_waiter += 1;
                inner.next_waiter
            });
            inner.waiters.insert((this.position.0, waiter), context.waker().clone());
            None
        });
        let Some(outcome) = outcome else { return Poll::Pending };
        // The commit takes the waker, if it has not done so yet.
        this.waiter = None;
        Poll::Ready(outcome)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            self.durability.inner.lock().waiters.remove(&(self.position.0, waiter));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    #[test]
    fn a_failed_position_stays_failed_among_durable_ones() {
        let durability = Durability::new(1);
        assert!(durability.outcome(Position(1)).is_none());
        assert!(durability.advance(4).is_empty());
        assert!(durability.fail(4, 6).is_empty());
        assert!(durability.advance(9).is_empty());
        let outcomes: Vec<_> = (1..10).map(|position| durability.outcome(Position(position))).collect();
        let failed: Vec<_> = outcomes.iter().map(|outcome| *outcome == Some(Err(NotDurable))).collect();
        assert_eq!(failed, [false, false, false, true, true, false, false, false, false]);
        assert_eq!(outcomes[8], None);
    }

    struct Recorder(u64, Arc<Mutex<Vec<u64>>>);

    impl Wake for Recorder {
        fn wake(self: Arc<Self>) {
            self.1.lock().push(self.0);
        }
    }

    #[test]
    fn tasks_are_woken_in_the_order_of_their_positions_and_forgotten_when_dropped() {
        let (durability, woken) = (Arc::new(Durability::new(1)), Arc::<Mutex<Vec<u64>>>::default());
        let mut waits: Vec<_> = [3, 1, 5, 2, 4]
            .map(|position| Wait {
                durability: Arc::clone(&durability),
                position: Position(position),
                waiter: None,
            })
            .into();
        for wait in &mut waits {
            let waker = Waker::from(Arc::new(Recorder(wait.position.0, Arc::clone(&woken))));
            // A task that is polled twice has only one waker.
            for _ in 0..2 {
                assert!(Pin::new(&mut *wait).poll(&mut Context::from_waker(&waker)).is_pending());
            }
        }
        drop(waits.remove(3));
        durability.advance(5).into_iter().for_each(Waker::wake);
        assert_eq!(*woken.lock(), [1, 3, 4]);
        let context = &mut Context::from_waker(Waker::noop());
        assert_eq!(Pin::new(&mut waits[0]).poll(context), Poll::Ready(Ok(())));
        assert_eq!(durability.inner.lock().waiters.len(), 1);
    }

    #[test]
    fn runs_of_failures_beyond_the_limit_are_joined() {
        let durability = Durability::new(1);
        for round in 0..2 * FAILED_RUNS_MAX as u64 {
            assert!(durability.fail(2 * round + 1, 2 * round + 2).is_empty());
            assert!(durability.advance(2 * round + 3).is_empty());
        }
        assert_eq!(durability.inner.lock().failed.len(), FAILED_RUNS_MAX);
        assert_eq!(durability.outcome(Position(4 * FAILED_RUNS_MAX as u64)), Some(Ok(())));
        assert_eq!(durability.outcome(Position(1)), Some(Err(NotDurable)));
    }
}

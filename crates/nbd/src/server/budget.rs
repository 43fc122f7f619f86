//! The bytes of payloads of all connections, which each connection takes from as its requests need them.
//!
//! A connection returns what its client has taken. One that finds nothing left waits in a queue, so that
//! large requests get their turn beside small ones; a client that takes nothing, or next to nothing while others wait,
//! is disconnected by the stall timeout, so that what it holds comes back.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// The unit of the budget, in bytes.
const UNIT_BYTES: u64 = 4096;
/// As many units are taken at least, if they are there: the next small requests find theirs.
const UNITS_MIN: u32 = 32;

/// The bytes of all connections.
pub(super) struct Budget {
    all: Arc<Semaphore>,
    waiting_count: Arc<AtomicUsize>,
}

/// What one connection has of them.
pub(super) struct Share {
    all: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    waiting: Option<Waiting>,
    /// The number of connections that wait.
    waiting_count: Arc<AtomicUsize>,
}

/// A place in the queue.
struct Waiting {
    acquiring: Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>,
    count: Arc<AtomicUsize>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

fn units(bytes: u64) -> u32 {
    // The checks of the settings keep all bytes below 1 TiB.
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

impl Budget {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { all: Arc::new(Semaphore::new(units(bytes_max) as usize)), waiting_count: Arc::default() }
    }

    pub(super) fn share(&self) -> Share {
        let waiting_count = Arc::clone(&self.waiting_count);
        Share { all: Arc::clone(&self.all), held: None, waiting: None, waiting_count }
    }
}

impl Share {
    fn held_units(&self) -> u32 {
        self.held.as_ref().map_or(0, |held| held.num_permits() as u32)
    }

    /// Takes as much as is missing for `bytes` in all, and a little more. Pending while others have it.
    pub(super) fn poll_hold(&mut self, bytes: u64, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(waiting) = &mut self.waiting {
                let Poll::Ready(permit) = waiting.acquiring.as_mut().poll(cx) else { return Poll::Pending };
                self.waiting = None;
                self.take(permit);
            }
            let missing = units(bytes).saturating_sub(self.held_units());
            if missing == 0 {
                return Poll::Ready(());
            }
            let try_take = |count| Arc::clone(&self.all).try_acquire_many_owned(count);
            match try_take(missing.max(UNITS_MIN)).or_else(|_| try_take(missing)) {
                Ok(permit) => self.take(Some(permit)),
                Err(TryAcquireError::NoPermits) => {
                    let acquiring = Arc::clone(&self.all).acquire_many_owned(missing);
                    let acquiring = Box::pin(async move { acquiring.await.ok() });
                    let count = Arc::clone(&self.waiting_count);
                    count.fetch_add(1, Ordering::Relaxed);
                    self.waiting = Some(Waiting { acquiring, count });
                }
                // It is never closed.
                Err(TryAcquireError::Closed) => return Poll::Ready(()),
            }
        }
    }

    fn take(&mut self, permit: Option<OwnedSemaphorePermit>) {
        let Some(permit) = permit else { return };
        match &mut self.held {
            Some(held) => held.merge(permit),
            None => self.held = Some(permit),
        }
    }

    /// Returns whether another connection waits.
    pub(super) fn do_others_wait(&self) -> bool {
        self.waiting_count.load(Ordering::Relaxed) > usize::from(self.waiting.is_some())
    }

    /// Leaves the queue: nothing more is asked for.
    pub(super) fn stop_waiting(&mut self) {
        self.waiting = None;
    }

    /// Returns what is held beyond `bytes`.
    pub(super) fn release_beyond(&mut self, bytes: u64) {
        let extra = self.held_units().saturating_sub(units(bytes));
        if extra > 0
            && let Some(held) = &mut self.held
        {
            drop(held.split(extra as usize));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_share_waits_for_what_others_hold_and_takes_its_turn() {
        let budget = Budget::new(10 * UNIT_BYTES);
        let mut cx = Context::from_waker(Waker::noop());
        let (mut first, mut second, mut third) = (budget.share(), budget.share(), budget.share());
        assert!(first.poll_hold(6 * UNIT_BYTES, &mut cx).is_ready());
        assert!(second.poll_hold(8 * UNIT_BYTES, &mut cx).is_pending());
        // What is left is kept for the one that came first.
        assert!(third.poll_hold(UNIT_BYTES, &mut cx).is_pending());
        assert!(first.do_others_wait());
        first.release_beyond(2 * UNIT_BYTES);
        assert!(second.poll_hold(8 * UNIT_BYTES, &mut cx).is_ready());
        assert!(third.poll_hold(UNIT_BYTES, &mut cx).is_pending());
        assert!(second.do_others_wait() && !third.do_others_wait());
        drop(second);
        assert!(third.poll_hold(UNIT_BYTES, &mut cx).is_ready());
        assert_eq!((first.held_units(), third.held_units()), (2, 1));
        assert!(!first.do_others_wait());
        // One that leaves the queue holds up no other.
        assert!(third.poll_hold(10 * UNIT_BYTES, &mut cx).is_pending());
        let mut fourth = budget.share();
        assert!(fourth.poll_hold(7 * UNIT_BYTES, &mut cx).is_pending());
        third.stop_waiting();
        assert!(fourth.poll_hold(7 * UNIT_BYTES, &mut cx).is_ready());
    }
}

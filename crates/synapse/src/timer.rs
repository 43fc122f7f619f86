//! One timer of a connection, on the injected clock.
//!
//! A clock's sleep leaves an entry behind each time it is polled, so it is polled only when the timer is set
//! and when the task has another waker. Whether the timer has expired is read from the clock.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use blocker::clock::Sleep;
use blocker::{Clock, Timestamp};

pub(crate) struct Timer {
    clock: Arc<dyn Clock>,
    at: Timestamp,
    sleep: Option<Sleep>,
    waker: Option<Waker>,
}

impl Timer {
    /// Returns a timer that expires after `delay`.
    pub(crate) fn after(clock: Arc<dyn Clock>, delay: Duration) -> Self {
        let at = clock.now() + delay;
        Self { clock, at, sleep: None, waker: None }
    }

    /// Moves the expiry to `at`.
    pub(crate) fn set(&mut self, at: Timestamp) {
        if at != self.at {
            (self.at, self.sleep, self.waker) = (at, None, None);
        }
    }

    /// Ready once the timer has expired, by the clock or by `now`, and until it is set again. The clock may
    /// be ahead of `now`: a task that decides by `now` wakes itself once more.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, now: Timestamp) -> Poll<()> {
        if now >= self.at {
            return Poll::Ready(());
        }
        if self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        let sleep = self.sleep.get_or_insert_with(|| self.clock.sleep_until(self.at));
        if sleep.as_mut().poll(cx).is_ready() {
            self.sleep = None;
            return Poll::Ready(());
        }
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Waits until the timer expires.
    pub(crate) async fn expired(mut self) {
        let clock = Arc::clone(&self.clock);
        std::future::poll_fn(move |cx| self.poll(cx, clock.now())).await;
    }
}

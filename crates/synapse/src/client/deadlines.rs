//! The deadlines of a lane's calls, kept with a connection and without one.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use blocker::Timestamp;

use super::Shared;
use super::lane::Lane;
use crate::timer::Timer;

/// One timer for all calls of a lane: it is set to the next deadline.
pub(super) struct Deadlines {
    timer: Timer,
    shared: Arc<Shared>,
}

impl Deadlines {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let timer = Timer::after(Arc::clone(&shared.config.clock), Duration::MAX);
        Self { timer, shared: Arc::clone(shared) }
    }

    /// Fails the calls whose deadline has passed, and has the task polled again at the next one.
    pub(super) fn poll(&mut self, lane: &Lane, now: Timestamp, cx: &mut Context<'_>) {
        let (due, expired_count) = lane.expire(now);
        self.shared.counters.late.fetch_add(expired_count, Ordering::Relaxed);
        self.timer.set(due);
        if self.timer.poll(cx, now).is_ready() {
            // It came due after the calls were looked at.
            cx.waker().wake_by_ref();
        }
    }

    /// Waits for `future` and keeps deadlines meanwhile. Returns `None` once the client is closed.
    pub(super) async fn during<T>(&mut self, lane: &Lane, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if lane.register(cx.waker()) {
                return Poll::Ready(None);
            }
            self.poll(lane, self.shared.config.clock.now(), cx);
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

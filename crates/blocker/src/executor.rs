//! A minimal executor: poll, park the thread, poll again. For threads without a runtime, tools,
//! tests and the conformance suite.
//!
//! ```
//! let reply = blocker::Reply::ok(7);
//! assert_eq!(blocker::executor::block_on(reply), Ok(7));
//! ```

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// The waker of the thread, created once so that a ready reply costs no allocation.
    static WAKER: Waker = Arc::new(Unpark(std::thread::current())).into();
}

/// Returns a waker that unparks the current thread.
#[must_use]
pub fn thread_waker() -> Waker {
    WAKER.with(Waker::clone)
}

/// Runs `future`, for example a [`crate::Reply`], on this thread to completion.
#[inline]
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    WAKER.with(|waker| {
        let mut cx = Context::from_waker(waker);
        loop {
            match future.as_mut().poll(&mut cx) {
                Poll::Ready(output) => return output,
                Poll::Pending => std::thread::park(),
            }
        }
    })
}

/// Runs `future` on this thread for at most `timeout`, then drops it. Returns its output, if it
/// completed.
pub fn block_on_for<F: IntoFuture>(future: F, timeout: Duration) -> Option<F::Output> {
    let give_up = Instant::now() + timeout;
    let mut future = pin!(future.into_future());
    let waker = thread_waker();
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        let left = give_up.checked_duration_since(Instant::now())?;
        std::thread::park_timeout(left);
    }
}

/// Polls `future` at most `polls` times, parking for at most `timeout` in between, then drops it.
/// Returns its output, if it completed.
pub fn poll_times<F: IntoFuture>(future: F, polls: usize, timeout: Duration) -> Option<F::Output> {
    let mut future = pin!(future.into_future());
    let waker = thread_waker();
    let mut cx = Context::from_waker(&waker);
    for poll in 1..=polls {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        if poll < polls {
            std::thread::park_timeout(timeout);
        }
    }
    None
}

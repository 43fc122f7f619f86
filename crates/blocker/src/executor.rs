//! The smallest executor there is: poll, park, poll again. For tests, tools and the conformance suite,
//! which must run without a runtime; a server uses its own.

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
    /// Made once per thread: an answer that is ready should cost no allocation here either.
    static WAKER: Waker = Arc::new(Unpark(std::thread::current())).into();
}

/// A waker that unparks the current thread.
#[must_use]
pub fn thread_waker() -> Waker {
    WAKER.with(Waker::clone)
}

/// Runs `future` on this thread until it completes. Takes a [`crate::Reply`] as well.
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

/// Like [`block_on`], but gives up, dropping the future, after `patience`.
pub fn block_on_for<F: IntoFuture>(future: F, patience: Duration) -> Option<F::Output> {
    let give_up = Instant::now() + patience;
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

/// Polls `future` at most `polls` times, parking in between (at most `patience` each time), then drops
/// it. The output, if it came.
pub fn poll_times<F: IntoFuture>(future: F, polls: usize, patience: Duration) -> Option<F::Output> {
    let mut future = pin!(future.into_future());
    let waker = thread_waker();
    let mut cx = Context::from_waker(&waker);
    for poll in 1..=polls {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        if poll < polls {
            std::thread::park_timeout(patience);
        }
    }
    None
}

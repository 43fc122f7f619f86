//! Requests whose replies are pending, and what becomes of them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use blocker::{Error, Reply, Segments};

use crate::protocol::{Extent, Request};

/// What a request has resulted in.
pub(super) enum Outcome {
    /// It is done, and there is nothing to return.
    Done,
    /// The bytes of a read, which was to be answered in one chunk or not.
    Read(Segments, bool),
    /// The extents of each context, of a request for one extent or for many.
    Status(Vec<(u32, Vec<Extent>)>, bool),
}

/// A request that is being executed.
pub(super) struct InFlight {
    request: Request,
    /// The bytes that it takes until its reply has been sent.
    pub(super) cost_bytes: u64,
    pending: Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>>,
}

/// An outcome, there already or to come.
pub(super) enum Step {
    Ready(Result<Outcome, Error>),
    Pending(InFlight),
}

impl Step {
    /// Returns the step that `reply` to `request` makes; `wrap` makes an outcome of its value. A reply is polled once:
    /// one that waits for nothing is no request in flight.
    pub(super) fn new<T: 'static>(
        request: Request,
        reply: Reply<T>,
        cx: &mut Context<'_>,
        wrap: impl FnOnce(T) -> Outcome + Send + 'static,
    ) -> Self {
        let mut future = match reply {
            Reply::Ready(answer) => return Self::Ready(answer.map(wrap)),
            Reply::Pending(future) => future,
        };
        match future.as_mut().poll(cx) {
            Poll::Ready(answer) => Self::Ready(answer.map(wrap)),
            Poll::Pending => Self::later(request, async move { future.await.map(wrap) }),
        }
    }

    /// Returns the step of a request whose outcome `future` has.
    pub(super) fn later(
        request: Request,
        future: impl Future<Output = Result<Outcome, Error>> + Send + 'static,
    ) -> Self {
        Self::Pending(InFlight { request, cost_bytes: 0, pending: Box::pin(future) })
    }
}

impl Future for InFlight {
    /// The request, its cost in bytes, and what it has resulted in.
    type Output = (Request, u64, Result<Outcome, Error>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (request, cost_bytes) = (self.request, self.cost_bytes);
        self.pending.as_mut().poll(cx).map(|outcome| (request, cost_bytes, outcome))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_reply_that_waits_for_nothing_is_not_in_flight() {
        let mut cx = Context::from_waker(Waker::noop());
        let request = Request { flags: 0, command: 1, cookie: 7, offset: 0, len_bytes: 1 };
        let done = |()| Outcome::Done;
        let at_once = Reply::pending(async { Ok(()) });
        let step = Step::new(request, at_once, &mut cx, done);
        assert!(matches!(step, Step::Ready(Ok(Outcome::Done))));
        let mut polls = 0;
        let at_the_second = poll_fn(move |_| {
            polls += 1;
            if polls == 2 { Poll::Ready(Err(Error::Missing)) } else { Poll::Pending }
        });
        let step = Step::new(request, Reply::pending(at_the_second), &mut cx, done);
        let Step::Pending(mut in_flight) = step else { panic!("it waits") };
        let Poll::Ready((of, _, outcome)) = Pin::new(&mut in_flight).poll(&mut cx) else {
            panic!("it has waited")
        };
        assert!(of.cookie == 7 && matches!(outcome, Err(Error::Missing)));
    }
}

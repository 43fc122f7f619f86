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
    /// Returns the step that `reply` to `request` makes; `wrap` makes an outcome of its value.
    pub(super) fn new<T: 'static>(
        request: Request,
        reply: Reply<T>,
        wrap: impl FnOnce(T) -> Outcome + Send + 'static,
    ) -> Self {
        match reply {
            Reply::Ready(answer) => Self::Ready(answer.map(wrap)),
            Reply::Pending(future) => Self::later(request, async move { future.await.map(wrap) }),
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

//! Waiting until changes are stored: one ticket for as many objects as a flush covers.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use blocker::{Error, Reason, Result};

use crate::object::lock_ranks;
use crate::sync::{Arc, Mutex, lock};

/// Counts the objects that are still to be stored.
pub(crate) struct FlushTicket {
    state: Mutex<Waiting>,
}

impl Default for FlushTicket {
    fn default() -> Self {
        Self { state: Mutex::ranked(Waiting::default(), &lock_ranks::TICKET) }
    }
}

#[derive(Default)]
struct Waiting {
    objects: usize,
    failed: Option<Error>,
    waker: Option<Waker>,
    /// Why the store did not take it at the last try, for a caller whose deadline passes.
    last: Option<Reason>,
}

impl FlushTicket {
    /// One more object is to be stored.
    pub(crate) fn add(&self) {
        lock(&self.state).objects += 1;
    }

    /// One object is stored, or never will be.
    pub(crate) fn complete(&self, result: Result<()>) {
        let waker = {
            let mut state = lock(&self.state);
            state.objects -= 1;
            match (&state.failed, result) {
                (_, Ok(())) => (),
                // That something is not stored yet matters more than that something is recorded as lost.
                (None | Some(Error::WritesLost(_)), Err(error)) => state.failed = Some(error),
                (Some(_), Err(_)) => (),
            }
            if state.objects == 0 { state.waker.take() } else { None }
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// It was tried, and will be again.
    pub(crate) fn note(&self, why: &Error) {
        lock(&self.state).last = Some(why.to_string().into());
    }

    /// Why it has not been stored yet.
    pub(crate) fn why(&self) -> Reason {
        lock(&self.state).last.clone().unwrap_or_else(|| "the deadline passed".into())
    }
}

/// Completes when all objects of the ticket are stored. Cancel safe.
pub(crate) struct Stored(pub(crate) Arc<FlushTicket>);

impl Future for Stored {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let mut state = lock(&self.0.state);
        if state.objects > 0 {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(state.failed.take().map_or(Ok(()), Err))
    }
}

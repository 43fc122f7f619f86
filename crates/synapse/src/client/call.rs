//! One call: a future that takes a slot, waits for the answer, and cancels the request when it is dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use blocker::trace::{Span, SpanKind};
use blocker::{Error, Result, note_error};

use super::Core;
use super::lane::{Lane, Submitted};
use crate::codec::{Answer, Outcome, Request, RequestId};

/// A call that returns a `T`. Nothing happens before it is polled.
pub(super) struct Call<T> {
    core: Arc<Core>,
    /// The request, until it is moved into a slot.
    request: Option<Request>,
    place: Place,
    /// Returns the reply in an answer, if it is of the right operation.
    take: fn(Answer) -> Option<T>,
    /// From its making to its answer, if it is traced.
    span: Option<Span>,
}

#[derive(Clone, Copy)]
enum Place {
    Start,
    Waits { lane: usize, ticket: u64 },
    Submitted { lane: usize, id: RequestId },
    Done,
}

impl<T> Call<T> {
    pub(super) fn new(core: Arc<Core>, request: Request, take: fn(Answer) -> Option<T>) -> Self {
        let (mut request, mut span) = (request, None);
        if let Some(tracer) = &core.config.tracer
            && let Some(parent) = request.call().trace
            && let Some(name) = request.op().span_name()
        {
            let mut begun = tracer.child(parent, name, SpanKind::Client);
            begun.set("rpc.system", "synapse");
            begun.set("server.address", core.config.address.to_string());
            request.set_trace(begun.context());
            span = Some(begun);
        }
        Self { core, request: Some(request), place: Place::Start, take, span }
    }

    /// Ends the span with an outcome.
    #[cold]
    fn end_span(&mut self, outcome: &Result<Outcome>) {
        let Some(mut span) = self.span.take() else { return };
        match outcome {
            Ok(Outcome::Answered(_)) => {}
            Ok(Outcome::Failed(error)) | Err(error) => note_error(&mut span, error),
            Ok(Outcome::Cancelled) => span.fail("the server has cancelled the request"),
        }
    }

    fn submit(&mut self, lane: usize, ticket: Option<u64>, cx: &Context<'_>) -> Poll<Result<T>> {
        self.place = match self.core.lanes[lane].submit(&mut self.request, ticket, cx) {
            Submitted::Queued(id) => {
                if let Some(span) = &mut self.span {
                    span.set("synapse.request_id", id.to_string());
                    span.set("synapse.lane", lane as u64);
                }
                Place::Submitted { lane, id }
            }
            Submitted::Waits(ticket) => Place::Waits { lane, ticket },
            Submitted::Failed(error) => {
                self.place = Place::Done;
                if let Some(span) = &mut self.span {
                    note_error(span, &error);
                }
                return Poll::Ready(Err(error));
            }
        };
        Poll::Pending
    }

    fn unwrap(&self, outcome: Result<Outcome>) -> Result<T> {
        match outcome? {
            Outcome::Answered(answer) => {
                let wrong = || Error::Retryable("the server has answered another operation".into());
                (self.take)(answer).ok_or_else(wrong)
            }
            Outcome::Failed(error) => Err(error),
            // Only a dropped call is cancelled, and then its outcome is not collected.
            Outcome::Cancelled => Err(Error::OutcomeUnknown("the server has cancelled the request".into())),
        }
    }

    fn lane(&self, index: usize) -> &Lane {
        &self.core.lanes[index]
    }
}

impl<T> Future for Call<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.place {
            Place::Start => {
                let lane = self.core.choose_lane();
                self.submit(lane, None, cx)
            }
            Place::Waits { lane, ticket } => self.submit(lane, Some(ticket), cx),
            Place::Submitted { lane, id } => {
                let outcome = ready!(self.lane(lane).poll(id, cx));
                self.place = Place::Done;
                if self.span.is_some() {
                    self.end_span(&outcome);
                }
                Poll::Ready(self.unwrap(outcome))
            }
            Place::Done => panic!("polled after completion"),
        }
    }
}

impl<T> Drop for Call<T> {
    fn drop(&mut self) {
        match self.place {
            Place::Waits { lane, ticket } => self.lane(lane).cancel_wait(ticket),
            Place::Submitted { lane, id } => self.lane(lane).abandon(id),
            Place::Start | Place::Done => {}
        }
    }
}

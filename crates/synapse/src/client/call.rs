//! One call under way: a future that takes a slot, waits for the answer, and cancels when it is dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use blocker::{Error, Result};

use super::Core;
use super::lane::{Lane, Submitted};
use crate::codec::{Answer, Outcome, Request, RequestId};

/// A call; nothing happens before it is polled.
pub(super) struct Call {
    core: Arc<Core>,
    state: State,
}

enum State {
    Start(Box<Request>),
    Waits { lane: usize, request: Box<Request>, ticket: u64 },
    UnderWay { lane: usize, id: RequestId },
    Done,
}

impl Call {
    pub(super) fn new(core: Arc<Core>, request: Request) -> Self {
        Self { core, state: State::Start(Box::new(request)) }
    }

    fn submit(
        &mut self,
        lane: usize,
        request: Box<Request>,
        ticket: Option<u64>,
        cx: &Context<'_>,
    ) -> Poll<Error> {
        self.state = match self.core.lanes[lane].submit(request, ticket, cx) {
            Submitted::Queued(id) => State::UnderWay { lane, id },
            Submitted::Waits(request, ticket) => State::Waits { lane, request, ticket },
            Submitted::Failed(error) => return Poll::Ready(error),
        };
        Poll::Pending
    }

    fn lane(&self, index: usize) -> &Lane {
        &self.core.lanes[index]
    }
}

impl Future for Call {
    type Output = Result<Answer>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let failed = match std::mem::replace(&mut self.state, State::Done) {
            State::Start(request) => {
                let lane = self.core.choose_lane();
                self.submit(lane, request, None, cx)
            }
            State::Waits { lane, request, ticket } => self.submit(lane, request, Some(ticket), cx),
            State::UnderWay { lane, id } => match self.lane(lane).poll(id, cx) {
                Poll::Pending => {
                    self.state = State::UnderWay { lane, id };
                    Poll::Pending
                }
                Poll::Ready(outcome) => {
                    return Poll::Ready(match outcome {
                        Ok(Outcome::Answered(answer)) => Ok(answer),
                        Ok(Outcome::Failed(error)) | Err(error) => Err(error),
                        Ok(Outcome::Cancelled) => {
                            // Only what we have cancelled is, and then nobody asks.
                            Err(Error::OutcomeUnknown("the server has cancelled the request".into()))
                        }
                    });
                }
            },
            State::Done => panic!("polled after completion"),
        };
        failed.map(Err)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        match &self.state {
            State::Waits { lane, ticket, .. } => self.lane(*lane).leave(*ticket),
            State::UnderWay { lane, id } => self.lane(*lane).abandon(*id),
            State::Start(_) | State::Done => {}
        }
    }
}

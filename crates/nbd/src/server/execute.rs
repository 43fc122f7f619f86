//! The execution of requests: it calls the export and turns the outcome into a reply, at once or
//! once it is ready.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use blocker::{Error, Reply, Segments};

use super::connection::Transmission;
use super::input::Input;
use crate::export::READ_AHEAD_BYTES;
use crate::protocol::wire::EXTENTS_MAX;
use crate::protocol::{
    Command, Errno, Extent, Refusal, Request, Session, encode_block_status, encode_done, encode_error,
    encode_read, sent_extents,
};

/// The outcome of a request.
pub(super) enum Outcome {
    /// Done, without data to return.
    Done,
    /// The bytes of a read, and whether the reply has to be one chunk.
    Read(Segments, bool),
    /// The extents of each context, and whether the client asked for only one extent.
    Status(Vec<(u32, Vec<Extent>)>, bool),
}

/// A request in flight.
pub(super) struct InFlight {
    request: Request,
    /// The bytes that the request holds until its reply has been sent.
    pub(super) cost_bytes: u64,
    pending: Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>>,
}

/// An outcome that is ready, or its future.
pub(super) enum Step {
    Ready(Result<Outcome, Error>),
    Pending(InFlight),
}

impl Step {
    /// Polls `reply` once and returns the outcome if it is ready, or else its future. `wrap` makes
    /// an outcome from its value. A reply that does not wait for anything never becomes a request
    /// in flight.
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

    /// Returns a step that waits for the outcome of `future`.
    pub(super) fn later(
        request: Request,
        future: impl Future<Output = Result<Outcome, Error>> + Send + 'static,
    ) -> Self {
        Self::Pending(InFlight { request, cost_bytes: 0, pending: Box::pin(future) })
    }
}

impl Future for InFlight {
    /// The request, its cost in bytes, and its outcome.
    type Output = (Request, u64, Result<Outcome, Error>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (request, cost_bytes) = (self.request, self.cost_bytes);
        self.pending.as_mut().poll(cx).map(|outcome| (request, cost_bytes, outcome))
    }
}

/// Returns the bytes that a request holds until its reply has been sent.
pub(super) fn cost_bytes(
    request: &Request,
    checked: Result<Command, Refusal>,
    session: &Session,
    input: &Input,
) -> u64 {
    match checked {
        Ok(Command::Read { .. }) => request.len_bytes.into(),
        Ok(Command::BlockStatus { is_one }) => {
            let extents = if is_one { 1 } else { EXTENTS_MAX.min(request.len_bytes as usize) };
            (session.contexts.len() * extents * size_of::<Extent>()) as u64
        }
        Ok(Command::Cache) => request.len_bytes.min(READ_AHEAD_BYTES).into(),
        _ => input.payload_memory_bytes(request),
    }
}

impl Transmission<'_> {
    /// Calls the export.
    pub(super) fn execute(
        &mut self,
        request: Request,
        command: Command,
        payload: Segments,
        cx: &mut Context<'_>,
    ) -> Step {
        let Request { offset, len_bytes, .. } = request;
        let export = &self.export;
        let done = |()| Outcome::Done;
        match command {
            Command::Flush => {
                self.counts.flushes += 1;
                Step::new(request, export.flush(), cx, done)
            }
            Command::BlockStatus { is_one } => self.block_status(request, is_one),
            Command::Read { is_unfragmented } if len_bytes > 0 => {
                let wrap = move |data| Outcome::Read(data, is_unfragmented);
                Step::new(request, export.read(offset, len_bytes), cx, wrap)
            }
            Command::Read { is_unfragmented } => {
                Step::Ready(Ok(Outcome::Read(Segments::new(), is_unfragmented)))
            }
            // An empty range needs no work.
            _ if len_bytes == 0 => Step::Ready(Ok(Outcome::Done)),
            Command::Write { fua } => {
                self.counts.written_bytes += u64::from(len_bytes);
                Step::new(request, export.write(offset, payload, fua), cx, done)
            }
            Command::Trim { fua } => Step::new(request, export.trim(offset, len_bytes, fua), cx, done),
            Command::Cache => Step::new(request, export.cache(offset, len_bytes), cx, done),
            Command::WriteZeroes(zeroes) => {
                Step::new(request, export.write_zeroes(offset, len_bytes, zeroes), cx, done)
            }
            Command::Disconnect => Step::Ready(Ok(Outcome::Done)),
        }
    }

    fn block_status(&self, request: Request, is_one: bool) -> Step {
        let Request { offset, len_bytes, .. } = request;
        let (export, session) = (Arc::clone(&self.export), Arc::clone(&self.session));
        Step::later(request, async move {
            let mut extents = Vec::with_capacity(session.contexts.len());
            // One context after the other, keeping only the extents that will be sent: an export
            // may return any number.
            for (id, context) in &session.contexts {
                let all = export.block_status(context, offset, len_bytes, is_one).await?;
                extents.push((*id, sent_extents(&all, len_bytes, is_one)));
            }
            Ok(Outcome::Status(extents, is_one))
        })
    }

    /// Appends the reply for an outcome.
    pub(super) fn answer(&mut self, request: Request, outcome: Result<Outcome, Error>) {
        let (cookie, is_structured) = (request.cookie, self.session.is_structured);
        match outcome {
            Ok(Outcome::Done) => self.output.push_head(|out| encode_done(out, cookie)),
            Ok(Outcome::Read(data, _)) if data.len_bytes() != request.len_bytes as usize => {
                // Sending it would break the stream's framing.
                tracing::error!(peer = %self.peer, ?request, "a read returned {} bytes", data.len_bytes());
                self.refuse(&request, Errno::Eio, "the export returned the wrong number of bytes");
            }
            Ok(Outcome::Read(data, is_unfragmented)) => {
                self.counts.read_bytes += data.len_bytes() as u64;
                let output = &mut self.output;
                encode_read(cookie, is_structured, is_unfragmented, request.offset, data, |head, data| {
                    output.push(|out| {
                        head(out);
                        data
                    });
                });
            }
            Ok(Outcome::Status(extents, is_one)) => self.output.push_head(|out| {
                encode_block_status(out, cookie, request.len_bytes, is_one, &extents);
            }),
            Err(error) => {
                self.shared.log_failure(self.peer, &request, &error);
                self.refuse(&request, Errno::of(&error), &error.to_string());
            }
        }
    }

    /// Appends an error.
    pub(super) fn refuse(&mut self, request: &Request, errno: Errno, why: &str) {
        self.counts.failures += 1;
        let is_structured = self.session.is_structured;
        self.output.push_head(|out| encode_error(out, request.cookie, is_structured, errno, why));
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

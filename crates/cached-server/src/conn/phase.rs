//! Where a connection stands between two bytes of input, and how it continues there.

use super::Connection;
use crate::exec::{self, Begun, Dump, Executor, Next};
use crate::stream::{Body, OutOfMemory};
use crate::watch::Subscription;
use cached_proto::Protocol;
use cached_proto::text::GetCursor;

/// Where a connection stands between two bytes of input.
pub(super) enum Phase {
    /// At the start of a request, or within one that is incomplete.
    Command,
    /// Within a retrieval that filled the output buffer; its line is still in the input and `line_bytes`
    /// long.
    Get { cursor: GetCursor, line_bytes: usize },
    /// Within a dump.
    Dump(Dump),
    /// Within a value.
    Body(Box<Body>),
    /// Within a value that was refused, this many bytes before its end.
    Swallow(usize),
    /// Receiving log lines from the log thread; input is ignored.
    Watch(#[expect(dead_code, reason = "dropping it ends the subscription")] Subscription),
}

impl Phase {
    /// Returns the phase for a value of `body_len` bytes that follows `head`, once its command has begun.
    pub(super) fn of_body(begun: Begun, protocol: Protocol, head: &[u8], body_len: usize) -> Phase {
        match begun {
            Begun::Reserved(reservation) => {
                Phase::Body(Box::new(Body::reserved(protocol, head, reservation)))
            }
            Begun::Collect(bytes) => Phase::Body(Box::new(Body::collected(protocol, head, bytes))),
            Begun::Refused => Phase::Swallow(body_len),
        }
    }
}

/// Why execution stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    /// All input is used, except for an incomplete request.
    Input,
    /// The output is to be sent before more is executed.
    Output,
    /// The budget of requests is used up.
    Budget,
    /// The connection is to be closed once the output is sent.
    Close,
}

impl Connection {
    /// Starts to discard `bytes` of a value that was refused.
    pub(super) fn swallow(&mut self, bytes: usize) {
        if bytes > 0 {
            self.phase = Phase::Swallow(bytes);
        }
    }

    /// Continues in a phase other than `Command`. Returns how many bytes of the input were used, or why it
    /// stopped.
    #[cold]
    pub(super) fn resume(&mut self, executor: &mut Executor<'_>, input: &[u8]) -> Result<usize, StopReason> {
        match &mut self.phase {
            Phase::Command => Ok(0),
            Phase::Get { cursor, line_bytes } => match exec::get_many(executor, &mut cursor.resume(input)) {
                Next::Suspend(further) => {
                    *cursor = further;
                    Err(StopReason::Output)
                }
                _ => {
                    let used = *line_bytes;
                    self.phase = Phase::Command;
                    Ok(used)
                }
            },
            Phase::Dump(dump) => match exec::resume_dump(executor, *dump) {
                Next::Dump(further) => {
                    *dump = further;
                    Err(StopReason::Output)
                }
                _ => {
                    self.phase = Phase::Command;
                    Ok(0)
                }
            },
            Phase::Body(body) => {
                let (used, result) = body.feed(input);
                match result {
                    Err(OutOfMemory) => self.refuse_body(executor),
                    Ok(()) if body.missing() == 0 => self.finish_body(executor),
                    Ok(()) => {}
                }
                Ok(used)
            }
            Phase::Watch(_) => Ok(input.len()),
            Phase::Swallow(bytes) => {
                let used = input.len().min(*bytes);
                *bytes -= used;
                if *bytes == 0 {
                    self.phase = Phase::Command;
                }
                Ok(used)
            }
        }
    }

    /// Stores the value that has arrived completely, and replies.
    pub(super) fn finish_body(&mut self, executor: &mut Executor<'_>) {
        let Phase::Body(body) = std::mem::replace(&mut self.phase, Phase::Command) else { return };
        exec::finish(executor, *body);
    }

    /// Refuses a value for which there is no memory: replies, and discards the rest of it.
    #[cold]
    pub(super) fn refuse_body(&mut self, executor: &mut Executor<'_>) {
        let Phase::Body(body) = std::mem::replace(&mut self.phase, Phase::Command) else { return };
        self.phase = Phase::Swallow(body.missing());
        exec::refuse(executor, *body);
    }
}

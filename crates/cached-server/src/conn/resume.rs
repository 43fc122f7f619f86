//! How a connection continues where it stands between two bytes of input.

use super::Connection;
use super::phase::{Phase, StopReason};
use crate::exec::{self, Executor, Next};
use crate::stream::OutOfMemory;

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
            Phase::Gate(_) => self.pass_gate(executor, input),
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
                    Err(if executor.work.is_used_up() { StopReason::Budget } else { StopReason::Output })
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

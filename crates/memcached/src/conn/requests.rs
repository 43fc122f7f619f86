//! From input bytes to executed requests: the loop, one function for each protocol, and the
//! continuation of unfinished requests.
//!
//! To add a protocol: give it a variant in [`Protocol`] and a decoder in `cached-proto`, a function
//! `…_request` here that takes one request from the front of the input, and a function in `exec/`
//! that executes the request. Reading, sending, budgets and large values
//! ([`Connection::begin_body`]) are the same for all protocols.

use super::drive::Budget;
use super::{Connection, Phase, StopReason, WorkerContext};
use crate::exec::{self, Begun, Executor, Next};
use crate::shared::Shared;
use crate::stream::OutOfMemory;
use crate::telemetry::watch::{Refused, Relay, Sink, Subscription};
use cached_proto::binary::sasl::is_sasl;
use cached_proto::{Decoded, Limits, Protocol, binary, text};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Values up to this size are collected in the input buffer; larger ones are read directly into
/// their destination.
pub(super) const BUFFERED_BODY_BYTES_MAX: usize = 4 << 10;

/// The number of input bytes that one request consumed, and how the connection continues; or the
/// reason why execution stops.
pub(super) type Executed = Result<(usize, Next), StopReason>;

impl Connection {
    /// Executes the complete requests in `input`; replies go to the output buffer. Returns the
    /// number of bytes consumed, and the reason why execution stopped.
    pub(super) fn execute(
        &mut self,
        context: &mut WorkerContext<'_>,
        input: &[u8],
        budget: &mut Budget,
    ) -> (usize, StopReason) {
        let (shared, client) = (context.shared, context.client);
        // Without a limit on requests, several can be executed at once.
        let at_once = !budget.limits_requests();
        let mut executor = context.executor();
        let mut used = 0;
        let mut scanned = std::mem::take(&mut self.scanned);
        loop {
            let rest = &input[used..];
            if !matches!(self.phase, Phase::Command) {
                let (count, stop) = self.continue_unusual(&mut executor, client, rest, budget, scanned);
                used += count;
                scanned = 0;
                match stop {
                    Some(stop) => return (used, stop),
                    None => continue,
                }
            }
            let Some(&first) = rest.first() else { return (used, StopReason::Input) };
            let protocol = *self.protocol.get_or_insert_with(|| Protocol::detect(first));
            let next = match protocol {
                Protocol::Text if at_once && let Some((key, consumed)) = text::plain_get(rest) => {
                    used += exec::get_plain_run(&mut executor, rest, key, consumed);
                    // The most common exit, reached by the shortest path.
                    if used == input.len() {
                        return (used, StopReason::Input);
                    }
                    Next::Continue
                }
                Protocol::Text
                    if first == b'g'
                        && let Some(consumed) = exec::get_plain_keys(&mut executor, rest) =>
                {
                    used += consumed;
                    Next::Continue
                }
                Protocol::Text => match self.text_request(&mut executor, rest, scanned) {
                    Ok((consumed, next)) => {
                        used += consumed;
                        next
                    }
                    Err(stop) => return (used, stop),
                },
                Protocol::Binary => match self.binary_request(&mut executor, rest) {
                    Ok((consumed, next)) => {
                        used += consumed;
                        next
                    }
                    Err(stop) => return (used, stop),
                },
            };
            scanned = 0;
            budget.take_request();
            match next {
                Next::Dump(dump) if self.is_datagram() && dump.is_of_all() => executor.refuse_dump(),
                Next::Dump(dump) => {
                    self.phase = Phase::Dump(dump);
                    return (used, StopReason::Output);
                }
                Next::Watch(events) => match self.subscribe(shared, client, events) {
                    Ok(subscription) => self.phase = Phase::Watch(subscription),
                    Err(refused) => executor.refuse_watcher(refused),
                },
                Next::Continue if executor.out.is_full() => return (used, StopReason::Output),
                Next::Continue if budget.has_no_request() && used < input.len() => {
                    return (used, StopReason::Budget);
                }
                Next::Continue | Next::Suspend(_) | Next::Defer => {}
                Next::Close => return (used, StopReason::Close),
            }
        }
    }

    /// Continues in a phase other than `Command`. Returns the number of bytes consumed, and the reason
    /// why execution stops, if it does. The first `scanned` bytes of `rest` are known to contain no
    /// line feed.
    #[cold]
    #[inline(never)]
    fn continue_unusual(
        &mut self,
        executor: &mut Executor<'_>,
        client: BorrowedFd<'_>,
        rest: &[u8],
        budget: &mut Budget,
        scanned: usize,
    ) -> (usize, Option<StopReason>) {
        if matches!(self.phase, Phase::Routed(_)) {
            self.scanned = scanned;
            return self.route(executor, client, rest, budget);
        }
        match self.resume(executor, rest) {
            // The unfinished request needs more input.
            Ok(count) if count == rest.len() && !matches!(self.phase, Phase::Command) => {
                (count, Some(StopReason::Input))
            }
            Ok(count) => (count, executor.out.is_full().then_some(StopReason::Output)),
            Err(stop) => (0, Some(stop)),
        }
    }

    /// Makes this connection a watcher.
    #[cold]
    pub(super) fn subscribe(
        &self,
        shared: &Shared,
        client: BorrowedFd<'_>,
        events: u32,
    ) -> Result<Subscription, Refused> {
        if self.is_datagram() {
            return Err(Refused::NotAllowed);
        }
        let sink = || match self.info.is_encrypted {
            false => client.try_clone_to_owned().map(Sink::Socket),
            true => {
                let queues = shared.connections.queues().clone();
                Ok(Sink::Relay(Arc::new(Relay::new(self.info.clone(), queues))))
            }
        };
        shared.watch.subscribe(sink, events)
    }

    /// Executes the text or meta request at the front of `rest`. The first `scanned` bytes of
    /// `rest` are known to contain no line feed.
    #[inline(always)]
    pub(super) fn text_request(
        &mut self,
        executor: &mut Executor<'_>,
        rest: &[u8],
        scanned: usize,
    ) -> Executed {
        match text::decode_line(rest, scanned, &Limits::DEFAULT) {
            Decoded::Request { request, consumed } => match exec::text(executor, &request) {
                Next::Suspend(cursor) => {
                    self.phase = Phase::Get { cursor, line_bytes: consumed };
                    Err(StopReason::Output)
                }
                Next::Defer => Err(StopReason::Budget),
                next => Ok((consumed, next)),
            },
            Decoded::Body { header, consumed, body_len } => {
                let begin = || exec::begin_text(executor, &header);
                self.begin_body(Protocol::Text, &rest[..consumed], body_len, begin)
            }
            Decoded::Refused(refused) => {
                executor.out.bytes.extend_from_slice(refused.reply);
                Ok(self.refuse(refused.consumed, refused.swallow, refused.close))
            }
            Decoded::Incomplete => {
                self.scanned = rest.len();
                Err(StopReason::Input)
            }
            Decoded::Close => Ok((0, self.break_off())),
        }
    }

    /// Executes the binary request at the front of `rest`.
    #[inline(always)]
    pub(super) fn binary_request(&mut self, executor: &mut Executor<'_>, rest: &[u8]) -> Executed {
        match binary::decode(rest) {
            Decoded::Request { request, consumed } => match exec::binary(executor, &request) {
                Next::Defer => Err(StopReason::Budget),
                next => Ok((consumed, next)),
            },
            Decoded::Body { header, consumed, body_len } => {
                let begin = || exec::begin_binary(executor, &header);
                self.begin_body(Protocol::Binary, &rest[..consumed], body_len, begin)
            }
            Decoded::Refused(refused)
                if is_sasl(refused.reply.head.opcode) && executor.shared.settings.auth.sasl.is_some() =>
            {
                self.require_authentication();
                Ok((0, Next::Continue))
            }
            Decoded::Refused(refused) => {
                refused.reply.encode(&mut executor.out.bytes);
                Ok(self.refuse(refused.consumed, refused.swallow, refused.close))
            }
            Decoded::Incomplete => Err(StopReason::Input),
            Decoded::Close => Ok((0, self.break_off())),
        }
    }

    /// Prepares to receive a value of `body_len` bytes that follows `head` and has not arrived
    /// completely. A short value is collected in the input buffer together with its head; for a
    /// longer one, `begin` provides a destination.
    #[inline(always)]
    fn begin_body(
        &mut self,
        protocol: Protocol,
        head: &[u8],
        body_len: usize,
        begin: impl FnOnce() -> Begun,
    ) -> Executed {
        if body_len <= BUFFERED_BODY_BYTES_MAX {
            self.within_value = true;
            return Err(StopReason::Input);
        }
        self.phase = Phase::of_body(begin(), protocol, head, body_len);
        Ok((head.len(), Next::Continue))
    }

    /// Discards the value of a refused request, and closes the connection if it cannot continue.
    #[inline(always)]
    fn refuse(&mut self, consumed: usize, swallow: usize, close: bool) -> (usize, Next) {
        self.swallow(swallow);
        (consumed, if close { self.break_off() } else { Next::Continue })
    }

    /// Closes the connection because of malformed input.
    #[cold]
    fn break_off(&self) -> Next {
        self.info.set_broken();
        Next::Close
    }
}

impl Connection {
    /// Starts to discard `bytes` of a value that was refused.
    pub(super) fn swallow(&mut self, bytes: usize) {
        if bytes > 0 {
            self.phase = Phase::Swallow(bytes);
        }
    }

    /// Continues in a phase other than `Command`. Returns the number of input bytes consumed, or
    /// the reason why execution stopped.
    #[cold]
    pub(super) fn resume(&mut self, executor: &mut Executor<'_>, input: &[u8]) -> Result<usize, StopReason> {
        match &mut self.phase {
            Phase::Gate(_) => self.pass_gate(executor, input),
            Phase::Command | Phase::Routed(_) => Ok(0),
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

    /// Stores a value that has arrived completely, and replies.
    pub(super) fn finish_body(&mut self, executor: &mut Executor<'_>) {
        let Phase::Body(body) = std::mem::replace(&mut self.phase, Phase::Command) else { return };
        exec::finish(executor, *body);
    }

    /// Refuses a value for which there is no memory: replies, and discards the rest of the value.
    #[cold]
    pub(super) fn refuse_body(&mut self, executor: &mut Executor<'_>) {
        let Phase::Body(body) = std::mem::replace(&mut self.phase, Phase::Command) else { return };
        self.phase = Phase::Swallow(body.missing());
        exec::refuse(executor, *body);
    }
}

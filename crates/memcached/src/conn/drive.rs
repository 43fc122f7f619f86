//! Driving a connection: reads, and sends the replies of executed requests.
//!
//! While replies wait for the client, nothing more is read or executed.

use super::{Connection, Phase, StopReason, WorkerContext};
use crate::connections::Memory;
use crate::shared::live::Live;
use crate::stream::{INPUT_BYTES, READ_BYTES, Transport};
use std::task::Poll;

/// A value that lacks more than this many bytes is read directly into its destination. With fewer
/// missing, the value is read through the worker's buffer, so that the same read also fetches the
/// commands that follow.
const DIRECT_READ_BYTES_MIN: usize = 4 << 10;

/// The result of [`Connection::drive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DriveResult {
    /// The transport will wake the connection.
    Wait,
    /// The connection has more work, to be done once other connections have been served.
    Yield,
    /// The connection must be closed.
    Close,
}

impl Connection {
    /// Returns whether input can be read before the connection is driven: it waits for a new
    /// request, and has neither input that was held back, which is executed first, nor unsent
    /// replies.
    #[inline]
    pub(crate) fn waits_for_request(&self) -> bool {
        let is_idle = matches!(self.phase, Phase::Command) || self.is_routed_at_rest();
        is_idle && !self.runnable && self.input.is_empty() && self.output.is_none()
    }

    /// Returns whether this is a connection of a ring that waits for a new request.
    #[cold]
    #[inline(never)]
    fn is_routed_at_rest(&self) -> bool {
        matches!(&self.phase, Phase::Routed(routed) if routed.waits_for_request())
    }

    /// Returns whether the connection cannot go on without further input.
    #[inline]
    pub(crate) fn needs_input(&self) -> bool {
        !self.runnable
    }

    /// Returns whether replies wait that the transport has not accepted.
    pub(crate) fn has_unsent(&self) -> bool {
        self.output.is_some()
    }

    /// Returns whether the log thread sends lines to this client.
    #[inline]
    pub(crate) fn is_watcher(&self) -> bool {
        matches!(self.phase, Phase::Watch(_))
    }

    /// Holds bytes that the transport has accepted, but not sent. They precede other unsent
    /// replies. If `closes`, the connection ends once everything is sent.
    pub(crate) fn hold_unsent(&mut self, bytes: &[u8], closes: bool) {
        self.output.get_or_insert_default().insert_first(bytes);
        self.closing |= closes;
    }

    /// Reads input before [`drive`](Self::drive) is called, if the connection waits for a new
    /// request. Returns the number of bytes read, 0 at the end of the stream. The caller must pass
    /// these bytes to the next call of `drive`.
    #[inline]
    pub(crate) fn receive_ahead(&mut self, input: &mut [u8], io: &mut impl Transport) -> Option<usize> {
        if !self.waits_for_request() {
            return None;
        }
        match io.read(input) {
            Poll::Ready(read) => Some(read.unwrap_or(0)),
            Poll::Pending => None,
        }
    }

    /// Reads, executes and sends for as long as the transport and the budget allow.
    #[inline]
    pub(crate) fn drive(&mut self, context: &mut WorkerContext<'_>, io: &mut impl Transport) -> DriveResult {
        let now = context.shared.clock.now_secs();
        if self.last_active != now {
            // Published at most once a second: the copy that other threads read is on a separate
            // cache line.
            self.last_active = now;
            self.info.set_active(now);
        }
        let mut budget = Budget::of(&context.shared.live);
        loop {
            let result = self.step(context, io, &mut budget);
            debug_assert!(
                result == Some(DriveResult::Close) || context.received.is_none(),
                "bytes that were read ahead are lost"
            );
            match result {
                // The usual case after a single request: returning here saves another step, which
                // would only find that there is nothing to read.
                None if !io.may_read() => return DriveResult::Wait,
                None if !budget.is_used_up() => {}
                None | Some(DriveResult::Yield) => {
                    context.counters.conn_yields.bump();
                    return DriveResult::Yield;
                }
                Some(result) => return result,
            }
        }
    }

    /// Performs one read and the execution and sending that follow from it. Returns `None` to
    /// continue.
    #[inline]
    fn step(
        &mut self,
        context: &mut WorkerContext<'_>,
        io: &mut impl Transport,
        budget: &mut Budget,
    ) -> Option<DriveResult> {
        if self.output.is_some()
            && let Some(result) = self.send_held(context, io)
        {
            return Some(result);
        }
        if io.is_encrypted()
            && let Some(result) = self.send_lines(context, io)
        {
            return Some(result);
        }
        budget.take_batch();
        if self.runnable {
            return self.run_held(context, io, budget);
        }
        if !matches!(self.phase, Phase::Command)
            && let Some(result) = self.step_unusual(context, io)
        {
            return result;
        }
        let held = self.input.len();
        if held > INPUT_BYTES - READ_BYTES {
            return self.read_long(context, io, budget);
        }
        // Moved out of the context, so that the rest of the context can be borrowed meanwhile.
        let buffer = std::mem::take(&mut context.input);
        let (input, fresh) = match context.received.take() {
            Some(received) => (received, received.len()),
            None => {
                if held > 0 {
                    buffer[..held].copy_from_slice(&self.input);
                }
                let Poll::Ready(read) = io.read(&mut buffer[held..]) else {
                    context.input = buffer;
                    return Some(DriveResult::Wait);
                };
                let count = read.unwrap_or(0);
                (&buffer[..held + count], count)
            }
        };
        if fresh == 0 {
            return Some(self.end_of_stream());
        }
        context.counters.received_bytes.add(fresh as u64);
        if held > 0 {
            self.input = Vec::new();
        }
        let (used, result) = self.run(context, io, input, budget);
        if used < input.len() {
            self.input = input[used..].to_vec();
        }
        context.input = buffer;
        result
    }

    /// Performs a step in a phase other than `Command`. Returns `None` if it begins with a read of
    /// requests.
    #[cold]
    fn step_unusual(
        &mut self,
        context: &mut WorkerContext<'_>,
        io: &mut impl Transport,
    ) -> Option<Option<DriveResult>> {
        let is_large = |phase: &Phase| matches!(phase, Phase::Body(body) if body.value_missing() >= DIRECT_READ_BYTES_MIN);
        match &mut self.phase {
            Phase::Routed(routed) if routed.is_blocked || routed.is_ending => Some(Some(DriveResult::Wait)),
            Phase::Routed(routed) if is_large(&routed.phase) => {
                let phase = std::mem::replace(&mut routed.phase, Phase::Command);
                let routed = std::mem::replace(&mut self.phase, phase);
                let result = self.read_body(context, io, true);
                let phase = std::mem::replace(&mut self.phase, routed);
                if let Phase::Routed(routed) = &mut self.phase {
                    routed.phase = phase;
                }
                Some(if result == Some(DriveResult::Close) { Some(self.end_of_stream()) } else { result })
            }
            phase if is_large(phase) => Some(self.read_body(context, io, false)),
            _ => None,
        }
    }

    /// Returns what follows the end of the client's stream: replies that are awaited are still
    /// sent.
    #[cold]
    fn end_of_stream(&mut self) -> DriveResult {
        match &mut self.phase {
            Phase::Routed(routed) if !routed.is_idle() => {
                routed.is_ending = true;
                DriveResult::Wait
            }
            _ => DriveResult::Close,
        }
    }

    /// Sends the replies that the client has not accepted yet. Returns `None` once all of them are
    /// sent.
    #[cold]
    fn send_held(&mut self, context: &mut WorkerContext<'_>, io: &mut impl Transport) -> Option<DriveResult> {
        let output = self.output.as_mut()?;
        let mut sent = 0;
        let polled = output.send(io, &mut sent);
        context.counters.sent_bytes.add(sent);
        match polled {
            Poll::Pending => Some(DriveResult::Wait),
            Poll::Ready(Err(_)) => Some(DriveResult::Close),
            Poll::Ready(Ok(())) => {
                self.output = None;
                self.closing.then_some(DriveResult::Close)
            }
        }
    }

    /// Sends the lines that the log thread has queued for this watcher. Returns `None` if no line
    /// is left.
    fn send_lines(
        &mut self,
        context: &mut WorkerContext<'_>,
        io: &mut impl Transport,
    ) -> Option<DriveResult> {
        let Phase::Watch(subscription) = &self.phase else { return None };
        let lines = subscription.take_lines();
        if lines.is_empty() {
            return None;
        }
        context.output.bytes.extend_from_slice(&lines);
        self.send(context, io)
    }

    /// Executes input that was held back, or goes on after other nodes' replies.
    #[cold]
    fn run_held(
        &mut self,
        context: &mut WorkerContext<'_>,
        io: &mut impl Transport,
        budget: &mut Budget,
    ) -> Option<DriveResult> {
        self.runnable = false;
        // The usual case after the reply to a single request.
        if self.input.is_empty()
            && let Phase::Routed(routed) = &self.phase
            && routed.has_answered_all()
            && !routed.ready.is_empty()
        {
            return self.send_ready(context, io);
        }
        let mut input = std::mem::take(&mut self.input);
        let (used, result) = self.run(context, io, &input, budget);
        input.drain(..used);
        if !input.is_empty() {
            self.input = input;
        }
        result
    }

    /// Sends the replies that are ready from their own buffer.
    fn send_ready(
        &mut self,
        context: &mut WorkerContext<'_>,
        io: &mut impl Transport,
    ) -> Option<DriveResult> {
        let Phase::Routed(routed) = &mut self.phase else { return None };
        let mut ready = std::mem::take(&mut routed.ready);
        std::mem::swap(context.output, &mut ready);
        let result = self.send(context, io);
        std::mem::swap(context.output, &mut ready);
        if let Phase::Routed(routed) = &mut self.phase {
            routed.keep_buffer(ready);
        }
        result
    }

    /// Continues to read a line that is too long for the worker's buffer.
    #[cold]
    fn read_long(
        &mut self,
        context: &mut WorkerContext<'_>,
        io: &mut impl Transport,
        budget: &mut Budget,
    ) -> Option<DriveResult> {
        let held = self.input.len();
        self.input.resize(held + READ_BYTES, 0);
        let read = io.read(&mut self.input[held..]);
        self.input.truncate(held + if let Poll::Ready(Ok(count)) = read { count } else { 0 });
        match read {
            Poll::Ready(Ok(0) | Err(_)) => Some(self.end_of_stream()),
            Poll::Ready(Ok(count)) => {
                context.counters.received_bytes.add(count as u64);
                self.run_held(context, io, budget)
            }
            Poll::Pending => Some(DriveResult::Wait),
        }
    }

    /// Reads a large value directly into its destination. If the connection `is_routed`, the next
    /// step executes or refuses the request.
    fn read_body(
        &mut self,
        context: &mut WorkerContext<'_>,
        io: &mut impl Transport,
        is_routed: bool,
    ) -> Option<DriveResult> {
        let Phase::Body(body) = &mut self.phase else { return None };
        let more_bytes = body.growth_bytes();
        if more_bytes > 0 {
            let (shared, now) = (context.shared, context.shared.clock.now_secs());
            let (limit_bytes, count) = (shared.live.connection_bytes_max(), shared.live.connections_max());
            let memory = shared.connections.ask_for(&self.info, more_bytes, limit_bytes, count, now);
            if memory == Memory::Short {
                return Some(DriveResult::Yield);
            }
        }
        let Some(spare) = body.spare() else {
            if is_routed {
                self.runnable = true;
                return None;
            }
            self.refuse_body(&mut context.executor());
            return self.send(context, io);
        };
        match io.read(spare) {
            Poll::Ready(Ok(0) | Err(_)) => Some(DriveResult::Close),
            Poll::Ready(Ok(count)) => {
                context.counters.received_bytes.add(count as u64);
                body.advance(count);
                if is_routed {
                    self.runnable |= body.missing() == 0;
                    return None;
                }
                if body.missing() == 0 {
                    let mut executor = context.executor();
                    self.finish_body(&mut executor);
                    return self.send(context, io);
                }
                None
            }
            Poll::Pending => Some(DriveResult::Wait),
        }
    }

    /// Executes input and sends the replies. Returns the number of bytes consumed, and `None` to
    /// continue with reading.
    #[inline]
    fn run(
        &mut self,
        context: &mut WorkerContext<'_>,
        io: &mut impl Transport,
        input: &[u8],
        budget: &mut Budget,
    ) -> (usize, Option<DriveResult>) {
        let mut used = 0;
        loop {
            // Replies of earlier reads may still be queued.
            context.output.follows = io.has_queued();
            let (count, stop) = self.execute(context, &input[used..], budget);
            used += count;
            let result = if context.output.is_empty() { None } else { self.send(context, io) };
            match (stop, result) {
                (StopReason::Close, None) => return (used, Some(DriveResult::Close)),
                (StopReason::Close, Some(result)) => {
                    self.closing = true;
                    return (used, Some(result));
                }
                (StopReason::Input, result) => return (used, result),
                (StopReason::Output | StopReason::Budget, Some(result)) => {
                    self.runnable = true;
                    return (used, Some(result));
                }
                (StopReason::Output | StopReason::Budget, None) => {
                    budget.take_batch();
                    if stop == StopReason::Budget || budget.is_used_up() {
                        self.runnable = true;
                        return (used, Some(DriveResult::Yield));
                    }
                }
            }
        }
    }

    /// Sends the worker's output buffer. Replies that the client does not accept move to a buffer
    /// of the connection. Returns `None` once everything is sent.
    #[inline]
    fn send(&mut self, context: &mut WorkerContext<'_>, io: &mut impl Transport) -> Option<DriveResult> {
        let mut sent = 0;
        let all = context.output.send_at_once(io, &mut sent);
        context.counters.sent_bytes.add(sent);
        if all { None } else { self.send_rest(context, io) }
    }

    /// Sends the replies that a single write did not accept.
    #[cold]
    fn send_rest(&mut self, context: &mut WorkerContext<'_>, io: &mut impl Transport) -> Option<DriveResult> {
        let mut sent = 0;
        let polled = context.output.send(io, &mut sent);
        context.counters.sent_bytes.add(sent);
        match polled {
            Poll::Ready(Ok(())) => None,
            Poll::Ready(Err(_)) => {
                context.output.clear();
                Some(DriveResult::Close)
            }
            Poll::Pending => {
                self.output = Some(Box::new(context.output.take_unsent()));
                Some(DriveResult::Wait)
            }
        }
    }
}

/// The remaining budget of a connection in one call of
/// [`Connection::drive`](super::Connection::drive).
pub(super) struct Budget {
    /// The remaining batches. A batch is one read, or one full output buffer.
    batches: u32,
    /// The remaining requests if `-R` limits them; otherwise [`UNLIMITED`](Self::UNLIMITED) minus
    /// the number executed.
    requests: u32,
}

impl Budget {
    const UNLIMITED: u32 = u32::MAX;

    pub(super) fn of(live: &Live) -> Budget {
        let requests = live.requests_per_wake().unwrap_or(Self::UNLIMITED);
        Budget { batches: live.batches_per_wake(), requests }
    }

    /// Returns whether requests are counted one by one. `-R` is at most `i32::MAX`; without `-R`,
    /// no drive executes so many requests that the counter falls to that value.
    pub(super) fn limits_requests(&self) -> bool {
        self.requests <= i32::MAX as u32
    }

    /// Returns whether other connections must be served before this one continues.
    pub(super) fn is_used_up(&self) -> bool {
        self.batches == 0 || self.requests == 0
    }

    /// Returns whether the budget of requests is used up, even if batches remain.
    pub(super) fn has_no_request(&self) -> bool {
        self.requests == 0
    }

    pub(super) fn take_batch(&mut self) {
        self.batches = self.batches.saturating_sub(1);
    }

    pub(super) fn take_request(&mut self) {
        self.requests = self.requests.saturating_sub(1);
    }
}

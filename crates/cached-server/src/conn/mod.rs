//! A connection: bytes in, requests executed, replies out.
//!
//! ```text
//!             ┌──────────────── input ──────────────┐
//!             ▼                                     │
//!  ──► Command ──complete request──► execute ──► replies ──► one write ──► Command
//!        │  ▲                          │               │
//!        │  └─── value complete ── Body│               └─ client does not take them: held, nothing more
//!        │                         ▲   │                  is read or executed until it has
//!        ├── value too large to    │   ├─ replies fill the buffer: Get keeps its place, the rest waits
//!        │   wait for ─────────────┘   │
//!        └── refused with a value ── Swallow
//! ```
//! Reading and writing use the worker's buffers; a connection that waits for its client holds none, but for
//! the little that is unfinished: part of a request, or replies the client has not taken. These are counted ([`info`]).
//!
//! `Connection` knows no event loop: it is driven with a [`Transport`](transport::Transport) whenever that may get further.

pub(crate) mod body;
pub(crate) mod info;
pub(crate) mod output;
pub(crate) mod transport;

use crate::exec::{self, Dump, Executor, Next};
use crate::settings::Settings;
use crate::shared::Shared;
use crate::stats::counters::Counters;
use crate::watch::Watching;
use body::{Body, OutOfMemory};
use cached_proto::text::GetCursor;
use cached_proto::{Decoded, Limits, Protocol, binary, text};
use info::{ConnInfo, ConnState, Holding};
use output::Output;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::task::Poll;
use transport::Transport;

/// Bytes asked for by one read.
const READ_BYTES: usize = 16 << 10;
/// A worker's input buffer: one read, and what was left of the one before.
pub(crate) const INPUT_BYTES: usize = 2 * READ_BYTES;
/// Values up to this size are waited for in a buffer, larger ones get their place at once.
const BUFFERED_BODY_BYTES_MAX: usize = 4 << 10;
/// Above so many missing bytes, a value is read straight into its place; below, one read brings the next commands along.
const DIRECT_READ_BYTES_MIN: usize = 4 << 10;

/// The worker's things that a connection uses while it is driven.
pub(crate) struct Desk<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) counters: &'a Counters,
    /// `INPUT_BYTES` long.
    pub(crate) input: &'a mut [u8],
    /// What [`Connection::receive_ahead`] has read.
    pub(crate) received: Option<&'a [u8]>,
    /// Empty between connections.
    pub(crate) output: &'a mut Output,
    /// The connection's socket.
    pub(crate) client: BorrowedFd<'a>,
}

impl Desk<'_> {
    #[inline]
    fn executor(&mut self) -> Executor<'_> {
        Executor::new(self.shared, self.counters, self.output, self.client.as_raw_fd())
    }
}

/// What a connection may still do before others get their turn.
struct Budget {
    /// Batches: one read, or one full output buffer.
    batches: u32,
    /// Requests, if `-R` limits them, else [`UNLIMITED`](Self::UNLIMITED) and fewer by what was carried out.
    requests: u32,
}

impl Budget {
    const UNLIMITED: u32 = u32::MAX;

    fn of(settings: &Settings) -> Budget {
        let requests = settings.requests_per_wake.unwrap_or(Self::UNLIMITED);
        Budget { batches: settings.batches_per_wake, requests }
    }

    /// Whether requests are counted one by one. `-R` is below this, and no turn has so many that it comes down to it.
    fn limits_requests(&self) -> bool {
        self.requests <= i32::MAX as u32
    }

    fn is_used_up(&self) -> bool {
        self.batches == 0 || self.requests == 0
    }

    fn take_batch(&mut self) {
        self.batches = self.batches.saturating_sub(1);
    }

    fn take_request(&mut self) {
        self.requests = self.requests.saturating_sub(1);
    }
}

/// What became of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The transport will wake the connection.
    Wait,
    /// There is more to do, after others have had their turn.
    Again,
    /// Done with it.
    Close,
}

/// Where a connection stands between two bytes of input.
enum Phase {
    /// At the start of a request, or within one that is still short.
    Command,
    /// Within a retrieval that filled the output buffer; its line is still in the input and `line_bytes` long.
    Get { cursor: GetCursor, line_bytes: usize },
    /// Within a dump.
    Dump(Dump),
    /// Within a value.
    Body(Box<Body>),
    /// Within a value that was refused.
    Swallow(usize),
    /// Told what goes on by somebody else; what it says is ignored.
    Watch(#[expect(dead_code, reason = "it tells when it is dropped")] Watching),
}

impl Phase {
    /// The way of a value of `body_len` bytes behind `head`, once its command has been begun.
    fn of_body(begun: exec::Begun, protocol: Protocol, head: &[u8], body_len: usize) -> Phase {
        match begun {
            exec::Begun::Reserved(reservation) => {
                Phase::Body(Box::new(Body::reserved(protocol, head, reservation)))
            }
            exec::Begun::Collect(bytes) => Phase::Body(Box::new(Body::collected(protocol, head, bytes))),
            exec::Begun::Refused => Phase::Swallow(body_len),
        }
    }
}

/// Why execution stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// All input is used, but for the start of a request.
    Input,
    /// The output is to be sent before more is executed.
    Output,
    /// So many requests have been carried out that it is the turn of others.
    Turn,
    /// The connection is to be closed once the output is sent.
    Close,
}

/// One client.
pub(crate) struct Connection {
    pub(crate) info: Arc<ConnInfo>,
    protocol: Option<Protocol>,
    phase: Phase,
    /// Input that could not be used yet.
    input: Vec<u8>,
    /// Bytes at the front of the input that hold no line feed.
    scanned: usize,
    /// `input` can be executed as it is.
    runnable: bool,
    /// `input` ends within a value that is short enough to be waited for there.
    within_value: bool,
    /// Replies that the client has not taken.
    output: Option<Box<Output>>,
    /// Close when they are taken.
    closing: bool,
    /// The table of connections has been told that this one holds memory or is in the middle of something.
    noted: bool,
    /// The clock's second of the last turn.
    last_active: u32,
}

impl Connection {
    pub(crate) fn new(info: Arc<ConnInfo>) -> Connection {
        Connection {
            protocol: info.protocol,
            info,
            phase: Phase::Command,
            input: Vec::new(),
            scanned: 0,
            runnable: false,
            within_value: false,
            output: None,
            closing: false,
            noted: false,
            last_active: 0,
        }
    }

    /// Reads before the connection's turn, if it waits for a new request: how much has come, or 0 if nothing will any
    /// more. The turn must be given it.
    #[inline]
    pub(crate) fn receive_ahead(&mut self, input: &mut [u8], io: &mut impl Transport) -> Option<usize> {
        // What is runnable without input has been read, and comes first.
        let waits = matches!(self.phase, Phase::Command) && !self.runnable && self.input.is_empty();
        if !waits || self.output.is_some() {
            return None;
        }
        match io.read(input) {
            Poll::Ready(read) => Some(read.unwrap_or(0)),
            Poll::Pending => None,
        }
    }

    /// Gets as far as the transport lets it, within the budget of one turn.
    #[inline]
    pub(crate) fn drive(&mut self, desk: &mut Desk<'_>, io: &mut impl Transport) -> Turn {
        let now = desk.shared.clock.now_secs();
        if self.last_active != now {
            // Told to others once a second at most: their copy is on a line of its own.
            self.last_active = now;
            self.info.set_active(now);
        }
        let mut budget = Budget::of(&desk.shared.settings);
        loop {
            let turn = self.step(desk, io, &mut budget);
            debug_assert!(
                turn == Some(Turn::Close) || desk.received.is_none(),
                "what was read ahead is lost"
            );
            match turn {
                None if !budget.is_used_up() => {}
                None | Some(Turn::Again) => {
                    desk.counters.conn_yields.bump();
                    return Turn::Again;
                }
                Some(turn) => return turn,
            }
        }
    }

    /// One read and what follows from it; `None` to go on.
    #[inline]
    fn step(&mut self, desk: &mut Desk<'_>, io: &mut impl Transport, budget: &mut Budget) -> Option<Turn> {
        if self.output.is_some()
            && let Some(turn) = self.send_held(desk, io)
        {
            return Some(turn);
        }
        budget.take_batch();
        if self.runnable {
            return self.run_held(desk, io, budget);
        }
        if let Phase::Body(body) = &mut self.phase
            && body.value_missing() >= DIRECT_READ_BYTES_MIN
        {
            return self.read_body(desk, io);
        }
        let held = self.input.len();
        if held > INPUT_BYTES - READ_BYTES {
            return self.read_long(desk, io, budget);
        }
        // Away from the desk, so that the rest of it can be lent out meanwhile.
        let buffer = std::mem::take(&mut desk.input);
        let (input, fresh) = match desk.received.take() {
            Some(received) => (received, received.len()),
            None => {
                if held > 0 {
                    buffer[..held].copy_from_slice(&self.input);
                }
                let Poll::Ready(read) = io.read(&mut buffer[held..]) else {
                    desk.input = buffer;
                    return Some(Turn::Wait);
                };
                let count = read.unwrap_or(0);
                (&buffer[..held + count], count)
            }
        };
        if fresh == 0 {
            return Some(Turn::Close);
        }
        desk.counters.bytes_read.add(fresh as u64);
        if held > 0 {
            self.input = Vec::new();
        }
        let (used, turn) = self.run(desk, io, input, budget);
        if used < input.len() {
            self.input = input[used..].to_vec();
        }
        desk.input = buffer;
        turn
    }

    /// Sends what the client has not taken yet; `None` when it has all of it.
    #[cold]
    fn send_held(&mut self, desk: &mut Desk<'_>, io: &mut impl Transport) -> Option<Turn> {
        let output = self.output.as_mut()?;
        let mut sent = 0;
        let polled = output.send(io, &mut sent);
        desk.counters.bytes_written.add(sent);
        match polled {
            Poll::Pending => Some(Turn::Wait),
            Poll::Ready(Err(_)) => Some(Turn::Close),
            Poll::Ready(Ok(())) => {
                self.output = None;
                self.closing.then_some(Turn::Close)
            }
        }
    }

    /// Executes input that had to wait for the output.
    #[cold]
    fn run_held(
        &mut self,
        desk: &mut Desk<'_>,
        io: &mut impl Transport,
        budget: &mut Budget,
    ) -> Option<Turn> {
        self.runnable = false;
        let mut input = std::mem::take(&mut self.input);
        let (used, turn) = self.run(desk, io, &input, budget);
        input.drain(..used);
        if !input.is_empty() {
            self.input = input;
        }
        turn
    }

    /// Reads more of a line that is too long for the worker's buffer.
    #[cold]
    fn read_long(
        &mut self,
        desk: &mut Desk<'_>,
        io: &mut impl Transport,
        budget: &mut Budget,
    ) -> Option<Turn> {
        let held = self.input.len();
        self.input.resize(held + READ_BYTES, 0);
        let read = io.read(&mut self.input[held..]);
        self.input.truncate(held + if let Poll::Ready(Ok(count)) = read { count } else { 0 });
        match read {
            Poll::Ready(Ok(0) | Err(_)) => Some(Turn::Close),
            Poll::Ready(Ok(count)) => {
                desk.counters.bytes_read.add(count as u64);
                self.run_held(desk, io, budget)
            }
            Poll::Pending => Some(Turn::Wait),
        }
    }

    /// Reads a large value straight into its place.
    fn read_body(&mut self, desk: &mut Desk<'_>, io: &mut impl Transport) -> Option<Turn> {
        let Phase::Body(body) = &mut self.phase else { return None };
        let Some(room) = body.spare() else {
            self.refuse_body(&mut desk.executor());
            return self.send(desk, io);
        };
        match io.read(room) {
            Poll::Ready(Ok(0) | Err(_)) => Some(Turn::Close),
            Poll::Ready(Ok(count)) => {
                desk.counters.bytes_read.add(count as u64);
                body.advance(count);
                if body.missing() == 0 {
                    let mut executor = desk.executor();
                    self.finish_body(&mut executor);
                    return self.send(desk, io);
                }
                None
            }
            Poll::Pending => Some(Turn::Wait),
        }
    }

    /// Executes input and sends the replies; how much of it was used, and `None` to go on reading.
    #[inline]
    fn run(
        &mut self,
        desk: &mut Desk<'_>,
        io: &mut impl Transport,
        input: &[u8],
        budget: &mut Budget,
    ) -> (usize, Option<Turn>) {
        let mut used = 0;
        loop {
            let (count, stop) = self.execute(desk, &input[used..], budget);
            used += count;
            let turn = if desk.output.is_empty() { None } else { self.send(desk, io) };
            match (stop, turn) {
                (Stop::Close, None) => return (used, Some(Turn::Close)),
                (Stop::Close, Some(turn)) => {
                    self.closing = true;
                    return (used, Some(turn));
                }
                (Stop::Input, turn) => return (used, turn),
                (Stop::Output | Stop::Turn, Some(turn)) => {
                    self.runnable = true;
                    return (used, Some(turn));
                }
                (Stop::Output | Stop::Turn, None) => {
                    budget.take_batch();
                    if budget.is_used_up() {
                        self.runnable = true;
                        return (used, Some(Turn::Again));
                    }
                }
            }
        }
    }

    /// Sends the worker's output buffer; what the client does not take becomes the connection's own. `None` when all is sent.
    #[inline]
    fn send(&mut self, desk: &mut Desk<'_>, io: &mut impl Transport) -> Option<Turn> {
        let mut sent = 0;
        let all = desk.output.send_at_once(io, &mut sent);
        desk.counters.bytes_written.add(sent);
        if all { None } else { self.send_rest(desk, io) }
    }

    /// Sends what one write did not take.
    #[cold]
    fn send_rest(&mut self, desk: &mut Desk<'_>, io: &mut impl Transport) -> Option<Turn> {
        let mut sent = 0;
        let polled = desk.output.send(io, &mut sent);
        desk.counters.bytes_written.add(sent);
        match polled {
            Poll::Ready(Ok(())) => None,
            Poll::Ready(Err(_)) => {
                desk.output.clear();
                Some(Turn::Close)
            }
            Poll::Pending => {
                self.output = Some(Box::new(desk.output.take_unsent()));
                Some(Turn::Wait)
            }
        }
    }

    /// Executes what is complete in `input`, into the output buffer.
    fn execute(&mut self, desk: &mut Desk<'_>, input: &[u8], budget: &mut Budget) -> (usize, Stop) {
        let (shared, client) = (desk.shared, desk.client);
        // Several requests at once are not counted one by one.
        let at_once = !budget.limits_requests();
        let mut executor = desk.executor();
        let mut used = 0;
        let mut scanned = std::mem::take(&mut self.scanned);
        loop {
            let rest = &input[used..];
            if !matches!(self.phase, Phase::Command) {
                match self.resume(&mut executor, rest) {
                    Ok(count) => {
                        used += count;
                        // Still within something, and no input left for it.
                        if used == input.len() && !matches!(self.phase, Phase::Command) {
                            return (used, Stop::Input);
                        }
                    }
                    Err(stop) => return (used, stop),
                }
                if executor.out.is_full() {
                    return (used, Stop::Output);
                }
                continue;
            }
            let Some(&first) = rest.first() else { return (used, Stop::Input) };
            let protocol = *self.protocol.get_or_insert_with(|| Protocol::detect(first));
            let next = match protocol {
                Protocol::Text if at_once && let Some((key, consumed)) = text::plain_get(rest) => {
                    used += exec::get_plain_run(&mut executor, rest, key, consumed);
                    Next::Go
                }
                Protocol::Text
                    if first == b'g'
                        && let Some(consumed) = exec::get_plain_keys(&mut executor, rest) =>
                {
                    used += consumed;
                    Next::Go
                }
                Protocol::Text => match text::decode_line(rest, scanned, &Limits::DEFAULT) {
                    Decoded::Request { request, consumed } => match exec::text(&mut executor, &request) {
                        Next::Suspend(cursor) => {
                            self.phase = Phase::Get { cursor, line_bytes: consumed };
                            return (used, Stop::Output);
                        }
                        next => {
                            used += consumed;
                            next
                        }
                    },
                    Decoded::Body { header, consumed, body_len } => {
                        if body_len <= BUFFERED_BODY_BYTES_MAX {
                            self.within_value = true;
                            return (used, Stop::Input);
                        }
                        let head = &rest[..consumed];
                        used += consumed;
                        let begun = exec::begin_text(&mut executor, &header);
                        self.phase = Phase::of_body(begun, protocol, head, body_len);
                        Next::Go
                    }
                    Decoded::Refused(refused) => {
                        executor.out.bytes.extend_from_slice(refused.reply);
                        used += refused.consumed;
                        self.swallow(refused.swallow);
                        if refused.close { Next::Close } else { Next::Go }
                    }
                    Decoded::Incomplete => {
                        self.scanned = rest.len();
                        return (used, Stop::Input);
                    }
                    Decoded::Close => Next::Close,
                },
                Protocol::Binary => match binary::decode(rest) {
                    Decoded::Request { request, consumed } => {
                        used += consumed;
                        exec::binary(&mut executor, &request)
                    }
                    Decoded::Body { header, consumed, body_len } => {
                        if body_len <= BUFFERED_BODY_BYTES_MAX {
                            self.within_value = true;
                            return (used, Stop::Input);
                        }
                        let head = &rest[..consumed];
                        used += consumed;
                        let begun = exec::begin_binary(&mut executor, &header);
                        self.phase = Phase::of_body(begun, protocol, head, body_len);
                        Next::Go
                    }
                    Decoded::Refused(refused) => {
                        refused.reply.encode(&mut executor.out.bytes);
                        used += refused.consumed;
                        self.swallow(refused.swallow);
                        if refused.close { Next::Close } else { Next::Go }
                    }
                    Decoded::Incomplete => return (used, Stop::Input),
                    Decoded::Close => Next::Close,
                },
            };
            scanned = 0;
            budget.take_request();
            match next {
                Next::Dump(dump) => {
                    self.phase = Phase::Dump(dump);
                    return (used, Stop::Output);
                }
                Next::Watch(kinds) => match shared.watch.add(client, kinds) {
                    Ok(watching) => self.phase = Phase::Watch(watching),
                    Err(refused) => executor.refuse_watcher(refused),
                },
                Next::Go if executor.out.is_full() => return (used, Stop::Output),
                Next::Go if budget.requests == 0 && used < input.len() => return (used, Stop::Turn),
                Next::Go | Next::Suspend(_) => {}
                Next::Close => return (used, Stop::Close),
            }
        }
    }

    fn swallow(&mut self, bytes: usize) {
        if bytes > 0 {
            self.phase = Phase::Swallow(bytes);
        }
    }

    /// Goes on with what is not a new command: how much of the input that took, or why it stopped.
    #[cold]
    fn resume(&mut self, executor: &mut Executor<'_>, input: &[u8]) -> Result<usize, Stop> {
        match &mut self.phase {
            Phase::Command => Ok(0),
            Phase::Get { cursor, line_bytes } => match exec::get_many(executor, &mut cursor.resume(input)) {
                Next::Suspend(further) => {
                    *cursor = further;
                    Err(Stop::Output)
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
                    Err(Stop::Output)
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

    /// Stores the value that is complete now, and answers.
    fn finish_body(&mut self, executor: &mut Executor<'_>) {
        let Phase::Body(body) = std::mem::replace(&mut self.phase, Phase::Command) else { return };
        exec::finish(executor, *body);
    }

    /// Gives a value up for lack of memory: answers, and throws the rest of it away.
    #[cold]
    fn refuse_body(&mut self, executor: &mut Executor<'_>) {
        let Phase::Body(body) = std::mem::replace(&mut self.phase, Phase::Command) else { return };
        self.phase = Phase::Swallow(body.missing());
        exec::give_up(executor, *body);
    }

    /// What this connection keeps while it waits.
    fn holding(&self) -> Holding {
        let (body, arriving) = match &self.phase {
            Phase::Body(body) => (body.held_bytes(), body.reserved_bytes()),
            _ => (0, 0),
        };
        let output = self.output.as_deref();
        Holding {
            bytes: self.input.capacity() + output.map_or(0, Output::capacity) + body,
            pinned: output.map_or(0, Output::pinned_bytes),
            arriving,
        }
    }

    /// Tells the table of connections what this one holds and is doing, before it waits.
    #[inline]
    pub(crate) fn settle(&mut self, shared: &Shared) {
        let plain = matches!(self.phase, Phase::Command) && self.input.is_empty() && self.output.is_none();
        if !plain || self.noted {
            self.noted = !plain;
            self.settle_held(shared);
        }
    }

    #[cold]
    fn settle_held(&mut self, shared: &Shared) {
        let within_value = std::mem::take(&mut self.within_value);
        self.info.set_state(match &self.phase {
            _ if self.output.is_some() => ConnState::Write,
            Phase::Body(_) => ConnState::ReadBody,
            Phase::Command if within_value && !self.input.is_empty() => ConnState::ReadBody,
            Phase::Swallow(_) => ConnState::Swallow,
            Phase::Watch(_) => ConnState::Watch,
            Phase::Command | Phase::Get { .. } | Phase::Dump(_) => ConnState::Read,
        });
        let now = shared.clock.now_secs();
        shared.connections.set_held(&self.info, self.holding(), now);
        let settings = &shared.settings;
        // Memory that waits for slow readers is missing for everybody else.
        let limit = Holding {
            bytes: settings.connection_bytes_max,
            pinned: settings.memory_bytes / 4,
            // The store limits these itself.
            arriving: usize::MAX,
        };
        shared.connections.relieve(limit, now);
    }
}

#[cfg(test)]
mod tests;

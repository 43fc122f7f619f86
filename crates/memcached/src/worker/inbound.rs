//! Lanes from other nodes: their requests are executed here, because their keys are this node's.
//!
//! ```text
//!  REQUEST ──► slot is own? ──► execute ──► worker's output: head, reply ──► one write for many
//!  PART    ──► value arrives       │
//!              └─ complete: slot is own still? ──► store
//!                                  └─ reply above 64 KiB: the first part is sent, the rest stays
//!                                     pinned until MORE asks for it
//! ```
//! The bytes of a request are the client's own. The other node has decoded them once, so what cannot
//! be decoded here is a mistake of that node, after which the lane is closed.
//!
//! While the socket does not take the replies, nothing more is read or executed.

use super::Worker;
use super::lanes::{INBOUND_FIRST, READ_BYTES, READS_MAX, WorkerLanes, keep, register};
use crate::connections::ServeLane;
use crate::exec::{self, Begun, Executor, Next, Target};
use crate::ring::{Peer, Ring, add};
use crate::settings::Settings;
use crate::stats::ring::own_report;
use crate::stream::{Body, FULL_BYTES, Mark, Output, Readiness, Socket, Transport};
use crate::telemetry::heartbeat::Activity;
use cached_proto::meta::KeyBuffer;
use cached_proto::text::GetCursor;
use cached_proto::{Decoded, Limits, Protocol, binary, text};
use cached_ring::wire::{self, HEAD_BYTES, Kind, MESSAGE_BYTES_MAX, SUSPENDED_MAX};
use cached_ring::{Asked, Flags, Hostile, Inbound, Slot, slot_of};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::oneshot;

/// The largest request of any node: an item of 1 GiB, and its command.
const REQUEST_BYTES_MAX: usize = (1 << 30) + (4 << 10);

/// The most bytes that the replies of a lane hold outside the store while they wait for MORE.
/// Further replies are sent without waiting.
pub(super) const SUSPENDED_BYTES_MAX: usize = 256 << 10;

/// No request is executed while the output holds this many bytes, so that each makes progress.
const BUSY_BYTES: usize = FULL_BYTES / 2;

/// The number of ticks without a byte after which a lane is closed. The other node sends a sign of
/// life every second.
const SILENT_TICKS_MAX: u32 = 40;

/// The delay before lanes that are about to end are served again.
const RETRY: Duration = Duration::from_micros(300);

/// The mistake of another node, or the reason why a lane ends.
#[derive(Debug, Error)]
enum Fault {
    #[error("the connection is closed")]
    Closed,
    #[error("{0}")]
    Failed(#[from] io::Error),
    #[error("it breaks the protocol: {0}")]
    Hostile(#[from] Hostile),
    #[error("it breaks the protocol: request {id} {what}")]
    Request { id: u32, what: &'static str },
}

/// A lane from another node.
pub(super) struct InboundLane {
    number: u64,
    peer: Arc<Peer>,
    socket: OwnedFd,
    pub(super) ready: Readiness,
    inbound: Inbound,
    /// Received bytes that have not been used.
    input: Vec<u8>,
    /// Replies that the socket has not taken.
    held: Option<Box<Output>>,
    /// The requests of which parts are missing.
    arriving: HashMap<u32, Arriving>,
    /// The replies that wait for MORE.
    suspended: HashMap<u32, Suspended>,
    /// The bytes that these hold outside the store.
    suspended_bytes: usize,
    /// The replies that continue without MORE.
    unwaited: VecDeque<(u32, Suspended)>,
    /// The number of ticks since something was received.
    silent_ticks: u32,
    leaving: Leaving,
    /// Dropped with the lane.
    _ended: oneshot::Sender<()>,
}

/// How far a lane is on its way to its end in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    No,
    /// What was begun is completed.
    Completing,
    /// BYE is queued: what comes is discarded until the other node closes the connection.
    SaidBye,
}

/// A request of which parts are missing.
enum Arriving {
    /// Its value.
    Value { body: Box<Body>, slot: Slot, collected: Share },
    /// The request is refused, and this is the reply; its parts are discarded.
    Refused(Vec<u8>),
    /// Its slot is another node's; its parts are discarded.
    NotMine,
}

/// The rest of a reply.
#[derive(Default)]
struct Suspended {
    /// What has been executed.
    rest: Output,
    /// The line of a retrieval, and its next key.
    further: Option<(Box<[u8]>, GetCursor)>,
    /// The share for the values that stay pinned.
    pins: Option<Share>,
}

impl Suspended {
    fn is_empty(&self) -> bool {
        self.rest.is_empty() && self.further.is_none()
    }

    fn bytes(&self) -> usize {
        self.rest.capacity() + self.further.as_ref().map_or(0, |(line, _)| line.len())
    }
}

/// A share of a limited number of bytes, until it is dropped.
struct Share {
    of: Arc<AtomicUsize>,
    bytes: usize,
}

impl Share {
    /// Takes `bytes` of at most `bytes_max`; `None` if fewer are left.
    fn take(of: &Arc<AtomicUsize>, bytes: usize, bytes_max: usize) -> Option<Share> {
        let before = of.fetch_add(bytes, Ordering::Relaxed);
        let taken = Share { of: of.clone(), bytes };
        (bytes == 0 || before + bytes <= bytes_max).then_some(taken)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Returns the most bytes of values that arrive from other nodes and are collected outside the
/// store.
pub(super) fn collected_bytes_max(settings: &Settings) -> usize {
    settings.item_bytes_max + settings.connection_bytes_max / 8
}

/// Returns the most bytes of values that stay pinned in the store while other nodes wait for MORE.
fn suspended_pins_max(settings: &Settings) -> usize {
    settings.memory_bytes / 8
}

impl InboundLane {
    /// Returns the memory of the lane outside the store, in bytes.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let unwaited: usize = self.unwaited.iter().map(|(_, rest)| rest.bytes()).sum();
        let suspended: usize = self.suspended.values().map(Suspended::bytes).sum();
        let held = self.held.as_ref().map_or(0, |held| held.capacity());
        self.input.capacity() + held + suspended + unwaited
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Removes a reply from those that wait for MORE.
    fn take_suspended(&mut self, id: u32) -> Option<Suspended> {
        let suspended = self.suspended.remove(&id)?;
        self.suspended_bytes -= suspended.bytes();
        Some(suspended)
    }

    fn has_begun(&self) -> bool {
        !(self.arriving.is_empty() && self.suspended.is_empty() && self.unwaited.is_empty())
            || self.held.is_some()
    }
}

// ---- the life of a lane ----

impl Worker {
    /// Takes a connection from another node.
    pub(super) fn open_inbound(&mut self, lane: ServeLane) {
        let ServeLane { number, node, socket, ended } = lane;
        let (Some(ring), Some(own)) = (&self.shared.ring, &mut self.lanes) else { return };
        let at = own.inbound_position();
        if let Err(error) = register(&self.epoll, socket.as_fd(), INBOUND_FIRST + at as u64) {
            tracing::warn!(node, cause = %error, "cannot register a connection of a node with epoll");
            return;
        }
        tracing::debug!(node, worker = self.index, "lane accepted");
        let peer = ring.peer_or_new(&node);
        add(&peer.counts(self.index).inbound_lanes, 1);
        own.inbound[at] = Some(Box::new(InboundLane {
            number,
            peer,
            socket,
            ready: Readiness::NEW,
            inbound: Inbound::new(REQUEST_BYTES_MAX),
            input: Vec::new(),
            held: None,
            arriving: HashMap::new(),
            suspended: HashMap::new(),
            suspended_bytes: 0,
            unwaited: VecDeque::new(),
            silent_ticks: 0,
            leaving: Leaving::No,
            _ended: ended,
        }));
        self.list_lane(INBOUND_FIRST + at as u64);
    }

    /// Closes the lane with this number, if there is one.
    pub(super) fn end_inbound(&mut self, number: u64) {
        let Some(own) = &mut self.lanes else { return };
        let lane =
            own.inbound.iter_mut().find(|lane| lane.as_ref().is_some_and(|lane| lane.number == number));
        if let Some(lane) = lane.and_then(Option::take) {
            self.close_inbound(*lane, &Fault::Closed);
        }
    }

    fn close_inbound(&mut self, lane: InboundLane, fault: &Fault) {
        let node = &lane.peer.name;
        match fault {
            Fault::Hostile(_) | Fault::Request { .. } => {
                tracing::warn!(node, "the connection of a node is closed: {fault}");
            }
            Fault::Closed | Fault::Failed(_) => tracing::debug!(node, cause = %fault, "lane ended"),
        }
        lane.peer.counts(self.index).inbound_lanes.fetch_sub(1, Ordering::Relaxed);
        // Values that have not arrived completely are dropped, and their memory is free again.
        drop(lane);
    }

    /// Closes lanes on which nothing has come for long. The other node may have gone without a word.
    pub(super) fn tick_inbound(&mut self) {
        let count = self.lanes.as_ref().map_or(0, |own| own.inbound.len());
        for at in 0..count {
            let Some(WorkerLanes { inbound, .. }) = self.lanes.as_deref_mut() else { return };
            let Some(lane) = &mut inbound[at] else { continue };
            lane.silent_ticks += 1;
            if lane.silent_ticks <= SILENT_TICKS_MAX {
                continue;
            }
            lane.ready.read = true;
            self.serve_inbound(at);
            let Some(WorkerLanes { inbound, .. }) = self.lanes.as_deref_mut() else { return };
            if let Some(lane) = inbound[at].take_if(|lane| lane.silent_ticks > SILENT_TICKS_MAX) {
                self.close_inbound(*lane, &Fault::Closed);
            }
        }
    }

    /// Executes what has come on a lane, and sends the replies.
    pub(super) fn serve_inbound(&mut self, at: usize) {
        let Some(own) = &mut self.lanes else { return };
        let Some(mut lane) = own.inbound.get_mut(at).and_then(Option::take) else { return };
        self.begin_step(lane.socket.as_raw_fd(), Activity::Serving);
        self.work.renew();
        let result = self.run_inbound(&mut lane);
        if self.counters.next_timed.is_running() {
            self.timing.served(&self.counters);
        }
        match result {
            Ok(has_more) => {
                if let Some(own) = &mut self.lanes {
                    own.inbound[at] = Some(lane);
                }
                if has_more {
                    self.list_lane(INBOUND_FIRST + at as u64);
                }
            }
            Err(fault) => {
                self.output.clear();
                self.close_inbound(*lane, &fault);
            }
        }
    }

    /// Reads and executes, up to a limit. Returns whether there is more to do.
    fn run_inbound(&mut self, lane: &mut InboundLane) -> Result<bool, Fault> {
        for _ in 0..READS_MAX {
            if !self.send_inbound(lane)? || !self.send_unwaited(lane)? {
                return Ok(false);
            }
            // Moved out of the worker, so that the rest of the worker can be borrowed meanwhile.
            let mut input = match &mut self.lanes {
                Some(own) => std::mem::take(&mut own.input),
                None => return Ok(false),
            };
            let result = self.read_inbound(lane, &mut input);
            if let Some(own) = &mut self.lanes {
                own.input = input;
            }
            let has_read = result?;
            if !self.send_inbound(lane)? {
                return Ok(false);
            }
            // The rest is executed after others were served.
            if self.work.is_used_up() {
                return Ok(true);
            }
            if !has_read {
                return Ok(false);
            }
            if lane.inbound.is_ended() && !lane.has_begun() {
                return Err(Fault::Closed);
            }
        }
        Ok(true)
    }

    /// Executes what the lane has kept, then reads once, and executes that. Returns false if nothing
    /// can be read, or the socket does not take the replies.
    fn read_inbound(&mut self, lane: &mut InboundLane, input: &mut [u8]) -> Result<bool, Fault> {
        let kept = lane.input.len();
        input[..kept].copy_from_slice(&lane.input);
        let used = self.execute_inbound(lane, &input[..kept])?;
        input.copy_within(used..kept, 0);
        let kept = kept - used;
        lane.input.clear();
        if lane.held.is_some() || self.work.is_used_up() {
            lane.input.extend_from_slice(&input[..kept]);
            return Ok(false);
        }
        let end = input.len().min(kept + READ_BYTES);
        let mut socket = Socket { fd: lane.socket.as_fd(), ready: &mut lane.ready };
        let fresh = match socket.read(&mut input[kept..end]) {
            Poll::Ready(Ok(0)) => return Err(Fault::Closed),
            Poll::Ready(fresh) => fresh?,
            Poll::Pending => {
                lane.input.extend_from_slice(&input[..kept]);
                return Ok(false);
            }
        };
        lane.silent_ticks = 0;
        add(&lane.peer.counts(self.index).inbound_received_bytes, fresh as u64);
        let received = &input[..kept + fresh];
        let used = self.execute_inbound(lane, received)?;
        keep(&mut lane.input, &received[used..]);
        Ok(lane.ready.read && lane.held.is_none())
    }

    /// Executes the complete messages in `input`. Returns the number of bytes used.
    fn execute_inbound(&mut self, lane: &mut InboundLane, input: &[u8]) -> Result<usize, Fault> {
        let mut used = 0;
        loop {
            if !lane.unwaited.is_empty() && !self.send_unwaited(lane)? {
                return Ok(used);
            }
            if lane.leaving == Leaving::Completing && !self.complete_inbound(lane)? {
                return Ok(used);
            }
            if lane.leaving == Leaving::SaidBye {
                return Ok(input.len());
            }
            if self.output.bytes.len() + self.output.pinned_bytes() >= BUSY_BYTES
                && !self.send_inbound(lane)?
            {
                return Ok(used);
            }
            if self.work.is_used_up() {
                return Ok(used);
            }
            match lane.inbound.next(&input[used..])? {
                None => return Ok(used),
                Some((asked, bytes)) => {
                    self.ask(lane, asked)?;
                    used += bytes;
                }
            }
        }
    }

    /// Says BYE on a lane as soon as all that was begun is completed. Returns false if the socket does
    /// not take the replies.
    fn complete_inbound(&mut self, lane: &mut InboundLane) -> Result<bool, Fault> {
        lane.unwaited.extend(lane.suspended.drain());
        lane.suspended_bytes = 0;
        if !self.send_unwaited(lane)? {
            return Ok(false);
        }
        if lane.arriving.is_empty() {
            wire::push_bye(&mut self.output.bytes, lane.inbound.last());
            lane.leaving = Leaving::SaidBye;
        }
        Ok(true)
    }

    /// Ends all lanes from other nodes in order, until `end`: requests that have begun are completed,
    /// and BYE tells the other nodes to send all others to the process that follows.
    pub(super) fn leave_inbound(&mut self, end: Instant) {
        let Some(own) = &mut self.lanes else { return };
        for lane in own.inbound.iter_mut().flatten().filter(|lane| lane.leaving == Leaving::No) {
            lane.leaving = Leaving::Completing;
        }
        loop {
            // Other nodes may be leaving too, and end the lanes of this one.
            self.pump_lanes();
            let is_done = self.lanes.as_ref().is_none_or(|own| own.inbound.iter().all(Option::is_none));
            if is_done || Instant::now() >= end {
                return;
            }
            self.counters.heartbeat.set_idle();
            std::thread::sleep(RETRY);
        }
    }

    /// Closes the lanes from other nodes that have incomplete requests or unsent replies, which are
    /// lost.
    pub(super) fn break_off_inbound(&mut self) {
        let Some(own) = &mut self.lanes else { return };
        let begun: Vec<_> =
            own.inbound.iter_mut().filter_map(|lane| lane.take_if(|lane| lane.has_begun())).collect();
        begun.into_iter().for_each(|lane| self.close_inbound(*lane, &Fault::Closed));
    }
}

// ---- replies ----

impl Worker {
    /// Sends replies. Returns whether the socket has taken all.
    fn send_inbound(&mut self, lane: &mut InboundLane) -> Result<bool, Fault> {
        let mut sent = 0;
        let mut socket = Socket { fd: lane.socket.as_fd(), ready: &mut lane.ready };
        let mut all = true;
        if let Some(held) = &mut lane.held {
            debug_assert!(self.output.is_empty());
            match held.send(&mut socket, &mut sent) {
                Poll::Ready(result) => {
                    result?;
                    lane.held = None;
                }
                Poll::Pending => all = false,
            }
        } else if !self.output.is_empty() {
            match self.output.send(&mut socket, &mut sent) {
                Poll::Ready(result) => result?,
                Poll::Pending => {
                    lane.held = Some(Box::new(self.output.take_unsent()));
                    all = false;
                }
            }
        }
        add(&lane.peer.counts(self.index).inbound_sent_bytes, sent);
        Ok(all)
    }

    /// Continues the replies that do not wait for MORE. Returns whether the socket has taken all.
    fn send_unwaited(&mut self, lane: &mut InboundLane) -> Result<bool, Fault> {
        while let Some((id, suspended)) = lane.unwaited.pop_front() {
            if !self.send_inbound(lane)? {
                lane.unwaited.push_front((id, suspended));
                return Ok(false);
            }
            let rest = self.continue_reply(lane, id, suspended);
            if !rest.is_empty() {
                lane.unwaited.push_front((id, rest));
            }
        }
        self.send_inbound(lane)
    }

    /// Begins a reply: its head is written once its length is known.
    fn begin_reply(&mut self) -> (Mark, usize) {
        let mark = self.output.mark();
        (mark, wire::begin(&mut self.output.bytes))
    }

    /// Ends the reply to a request that was executed.
    fn end_reply(
        &mut self,
        lane: &mut InboundLane,
        id: u32,
        (mark, at): (Mark, usize),
        further: Option<(Box<[u8]>, GetCursor)>,
    ) {
        let bytes = self.output.bytes_since(mark) - HEAD_BYTES;
        if bytes <= MESSAGE_BYTES_MAX && further.is_none() {
            return wire::patch(&mut self.output.bytes, at, Kind::Done, id, bytes);
        }
        let rest = self.cut(mark);
        let rest = self.continue_reply(lane, id, Suspended { rest, further, pins: None });
        if !rest.is_empty() {
            self.suspend(lane, id, rest);
        }
    }

    /// Removes a reply from the output, and returns it without its head.
    fn cut(&mut self, mark: Mark) -> Output {
        let mut rest = self.output.split_off(mark);
        rest.take_front(HEAD_BYTES, &mut Vec::new());
        rest
    }

    /// Sends the next part of a reply, and returns the rest.
    fn continue_reply(&mut self, lane: &InboundLane, id: u32, suspended: Suspended) -> Suspended {
        let Suspended { mut rest, mut further, pins } = suspended;
        if rest.is_empty()
            && let Some((line, cursor)) = further.take()
        {
            let (mark, _) = self.begin_reply();
            let next = exec::get_many(&mut self.executor_for(lane), &mut cursor.resume(&line));
            if let Next::Suspend(cursor) = next {
                further = Some((line, cursor));
            }
            rest = self.cut(mark);
        }
        let at = wire::begin(&mut self.output.bytes);
        let before = self.output.bytes.len();
        rest.take_front(MESSAGE_BYTES_MAX, &mut self.output.bytes);
        let bytes = self.output.bytes.len() - before;
        let rest = Suspended { rest, further, pins };
        let kind = if rest.is_empty() { Kind::Done } else { Kind::ReplyPart };
        wire::patch(&mut self.output.bytes, at, kind, id, bytes);
        rest
    }

    /// Keeps the rest of a reply until MORE, or sends it without waiting if too much is kept.
    fn suspend(&mut self, lane: &mut InboundLane, id: u32, mut rest: Suspended) {
        let bytes = lane.suspended_bytes + rest.bytes();
        rest.pins = None;
        if let Some(ring) = &self.shared.ring {
            let (pinned, max) = (rest.rest.pinned_bytes(), suspended_pins_max(&self.shared.settings));
            rest.pins = Share::take(&ring.suspended_pins, pinned, max);
        }
        let is_full = lane.suspended.len() >= SUSPENDED_MAX || bytes > SUSPENDED_BYTES_MAX;
        if is_full || rest.pins.is_none() || lane.leaving != Leaving::No {
            return lane.unwaited.push_back((id, rest));
        }
        lane.suspended_bytes = bytes;
        lane.suspended.insert(id, rest);
    }

    fn executor_for(&mut self, lane: &InboundLane) -> Executor<'_> {
        Executor {
            shared: &self.shared,
            counters: &self.counters,
            out: &mut self.output,
            work: &mut self.work,
            client: lane.socket.as_raw_fd(),
        }
    }
}

// ---- requests ----

/// A request that is complete, or the head of one.
enum Decode<'a> {
    Text(text::Request<'a>),
    Binary(binary::Request<'a>),
    TextHead(text::BodyHeader<'a>),
    BinaryHead(binary::StoreHeader<'a>),
}

impl<'a> Decode<'a> {
    /// Decodes a request, and returns it with the number of bytes before its value, and the number of
    /// bytes of the value if that is not complete.
    fn of(flags: Flags, bytes: &'a [u8]) -> Option<(Decode<'a>, usize, usize)> {
        if flags.has(Flags::BINARY) {
            return match binary::decode(bytes) {
                Decoded::Request { request, consumed } => Some((Decode::Binary(request), consumed, 0)),
                Decoded::Body { header, consumed, body_len } => {
                    Some((Decode::BinaryHead(header), consumed, body_len))
                }
                _ => None,
            };
        }
        match text::decode(bytes, 0, &Limits::DEFAULT) {
            Decoded::Request { request, consumed } => Some((Decode::Text(request), consumed, 0)),
            Decoded::Body { header, consumed, body_len } => {
                Some((Decode::TextHead(header), consumed, body_len))
            }
            _ => None,
        }
    }
}

/// Returns whether a request may be executed: the slots of its keys are this node's own. `None` if
/// no other node may ask for it.
fn is_own(ring: &Ring, decode: &Decode<'_>, slot: Option<Slot>, flags: Flags) -> Option<bool> {
    let mut buffer = KeyBuffer::new();
    let target = match decode {
        Decode::Text(request) => exec::text_target(request, &mut buffer),
        Decode::Binary(request) => exec::binary_target(request),
        Decode::TextHead(header) => Target::Key(exec::body_key(header, &mut buffer)),
        Decode::BinaryHead(header) => Target::Key(header.key),
    };
    match (target, slot) {
        (Target::Every, None) if flags.has(Flags::EVERY) => Some(true),
        // The other node has hashed the key.
        (Target::Key(key), Some(slot)) => {
            (!cfg!(debug_assertions) || slot_of(key) == slot).then(|| ring.owns(slot))
        }
        (Target::Keys(mut keys), Some(slot)) => {
            let first = keys.next_key()?;
            if cfg!(debug_assertions) && slot_of(first) != slot {
                return None;
            }
            let others = std::iter::from_fn(|| keys.next_key());
            Some(ring.owns(slot) && { others }.all(|key| ring.owns(slot_of(key))))
        }
        _ => None,
    }
}

impl Worker {
    /// Executes one message.
    fn ask(&mut self, lane: &mut InboundLane, asked: Asked<'_>) -> Result<(), Fault> {
        match asked {
            Asked::Request { id, slot, flags, bytes } => {
                add(&lane.peer.counts(self.index).inbound_requests, 1);
                self.request(lane, id, slot, flags, bytes)
            }
            Asked::Part { id, bytes, last } => self.part(lane, id, bytes, last),
            Asked::More(id) => {
                if let Some(suspended) = lane.take_suspended(id) {
                    let rest = self.continue_reply(lane, id, suspended);
                    if !rest.is_empty() {
                        self.suspend(lane, id, rest);
                    }
                }
                Ok(())
            }
            Asked::Forget(id) => {
                if lane.take_suspended(id).is_some() || lane.arriving.remove(&id).is_some() {
                    self.done(id, &[]);
                }
                Ok(())
            }
            Asked::Ping(token) => {
                let report = own_report(&self.shared);
                wire::push_pong(&mut self.output.bytes, token, &report);
                Ok(())
            }
            Asked::Bye => Ok(()),
        }
    }

    /// Appends a complete reply.
    fn done(&mut self, id: u32, reply: &[u8]) {
        let at = wire::begin(&mut self.output.bytes);
        self.output.bytes.extend_from_slice(reply);
        wire::patch(&mut self.output.bytes, at, Kind::Done, id, reply.len());
    }

    fn not_mine(&mut self, id: u32) {
        let version = self.shared.ring.as_ref().map_or(0, |ring| ring.map_in_force().version);
        wire::push_not_mine(&mut self.output.bytes, id, version);
    }

    /// Executes a request, or begins one of which parts are missing.
    fn request(
        &mut self,
        lane: &mut InboundLane,
        id: u32,
        slot: Option<Slot>,
        flags: Flags,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let fault = |what| Fault::Request { id, what };
        let (decode, consumed, body_len) =
            Decode::of(flags, bytes).ok_or_else(|| fault("cannot be decoded"))?;
        let ring = self.shared.ring.as_ref();
        let is_own = ring.and_then(|ring| is_own(ring, &decode, slot, flags));
        let is_own = is_own.ok_or_else(|| fault("is none for another node, or names the wrong slot"))?;
        let has_parts = flags.has(Flags::PARTS) || flags.has(Flags::HEAD);
        match (&decode, slot) {
            (Decode::Text(_) | Decode::Binary(_), _) if consumed != bytes.len() || has_parts => {
                Err(fault("has more bytes than a request"))
            }
            (Decode::Text(_) | Decode::Binary(_), _) if !is_own => {
                self.not_mine(id);
                Ok(())
            }
            (Decode::Text(request), _) => {
                // No request is deferred for its cost: the lane waits until there is work left.
                let begun = self.begin_reply();
                match exec::text(&mut self.executor_for(lane), request) {
                    Next::Suspend(cursor) => {
                        self.end_reply(lane, id, begun, Some((bytes.into(), cursor)));
                    }
                    _ => self.end_reply(lane, id, begun, None),
                }
                Ok(())
            }
            (Decode::Binary(request), _) => {
                let begun = self.begin_reply();
                exec::binary_other(&mut self.executor_for(lane), request);
                self.end_reply(lane, id, begun, None);
                Ok(())
            }
            (Decode::TextHead(_) | Decode::BinaryHead(_), Some(slot)) => {
                let is_head = flags.has(Flags::HEAD);
                if !is_head && !flags.has(Flags::PARTS) || is_head && consumed != bytes.len() {
                    return Err(fault("has another number of bytes than it announces"));
                }
                let arriving = match is_own {
                    true => self.begin_value(lane, &decode, slot, &bytes[..consumed], body_len, is_head),
                    false => Arriving::NotMine,
                };
                if is_head {
                    self.end_arriving(arriving, lane, id);
                    return Ok(());
                }
                let arriving = self.feed(lane, id, arriving, &bytes[consumed..])?;
                lane.arriving.insert(id, arriving);
                Ok(())
            }
            (Decode::TextHead(_) | Decode::BinaryHead(_), None) => Err(fault("has no slot")),
        }
    }

    /// Begins a request whose value arrives in parts. If it `is_head`, the value does not come: the
    /// other node has no memory for it.
    fn begin_value(
        &mut self,
        lane: &InboundLane,
        decode: &Decode<'_>,
        slot: Slot,
        head: &[u8],
        body_len: usize,
        is_head: bool,
    ) -> Arriving {
        let mark = self.output.mark();
        let mut executor = self.executor_for(lane);
        let (protocol, begun) = match decode {
            Decode::TextHead(header) => (Protocol::Text, exec::begin_text(&mut executor, header)),
            Decode::BinaryHead(header) => (Protocol::Binary, exec::begin_binary(&mut executor, header)),
            Decode::Text(_) | Decode::Binary(_) => return Arriving::NotMine,
        };
        let (body, collected_bytes) = match begun {
            Begun::Refused => return Arriving::Refused(self.take_reply(mark)),
            Begun::Reserved(reservation) => (Body::reserved(protocol, head, reservation), 0),
            Begun::Collect(bytes) => (Body::collected(protocol, head, bytes), bytes),
        };
        debug_assert_eq!(body.missing(), body_len);
        let ring = self.shared.ring.as_ref().filter(|_| !is_head);
        let bytes_max = collected_bytes_max(&self.shared.settings);
        let collected = ring.and_then(|ring| Share::take(&ring.collected_bytes, collected_bytes, bytes_max));
        match collected {
            Some(collected) => Arriving::Value { body: Box::new(body), slot, collected },
            None => self.refuse_value(lane, body),
        }
    }

    /// Refuses a value for which there is no memory.
    fn refuse_value(&mut self, lane: &InboundLane, body: Body) -> Arriving {
        let mark = self.output.mark();
        exec::refuse(&mut self.executor_for(lane), body);
        Arriving::Refused(self.take_reply(mark))
    }

    /// Removes a short reply from the output.
    fn take_reply(&mut self, mark: Mark) -> Vec<u8> {
        self.output.split_off(mark).bytes
    }

    /// Adds bytes to a value.
    fn feed(
        &mut self,
        lane: &InboundLane,
        id: u32,
        arriving: Arriving,
        bytes: &[u8],
    ) -> Result<Arriving, Fault> {
        let Arriving::Value { mut body, slot, collected } = arriving else { return Ok(arriving) };
        match body.feed(bytes) {
            (used, Ok(())) if used == bytes.len() => Ok(Arriving::Value { body, slot, collected }),
            (_, Ok(())) => Err(Fault::Request { id, what: "has more bytes than it announces" }),
            (_, Err(_)) => Ok(self.refuse_value(lane, *body)),
        }
    }

    /// Takes the next part of a request.
    fn part(&mut self, lane: &mut InboundLane, id: u32, bytes: &[u8], last: bool) -> Result<(), Fault> {
        let fault = |what| Fault::Request { id, what };
        let arriving = lane.arriving.remove(&id).ok_or_else(|| fault("has no missing part"))?;
        let arriving = self.feed(lane, id, arriving, bytes)?;
        if let Arriving::Value { body, .. } = &arriving
            && (body.missing() == 0) != last
        {
            return Err(fault("has another number of bytes than it announces"));
        }
        match last {
            true => self.end_arriving(arriving, lane, id),
            false => drop(lane.arriving.insert(id, arriving)),
        }
        Ok(())
    }

    /// Answers a request of which no part is missing any more. Its slot may have become another
    /// node's in the meantime.
    fn end_arriving(&mut self, arriving: Arriving, lane: &mut InboundLane, id: u32) {
        match arriving {
            Arriving::Value { body, slot, collected } => {
                if !self.shared.ring.as_ref().is_some_and(|ring| ring.owns(slot)) {
                    return self.not_mine(id);
                }
                let begun = self.begin_reply();
                exec::finish(&mut self.executor_for(lane), *body);
                self.end_reply(lane, id, begun, None);
                drop(collected);
            }
            Arriving::Refused(reply) => self.done(id, &reply),
            Arriving::NotMine => self.not_mine(id),
        }
    }
}

#[cfg(test)]
mod tests;

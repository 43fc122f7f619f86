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
//!
//! | module | content |
//! |---|---|
//! | `requests` | decodes and executes requests, and collects values |
//! | `replies` | sends replies, whole or in parts |

mod replies;
mod requests;
#[cfg(test)]
mod tests;

use super::Worker;
use crate::connections::ServeLane;
use crate::ring::{Peer, Ring, add};
use crate::settings::Settings;
use crate::stream::{FULL_BYTES, Link, Output, Transport};
use crate::telemetry::heartbeat::Activity;
use cached_proto::limits::KEY_LEN_MAX;
use cached_ring::{Hostile, Inbound, wire};
use replies::Suspended;
use requests::Arriving;
use rustix::event::epoll;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::oneshot;

/// The event number of the first lane from another node.
pub(super) const INBOUND_FIRST: u64 = 1 << 50;

/// The number of bytes requested by one read of a lane.
pub(super) const READ_BYTES: usize = 64 << 10;

/// The capacity that a lane keeps which has no incomplete message.
const IDLE_BYTES: usize = 4 << 10;

/// The number of reads of one lane before others are served.
pub(super) const READS_MAX: usize = 16;

/// The largest request of any node: an item of 1 GiB, and its command.
const REQUEST_BYTES_MAX: usize = (1 << 30) + (4 << 10);

/// The most bytes that the replies of a lane hold outside the store while they wait for MORE.
/// Further replies are sent without waiting.
pub(super) const SUSPENDED_BYTES_MAX: usize = 256 << 10;

/// An output with this many bytes is sent before a request is executed that is longer than
/// [`SHORT_BYTES_MAX`]: a retrieval of many keys stops once the output is full, and is to be answered at once.
const BUSY_BYTES: usize = FULL_BYTES / 2;

/// The length of the longest `get` of one key. Before requests up to this length only a full output is sent, so
/// that fewer writes carry the replies.
const SHORT_BYTES_MAX: usize = "get \r\n".len() + KEY_LEN_MAX;

/// The number of ticks without a byte after which a lane is closed. The other node sends a sign of
/// life every second.
const SILENT_TICKS_MAX: u32 = 40;

/// The delay before lanes that are about to end are served again.
const RETRY: Duration = Duration::from_micros(300);

/// Registers the socket of a lane with the event loop.
pub(super) fn register(loop_of: &OwnedFd, socket: BorrowedFd<'_>, number: u64) -> rustix::io::Result<()> {
    let interest =
        epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
    epoll::add(loop_of, socket, epoll::EventData::new_u64(number), interest)
}

/// Replaces what a lane keeps. A lane that keeps nothing needs no memory.
pub(super) fn keep(kept: &mut Vec<u8>, bytes: &[u8]) {
    kept.clear();
    kept.extend_from_slice(bytes);
    if bytes.is_empty() {
        kept.shrink_to(IDLE_BYTES);
    }
}

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
    pub(super) link: Link,
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
    /// The number of ticks since something was received or sent.
    silent_ticks: u32,
    /// Whether this node may not execute requests for its own slots, since the lease was looked at with
    /// the lane's input at hand.
    has_lapsed: bool,
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

impl Worker {
    /// Takes a connection from another node.
    pub(super) fn open_inbound(&mut self, lane: ServeLane) {
        let ServeLane { number, node, link, ended } = lane;
        let (Some(ring), Some(own)) = (&self.shared.ring, &mut self.lanes) else { return };
        let at = own.inbound_position();
        if let Err(error) = register(&self.epoll, link.as_fd(), INBOUND_FIRST + at as u64) {
            tracing::warn!(node, cause = %error, "cannot register a connection of a node with epoll");
            return;
        }
        tracing::debug!(node, worker = self.index, "lane accepted");
        let peer = ring.peer_or_new(&node);
        add(&peer.counts(self.index).inbound_lanes, 1);
        own.inbound[at] = Some(Box::new(InboundLane {
            number,
            peer,
            link,
            inbound: Inbound::new(REQUEST_BYTES_MAX),
            input: Vec::new(),
            held: None,
            arriving: HashMap::new(),
            suspended: HashMap::new(),
            suspended_bytes: 0,
            unwaited: VecDeque::new(),
            silent_ticks: 0,
            has_lapsed: false,
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
            let Some(own) = self.lanes.as_deref_mut() else { return };
            let Some(lane) = &mut own.inbound[at] else { continue };
            lane.silent_ticks += 1;
            if lane.silent_ticks <= SILENT_TICKS_MAX {
                continue;
            }
            lane.link.ready.read = true;
            self.serve_inbound(at);
            let Some(own) = self.lanes.as_deref_mut() else { return };
            if let Some(lane) = own.inbound[at].take_if(|lane| lane.silent_ticks > SILENT_TICKS_MAX) {
                self.close_inbound(*lane, &Fault::Closed);
            }
        }
    }

    /// Executes what has come on a lane, and sends the replies.
    pub(super) fn serve_inbound(&mut self, at: usize) {
        let Some(own) = &mut self.lanes else { return };
        let Some(mut lane) = own.inbound.get_mut(at).and_then(Option::take) else { return };
        self.begin_step(lane.link.as_raw_fd(), Activity::Serving);
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
            // Sending begins another use of the link.
            let is_deferred = lane.link.is_deferred();
            if !self.send_inbound(lane)? {
                return Ok(false);
            }
            // The rest is executed after others were served.
            if self.work.is_used_up() {
                return Ok(true);
            }
            if !has_read {
                return Ok(is_deferred);
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
        let Some(own) = &mut self.lanes else { return Ok(false) };
        let fresh = match lane.link.io(&mut own.tls).read(&mut input[kept..end]) {
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
        Ok(lane.link.may_read() && lane.held.is_none())
    }

    /// Executes the complete messages in `input`. Returns the number of bytes used.
    fn execute_inbound(&mut self, lane: &mut InboundLane, input: &[u8]) -> Result<usize, Fault> {
        lane.has_lapsed = !self.shared.ring.as_ref().is_some_and(Ring::is_valid);
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
            if self.sends_before(&input[used..]) && !self.send_inbound(lane)? {
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

    /// Returns whether the replies in the output are sent before the first message of `input` is executed.
    fn sends_before(&self, input: &[u8]) -> bool {
        let is_busy = self.output.bytes.len() + self.output.pinned_bytes() >= BUSY_BYTES;
        let is_short =
            || matches!(wire::message(input), Ok(Some((_, bytes))) if bytes.len() <= SHORT_BYTES_MAX);
        is_busy && (self.output.is_full() || !is_short())
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

//! The connections to other nodes of the ring: those on which this worker passes requests on, and
//! the turns of both kinds within the loop.
//!
//! Events of lanes are served after those of clients, and the answers wake the connections that wait
//! for them, which are served in the same iteration. What connections have queued is sent once in
//! each iteration, with one write for each node.

use super::inbound::{
    INBOUND_FIRST, InboundLane, READ_BYTES, READS_MAX, SUSPENDED_BYTES_MAX, collected_bytes_max, keep,
    register,
};
use super::{ConnectionSlot, Worker, record};
use crate::connections::{AtAddress, Command, NoLane, OpenLane};
use crate::copy;
use crate::ring::{LaneId, Lanes, Outcome, Pulse, STRANGERS_MAX};
use crate::settings::{RingSettings, Settings};
use crate::shared::Shared;
use crate::stream::{COPY_BYTES_MAX, FULL_BYTES, Link, TLS_BUFFERS_BYTES, TlsBuffers, Transport};
use crate::telemetry::heartbeat::Activity;
use cached_ring::wire::{HEAD_BYTES, MESSAGE_BYTES_MAX};
use cached_ring::{Outbound, Waiter};
use rustix::event::epoll;
use rustix::net::sockopt::set_socket_linger;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::oneshot;

/// The event number of the first lane to another node.
pub(super) const LANE_FIRST: u64 = 1 << 49;

/// The most bytes that a lane keeps when it waits for more: an incomplete message.
const PARTIAL_BYTES_MAX: usize = HEAD_BYTES + MESSAGE_BYTES_MAX;

/// The number of turns in which a lane is still read after a write to it has failed: enough for the
/// bytes in the socket buffers.
const LAST_READS_MAX: usize = 8;

/// The slot that has no connection: listing it ends the wait, so that the lanes get their turn.
const NO_SLOT: usize = usize::MAX;

/// The memory of a worker for lanes, besides that of each lane, in bytes.
const LANE_BUFFER_BYTES: usize = 2 * PARTIAL_BYTES_MAX + READ_BYTES;

/// The most bytes that a lane to another node uses: its messages, and an incomplete one.
const OUTBOUND_BYTES_MAX: usize = Outbound::HELD_BYTES_MAX + PARTIAL_BYTES_MAX;

/// The most bytes that a lane from another node uses: its input, replies that the socket has not
/// taken, and replies that wait for MORE.
pub(super) const INBOUND_BYTES_MAX: usize =
    LANE_BUFFER_BYTES + FULL_BYTES + COPY_BYTES_MAX + SUSPENDED_BYTES_MAX;

/// Returns the maximum memory, in bytes, for connections to and from other nodes; 0 without a ring.
pub(crate) fn ring_bytes_max(settings: &Settings) -> usize {
    let Some(ring) = &settings.ring else { return 0 };
    let peers = ring.map.nodes().len().saturating_sub(1);
    let outbound = peers * settings.threads * OUTBOUND_BYTES_MAX;
    let inbound = (peers + STRANGERS_MAX) * ring.peer_lanes_max as usize * INBOUND_BYTES_MAX;
    let lanes = outbound + inbound + settings.threads * LANE_BUFFER_BYTES + collected_bytes_max(settings);
    lanes + tls_bytes_max(settings, ring) + copy::bytes_max(settings)
}

/// Returns the maximum memory of lanes for TLS: a connection holds less than the buffers of a worker.
fn tls_bytes_max(settings: &Settings, ring: &RingSettings) -> usize {
    if ring.tls.is_none() {
        return 0;
    }
    let peers = ring.map.nodes().len().saturating_sub(1);
    let lanes = peers * settings.threads + (peers + STRANGERS_MAX) * ring.peer_lanes_max as usize;
    (lanes + settings.threads) * TLS_BUFFERS_BYTES
}

/// A worker's connections to other nodes.
pub(super) struct WorkerLanes {
    /// The connections on which requests are passed on, by the position in [`Lanes`].
    outbound: Vec<Option<OutboundLane>>,
    /// The connections on which other nodes send requests.
    pub(super) inbound: Vec<Option<Box<InboundLane>>>,
    /// The input of a lane: what has been kept, and one read.
    pub(super) input: Box<[u8]>,
    /// For lanes with TLS.
    pub(super) tls: Option<Box<TlsBuffers>>,
    /// The event numbers of lanes with more to read.
    again: Vec<u64>,
    /// Whether the lanes get a turn before the next wait.
    is_listed: bool,
}

/// The connection of a lane.
struct OutboundLane {
    link: Link,
    /// The beginning of an incomplete message.
    partial: Vec<u8>,
    /// Dropped with the connection.
    _ended: oneshot::Sender<()>,
}

/// The end of a lane's connection.
pub(super) enum Ended {
    /// The peer has closed it, or ended it in order.
    Closed,
    /// It has failed.
    Failed(String),
}

impl WorkerLanes {
    /// Returns the state for the lanes of a worker; `None` without a ring.
    pub(super) fn new(shared: &Shared) -> Option<Box<WorkerLanes>> {
        shared.ring.as_ref()?;
        Some(Box::new(WorkerLanes {
            outbound: Vec::new(),
            inbound: Vec::new(),
            input: vec![0; LANE_BUFFER_BYTES].into(),
            tls: None,
            again: Vec::new(),
            is_listed: false,
        }))
    }

    /// Returns a free position for a lane from another node.
    pub(super) fn inbound_position(&mut self) -> usize {
        let free = self.inbound.iter().position(Option::is_none);
        free.unwrap_or_else(|| {
            self.inbound.push(None);
            self.inbound.len() - 1
        })
    }
}

/// Gives an outcome to the connection that waits for it.
fn deliver(
    slots: &mut [Option<ConnectionSlot>],
    yielded: &mut Vec<usize>,
    to: Waiter,
    id: LaneId,
    outcome: Outcome<'_>,
) {
    let number = to.slot as usize;
    if let Some(Some(slot)) = slots.get_mut(number)
        && slot.connection.answer(to, id, outcome)
        && !slot.is_listed
    {
        slot.is_listed = true;
        yielded.push(number);
    }
}

// ---- turns ----

impl Worker {
    /// Serves the events of lanes.
    #[cold]
    pub(super) fn serve_lanes(&mut self, events: &[epoll::Event]) {
        for event in events {
            let (number, flags) = (event.data.u64(), event.flags);
            let Some(own) = &mut self.lanes else { return };
            if let Some(at) = number.checked_sub(INBOUND_FIRST) {
                let at = at as usize;
                let Some(Some(lane)) = own.inbound.get_mut(at) else { continue };
                record(&mut lane.link.ready, flags);
                self.serve_inbound(at);
            } else if let Some(at) = number.checked_sub(LANE_FIRST) {
                let at = at as usize;
                let Some(Some(lane)) = own.outbound.get_mut(at) else { continue };
                record(&mut lane.link.ready, flags);
                if lane.link.may_read() {
                    self.read_lane(at);
                }
                // The socket may have space again.
                self.list_lanes();
            }
        }
    }

    /// Lets the lanes have a turn before the next wait.
    pub(super) fn list_lanes(&mut self) {
        if let Some(own) = &mut self.lanes
            && !own.is_listed
        {
            own.is_listed = true;
            self.yielded.push(NO_SLOT);
        }
    }

    /// Lists a lane that has more to read.
    pub(super) fn list_lane(&mut self, number: u64) {
        if let Some(own) = &mut self.lanes
            && !own.again.contains(&number)
        {
            own.again.push(number);
        }
        self.list_lanes();
    }

    /// Gives the lanes their turn, at the end of an iteration.
    #[cold]
    pub(super) fn end_iteration(&mut self) {
        let Some(own) = &mut self.lanes else { return };
        let again = std::mem::take(&mut own.again);
        // Connections that were served in this turn have listed the lanes.
        self.yielded.retain(|number| *number != NO_SLOT);
        own.is_listed = false;
        for number in again {
            match number.checked_sub(INBOUND_FIRST) {
                Some(at) => self.serve_inbound(at as usize),
                None => self.read_lane((number - LANE_FIRST) as usize),
            }
        }
        self.flush_lanes();
    }

    /// Reads all lanes, and sends what is queued, whatever events have come: for loops that do not
    /// wait for events of lanes.
    pub(super) fn pump_lanes(&mut self) {
        let Some(own) = &mut self.lanes else { return };
        let outbound = own.outbound.iter_mut().flatten().map(|lane| &mut lane.link);
        let inbound = own.inbound.iter_mut().flatten().map(|lane| &mut lane.link);
        outbound.chain(inbound).for_each(|link| (link.ready.read, link.ready.write) = (true, true));
        let (outbound, inbound) = (own.outbound.len(), own.inbound.len());
        (0..outbound).for_each(|at| self.read_lane(at));
        (0..inbound).for_each(|at| self.serve_inbound(at));
        self.flush_lanes();
    }

    /// Shuts down the sockets of all lanes, as [`shut_down_sockets`](Worker::shut_down_sockets) does.
    pub(super) fn shut_down_lanes(&self) {
        let Some(own) = &self.lanes else { return };
        let outbound = own.outbound.iter().flatten().map(|lane| lane.link.as_fd());
        for socket in outbound.chain(own.inbound.iter().flatten().map(|lane| lane.link.as_fd())) {
            // Fails for a socket whose peer has already gone.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }

    /// Executes a command about lanes.
    #[cold]
    pub(super) fn run_lane_command(&mut self, command: Command) {
        // Slots that were prepared or have moved may have an owner now.
        self.with_lanes(|_, lanes, _| lanes.retry());
        match command {
            Command::OpenLane(lane) => self.open_lane(lane),
            Command::NoLane(NoLane { node, found, why }) => self.no_lane(&node, found, &why),
            Command::ServeLane(lane) => self.open_inbound(lane),
            // The sender is dropped after the lane was closed.
            Command::EndLane(number, _done) => self.end_inbound(number),
            Command::Map(map) => {
                if let Some(ring) = &self.shared.ring {
                    let mut lanes = ring.lanes(self.index);
                    lanes.set_map(map, &ring.own, |name| ring.peer_or_new(name));
                }
            }
            Command::Ping => {
                self.with_lanes(|_, lanes, _| lanes.ping_all());
                self.list_lanes();
            }
            Command::Pass(done) => {
                self.complete_retrievals();
                // No request is being executed. Fails if the receiver has ended.
                let _ = done.send(());
            }
            _ => {}
        }
        self.wake_waiting();
    }

    /// Looks for lanes on which nothing comes, and sends signs of life.
    pub(super) fn tick_lanes(&mut self) {
        let count = self.with_lanes(|_, lanes, _| lanes.len()).unwrap_or(0);
        for at in 0..count {
            match self.with_lanes(|_, lanes, _| lanes.tick(at)) {
                None | Some(Pulse::Alive) => {}
                Some(Pulse::Unwanted) => self.close_lane(at, Ended::Closed),
                Some(Pulse::Silent) => {
                    // This worker itself may have been busy or stopped, and an answer has come.
                    self.read_lane_now(at);
                    if self.with_lanes(|_, lanes, _| lanes.tick(at)) == Some(Pulse::Silent) {
                        self.close_lane(at, Ended::Failed("nothing has come for too long".into()));
                    }
                }
            }
        }
        self.tick_inbound();
        self.with_lanes(|_, lanes, _| lanes.retry());
        self.wake_waiting();
        self.list_lanes();
    }
}

// ---- lanes to other nodes ----

impl Worker {
    /// Runs `body` with the worker's lanes, and a function that delivers outcomes.
    pub(super) fn with_lanes<R>(
        &mut self,
        body: impl FnOnce(&mut WorkerLanes, &mut Lanes, &mut dyn FnMut(Waiter, LaneId, Outcome<'_>)) -> R,
    ) -> Option<R> {
        let Worker { index, shared, slots, yielded, lanes: Some(own), .. } = self else { return None };
        let mut lanes = shared.ring.as_ref()?.lanes(*index);
        let mut each =
            |to: Waiter, id: LaneId, outcome: Outcome<'_>| deliver(slots, yielded, to, id, outcome);
        Some(body(own, &mut lanes, &mut each))
    }

    /// Takes a connection to another node.
    fn open_lane(&mut self, open: OpenLane) {
        let OpenLane { node, address, link, ended } = open;
        let at = self.with_lanes(|_, lanes, _| lanes.find(&node)).flatten();
        let Some(at) = at else { return self.refuse_lane(&node, "it is not in the map") };
        if self.with_lanes(|_, lanes, _| lanes.is_at(&node, &address)) != Some(true) {
            return self.refuse_lane(&node, "the map has another address for it");
        }
        if self.with_lanes(|_, lanes, _| lanes.is_open(at)) == Some(true) {
            self.close_lane(at, Ended::Failed("another connection was opened".into()));
        }
        // What the node has not taken when the lane ends is discarded: the kernel would go on to send it, and
        // the node execute it after changes that clients have made elsewhere by then.
        let taken = set_socket_linger(&link, Some(Duration::ZERO))
            .and_then(|()| register(&self.epoll, link.as_fd(), LANE_FIRST + at as u64));
        if let Err(error) = taken {
            let cause = format!("the kernel does not accept it: {error}");
            self.refuse_lane(&node, &cause);
            return self.no_lane(&node, AtAddress::Refusal, &cause);
        }
        self.with_lanes(|own, lanes, _| {
            if own.outbound.len() <= at {
                own.outbound.resize_with(at + 1, || None);
            }
            own.outbound[at] = Some(OutboundLane { link, partial: Vec::new(), _ended: ended });
            lanes.open(at);
            lanes.peer(at).set_tried();
        });
        tracing::debug!(node, worker = self.index, "lane opened");
        // With the last bytes of the handshake others may have been decrypted.
        self.list_lane(LANE_FIRST + at as u64);
    }

    /// Notes that a connection to a node is closed without being used.
    fn refuse_lane(&self, node: &str, cause: &str) {
        tracing::warn!(node, cause, "a connection to a node is closed");
        if let Some(ring) = &self.shared.ring {
            ring.peer_or_new(node).set_open(self.index, false);
        }
    }

    /// Notes that no connection to a node can be opened. Requests that wait for the first
    /// connection fail; requests that wait for the next one fail unless the node is only silent.
    fn no_lane(&mut self, node: &str, found: AtAddress, cause: &str) {
        self.with_lanes(|_, lanes, each| {
            let Some(at) = lanes.find(node) else { return };
            lanes.peer(at).set_tried();
            lanes.peer(at).set_unreachable(found == AtAddress::Nothing);
            if lanes.is_connecting(at) {
                lanes.give_up(at, each);
            } else if found != AtAddress::Silence && lanes.is_resuming(at) {
                tracing::warn!(node, cause, "the node has ended: requests that waited for it fail");
                lanes.give_up(at, each);
            }
        });
        self.wake_waiting();
        self.list_lanes();
    }

    /// Reads a lane if its readiness is not known.
    fn read_lane_now(&mut self, at: usize) {
        if let Some(own) = &mut self.lanes
            && let Some(Some(lane)) = own.outbound.get_mut(at)
        {
            lane.link.ready.read = true;
            self.read_lane(at);
        }
    }

    /// Reads what another node has answered, and delivers it.
    fn read_lane(&mut self, at: usize) {
        let Some(own) = &self.lanes else { return };
        let Some(Some(lane)) = own.outbound.get(at) else { return };
        let fd = lane.link.as_raw_fd();
        self.begin_step(fd, Activity::Serving);
        let result = self.with_lanes(|own, lanes, each| {
            let WorkerLanes { outbound, input, tls, .. } = own;
            let Some(lane) = &mut outbound[at] else { return Ok(false) };
            for _ in 0..READS_MAX {
                let kept = lane.partial.len();
                input[..kept].copy_from_slice(&lane.partial);
                let fresh = match lane.link.io(tls).read(&mut input[kept..kept + READ_BYTES]) {
                    Poll::Pending => return Ok(lane.link.is_deferred()),
                    Poll::Ready(Ok(0)) => return Err(Ended::Closed),
                    Poll::Ready(Err(error)) => return Err(Ended::Failed(error.to_string())),
                    Poll::Ready(Ok(count)) => count,
                };
                let received = &input[..kept + fresh];
                let used = lanes.received(at, fresh, received, each);
                let used =
                    used.map_err(|mistake| Ended::Failed(format!("it breaks the protocol: {mistake}")))?;
                keep(&mut lane.partial, &received[used..]);
                if lanes.has_said_bye(at) {
                    return Err(Ended::Closed);
                }
                if !lane.link.may_read() {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        match result {
            Some(Ok(true)) => self.list_lane(LANE_FIRST + at as u64),
            Some(Err(ended)) => self.close_lane(at, ended),
            Some(Ok(false)) | None => {}
        }
        self.wake_waiting();
    }

    /// Closes the connection of a lane. Unless the peer has ended it in order, its requests fail.
    pub(super) fn close_lane(&mut self, at: usize, ended: Ended) {
        self.with_lanes(|own, lanes, each| {
            let node = lanes.peer(at).name.clone();
            let in_flight = lanes.in_flight(at);
            match &ended {
                Ended::Closed if lanes.is_open(at) && lanes.has_said_bye(at) => {
                    tracing::debug!(node, "the node has ended a lane in order");
                }
                Ended::Closed if in_flight == 0 => tracing::debug!(node, "lane closed"),
                Ended::Closed => {
                    tracing::warn!(node, in_flight, "the connection to a node was closed: its requests fail");
                }
                Ended::Failed(cause) => {
                    tracing::warn!(
                        node,
                        in_flight,
                        cause,
                        "the connection to a node is lost: its requests fail"
                    );
                }
            }
            lanes.end(at, each);
            if let Some(lane) = own.outbound.get_mut(at) {
                *lane = None;
            }
        });
        self.wake_waiting();
        self.list_lanes();
    }

    /// Sends what connections have queued for other nodes.
    pub(super) fn flush_lanes(&mut self) {
        let failed = self.with_lanes(|own, lanes, _| {
            let mut failed = Vec::new();
            let WorkerLanes { outbound, tls, .. } = own;
            for (at, lane) in outbound.iter_mut().enumerate() {
                let Some(lane) = lane else { continue };
                if let Err(error) = send(&mut lane.link, tls, lanes, at) {
                    failed.push((at, error));
                }
            }
            failed
        });
        if self.with_lanes(|_, lanes, _| lanes.is_waiting()) == Some(true)
            && let Some(ring) = &self.shared.ring
        {
            ring.ask_retry();
        }
        for (at, error) in failed.into_iter().flatten() {
            // The peer's last words may have come: after BYE, the lane has ended in order.
            for _ in 0..LAST_READS_MAX {
                self.read_lane_now(at);
            }
            if self.with_lanes(|_, lanes, _| lanes.is_open(at)) == Some(true) {
                self.close_lane(at, Ended::Failed(error.to_string()));
            }
        }
        self.wake_waiting();
    }

    /// Wakes connections that have waited for room in a lane.
    pub(super) fn wake_waiting(&mut self) {
        let woken = self.with_lanes(|_, lanes, _| lanes.take_woken()).unwrap_or_default();
        for number in woken {
            if let Some(Some(slot)) = self.slots.get_mut(number as usize) {
                slot.connection.wake();
                self.list_yielded(number as usize);
            }
        }
    }
}

/// Sends what is queued on a lane, as far as its socket takes it.
fn send(link: &mut Link, tls: &mut Option<Box<TlsBuffers>>, lanes: &mut Lanes, at: usize) -> io::Result<()> {
    let mut io = link.io(tls);
    loop {
        let (first, second) = lanes.unsent(at);
        match io.send(first, second) {
            Poll::Ready(Ok(0)) | Poll::Pending => return Ok(()),
            Poll::Ready(sent) => lanes.sent(at, sent?),
        }
    }
}

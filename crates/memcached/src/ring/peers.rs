//! The state of each other node of the ring, as this node knows it, and the counts of its requests.

use super::events::RingEvents;
use super::{LeaseReport, MoveReport};
use crate::locks::{Lock, PEERS};
use cached_ring::Report;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Another node of the ring. A node that leaves the map and returns has the same counts as before.
pub(crate) struct Peer {
    /// The node's name.
    pub(crate) name: String,
    /// The counts of each worker, which alone changes them.
    workers: Box<[PeerCounts]>,
    events: Arc<RingEvents>,
    /// The number of lanes that the peer opens to this node, once it has said it; 0 before.
    lanes_wanted: AtomicUsize,
    is_tried: AtomicBool,
    is_unreachable: AtomicBool,
    told: Lock<Told>,
}

/// The counts of one worker for a peer.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct PeerCounts {
    /// Whether the worker has a lane to the peer, or is being given one.
    pub(super) is_open: AtomicBool,
    /// Requests that are not answered.
    pub(super) in_flight: AtomicU64,
    /// Requests that the peer has answered.
    pub(super) done: AtomicU64,
    /// Requests that the peer has refused, because its map gives their slots to another node.
    pub(super) not_mine: AtomicU64,
    /// Requests that were not answered before their lane was lost.
    pub(super) lost: AtomicU64,
    /// Requests for which there was no lane.
    pub(super) away: AtomicU64,
    /// Requests sent again, on the next lane, after a peer had ended one in order.
    pub(super) resent: AtomicU64,
    /// Bytes sent to the peer on the worker's lane.
    pub(super) sent_bytes: AtomicU64,
    /// Bytes received from the peer on the worker's lane.
    pub(super) received_bytes: AtomicU64,
    /// Lanes of the peer that the worker serves.
    pub(crate) inbound_lanes: AtomicU64,
    /// Requests of the peer that the worker has executed.
    pub(crate) inbound_requests: AtomicU64,
    /// Bytes that the peer has sent on its lanes.
    pub(crate) inbound_received_bytes: AtomicU64,
    /// Bytes sent to the peer on its lanes.
    pub(crate) inbound_sent_bytes: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// What a peer has said about itself.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    map: Option<MapInForce>,
    clock_ms: Option<i64>,
    round_trip: Option<Duration>,
    report: Option<Report>,
}

/// The map that a node has in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MapInForce {
    pub(crate) version: u64,
    pub(crate) digest: u64,
}

impl Peer {
    pub(super) fn new(name: &str, workers: usize, events: Arc<RingEvents>) -> Peer {
        Peer {
            name: name.to_owned(),
            workers: (0..workers).map(|_| PeerCounts::default()).collect(),
            events,
            lanes_wanted: AtomicUsize::new(0),
            is_tried: AtomicBool::new(false),
            is_unreachable: AtomicBool::new(false),
            told: Lock::ranked(Told::default(), &PEERS),
        }
    }

    /// Returns the counts of a worker.
    #[inline]
    pub(crate) fn counts(&self, worker: usize) -> &PeerCounts {
        &self.workers[worker]
    }

    /// Returns whether a worker has a lane to the peer, or is being given one.
    pub(crate) fn is_open(&self, worker: usize) -> bool {
        self.workers[worker].is_open.load(Ordering::Acquire)
    }

    /// Records whether a worker has a lane to the peer. The dialler records a new lane before the
    /// worker receives it, and the worker records the lane's end.
    pub(crate) fn set_open(&self, worker: usize, is_open: bool) {
        self.workers[worker].is_open.store(is_open, Ordering::Release);
    }

    /// Records that an attempt to open a lane has ended, with or without success.
    pub(crate) fn set_tried(&self) {
        self.is_tried.store(true, Ordering::Relaxed);
    }

    /// Records what the peer has said at the start of a lane: its map, and by how many milliseconds
    /// its clock is ahead.
    pub(crate) fn set_hello(&self, map: MapInForce, clock_ms: i64) {
        self.is_unreachable.store(false, Ordering::Release);
        self.events.see(map.version);
        let mut told = self.told.lock();
        (told.map, told.clock_ms) = (Some(map), Some(clock_ms));
    }

    /// Records a PONG.
    pub(super) fn set_pong(&self, round_trip: Duration, report: Report) {
        self.events.see(report.map_version);
        let mut told = self.told.lock();
        told.map = Some(MapInForce { version: report.map_version, digest: report.map_digest });
        (told.round_trip, told.report) = (Some(round_trip), Some(report));
    }

    /// Records why no lane can be opened: because nothing accepts connections at the peer's address, or
    /// for another reason, so that the peer may run.
    pub(crate) fn set_unreachable(&self, is_unreachable: bool) {
        self.is_unreachable.store(is_unreachable, Ordering::Release);
    }

    /// Notes the version of the map with which the peer has refused a request.
    pub(super) fn see(&self, version: u64) {
        self.events.see(version);
    }

    /// Returns whether the peer may have another map in force than `map`, an earlier or a later one, or
    /// only whether it may have an earlier one. A peer to which there is no lane for a moment may run
    /// nevertheless.
    pub(super) fn is_behind(&self, map: MapInForce, may_be_later: bool) -> bool {
        let is_there = |told: MapInForce| told == map || may_be_later && told.version > map.version;
        let is_gone = !self.is_reachable() && self.is_unreachable.load(Ordering::Acquire);
        !is_gone && !self.told.lock().map.is_some_and(is_there)
    }

    /// Records the number of lanes that the peer opens to this node.
    pub(crate) fn set_lanes_wanted(&self, lanes: usize) {
        self.lanes_wanted.store(lanes, Ordering::Relaxed);
    }

    /// Returns whether the peer knows this node: it has a map of this version or a later one, and all of
    /// its lanes to this node are open, so that it can pass requests on.
    pub(super) fn knows(&self, version: u64) -> bool {
        let has_map = self.told.lock().map.is_some_and(|told| told.version >= version);
        let lanes_wanted = self.lanes_wanted.load(Ordering::Relaxed);
        has_map && lanes_wanted > 0 && self.sum(|counts| &counts.inbound_lanes) >= lanes_wanted as u64
    }

    /// Returns whether a worker has a lane to the peer.
    pub(super) fn is_reachable(&self) -> bool {
        (0..self.workers.len()).any(|worker| self.is_open(worker))
    }

    /// Returns the size of the peer's items, as it has last reported it; `None` before the first report.
    pub(super) fn held_bytes(&self) -> Option<u64> {
        self.told.lock().report.map(|report| report.item_bytes)
    }

    fn sum(&self, of: impl Fn(&PeerCounts) -> &AtomicU64) -> u64 {
        self.workers.iter().map(|counts| of(counts).load(Ordering::Relaxed)).sum()
    }

    /// Returns the state of the peer, which owns `slots` slots.
    pub(super) fn report(&self, slots: usize) -> PeerReport {
        let Told { map, clock_ms, round_trip, report } = *self.told.lock();
        PeerReport {
            name: self.name.clone(),
            slots,
            lanes: (0..self.workers.len()).filter(|worker| self.is_open(*worker)).count(),
            lanes_max: self.workers.len(),
            is_tried: self.is_tried.load(Ordering::Relaxed),
            in_flight: self.sum(|counts| &counts.in_flight),
            done: self.sum(|counts| &counts.done),
            not_mine: self.sum(|counts| &counts.not_mine),
            lost: self.sum(|counts| &counts.lost),
            away: self.sum(|counts| &counts.away),
            resent: self.sum(|counts| &counts.resent),
            sent_bytes: self.sum(|counts| &counts.sent_bytes),
            received_bytes: self.sum(|counts| &counts.received_bytes),
            inbound_lanes: self.sum(|counts| &counts.inbound_lanes),
            inbound_requests: self.sum(|counts| &counts.inbound_requests),
            inbound_received_bytes: self.sum(|counts| &counts.inbound_received_bytes),
            inbound_sent_bytes: self.sum(|counts| &counts.inbound_sent_bytes),
            map,
            clock_ms,
            round_trip,
            report,
        }
    }
}

/// The state of the ring at this node, for reports.
#[derive(Debug, Clone)]
pub(crate) struct RingReport {
    /// The name of the ring.
    pub(crate) ring: String,
    /// The name of this node.
    pub(crate) node: String,
    /// The map in force.
    pub(crate) map: MapInForce,
    /// The number of slots whose requests this node executes.
    pub(crate) own_slots: usize,
    /// The number of slots that this node has been given and does not answer for yet: it removes
    /// earlier items, or waits until other nodes have the map. In the meantime, requests for these
    /// slots are answered as if their owner was away.
    pub(crate) purging_slots: usize,
    /// Whether items of slots are being removed that are not, or have not always been, this node's.
    pub(crate) is_purging: bool,
    /// The node's lease; `None` in a ring without leases.
    pub(crate) lease: Option<LeaseReport>,
    /// What is counted of moves to and from this node.
    pub(crate) moves: MoveReport,
    /// The other nodes of the map, in the order of their names.
    pub(crate) peers: Vec<PeerReport>,
}

/// The state of another node, as this node knows it.
#[derive(Debug, Clone)]
pub(crate) struct PeerReport {
    /// The name of the node.
    pub(crate) name: String,
    /// The number of slots that it owns in this node's map.
    pub(crate) slots: usize,
    /// The number of lanes to it.
    pub(crate) lanes: usize,
    /// The number of lanes to it when every worker has one.
    pub(crate) lanes_max: usize,
    /// Whether an attempt to open a lane to it has ended, with or without success.
    pub(crate) is_tried: bool,
    /// Requests passed to it that are not answered.
    pub(crate) in_flight: u64,
    /// Requests that it has answered.
    pub(crate) done: u64,
    /// Requests that it has refused, because its map gives their slots to another node.
    pub(crate) not_mine: u64,
    /// Requests that were not answered before their lane was lost.
    pub(crate) lost: u64,
    /// Requests for which there was no lane.
    pub(crate) away: u64,
    /// Requests sent again, on the next lane, after it had ended one in order.
    pub(crate) resent: u64,
    /// Bytes sent on lanes to it.
    pub(crate) sent_bytes: u64,
    /// Bytes received on lanes to it.
    pub(crate) received_bytes: u64,
    /// The number of its lanes to this node.
    pub(crate) inbound_lanes: u64,
    /// The number of its requests that this node has executed.
    pub(crate) inbound_requests: u64,
    /// Bytes received on its lanes.
    pub(crate) inbound_received_bytes: u64,
    /// Bytes sent on its lanes.
    pub(crate) inbound_sent_bytes: u64,
    /// Its map at the last handshake or ping; `None` before the first lane.
    pub(crate) map: Option<MapInForce>,
    /// By how many milliseconds its clock was ahead when the last lane was opened.
    pub(crate) clock_ms: Option<i64>,
    /// The time of the last ping.
    pub(crate) round_trip: Option<Duration>,
    /// Its last report about itself.
    pub(crate) report: Option<Report>,
}

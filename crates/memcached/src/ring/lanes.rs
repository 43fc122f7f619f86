//! The lanes of one worker: its connections to the other nodes, as queues of requests and answers.
//! The sockets are the worker's (`worker/lanes.rs`).

use super::lease::RingLease;
use super::life::LaneLimits;
use super::order::{Admission, Pauses};
use super::peers::{Peer, add};
use super::words::Words;
use cached_ring::wire::MESSAGE_BYTES_MAX;
use cached_ring::{Flags, Map, NodeIndex, Outbound, RequestId, Slot, Waiter};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The bytes of the map's version, with which a request to every node begins.
pub(crate) const VERSION_BYTES: usize = 8;

/// The interval of [`Lanes::retry`] while connections wait.
pub(crate) const RETRY: Duration = Duration::from_millis(10);

/// The node that executes the requests for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// This node.
    Own,
    /// The owner in the worker's map. If that is this node, its slot is not `Own` at present, and the
    /// request has to wait.
    Peer(NodeIndex),
    /// None at present: requests for the slot are unanswered at the previous owner.
    Wait,
}

/// Identifies a request on a lane until the request is answered or has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LaneId {
    /// The position among the worker's lanes.
    pub(super) lane: u16,
    pub(super) request: RequestId,
}

/// The reason why a request was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no lane to the node.
    Away,
    /// The lane has no room. The connection is woken once it has.
    NoRoom,
    /// No node executes requests for the slot at present, or earlier ones that were refused come
    /// first. The connection is woken when it may try again.
    Wait,
}

/// The state of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneState {
    /// The first connection is being opened, for which requests wait: a process that has just taken
    /// over refuses none.
    Connecting,
    /// There is no connection: requests are refused.
    Away,
    /// The worker has a connection.
    Open,
    /// The peer has ended the last connection in order. The queued requests, which the peer has not
    /// executed, wait for the next connection, for this number of ticks.
    Resuming { ticks: u32 },
}

/// The lane to one peer, open or not. It exists while the peer is in the map or requests to the
/// peer are unanswered.
pub(super) struct Lane {
    pub(super) peer: Arc<Peer>,
    pub(super) state: LaneState,
    /// Whether the peer is in the map.
    pub(super) is_wanted: bool,
    /// Whether the peer has another address than the lane's connection.
    pub(super) is_moved: bool,
    pub(super) outbound: Outbound,
    /// The slots of connections that wait for room.
    pub(super) waiting: BTreeSet<u32>,
    /// The slots of connections that wait for answers to requests of the same slot.
    pub(super) ordered: BTreeSet<u32>,
    /// The slots of which the peer has refused a request.
    pub(super) pauses: Pauses,
    /// The number of ticks since something was received.
    pub(super) silent_ticks: u32,
    /// The number of ticks since the lane was opened.
    pub(super) ticks: u32,
    /// When the PING without an answer was queued, as [`boot_time`](super::lease::boot_time).
    pub(super) pinged: Option<u64>,
}

impl Lane {
    fn new(peer: Arc<Peer>) -> Lane {
        Lane {
            peer,
            state: LaneState::Connecting,
            is_wanted: true,
            is_moved: false,
            outbound: Outbound::new(),
            waiting: BTreeSet::new(),
            ordered: BTreeSet::new(),
            pauses: Pauses::default(),
            silent_ticks: 0,
            ticks: 0,
            pinged: None,
        }
    }

    /// Returns whether a request of `bytes` may be queued. Those who wait for room are served before
    /// others, who could take all of it for ever.
    fn has_room(&self, bytes: usize) -> bool {
        let is_late = !self.waiting.is_empty() && !self.outbound.is_below_half();
        !is_late && self.outbound.room() >= bytes
    }
}

/// The lanes of one worker. Only that worker uses them.
pub(crate) struct Lanes {
    pub(super) worker: usize,
    words: Arc<Words>,
    pub(super) lease: Arc<RingLease>,
    /// Whether the node may not execute requests for its own slots, at the last [`look`](Lanes::look).
    has_lapsed: bool,
    pub(super) map: Arc<Map>,
    /// The position of each node's lane, by the node's index; `None` for this node.
    pub(super) of_node: Vec<Option<u16>>,
    pub(super) lanes: Vec<Lane>,
    next_tag: u32,
    /// The slots of connections that have waited, and may try again.
    pub(super) woken: Vec<u32>,
    /// The lanes to previous owners on which requests of these slots are unanswered, which later ones
    /// must not overtake.
    pub(super) held: HashMap<Slot, u16>,
    /// The slots of connections with requests that wait until an owner executes them.
    pub(super) again: BTreeSet<u32>,
    /// Counts the occasions at which refused requests may be sent again.
    pub(super) epoch: u64,
    /// Whether requests no longer wait, because the worker is about to end.
    pub(super) gives_up: bool,
    pub(super) limits: LaneLimits,
}

impl Lanes {
    pub(super) fn new(
        worker: usize,
        (words, lease): (Arc<Words>, Arc<RingLease>),
        map: Arc<Map>,
        limits: LaneLimits,
    ) -> Lanes {
        Lanes {
            worker,
            words,
            lease,
            has_lapsed: false,
            map,
            of_node: Vec::new(),
            lanes: Vec::new(),
            next_tag: 0,
            woken: Vec::new(),
            held: HashMap::new(),
            again: BTreeSet::new(),
            epoch: 0,
            gives_up: false,
            limits,
        }
    }

    // ---- for connections ----

    /// Looks whether the node may execute requests for its own slots, for the calls of
    /// [`route`](Self::route) that follow. The requests that these are about have been received: so none
    /// is executed that a client sends after the node's lease has ended.
    #[inline]
    pub(crate) fn look(&mut self) {
        self.has_lapsed = !self.lease.is_valid();
    }

    /// Returns the node that executes the requests for a slot. The result is used at once: another
    /// map gives other indexes to nodes.
    #[inline]
    pub(crate) fn route(&self, slot: Slot) -> Route {
        if !self.held.is_empty() && self.holds(slot) {
            return Route::Wait;
        }
        if !self.has_lapsed && self.words.owns(slot) { Route::Own } else { Route::Peer(self.map.owner(slot)) }
    }

    /// Returns the worker's map.
    pub(crate) fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// Returns all other nodes of the worker's map.
    pub(crate) fn peers(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        let of_node: Vec<bool> = self.of_node.iter().map(Option::is_some).collect();
        (0..).zip(of_node).filter(|(_, is_peer)| *is_peer).map(|(index, _)| NodeIndex(index))
    }

    /// Returns a number that no other connection has which this worker serves.
    pub(crate) fn next_tag(&mut self) -> u32 {
        self.next_tag = self.next_tag.wrapping_add(1);
        self.next_tag
    }

    /// Queues a request, or its first part ([`Flags::PARTS`]), of at most [`MESSAGE_BYTES_MAX`] bytes.
    /// `slot` is `None` for a request to every node. The connection is given the answer
    /// (`Connection::answer`).
    ///
    /// # Errors
    /// Returns [`Refused`]; then nothing is queued.
    pub(crate) fn request(
        &mut self,
        node: NodeIndex,
        to: Waiter,
        slot: Option<Slot>,
        flags: Flags,
        own: &[u8],
    ) -> Result<LaneId, Refused> {
        let Some(at) = self.of_node.get(node.index()).copied().flatten() else {
            // The owner is this node.
            self.again.insert(to.slot);
            return Err(Refused::Wait);
        };
        let lane = &mut self.lanes[usize::from(at)];
        if lane.state == LaneState::Away {
            add(&lane.peer.counts(self.worker).away, 1);
            return Err(Refused::Away);
        }
        debug_assert!((1..=MESSAGE_BYTES_MAX).contains(&own.len()), "a request of {} bytes", own.len());
        let bytes = own.len() + if slot.is_none() { VERSION_BYTES } else { 0 };
        if !lane.has_room(bytes) || (flags.has(Flags::PARTS) && !lane.outbound.may_open()) {
            lane.waiting.insert(to.slot);
            return Err(Refused::NoRoom);
        }
        let Some(slot) = slot else {
            let version = self.map.version().to_le_bytes();
            let request = lane.outbound.request(to, None, flags, &[&version, own]);
            return Ok(LaneId { lane: at, request });
        };
        if lane.outbound.has_refused() || !lane.pauses.is_empty() {
            match lane.pauses.admit(slot, flags, own, self.epoch, &lane.outbound) {
                Admission::Now => {}
                Admission::AfterAnswers => {
                    lane.ordered.insert(to.slot);
                    return Err(Refused::Wait);
                }
                Admission::Later => {
                    self.again.insert(to.slot);
                    return Err(Refused::Wait);
                }
            }
        }
        let request = lane.outbound.request(to, Some(slot), flags, &[own]);
        Ok(LaneId { lane: at, request })
    }

    /// Returns whether the lane to a node has room for a request of `bytes`, or the node is away. If
    /// there is no room, the connection in `slot` is woken once there is.
    pub(crate) fn has_room(&mut self, slot: u32, node: NodeIndex, bytes: usize) -> bool {
        let Some(at) = self.of_node.get(node.index()).copied().flatten() else { return true };
        let lane = &mut self.lanes[usize::from(at)];
        let has_room = lane.state == LaneState::Away || lane.has_room(bytes);
        if !has_room {
            lane.waiting.insert(slot);
        }
        has_room
    }

    /// Queues the next part of a request, of at most [`MESSAGE_BYTES_MAX`] bytes. A part of a request
    /// that has failed is dropped.
    ///
    /// # Errors
    /// Returns [`Refused::NoRoom`]; then nothing is queued, and the connection in `slot` is woken once
    /// there is room.
    pub(crate) fn part(&mut self, slot: u32, id: LaneId, bytes: &[u8], last: bool) -> Result<(), Refused> {
        let lane = &mut self.lanes[usize::from(id.lane)];
        if lane.outbound.room() < bytes.len() {
            lane.waiting.insert(slot);
            return Err(Refused::NoRoom);
        }
        lane.outbound.part(id.request, bytes, last);
        Ok(())
    }

    /// Asks for the next part of a reply.
    pub(crate) fn more(&mut self, id: LaneId) {
        self.lanes[usize::from(id.lane)].outbound.more(id.request);
    }

    /// Says that the client of a request has gone.
    pub(crate) fn forget(&mut self, id: LaneId) {
        self.lanes[usize::from(id.lane)].outbound.forget(id.request);
    }

    // ---- for the worker ----

    /// Puts a map in force: `peer` returns the entry of a node by its name. Lanes to nodes that are no
    /// longer in the map stay until their requests are answered.
    pub(crate) fn set_map(&mut self, map: Arc<Map>, own: &str, mut peer: impl FnMut(&str) -> Arc<Peer>) {
        self.lanes.iter_mut().for_each(|lane| lane.is_wanted = false);
        self.of_node.clear();
        for node in map.nodes() {
            if node.name == own {
                self.of_node.push(None);
                continue;
            }
            let known = self.lanes.iter().position(|lane| lane.peer.name == node.name);
            let at = known.unwrap_or_else(|| {
                let lane = Lane::new(peer(&node.name));
                // A lane that is away has no request, so nothing refers to its position.
                let is_unused =
                    |lane: &Lane| lane.state == LaneState::Away && map.find(&lane.peer.name).is_none();
                match self.lanes.iter().position(is_unused) {
                    Some(at) => {
                        self.lanes[at] = lane;
                        at
                    }
                    None => {
                        self.lanes.push(lane);
                        self.lanes.len() - 1
                    }
                }
            });
            self.lanes[at].is_wanted = true;
            let before = self.map.find(&node.name).map(|index| &self.map.node(index).ring);
            self.lanes[at].is_moved |= before.is_some_and(|before| *before != node.ring);
            self.of_node.push(Some(at as u16));
        }
        self.map = map;
        self.hold_slots();
        self.retry();
    }

    /// Returns whether the map has this address for a node.
    pub(crate) fn is_at(&self, node: &str, address: &str) -> bool {
        self.map.find(node).is_some_and(|index| self.map.node(index).ring == address)
    }

    /// Returns the number of lanes, open or not.
    pub(crate) fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Returns the peer of a lane.
    pub(crate) fn peer(&self, lane: usize) -> &Arc<Peer> {
        &self.lanes[lane].peer
    }

    /// Returns the position of the lane to a node of the map.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.is_wanted && lane.peer.name == name)
    }

    /// Returns the bytes that wait to be sent on a lane, in two slices.
    pub(crate) fn unsent(&self, lane: usize) -> (&[u8], &[u8]) {
        self.lanes[lane].outbound.unsent()
    }

    /// Records that the socket has taken bytes of a lane.
    pub(crate) fn sent(&mut self, lane: usize, bytes: usize) {
        let worker = self.worker;
        let Lane { outbound, peer, .. } = &mut self.lanes[lane];
        outbound.sent(bytes);
        let counts = peer.counts(worker);
        add(&counts.sent_bytes, bytes as u64);
        counts.in_flight.store(outbound.in_flight() as u64, Ordering::Relaxed);
        self.wake_if_room(lane);
    }

    /// Returns the slots of connections that have waited for room, each of which may try again.
    pub(crate) fn take_woken(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.woken)
    }

    #[inline]
    pub(super) fn wake_if_room(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        if !lane.waiting.is_empty() && lane.outbound.is_below_half() {
            self.woken.extend(std::mem::take(&mut lane.waiting));
        }
    }
}

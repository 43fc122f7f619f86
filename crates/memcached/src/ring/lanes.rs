//! The lanes of one worker: its connections to the other nodes, as queues of requests and answers.
//! The sockets are the worker's (`worker/lanes.rs`).

use super::lease::{RingLease, boot_time};
use super::order::{Admission, Pauses};
use super::peers::{Peer, add};
use super::words::Words;
use cached_ring::wire::{MESSAGE_BYTES_MAX, NO_PROMISE};
use cached_ring::{
    Answer, Executed, Failed, Flags, Hostile, Map, NodeIndex, Outbound, RequestId, Slot, Waiter,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The bytes of the map's version, with which a request to every node begins.
pub(crate) const VERSION_BYTES: usize = 8;

/// The interval of [`Lanes::tick`].
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// The interval of [`Lanes::retry`] while connections wait.
pub(crate) const RETRY: Duration = Duration::from_millis(10);

/// A lane on which nothing was received for this number of ticks is asked for a sign of life.
const PING_TICKS: u32 = 2;

/// Each lane brings a report of its node once in this number of ticks, also if it is busy.
const REPORT_TICKS: u32 = 4;

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
    request: RequestId,
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

/// The reason why a request has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The node is away: the request was not executed.
    Away,
    /// The connection was lost: the request may have been executed.
    Lost,
    /// The node has another map, of this version, and has not executed the request.
    NotMine(u64),
    /// The slot is being prepared, or it moves: the request was not executed.
    Unready,
}

/// What has become of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome<'a> {
    /// A reply, or a part of it: the next part comes after [`Lanes::more`].
    Bytes { bytes: &'a [u8], last: bool },
    /// There will be no reply.
    Failed {
        /// The client's own bytes: all, or the head of a request in parts; empty if a part of the
        /// reply has been delivered.
        own: &'a [u8],
        flags: Flags,
        /// The name of the node.
        node: &'a str,
        why: Why,
    },
}

/// What a lane does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LaneState {
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
    peer: Arc<Peer>,
    state: LaneState,
    /// Whether the peer is in the map.
    is_wanted: bool,
    /// Whether the peer has another address than the lane's connection.
    is_moved: bool,
    pub(super) outbound: Outbound,
    /// The slots of connections that wait for room.
    waiting: BTreeSet<u32>,
    /// The slots of connections that wait for answers to requests of the same slot.
    pub(super) ordered: BTreeSet<u32>,
    /// The slots of which the peer has refused a request.
    pub(super) pauses: Pauses,
    /// The number of ticks since something was received.
    silent_ticks: u32,
    /// The number of ticks since the lane was opened.
    ticks: u32,
    /// When the PING without an answer was queued, as [`boot_time`].
    pinged: Option<u64>,
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

/// What [`Lanes::tick`] finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// Nothing needs to be done.
    Alive,
    /// Nothing was received for too long, or no connection has come: the lane is lost.
    Silent,
    /// The peer is no longer in the map, and all requests are answered, or it has another address: the
    /// lane ends.
    Unwanted,
}

/// The lanes of one worker. Only that worker uses them.
pub(crate) struct Lanes {
    worker: usize,
    words: Arc<Words>,
    lease: Arc<RingLease>,
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
    pub(super) held: BTreeMap<Slot, u16>,
    /// The slots of connections with requests that wait until an owner executes them.
    pub(super) again: BTreeSet<u32>,
    /// Counts the occasions at which refused requests may be sent again.
    pub(super) epoch: u64,
    /// Whether requests no longer wait, because the worker is about to end.
    pub(super) gives_up: bool,
    pub(super) limits: LaneLimits,
}

/// The times after which a lane is given up, in ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaneLimits {
    /// After this time without a byte, the lane is lost.
    pub(super) silent_ticks: u32,
    /// After this time, requests that were not executed no longer wait for the next lane.
    pub(super) resume_ticks: u32,
    /// After this time, requests that no owner executes fail.
    pub(super) resume_within: Duration,
}

impl LaneLimits {
    pub(super) fn new(silent: Duration, resume: Duration) -> LaneLimits {
        let ticks = |time: Duration| time.as_millis().div_ceil(TICK.as_millis()).max(1) as u32;
        // One tick more than the time for a PING.
        LaneLimits {
            silent_ticks: ticks(silent).max(PING_TICKS + 1),
            resume_ticks: ticks(resume),
            resume_within: resume,
        }
    }
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
            held: BTreeMap::new(),
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

    /// Asks all peers for a report.
    pub(crate) fn ping_all(&mut self) {
        let open = self.lanes.iter_mut().filter(|lane| lane.state == LaneState::Open);
        open.for_each(|lane| ping(lane, &self.lease));
    }

    /// Returns the peer of a lane.
    pub(crate) fn peer(&self, lane: usize) -> &Arc<Peer> {
        &self.lanes[lane].peer
    }

    /// Returns the position of the lane to a node of the map.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.is_wanted && lane.peer.name == name)
    }

    /// Returns whether the lane has a connection.
    pub(crate) fn is_open(&self, lane: usize) -> bool {
        self.lanes.get(lane).is_some_and(|lane| lane.state == LaneState::Open)
    }

    /// Returns whether requests wait for the next connection of the lane.
    pub(crate) fn is_resuming(&self, lane: usize) -> bool {
        matches!(self.lanes[lane].state, LaneState::Resuming { .. })
    }

    /// Returns whether requests wait for the first connection of the lane.
    pub(crate) fn is_connecting(&self, lane: usize) -> bool {
        self.lanes[lane].state == LaneState::Connecting
    }

    /// Returns the number of requests of a lane that are not answered.
    pub(crate) fn in_flight(&self, lane: usize) -> usize {
        self.lanes[lane].outbound.in_flight()
    }

    /// Begins a lane whose connection has just been opened. It must not be open.
    pub(crate) fn open(&mut self, lane: usize) {
        let (worker, lease) = (self.worker, &self.lease);
        let lane = &mut self.lanes[lane];
        debug_assert_ne!(lane.state, LaneState::Open);
        if lane.state != LaneState::Connecting {
            add(&lane.peer.counts(worker).resent, lane.outbound.in_flight() as u64);
        }
        lane.state = LaneState::Open;
        lane.is_moved = false;
        lane.peer.set_open(worker, true);
        (lane.silent_ticks, lane.ticks, lane.pinged) = (0, 0, None);
        // The first PING tells the time of the round trip, and brings the first report.
        ping(lane, lease);
    }

    /// Delivers what the peer has sent, and returns the number of bytes used.
    ///
    /// # Errors
    /// Returns [`Hostile`], after which the lane must be lost.
    pub(crate) fn received(
        &mut self,
        lane: usize,
        fresh: usize,
        bytes: &[u8],
        each: &mut dyn FnMut(Waiter, LaneId, Outcome<'_>),
    ) -> Result<usize, Hostile> {
        let (at, epoch) = (lane as u16, self.epoch);
        let lane = &mut self.lanes[lane];
        lane.silent_ticks = 0;
        let (mut done, mut not_mine) = (0, 0);
        let used = lane.outbound.received(bytes, &mut |to, request, answer| {
            let id = LaneId { lane: at, request };
            let outcome = match answer {
                Answer::Bytes { bytes, last } => {
                    done += u64::from(last);
                    Outcome::Bytes { bytes, last }
                }
                Answer::NotMine { map_version, slot, flags, own } => {
                    not_mine += 1;
                    lane.peer.see(map_version);
                    lane.pauses.refused(slot, flags, own, epoch);
                    let own = without_version(flags, own);
                    Outcome::Failed { own, flags, node: &lane.peer.name, why: Why::NotMine(map_version) }
                }
            };
            each(to, id, outcome);
        });
        // Also the answer to a request whose client has gone may be awaited.
        if !lane.ordered.is_empty() && fresh > 0 {
            self.woken.extend(std::mem::take(&mut lane.ordered));
        }
        let counts = lane.peer.counts(self.worker);
        add(&counts.received_bytes, fresh as u64);
        add(&counts.done, done);
        if not_mine > 0 {
            add(&counts.not_mine, not_mine);
        }
        counts.in_flight.store(lane.outbound.in_flight() as u64, Ordering::Relaxed);
        if lane.pinged.is_some()
            && let Some((_, report)) = lane.outbound.take_pong()
            && let Some(pinged) = lane.pinged.take()
        {
            let round_trip = Duration::from_nanos(boot_time().saturating_sub(pinged));
            lane.peer.set_pong(round_trip, report);
            self.lease.promised(&lane.peer.name, pinged, &report);
        }
        self.wake_if_room(at.into());
        used
    }

    /// Returns whether the peer has ended the lane in order, so that it [ends](Self::end).
    pub(crate) fn has_said_bye(&self, lane: usize) -> bool {
        self.lanes[lane].outbound.is_ended()
    }

    /// Ends a lane whose connection is closed. After the peer's BYE, requests that were not executed
    /// wait for the next lane; all others fail, and `each` is called for them.
    pub(crate) fn end(&mut self, lane: usize, each: &mut dyn FnMut(Waiter, LaneId, Outcome<'_>)) {
        self.close(lane, true, each);
    }

    fn close(&mut self, at: usize, resumes: bool, each: &mut dyn FnMut(Waiter, LaneId, Outcome<'_>)) {
        let (worker, limits) = (self.worker, self.limits);
        let lane = &mut self.lanes[at];
        let (mut lost, mut away) = (0, 0);
        let mut fail = |failed: Failed<'_>| {
            let Failed { to, id: request, flags, own, executed } = failed;
            let own = without_version(flags, own);
            let why = match executed {
                Executed::No => Why::Away,
                // It goes again after the one that was refused before it.
                Executed::Refused => Why::Unready,
                Executed::Maybe | Executed::Partly => Why::Lost,
            };
            *(if why == Why::Away { &mut away } else { &mut lost }) += 1;
            each(
                to,
                LaneId { lane: at as u16, request },
                Outcome::Failed { own, flags, node: &lane.peer.name, why },
            );
        };
        let resumes = resumes && lane.outbound.is_ended() && lane.is_wanted;
        match resumes {
            true => lane.outbound.resume(&mut fail),
            false => lane.outbound.lost(&mut fail),
        }
        lane.state = match resumes {
            true => LaneState::Resuming { ticks: limits.resume_ticks },
            false => LaneState::Away,
        };
        let counts = lane.peer.counts(worker);
        add(&counts.lost, lost);
        add(&counts.away, away);
        counts.in_flight.store(lane.outbound.in_flight() as u64, Ordering::Relaxed);
        lane.peer.set_open(worker, false);
        // The requests of these connections are refused now, or the next lane has room for them.
        self.woken.extend(std::mem::take(&mut lane.waiting));
        self.woken.extend(std::mem::take(&mut lane.ordered));
        // The peer's end of the next lane has refused nothing.
        lane.pauses = Pauses::default();
    }

    /// Ends the time in which requests wait for a connection: they fail.
    pub(crate) fn give_up(&mut self, lane: usize, each: &mut dyn FnMut(Waiter, LaneId, Outcome<'_>)) {
        if self.is_resuming(lane) || self.is_connecting(lane) {
            self.close(lane, false, each);
        }
    }

    /// Looks after a lane. Called every [`TICK`].
    pub(crate) fn tick(&mut self, at: usize) -> Pulse {
        let LaneLimits { silent_ticks, .. } = self.limits;
        let (lane, lease) = (&mut self.lanes[at], &self.lease);
        match &mut lane.state {
            LaneState::Connecting if !lane.is_wanted => Pulse::Silent,
            LaneState::Connecting | LaneState::Away => Pulse::Alive,
            LaneState::Resuming { ticks: 0 } => Pulse::Silent,
            LaneState::Resuming { ticks } => {
                *ticks -= 1;
                Pulse::Alive
            }
            LaneState::Open if lane.is_moved => Pulse::Unwanted,
            LaneState::Open if !lane.is_wanted && lane.outbound.in_flight() == 0 => Pulse::Unwanted,
            LaneState::Open => {
                lane.silent_ticks += 1;
                if lane.silent_ticks > silent_ticks {
                    return Pulse::Silent;
                }
                lane.ticks = lane.ticks.wrapping_add(1);
                if lane.silent_ticks >= PING_TICKS || lane.ticks.is_multiple_of(REPORT_TICKS) {
                    ping(lane, lease);
                }
                Pulse::Alive
            }
        }
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
    fn wake_if_room(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        if !lane.waiting.is_empty() && lane.outbound.is_below_half() {
            self.woken.extend(std::mem::take(&mut lane.waiting));
        }
    }
}

/// Returns the client's own bytes of a request, which follow the map's version in one to every node.
fn without_version(flags: Flags, own: &[u8]) -> &[u8] {
    if flags.has(Flags::EVERY) { own.get(VERSION_BYTES..).unwrap_or_default() } else { own }
}

/// Queues a PING, unless one is not answered.
fn ping(lane: &mut Lane, lease: &RingLease) {
    if lane.pinged.is_none() {
        lane.pinged = Some(boot_time());
        lane.outbound.ping(if lease.is_stalled() { NO_PROMISE } else { 0 });
    }
}

//! The ring of nodes to which the server belongs, if it belongs to one: the map in force, which
//! slots are the node's own, and the connections (*lanes*) on which requests for other slots are
//! passed to their owners.
//!
//! ```text
//!                        ┌─ Own ──► executed here
//!  key ► slot ► Words ───┤
//!                        └─ Away ─► map: owner ► Lanes of the worker ► owner
//! ```
//! | module | content |
//! |---|---|
//! | `words` | which slots are this node's own |
//! | `events` | [`RingEvents`]: the events on which the steward of the maps has to act |
//! | `lease` | [`RingLease`]: until when this node executes requests, and its promises to other nodes |
//! | `lanes` | [`Lanes`]: requests to other nodes |
//! | `life` | [`Outcome`]: the life of a lane, and the outcomes of its requests |
//! | `order` | the order of requests that were refused |
//! | `peers` | [`Peer`]: what is known and counted of another node |
//! | `moves` | [`MoveCounts`]: what is counted of moves of slots |
//! | `removal` | removes the items of slots |
//! | `transfers` | [`Filling`]: slots that are sealed, or are being filled |
//!
//! A map is put in force in steps, by one thread (`worker/maps.rs`), so that no request is executed
//! with items from a time at which the slot belonged to another node.

mod events;
mod lanes;
mod lease;
mod life;
mod moves;
mod order;
mod peers;
mod removal;
mod transfers;
mod words;

pub use events::RingEvents;
pub(crate) use lanes::{LaneId, Lanes, RETRY, Refused, Route, VERSION_BYTES};
pub(crate) use lease::LeaseReport;
pub use lease::RingLease;
pub(crate) use life::{Outcome, Pulse, TICK, Why};
pub use moves::MoveStep;
pub(crate) use moves::{Direction, MoveCounts, MoveReport};
pub(crate) use peers::{MapInForce, Peer, PeerReport, RingReport, add};
pub(crate) use removal::remove_items;
pub(crate) use transfers::{Filling, NoFilling, SERVED_MAX};
pub(crate) use words::Changed;

use crate::locks::{Guard, LANES, Lock, RING, SESSIONS};
use crate::settings::RingSettings;
use blocker::executor::block_on_for;
use cached_ring::{Map, Move, NODES_MAX, NodeIndex, Slot};
use life::LaneLimits;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use transfers::Transfers;
use words::{SlotState, Words};

/// The maximum number of nodes outside this node's map that have lanes to this node at a time: a
/// node that a new map adds may have the new map earlier than this node.
pub(crate) const STRANGERS_MAX: usize = 2;

/// From this number of entries on, the entries of nodes that have left the map are dropped.
const PEERS_MAX: usize = 2 * NODES_MAX;

/// The mark of a memory file that may have items which are not its node's, among all others. As a bit of
/// another mark, it says that there may be items of other slots, which must be removed.
pub(crate) const MIXED: u64 = 1;
/// The bit of a mark that says that a server without a ring has had the memory file since.
pub(crate) const ALONE: u64 = 2;

/// A node's view of its ring.
pub(crate) struct Ring {
    /// The name of this node.
    pub(crate) own: String,
    /// The number by which other nodes recognise this node's process. A process that takes over keeps
    /// it; any other process of the same name is a second one.
    pub(crate) incarnation: u64,
    words: Arc<Words>,
    /// Until when the node executes requests for its own slots.
    pub(crate) lease: Arc<RingLease>,
    lanes: Box<[Lock<Lanes>]>,
    maps: Lock<Maps>,
    /// The version of the map in force.
    version_in_force: watch::Sender<u64>,
    /// The version of the map that other nodes are told is in force ([`announce`](Ring::announce)).
    version: AtomicU64,
    digest: AtomicU64,
    /// The version of the map at the start.
    begun_with: u64,
    /// Whether requests of any worker wait until an owner executes them.
    has_waiting: AtomicBool,
    /// Whether slots are being prepared: earlier items are removed, then other nodes' maps awaited.
    is_purging: AtomicBool,
    /// The number of times that items were to be removed.
    purges: AtomicU64,
    /// The number of slots that are sealed; and the version of the map that decides it.
    sealed: AtomicUsize,
    flushed_by: AtomicU64,
    /// The threads of copy sessions; `None` once the server ends.
    pub(crate) sessions: Lock<Option<Vec<JoinHandle<()>>>>,
    /// The bytes of values that arrive from other nodes and are collected outside the store.
    pub(crate) collected_bytes: Arc<AtomicUsize>,
    /// The bytes of values that stay pinned because other nodes have not asked for them yet.
    pub(crate) suspended_pins: Arc<AtomicUsize>,
    /// The events on which the steward of the maps has to act.
    pub(crate) events: Arc<RingEvents>,
    /// Notified when another map is in force: lanes may have to be opened.
    pub(crate) changed: Notify,
    /// The counts of the moves to and from this node.
    pub(crate) moves: MoveCounts,
    /// The thread that puts maps in force.
    pub(crate) thread: OnceLock<Thread>,
}

struct Maps {
    in_force: Arc<Map>,
    /// The map that will be in force next.
    next: Option<Arc<Map>>,
    /// The other nodes that are in a map, were in one, or have opened a lane to this node.
    peers: HashMap<String, Arc<Peer>>,
    transfers: Transfers,
}

impl Maps {
    /// Returns whether a map has a node with this name.
    fn know(&self, name: &str) -> bool {
        self.in_force.find(name).is_some() || self.next.as_ref().is_some_and(|next| next.find(name).is_some())
    }
}

impl Ring {
    /// Returns the ring of a node with `workers` workers, with the map of the settings in force.
    /// Requests that another node has not executed when it ends in order wait for its successor,
    /// for `resume_within` at most.
    pub(crate) fn new(settings: &RingSettings, workers: usize, resume_within: Duration) -> Ring {
        let (own, map) = (settings.node.clone(), settings.map.clone());
        let words = Arc::new(Words::new(&map, map.find(&own)));
        let events = Arc::<RingEvents>::default();
        events.set_latest(map.version());
        let is_part = |one: &&Move| [one.from, one.to].map(Some).contains(&map.find(&own));
        events.unfinished.send_modify(|ids| ids.extend(map.moves().iter().filter(is_part).map(|one| one.id)));
        let names = map.nodes().iter().map(|node| node.name.as_str()).filter(|name| *name != own);
        let peers: HashMap<String, Arc<Peer>> =
            names.map(|name| (name.to_owned(), Arc::new(Peer::new(name, workers, events.clone())))).collect();
        let lease = Arc::new(RingLease::new(&own, &map, settings.has_leases));
        let limits = LaneLimits::new(settings.peer_timeout, resume_within);
        let lanes = (0..workers).map(|worker| {
            let mut lanes = Lanes::new(worker, (words.clone(), lease.clone()), map.clone(), limits);
            lanes.set_map(map.clone(), &own, |name| peers[name].clone());
            Lock::ranked(lanes, &LANES)
        });
        Ring {
            lanes: lanes.collect(),
            version_in_force: watch::Sender::new(map.version()),
            version: map.version().into(),
            digest: map.digest().into(),
            begun_with: map.version(),
            sealed: words.count(SlotState::Sealed).into(),
            flushed_by: map.version().into(),
            has_waiting: AtomicBool::new(false),
            is_purging: AtomicBool::new(false),
            purges: AtomicU64::new(0),
            sessions: Lock::ranked(Some(Vec::new()), &SESSIONS),
            maps: Lock::ranked(
                Maps { transfers: Transfers::new(&map, map.find(&own)), in_force: map, next: None, peers },
                &RING,
            ),
            collected_bytes: Arc::default(),
            suspended_pins: Arc::default(),
            events,
            words,
            lease,
            changed: Notify::new(),
            moves: MoveCounts::default(),
            thread: OnceLock::new(),
            // 0 stands for a process without a ring.
            incarnation: getrandom::u64().expect("random bytes from the operating system").max(1),
            own,
        }
    }

    /// Returns whether this node executes the requests for a slot.
    #[inline]
    pub(crate) fn owns(&self, slot: Slot) -> bool {
        self.words.owns(slot)
    }

    /// Returns whether this node may execute requests for its own slots: its lease has not lapsed.
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        self.lease.is_valid()
    }

    /// Asks for [`Lanes::retry`] of all workers in a moment.
    pub(crate) fn ask_retry(&self) {
        if !self.has_waiting.swap(true, Ordering::AcqRel)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Returns whether [`Lanes::retry`] is asked for.
    pub(crate) fn has_waiting(&self) -> bool {
        self.has_waiting.load(Ordering::Acquire)
    }

    /// Returns whether [`Lanes::retry`] was asked for since the last call.
    pub(crate) fn take_waiting(&self) -> bool {
        self.has_waiting.swap(false, Ordering::AcqRel)
    }

    /// Returns the lanes of a worker, which only that worker uses.
    #[inline]
    pub(crate) fn lanes(&self, worker: usize) -> Guard<'_, Lanes> {
        self.lanes[worker].lock()
    }

    /// Returns the map in force.
    pub(crate) fn map(&self) -> Arc<Map> {
        self.maps.lock().in_force.clone()
    }

    /// Returns whether a worker has a lane to a node.
    pub(crate) fn is_reachable(&self, node: &str) -> bool {
        self.peer(node).is_some_and(|peer| peer.is_reachable())
    }

    /// Returns the size of the items of a node to which a worker has a lane, as it has last reported it.
    pub(crate) fn held_bytes(&self, node: &str) -> Option<u64> {
        self.peer(node).filter(|peer| peer.is_reachable())?.held_bytes()
    }

    fn peer(&self, node: &str) -> Option<Arc<Peer>> {
        self.maps.lock().peers.get(node).cloned()
    }

    /// Returns whether every node that this one reaches has a map at least as late as this process has
    /// begun with, and has opened all of its lanes to this node.
    pub(crate) fn is_known_to_all(&self) -> bool {
        let maps = self.maps.lock();
        let mut others = maps.in_force.nodes().iter().filter_map(|node| maps.peers.get(&node.name));
        others.all(|peer| !peer.is_reachable() || peer.knows(self.begun_with))
    }

    /// Returns whether a flush may be executed here that an entry with a map of this version sends to all
    /// nodes: this node has the same map, its lease has not lapsed, and no slot is on its way to another node, which may have
    /// executed the flush before the items came.
    pub(crate) fn may_flush(&self, map_version: u64) -> bool {
        self.is_valid()
            && self.sealed.load(Ordering::SeqCst) == 0
            && self.flushed_by.load(Ordering::SeqCst) == map_version
    }

    /// Returns the version and the digest of the map that other nodes are told is in force.
    pub(crate) fn map_in_force(&self) -> MapInForce {
        let [version, digest] = [&self.version, &self.digest].map(|word| word.load(Ordering::Relaxed));
        MapInForce { version, digest }
    }

    /// Returns this node's index in a map.
    pub(crate) fn own_index(&self, map: &Map) -> Option<NodeIndex> {
        map.find(&self.own)
    }

    /// Returns whether the map in force, or the next one, has a node with this name.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.maps.lock().know(name)
    }

    /// Returns the entry of a node, which is made if there is none.
    pub(crate) fn peer_or_new(&self, name: &str) -> Arc<Peer> {
        let workers = self.lanes.len();
        let maps = &mut *self.maps.lock();
        if maps.peers.len() >= PEERS_MAX && !maps.peers.contains_key(name) {
            let mut peers = std::mem::take(&mut maps.peers);
            peers.retain(|name, peer| maps.know(name) || Arc::strong_count(peer) > 1);
            maps.peers = peers;
        }
        maps.peers
            .entry(name.to_owned())
            .or_insert_with(|| Arc::new(Peer::new(name, workers, self.events.clone())))
            .clone()
    }

    /// Requests that another map be put in force, which happens soon afterwards. The same map as the
    /// latest one changes nothing.
    ///
    /// # Errors
    /// Returns the reason why the map cannot be used, as a single line.
    pub(crate) fn set_map(&self, map: Map) -> Result<(), String> {
        let mut maps = self.maps.lock();
        let latest = maps.next.as_ref().unwrap_or(&maps.in_force);
        if **latest == map {
            return Ok(());
        }
        map.check_successor(latest, &self.own).map_err(|error| error.to_string())?;
        self.events.set_latest(map.version());
        maps.next = Some(Arc::new(map));
        drop(maps);
        self.wake();
        Ok(())
    }

    /// Wakes the thread that puts maps in force and removes items.
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Waits for at most `timeout` until a map of this version, or a later one, is in force. Returns
    /// whether it is.
    pub(crate) fn await_map(&self, version: u64, timeout: Duration) -> bool {
        let mut in_force = self.version_in_force.subscribe();
        block_on_for(in_force.wait_for(|now| *now >= version), timeout).is_some()
    }

    /// Returns the map that is to be put in force.
    pub(crate) fn next_map(&self) -> Option<Arc<Map>> {
        self.maps.lock().next.clone()
    }

    /// Puts a map in force that each worker has received. From now on, no request begins for
    /// another node's slot; requests for slots that become this node's begin after
    /// [`end_purge`](Self::end_purge), unless the slots have come with their items.
    pub(crate) fn apply(&self, map: &Arc<Map>) -> Changed {
        let maps = &mut *self.maps.lock();
        let own = self.own_index(map);
        let before = std::mem::replace(&mut maps.in_force, map.clone());
        // Before any slot is not sealed any more: a flush with the map before must not be executed.
        self.flushed_by.store(map.version(), Ordering::SeqCst);
        let follows = map.follows(&before, &self.own);
        let ended = maps.transfers.end_moves(&self.words, &before, map, own, follows);
        let changed = self.words.apply(map, own, follows);
        let changed = Changed { lost: changed.lost | ended.lost, ..changed };
        self.sealed.store(self.words.count(SlotState::Sealed), Ordering::SeqCst);
        if changed.gained || changed.lost {
            self.begin_purge();
        }
        self.lease.follow(map);
        maps.next.take_if(|next| next.version() <= map.version());
        self.version_in_force.send_replace(map.version());
        self.events.unfinished.send_if_modified(|ids| {
            let count = ids.len();
            ids.retain(|id| map.find_move(*id).is_some());
            ids.len() != count
        });
        self.changed.notify_one();
        changed
    }

    /// Tells other nodes that a map is in force. No request that began under the previous map may
    /// still be executing.
    pub(crate) fn announce(&self, map: &Map) {
        self.version.store(map.version(), Ordering::Release);
        self.digest.store(map.digest(), Ordering::Release);
    }

    /// Returns whether this node has been given slots for which another node may still execute
    /// requests, because the other node may have another map in force.
    pub(crate) fn must_wait(&self) -> bool {
        if !self.has_purging() {
            return false;
        }
        let maps = self.maps.lock();
        let map = MapInForce { version: maps.in_force.version(), digest: maps.in_force.digest() };
        // In a ring with terms, a later map takes no slot from this node without its part.
        let has_terms = maps.in_force.nodes().iter().any(|node| node.term != 0);
        // A node with a lease has given its slots up itself, or its lease has ended before they were given
        // to this one.
        let others = maps.in_force.nodes().iter().filter(|node| node.name != self.own && node.lease_ms == 0);
        let mut peers = others.filter_map(|node| maps.peers.get(&node.name));
        peers.any(|peer| peer.is_behind(map, has_terms))
    }

    /// Returns whether items are to be removed whose slots are not this node's own.
    pub(crate) fn is_purging(&self) -> bool {
        self.is_purging.load(Ordering::Relaxed)
    }

    /// Returns whether slots of this node are being prepared.
    pub(crate) fn has_purging(&self) -> bool {
        self.words.count(SlotState::Purging) > 0
    }

    /// Records that items are to be removed whose slots are not this node's own.
    pub(crate) fn begin_purge(&self) {
        self.purges.fetch_add(1, Ordering::Relaxed);
        self.is_purging.store(true, Ordering::Relaxed);
    }

    /// Returns the number of times that items were to be removed.
    pub(crate) fn purges(&self) -> u64 {
        self.purges.load(Ordering::Relaxed)
    }

    /// Returns whether items of the slot may be in the store.
    pub(crate) fn keeps(&self, slot: Slot) -> bool {
        matches!(self.words.state(slot), SlotState::Own | SlotState::Sealed | SlotState::Filling)
    }

    /// Makes the node's slots `Purging` before clients are served, until
    /// [`end_purge`](Self::end_purge).
    pub(crate) fn hold_slots(&self) {
        self.words.change_all(SlotState::Own, SlotState::Purging);
        self.begin_purge();
    }

    /// Begins to execute requests for the slots that this node has been given. No item may be left
    /// whose slot was not this node's own when [`purges`](Self::purges) was `purges`, and no slot may
    /// have been given to this node since.
    pub(crate) fn end_purge(&self, purges: u64) {
        let _maps = self.maps.lock();
        self.words.change_all(SlotState::Purging, SlotState::Own);
        self.is_purging.store(self.purges() != purges, Ordering::Relaxed);
    }

    /// Returns the mark of a store that has only items of this node's slots. The bits [`MIXED`] and
    /// [`ALONE`] are not set.
    pub(crate) fn mark(&self) -> u64 {
        self.mark_of(&self.map())
    }

    fn mark_of(&self, map: &Map) -> u64 {
        // A map without this node is refused.
        self.own_index(map).map_or(MIXED, |own| map.mark(own) & !(MIXED | ALONE) | 4)
    }

    /// Returns the mark of the store as it is.
    pub(crate) fn mark_now(&self) -> u64 {
        let maps = self.maps.lock();
        if maps.transfers.may_lose() || self.has_purging() {
            return MIXED;
        }
        let has_others = self.is_purging() || maps.transfers.is_filling();
        self.mark_of(&maps.in_force) | if has_others { MIXED } else { 0 }
    }

    /// Returns the state for reports.
    pub(crate) fn report(&self) -> RingReport {
        let (map, peers) = {
            let maps = self.maps.lock();
            (maps.in_force.clone(), maps.peers.clone())
        };
        let others = map.nodes().iter().zip(map.counts()).filter(|(node, _)| node.name != self.own);
        RingReport {
            ring: map.ring().to_owned(),
            node: self.own.clone(),
            map: self.map_in_force(),
            own_slots: self.words.count(SlotState::Own),
            purging_slots: self.words.count(SlotState::Purging),
            is_purging: self.is_purging(),
            lease: self.lease.report(),
            moves: self.moves.report(),
            peers: others.filter_map(|(node, slots)| Some(peers.get(&node.name)?.report(slots))).collect(),
        }
    }
}

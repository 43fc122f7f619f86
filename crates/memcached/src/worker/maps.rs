//! The thread that puts maps of the ring in force, and the mark by which a memory file says whose
//! items it has.
//!
//! ```text
//!  next map ─► every worker routes by it ─► lost slots: Away, gained ones: Purging
//!                                             └─► every worker has completed its request
//!                                                   └─► items of other nodes' slots: removed
//!                                                         └─► every other node has the map
//!                                                               └─► gained slots: Own
//! ```
//! A gained slot may have been this node's earlier, and another node's in the meantime, so none of
//! the slot's items may be read again. The previous owner executes requests for the slot until that
//! owner has the map, so a slot has no owner for a moment rather than two owners. This node does
//! not wait for a node to which there is no lane and at whose address nothing accepts connections.
//! The items of lost slots are removed as well, which frees their memory.
//!
//! Slots that come with their items, by a copy session, are `Own` as soon as the map of their move's
//! commit is in force: their previous owner executes no request for them any more.

use crate::connections::Command;
use crate::ring::{ALONE, Changed, MIXED, RETRY, Ring, TICK, remove_items};
use crate::shared::Shared;
use cached_core::kv::ScanCursor;
use cached_ring::Map;
use cached_ring::copy::Pace;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The mark of a memory file that is of no ring.
const NO_RING: u64 = 0;

/// The interval at which other nodes are asked for their maps.
const ASK: Duration = Duration::from_millis(50);

/// Items of other nodes' slots that hinder nobody are removed once no map has come for this time: so one
/// pass removes those of several moves.
pub(super) const PURGE_AFTER: Duration = Duration::from_secs(1);

/// The same while slots move to another node: a move that takes longer may have come to a standstill.
const PURGE_AFTER_MOVE: Duration = Duration::from_secs(60);

/// Returns what the CAS values of slots exceed that come without their items from a node that was struck
/// off, in the map of this version or an earlier one: the lost owner may have given any of its own to
/// clients. Owners give fewer than 2^40 between two strikes.
fn cas_floor(map_version: u64) -> u64 {
    map_version.saturating_mul(1 << 40).min(1 << 63)
}

/// Decides which items of an earlier process may be used, before clients are served: those that were
/// stored while their slots were this node's.
pub(crate) fn adopt_items(shared: &Shared) {
    let kv = &shared.kv;
    let has_items = kv.stats().items > 0;
    let mark = kv.mark();
    let Some(ring) = &shared.ring else {
        let is_mixed = mark & MIXED != 0;
        if is_mixed && has_items {
            tracing::warn!("the memory file has items of other nodes of a ring: all items are removed");
            kv.flush_all();
        }
        if is_mixed {
            kv.set_mark(NO_RING);
        }
        if !is_mixed && mark != NO_RING {
            // The mark of a ring stays, for a node that returns to it: with items of all slots then.
            kv.set_mark(mark | ALONE);
        }
        return;
    };
    let own = ring.mark();
    if mark & !(MIXED | ALONE) == own {
        // With items of slots that the node has lost or was being given, or that were none to it.
        if mark != own {
            kv.set_mark(own | MIXED);
            ring.begin_purge();
        }
        return;
    }
    if mark == NO_RING && has_items {
        tracing::info!(
            "the memory file is of a server without a ring: items of other nodes' slots are removed"
        );
        // Another process may follow before the others are removed.
        kv.set_mark(own | MIXED);
        ring.begin_purge();
        return;
    }
    if has_items {
        tracing::warn!(
            "the memory file is of another ring, another node, or other slots of this node: all items are removed"
        );
        kv.flush_all();
    }
    if mark != NO_RING {
        // An earlier process had another map, whose owners may not have this map yet.
        kv.set_mark(MIXED);
        return ring.hold_slots();
    }
    kv.set_mark(own);
}

/// The state of the thread.
pub(super) struct MapThread<'a> {
    shared: &'a Shared,
    ring: &'a Ring,
    /// The time of the last tick.
    ticked: Instant,
    /// When waiting requests were last tried again.
    retried: Instant,
    /// When a map was last put in force.
    applied: Instant,
    /// The time after a map for which the removal of items that hinder nobody waits.
    purge_after: Duration,
    /// The removal of items that a map has interrupted.
    purge: Option<Purge>,
}

/// A pass over all items, which removes those of other nodes' slots.
struct Purge {
    begun: Instant,
    /// The number of times that items were to be removed when the pass began.
    purges: u64,
    /// `None` once all items were looked at.
    cursor: Option<ScanCursor>,
    removed: u64,
}

/// The outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Done,
    /// Nothing was due.
    Idle,
    /// The thread must end, or another process has the store.
    Ended,
}

impl<'a> MapThread<'a> {
    pub(super) fn new(shared: &'a Shared, ring: &'a Ring, purge_after: Duration) -> MapThread<'a> {
        let now = Instant::now();
        MapThread { shared, ring, ticked: now, retried: now, applied: now, purge_after, purge: None }
    }

    /// Does what is due: ticks, then the next map, then the removal of items. `ends` says whether the
    /// thread must end.
    pub(super) fn step(&mut self, ends: &dyn Fn() -> bool) -> Step {
        self.tick();
        if let Some(map) = self.ring.next_map() {
            return self.apply(&map, ends);
        }
        match self.ring.is_purging() && !self.may_purge_later() {
            true => self.purge(ends),
            false => Step::Idle,
        }
    }

    /// Returns whether the removal of items can wait for those of further slots, because it hinders
    /// nobody.
    fn may_purge_later(&self) -> bool {
        let since = self.applied.elapsed();
        let more_may_follow = since < self.purge_after || self.ring.is_giving() && since < PURGE_AFTER_MOVE;
        more_may_follow && !self.is_purge_urgent()
    }

    /// Returns whether somebody waits for the removal of items: requests for slots that this node has been
    /// given, or other items, for which there is no memory.
    fn is_purge_urgent(&self) -> bool {
        self.ring.has_purging() || self.shared.kv.is_full()
    }

    /// Lets the workers look after their lanes, and try waiting requests again, if that is due.
    fn tick(&mut self) {
        if self.ticked.elapsed() >= TICK {
            self.ticked = Instant::now();
            self.tell(|| Command::Tick);
        }
        if self.retried.elapsed() >= RETRY && self.ring.take_waiting() {
            self.retried = Instant::now();
            self.tell(|| Command::Retry);
        }
    }

    fn tell(&self, command: impl Fn() -> Command) {
        self.shared.connections.tell(command);
    }

    /// Waits until every worker has completed what it was executing, and has executed the commands
    /// that were sent before.
    fn pass(&mut self, ends: &dyn Fn() -> bool) -> Step {
        let connections = &self.shared.connections;
        let passed = connections.pass(&mut || {
            self.tick();
            !ends()
        });
        if passed { Step::Done } else { Step::Ended }
    }

    /// Changes the store, unless another process has it.
    fn change(&self, change: impl FnOnce()) -> Step {
        let is_handed_over = self.shared.is_handed_over.lock();
        if *is_handed_over {
            return Step::Ended;
        }
        change();
        Step::Done
    }

    /// Puts a map in force.
    fn apply(&mut self, map: &Arc<Map>, ends: &dyn Fn() -> bool) -> Step {
        self.tell(|| Command::Map(map.clone()));
        if self.pass(ends) == Step::Ended {
            return Step::Ended;
        }
        let (own, before) = (self.ring.own_index(map), self.ring.map());
        let lost = map.lost(&before, &self.ring.own).count();
        let gained = map.gained(&before, &self.ring.own).count();
        let (kv, mut changed) = (&self.shared.kv, Changed::default());
        // In this order, so that a process that follows does not find items of slots that have been
        // another node's in the meantime.
        let step = self.change(|| {
            if gained > 0 && !map.is_whole_since(&before) {
                kv.raise_cas(cas_floor(map.version()));
            }
            kv.set_mark(MIXED);
            changed = self.ring.apply(map);
            kv.set_mark(self.ring.mark_now());
        });
        if changed.gained {
            // Items of these slots must be removed as well, of which the pass has missed some.
            self.purge = None;
        }
        if step == Step::Ended || self.pass(ends) == Step::Ended {
            return Step::Ended;
        }
        self.ring.announce(map);
        self.applied = Instant::now();
        let (version, slots) = (map.version(), own.map_or(0, |own| map.slots_of(own).count()));
        match lost + gained > 0 || map.nodes() != before.nodes() {
            true => tracing::info!(version, slots, lost, gained, "a map of the ring is in force"),
            false => tracing::debug!(version, slots, "a map of the ring is in force"),
        }
        if !map.follows(&before, &self.ring.own) {
            let before = before.version();
            tracing::warn!(
                "the map of the ring has version {version}, and the one before had {before}: a map in between may \
                 have given the slots of this node to another, so all items are removed"
            );
        }
        Step::Done
    }

    /// Removes the items of other nodes' slots, at the pace of a move unless that is urgent, waits until no
    /// other node may execute requests for the slots that this node has been given, and then takes these
    /// slots. Returns when a map has come, after which it goes on.
    fn purge(&mut self, ends: &dyn Fn() -> bool) -> Step {
        let mut purge = match self.purge.take() {
            Some(purge) => purge,
            None => {
                let purges = self.ring.purges();
                // From here on, no item is stored in such a slot.
                if self.pass(ends) == Step::Ended {
                    return Step::Ended;
                }
                Purge { begun: Instant::now(), purges, cursor: Some(ScanCursor::default()), removed: 0 }
            }
        };
        let mut pace = Pace::default();
        while let Some(at) = purge.cursor {
            let begun = Instant::now();
            if self.ring.next_map().is_some() {
                self.purge = Some(purge);
                return Step::Done;
            }
            let (mut next, mut removed) = (None, 0);
            let mut slice = || {
                (next, removed) = remove_items(&self.shared.kv, at, |slot| !self.ring.keeps(slot));
            };
            if ends() || self.change(&mut slice) == Step::Ended {
                return Step::Ended;
            }
            purge.cursor = next;
            purge.removed += removed;
            self.tick();
            match pace.pause_after(begun.elapsed(), 0).filter(|_| !self.is_purge_urgent()) {
                // Ends early when a map comes, or requests begin to wait, and in time for the next tick to try
                // waiting requests again.
                Some(pause) => std::thread::park_timeout(pause.min(RETRY)),
                None => std::thread::yield_now(),
            }
        }
        while self.ring.must_wait() {
            if ends() {
                return Step::Ended;
            }
            if self.ring.next_map().is_some() {
                self.purge = Some(purge);
                return Step::Done;
            }
            self.tell(|| Command::Ping);
            self.tick();
            std::thread::park_timeout(ASK);
        }
        let step = self.change(|| {
            self.ring.end_purge(purge.purges);
            self.shared.kv.set_mark(self.ring.mark_now());
            let (items, took_ms) = (purge.removed, purge.begun.elapsed().as_millis());
            tracing::info!(items, took_ms, "the items of other nodes' slots are removed");
        });
        // Wakes connections whose requests wait for these slots.
        self.tell(|| Command::Ping);
        step
    }
}

//! Slots on their way: those that this node has sealed for another one, and those that are being
//! filled with another node's items.
//!
//! A map decides what becomes of both. While the map has a move, its slots stay sealed or are
//! filled; what they become when it ends is decided when a map without it is put in force.

use super::words::{Changed, SlotState, Words};
use super::{Maps, Ring};
use cached_ring::{Map, Move, NodeIndex, SlotSet};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The maximum number of nodes that copy from this one at a time.
pub(crate) const SERVED_MAX: usize = 2;

/// The slots on their way.
#[derive(Default)]
pub(super) struct Transfers {
    /// The sealed slots of each move, by its id.
    sealed: HashMap<u64, Sealed>,
    filling: Option<Arc<Filling>>,
    /// The number of nodes that copy from this one.
    serving: usize,
    /// Whether no move may begin, and those end that have sealed nothing.
    is_held: bool,
}

/// Slots that were sealed for one move.
struct Sealed {
    slots: SlotSet,
    /// Whether this process has sealed them; if not, the target cannot commit the move any more.
    is_ours: bool,
}

/// Slots of one move that are being filled.
#[derive(Debug)]
pub(crate) struct Filling {
    /// The id of the move.
    pub(crate) id: u64,
    /// The name of the source.
    pub(crate) from: String,
    pub(crate) slots: SlotSet,
    is_over: AtomicBool,
    /// The version of the map that has committed the move, once this is known.
    settled: AtomicU64,
}

impl Filling {
    /// Returns whether the slots must not be filled any more: the move has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Transfers {
    /// Returns the slots that are sealed at the start, for moves that an earlier process may have had a
    /// part in.
    pub(super) fn new(map: &Map, own: Option<NodeIndex>) -> Transfers {
        let moves = map.moves().iter().filter(|one| Some(one.from) == own);
        let sealed = moves.map(|one| (one.id, Sealed { slots: one.slots.clone(), is_ours: false }));
        Transfers { sealed: sealed.collect(), ..Transfers::default() }
    }

    /// Returns whether the items of sealed slots may soon be another node's.
    pub(super) fn may_lose(&self) -> bool {
        self.sealed.values().any(|sealed| sealed.is_ours)
    }

    /// Returns whether there are items of slots that are not this node's yet.
    pub(super) fn is_filling(&self) -> bool {
        self.filling.is_some()
    }

    /// Ends the moves that `map`, which replaces `before`, does not have. Slots that were sealed are
    /// this node's own again if it still owns them, and slots that were filled if the move is committed.
    pub(super) fn end_moves(
        &mut self,
        words: &Words,
        before: &Map,
        map: &Map,
        own: Option<NodeIndex>,
        follows: bool,
    ) -> Changed {
        let mut changed = Changed::default();
        // Between the maps, the target may have committed the move, and then lost the slots by its
        // failure: then what is here is old.
        let is_whole = follows && (map.version() == before.version() + 1 || map.is_whole_since(before));
        let mut set = |slots: &SlotSet, from, is_kept: bool| {
            for slot in slots.iter().filter(|slot| words.state(*slot) == from) {
                let keeps = is_kept && Some(map.owner(slot)) == own;
                words.set(slot, if keeps { SlotState::Own } else { SlotState::Away });
                changed.lost |= !keeps;
            }
        };
        self.sealed.retain(|id, sealed| {
            let goes_on = map.find_move(*id).is_some();
            if !goes_on {
                set(&sealed.slots, SlotState::Sealed, is_whole);
            }
            goes_on
        });
        if let Some(filling) = self.filling.take_if(|filling| map.find_move(filling.id).is_none()) {
            let is_committed = filling.settled.load(Ordering::Relaxed) == map.version();
            set(&filling.slots, SlotState::Filling, is_committed);
            filling.is_over.store(true, Ordering::Release);
        }
        changed
    }
}

/// The reason why a move cannot be copied to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoFilling {
    /// The map in force has no such move to this node.
    Gone,
    /// Moves are held.
    Held,
    /// Another one is being copied.
    Busy,
}

/// Methods of the source of a move.
impl Ring {
    /// Takes one of the places for nodes that copy from this one. Returns whether there was one.
    pub(crate) fn begin_serving(&self) -> bool {
        let transfers = &mut self.maps.lock().transfers;
        let may_begin = transfers.serving < SERVED_MAX;
        transfers.serving += usize::from(may_begin);
        may_begin
    }

    /// Ends a session for the move, and gives its place free. If the slots are sealed, only the
    /// registry ends that: the steward has to look, and to abort the move unless `is_committed`.
    pub(crate) fn end_serving(&self, id: Option<u64>, is_committed: bool) {
        let mut maps = self.maps.lock();
        maps.transfers.serving -= 1;
        let Some(id) = id.filter(|id| maps.transfers.sealed.contains_key(id)) else { return };
        match is_committed {
            true => self.events.outdated.notify_one(),
            false => self.events.unfinished.send_modify(|ids| _ = ids.insert(id)),
        }
    }

    /// Returns the move, whose items this node may send to the node `to`.
    ///
    /// # Errors
    /// Returns the reason why not, as a part of a line.
    pub(crate) fn giving(&self, id: u64, to: &str) -> Result<Move, String> {
        let maps = self.maps.lock();
        let map = &maps.in_force;
        let version = map.version();
        let Some(the_move) = map.find_move(id) else {
            return Err(format!("its map, version {version}, has no move {id}"));
        };
        if Some(the_move.from) != self.own_index(map) || Some(the_move.to) != map.find(to) {
            return Err(format!("in its map, version {version}, move {id} is none from it to {to}"));
        }
        if maps.transfers.is_held {
            return Err("it holds moves, because it ends or is replaced".into());
        }
        if !self.words.are_all(&the_move.slots, SlotState::Own) {
            return Err(format!("it does not execute requests for all slots of move {id}"));
        }
        Ok(the_move.clone())
    }

    /// Returns whether the session for a move of this node's slots may go on.
    pub(crate) fn may_give(&self, id: u64) -> bool {
        let maps = self.maps.lock();
        let is_sealed = maps.transfers.sealed.contains_key(&id);
        maps.in_force.find_move(id).is_some() && (is_sealed || !maps.transfers.is_held)
    }

    /// Returns whether the map in force has a move from this node.
    pub(crate) fn is_giving(&self) -> bool {
        let map = self.map();
        map.moves().iter().any(|one| Some(one.from) == self.own_index(&map))
    }

    /// Returns whether the slots of a move are sealed.
    pub(crate) fn is_giving_sealed(&self, id: u64) -> bool {
        self.maps.lock().transfers.sealed.contains_key(&id)
    }

    /// Seals the slots of a move: no request for them begins from now on. Returns false if the move has
    /// ended or may not go on.
    pub(crate) fn seal(&self, id: u64) -> bool {
        let maps = &mut *self.maps.lock();
        let Some(the_move) = maps.in_force.find_move(id).filter(|_| !maps.transfers.is_held) else {
            return false;
        };
        if !self.words.are_all(&the_move.slots, SlotState::Own) {
            return false;
        }
        let slots = the_move.slots.clone();
        self.sealed.fetch_add(slots.len(), Ordering::SeqCst);
        self.words.change(&slots, SlotState::Own, SlotState::Sealed);
        maps.transfers.sealed.insert(id, Sealed { slots, is_ours: true });
        true
    }

    /// Forbids copy sessions, or permits them again. Those that have sealed slots go on.
    pub(crate) fn hold_moves(&self, is_held: bool) {
        self.maps.lock().transfers.is_held = is_held;
    }

    /// Returns the number of slots that are sealed.
    pub(crate) fn sealed_slots(&self) -> usize {
        self.words.count(SlotState::Sealed)
    }
}

/// Methods of the target of a move.
impl Ring {
    /// Begins to fill the slots of a move. Earlier items of the slots must be removed before
    /// [`fill`](Self::fill).
    ///
    /// # Errors
    /// Returns [`NoFilling`].
    pub(crate) fn begin_filling(&self, id: u64) -> Result<Arc<Filling>, NoFilling> {
        let Maps { in_force, transfers, .. } = &mut *self.maps.lock();
        let own = self.own_index(in_force);
        let the_move = in_force.find_move(id).filter(|one| Some(one.to) == own).ok_or(NoFilling::Gone)?;
        if transfers.is_held {
            return Err(NoFilling::Held);
        }
        if transfers.filling.is_some() {
            return Err(NoFilling::Busy);
        }
        let filling = Arc::new(Filling {
            id,
            from: in_force.node(the_move.from).name.clone(),
            slots: the_move.slots.clone(),
            is_over: AtomicBool::new(false),
            settled: AtomicU64::new(0),
        });
        transfers.filling = Some(filling.clone());
        Ok(filling)
    }

    /// Keeps items of the slots from now on. Returns false if the move has ended.
    pub(crate) fn fill(&self, filling: &Filling) -> bool {
        let _maps = self.maps.lock();
        let may_fill = !filling.is_over();
        if may_fill {
            self.words.change(&filling.slots, SlotState::Away, SlotState::Filling);
        }
        may_fill
    }

    /// Returns whether a session may go on that has not completed yet.
    pub(crate) fn may_fill(&self, filling: &Filling) -> bool {
        !filling.is_over() && !self.maps.lock().transfers.is_held
    }

    /// Says that the map of this version, which is put in force next, commits the move.
    pub(crate) fn settle(&self, filling: &Filling, version: u64) {
        filling.settled.store(version, Ordering::Relaxed);
    }

    /// Ends the filling of slots. What they have is removed, unless the move is committed. Nothing is
    /// stored in them any more when this is called.
    pub(crate) fn end_filling(&self, filling: &Filling) {
        let mut maps = self.maps.lock();
        if maps.transfers.filling.take_if(|current| current.id == filling.id).is_none() {
            return;
        }
        filling.is_over.store(true, Ordering::Release);
        self.words.change(&filling.slots, SlotState::Filling, SlotState::Away);
        self.begin_purge();
        drop(maps);
        self.wake();
    }
}

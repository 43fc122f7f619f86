//! The state of each slot at this node, in one byte, which every request reads.
//!
//! ```text
//!          the map gives the slot to this node       items removed, other nodes have the map
//!   Away ────────────────────────────────────► Purging ───────────────────────► Own
//!    │ ▲                                          │                              │ ▲
//!    │ └──────────────────────────────────────────┴──────────────────────────────┤ │
//!    │                   the map gives the slot to another node                  │ │
//!    │                                                                           ▼ │ aborted
//!    │                                        committed: the slot is Away ◄──── Sealed
//!    │ items removed                                       committed
//!    └──────────────► Filling ────────────────────────────────────────────────► Own
//! ```
//! A slot that is `Own` becomes `Purging` again if the node may have missed a map. A request is
//! executed only if the slot of its key is `Own`; for a value that arrives in pieces, the slot is
//! checked again when the value is stored. So once each worker has completed the request that it
//! was executing, nothing is stored in a slot that is not `Own`, except by a copy session in slots
//! that are `Filling`.

use cached_ring::{Map, NodeIndex, SLOTS, Slot, SlotSet};
use std::sync::atomic::{AtomicU8, Ordering};

/// The state of a slot at this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SlotState {
    /// The slot belongs to another node.
    Away = 0,
    /// The slot belongs to this node, which does not execute requests for it yet: earlier items of
    /// the slot are being removed, or another node may still execute requests for it.
    Purging = 1,
    /// This node executes the requests for the slot.
    Own = 2,
    /// The slot belongs to this node, and is on its way to another one: no node executes requests
    /// for it until a map says whose it is.
    Sealed = 3,
    /// The slot belongs to another node, from which its items are being copied to this one.
    Filling = 4,
}

impl SlotState {
    fn of(byte: u8) -> SlotState {
        match byte {
            1 => SlotState::Purging,
            2 => SlotState::Own,
            3 => SlotState::Sealed,
            4 => SlotState::Filling,
            _ => SlotState::Away,
        }
    }
}

/// The state of each slot.
pub(crate) struct Words(Box<[AtomicU8]>);

/// The slots that a map has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// Slots that this node is to execute requests for, once earlier items are removed.
    pub(crate) gained: bool,
    /// Slots whose items are to be removed, and which are not this node's.
    pub(crate) lost: bool,
}

impl Words {
    /// Returns the states at the start of a node: its slots in the map are its own, but for those that
    /// are on their way to another node.
    pub(super) fn new(map: &Map, own: Option<NodeIndex>) -> Words {
        let state = |slot| match map.move_of(slot) {
            _ if Some(map.owner(slot)) != own => SlotState::Away,
            Some(_) => SlotState::Sealed,
            None => SlotState::Own,
        };
        Words(Slot::all().map(|slot| AtomicU8::new(state(slot) as u8)).collect())
    }

    /// Returns whether requests for the slot may be executed.
    #[inline]
    pub(crate) fn owns(&self, slot: Slot) -> bool {
        self.0[usize::from(slot.number()) % SLOTS].load(Ordering::Acquire) == SlotState::Own as u8
    }

    /// Returns the state of a slot.
    pub(crate) fn state(&self, slot: Slot) -> SlotState {
        SlotState::of(self.0[usize::from(slot.number()) % SLOTS].load(Ordering::Acquire))
    }

    /// Returns the number of slots in a state.
    pub(super) fn count(&self, state: SlotState) -> usize {
        self.0.iter().filter(|word| word.load(Ordering::Relaxed) == state as u8).count()
    }

    /// Returns whether all of these slots are in a state.
    pub(super) fn are_all(&self, slots: &SlotSet, state: SlotState) -> bool {
        slots.iter().all(|slot| self.state(slot) == state)
    }

    /// Changes the state of those of these slots that are in the state `from`.
    pub(super) fn change(&self, slots: &SlotSet, from: SlotState, to: SlotState) {
        slots.iter().for_each(|slot| self.change_one(usize::from(slot.number()), from, to));
    }

    /// Changes the state of all slots that are in the state `from`.
    pub(super) fn change_all(&self, from: SlotState, to: SlotState) {
        (0..SLOTS).for_each(|slot| self.change_one(slot, from, to));
    }

    /// Sets the state of a slot.
    pub(super) fn set(&self, slot: Slot, state: SlotState) {
        self.0[usize::from(slot.number())].store(state as u8, Ordering::Release);
    }

    fn change_one(&self, slot: usize, from: SlotState, to: SlotState) {
        // Fails for a slot in another state, which keeps it.
        let _ = self.0[slot].compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Puts a map in force. Slots of other nodes are `Away` or `Filling` when this returns. Slots that
    /// become this node's are `Purging`, as are all of its slots unless it `follows` the map before: a
    /// map that this node has missed may have given them to another node. Slots that are `Sealed` or
    /// `Filling` for a move that has ended have another state before this is called.
    pub(super) fn apply(&self, map: &Map, own: Option<NodeIndex>, follows: bool) -> Changed {
        let mut changed = Changed::default();
        for (slot, word) in Slot::all().zip(&self.0) {
            let before = SlotState::of(word.load(Ordering::Relaxed));
            let is_own = Some(map.owner(slot)) == own;
            let now = match (before, is_own) {
                (SlotState::Filling, false) => SlotState::Filling,
                (_, false) => SlotState::Away,
                (SlotState::Own, true) if follows => SlotState::Own,
                (SlotState::Sealed, true) => SlotState::Sealed,
                (_, true) => SlotState::Purging,
            };
            if now != before {
                word.store(now as u8, Ordering::Release);
                changed.gained |= now == SlotState::Purging;
                changed.lost |= now == SlotState::Away;
            }
        }
        changed
    }
}

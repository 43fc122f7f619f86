//! The state of each slot at this node, in one byte, which every request reads.
//!
//! ```text
//!          the map gives the slot to this node       items removed, other nodes have the map
//!   Away ────────────────────────────────────► Purging ───────────────────────► Own
//!     ▲                                           │                              │
//!     └───────────────────────────────────────────┴──────────────────────────────┘
//!                        the map gives the slot to another node
//! ```
//! A slot that is `Own` becomes `Purging` again if the node may have missed a map. A request is
//! executed only if the slot of its key is `Own`; for a value that arrives in pieces, the slot is
//! checked again when the value is stored. So once each worker has completed the request that it
//! was executing, nothing is stored in a slot that is not `Own`.

use cached_ring::{Map, NodeIndex, SLOTS, Slot};
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
}

/// The state of each slot.
pub(crate) struct Words(Box<[AtomicU8]>);

impl Words {
    /// Returns the states at the start of a node: its slots in the map are its own.
    pub(super) fn new(map: &Map, own: Option<NodeIndex>) -> Words {
        let state = |slot| if Some(map.owner(slot)) == own { SlotState::Own } else { SlotState::Away };
        Words(Slot::all().map(|slot| AtomicU8::new(state(slot) as u8)).collect())
    }

    /// Returns whether requests for the slot may be executed.
    #[inline]
    pub(crate) fn owns(&self, slot: Slot) -> bool {
        self.0[usize::from(slot.number()) % SLOTS].load(Ordering::Acquire) == SlotState::Own as u8
    }

    /// Returns the number of slots in a state.
    pub(super) fn count(&self, state: SlotState) -> usize {
        self.0.iter().filter(|word| word.load(Ordering::Relaxed) == state as u8).count()
    }

    /// Puts a map in force. Slots of other nodes are `Away` when this returns. Slots that become this
    /// node's are `Purging`, as are all of its slots unless the map `is_next` after the one before: a
    /// map that this node has missed may have given them to another node. Returns whether any slot has
    /// changed its state.
    pub(super) fn apply(&self, map: &Map, own: Option<NodeIndex>, is_next: bool) -> bool {
        let mut has_changed = false;
        for (slot, word) in Slot::all().zip(&self.0) {
            let is_away = word.load(Ordering::Relaxed) == SlotState::Away as u8;
            let is_own = Some(map.owner(slot)) == own;
            if is_away == is_own || is_own && !is_next {
                let state = if is_own { SlotState::Purging } else { SlotState::Away };
                word.store(state as u8, Ordering::Release);
                has_changed = true;
            }
        }
        has_changed
    }

    /// Makes each slot `Own` that is `Purging`. Its items must have been removed.
    pub(super) fn end_purge(&self) {
        for word in &self.0 {
            // Fails for a slot in another state, which keeps it.
            let _ = word.compare_exchange(
                SlotState::Purging as u8,
                SlotState::Own as u8,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    }
}

//! The counts of the moves of slots to and from this node.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The counts of the moves to and from this node.
#[derive(Debug, Default)]
pub(crate) struct MoveCounts {
    begun: AtomicU64,
    committed: AtomicU64,
    failed: AtomicU64,
    items: [AtomicU64; 2],
    bytes: [AtomicU64; 2],
    left_out: AtomicU64,
    sealed_us: AtomicU64,
    slots: AtomicU64,
    took_us: AtomicU64,
}

/// A step of a move whose target is this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveStep {
    /// The move has begun.
    Begun,
    /// The slots are this node's own, with all their items.
    Committed {
        /// The number of slots.
        slots: usize,
        /// The time since the move began.
        took: Duration,
        /// The time for which the slots were sealed, as far as this node knows.
        sealed: Duration,
    },
    /// The move was given up; the slots are still the other node's.
    Failed,
}

/// The direction in which items move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From another node to this one.
    In,
    /// From this node to another one.
    Out,
}

/// The values of [`MoveCounts`], for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MoveReport {
    /// Moves to this node that have begun.
    pub(crate) begun: u64,
    /// Moves to this node after which the slots were its own.
    pub(crate) committed: u64,
    /// Moves to this node that were given up.
    pub(crate) failed: u64,
    /// Items and deletions received and sent; an item that changes during a move counts repeatedly.
    pub(crate) items: [u64; 2],
    /// Bytes of these items.
    pub(crate) bytes: [u64; 2],
    /// Items received that this node has not stored, because it would have evicted what was used later.
    pub(crate) left_out: u64,
    /// The time for which the slots of the last move to this node were sealed.
    pub(crate) sealed: Duration,
    /// The slots of all moves to this node after which they were its own.
    pub(crate) slots: u64,
    /// The time that these moves took together.
    pub(crate) took: Duration,
}

impl MoveCounts {
    /// Counts a step of a move to this node.
    pub(crate) fn step(&self, step: MoveStep) {
        let counter = match step {
            MoveStep::Begun => &self.begun,
            MoveStep::Failed => &self.failed,
            MoveStep::Committed { slots, took, sealed } => {
                self.sealed_us.store(sealed.as_micros() as u64, Ordering::Relaxed);
                self.slots.fetch_add(slots as u64, Ordering::Relaxed);
                self.took_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
                &self.committed
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts items, with their deletions, and their bytes.
    pub(crate) fn add(&self, direction: Direction, items: u64, bytes: u64) {
        self.items[direction as usize].fetch_add(items, Ordering::Relaxed);
        self.bytes[direction as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts an item that is colder than what this node would evict for it.
    pub(crate) fn leave_out(&self) {
        self.left_out.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the values.
    pub(crate) fn report(&self) -> MoveReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MoveReport {
            begun: read(&self.begun),
            committed: read(&self.committed),
            failed: read(&self.failed),
            items: self.items.each_ref().map(read),
            bytes: self.bytes.each_ref().map(read),
            left_out: read(&self.left_out),
            sealed: Duration::from_micros(read(&self.sealed_us)),
            slots: read(&self.slots),
            took: Duration::from_micros(read(&self.took_us)),
        }
    }
}

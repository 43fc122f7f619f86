//! Holds: which positions are still needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::record::Position;
use crate::shared::Shared;

/// Keeps the segment of a position, and all later ones, until it is dropped.
///
/// Taking and dropping one costs the same however many there are. The drop never waits for the disk.
pub struct Hold {
    shared: Arc<Shared>,
    count: Arc<AtomicU64>,
    position: Position,
}

impl Hold {
    /// The count has been raised for it.
    pub(crate) fn new(shared: Arc<Shared>, count: Arc<AtomicU64>, position: Position) -> Self {
        Self { shared, count, position }
    }

    /// Returns the position that the hold was taken for.
    pub fn position(&self) -> Position {
        self.position
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Hold").field(&self.position).finish()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.release();
        }
    }
}

impl Shared {
    /// Takes a hold of a position; `None` if it is not in a live segment.
    pub(crate) fn hold(self: &Arc<Self>, position: Position) -> Option<Hold> {
        let state = self.state.lock();
        if position.0 >= state.next_position {
            return None;
        }
        let segment = state.table.holding(position.0)?;
        segment.holds.fetch_add(1, Ordering::AcqRel);
        Some(Hold::new(Arc::clone(self), Arc::clone(&segment.holds), position))
    }
}

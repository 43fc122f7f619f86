//! The file of a store, and what was taken over from it.

use crate::arena::{HeldFile, Identity, Superblock};
use crate::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What a store has taken over from an earlier process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restart {
    /// Why there was nothing to take over; `None` if there was.
    pub cold: Option<String>,
    /// Whether the process before had ended cleanly.
    pub was_clean: bool,
    /// Items in the index.
    pub items: u64,
    /// Items left out because they had expired.
    pub expired_items: u64,
    /// Items left out because they had been flushed.
    pub flushed_items: u64,
    /// Items left out because a change was replacing them when the process before ended.
    pub replaced_items: u64,
    /// Items left out because they are not whole, or there is no room for them in the index.
    pub damaged_items: u64,
    /// Regions left out, at least from some entry on, because they are not what they should be.
    pub damaged_regions: u64,
    /// How long it took.
    pub took: Duration,
}

/// The file of a store, and what the store had taken over from it.
pub(super) struct Lasting {
    pub(super) held: HeldFile,
    pub(super) identity: Identity,
    pub(super) superblock: Arc<Superblock>,
    pub(super) restart: Restart,
    /// This process has the memory: it is not handed over, and the end writes what the next process needs.
    pub(super) is_owned: AtomicBool,
    /// The end is to be as if the process had been killed.
    #[cfg(test)]
    pub(super) is_killed: AtomicBool,
}

impl Restart {
    /// Nothing was taken over.
    pub(super) fn nothing() -> Restart {
        Restart {
            cold: None,
            was_clean: false,
            items: 0,
            expired_items: 0,
            flushed_items: 0,
            replaced_items: 0,
            damaged_items: 0,
            damaged_regions: 0,
            took: Duration::ZERO,
        }
    }
}

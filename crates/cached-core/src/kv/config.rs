//! The limits and choices of a byte-keyed store, and what they cost at most.

use super::hook::{ChangeHook, EvictionHook};
use crate::arena::ArenaError;
use crate::clock::{Clock, SystemClock};
use crate::policy::{Policy, S3Fifo};
use std::sync::Arc;

/// The limits and choices of a [`Kv`](super::Kv).
pub struct KvConfig {
    /// Memory for items (keys, values and their headers) and what the policy remembers of evicted
    /// ones. At least 1 MiB.
    pub arena_bytes: usize,
    /// The largest item, key and header included; at least 1 KiB, at most half the arena and 1 GiB.
    pub item_bytes_max: usize,
    /// How many threads may append at the same time without waiting for each other.
    pub lanes: usize,
    /// Keep a CAS value with every item (8 bytes each).
    pub cas: bool,
    /// What to do when memory is used up: evict (true) or refuse to store (false, memcached's `-M`).
    pub evict: bool,
    /// Which items stay; [`by_name`](crate::policy::by_name) knows them by name.
    pub policy: Box<dyn Policy>,
    /// Ask for huge pages (best effort).
    pub huge_pages: bool,
    /// Where the store asks for the time.
    pub clock: Arc<dyn Clock>,
    /// Hears of every change.
    pub change_hook: Option<Arc<dyn ChangeHook>>,
    /// Hears of every eviction, with the item.
    pub eviction_hook: Option<Arc<dyn EvictionHook>>,
    /// The seed of the key hash; `None` draws one.
    pub hash_seed: Option<u64>,
    /// Smaller regions than the arena's size asks for, so that a test has many of them.
    #[cfg(test)]
    pub(crate) region_bytes: Option<usize>,
}

impl Default for KvConfig {
    /// 64 MiB, items to 1 MiB, four lanes, with CAS, evicting: memcached's defaults, but for the policy.
    fn default() -> Self {
        KvConfig {
            arena_bytes: 64 << 20,
            item_bytes_max: 1 << 20,
            lanes: 4,
            cas: true,
            evict: true,
            policy: Box::new(S3Fifo::balanced()),
            huge_pages: false,
            clock: Arc::new(SystemClock::new()),
            change_hook: None,
            eviction_hook: None,
            hash_seed: None,
            #[cfg(test)]
            region_bytes: None,
        }
    }
}

/// The smallest arena.
pub const ARENA_BYTES_MIN: usize = 1 << 20;
/// The smallest and the largest bound for an item.
pub const ITEM_BYTES_MIN: usize = 1 << 10;
/// See [`ITEM_BYTES_MIN`].
pub const ITEM_BYTES_MAX: usize = 1 << 30;

/// A [`KvConfig`] that cannot work.
#[derive(Debug, thiserror::Error)]
pub enum KvConfigError {
    /// The arena is too small.
    #[error("arena_bytes is {0}; a store needs at least {ARENA_BYTES_MIN}")]
    ArenaTooSmall(usize),
    /// The item limit is out of range.
    #[error(
        "item_bytes_max is {item}; it must be between {ITEM_BYTES_MIN} and {ITEM_BYTES_MAX}, and at most half of arena_bytes ({arena})"
    )]
    ItemLimit {
        /// The item limit asked for.
        item: usize,
        /// The arena's size.
        arena: usize,
    },
    /// No lane.
    #[error("lanes must be at least 1")]
    NoLane,
    /// The memory could not be had.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The index's address space could not be had.
    #[error("cannot reserve the index: {0}")]
    Index(std::io::Error),
}

impl KvConfig {
    pub(super) fn check(&self) -> Result<(), KvConfigError> {
        if self.arena_bytes < ARENA_BYTES_MIN {
            return Err(KvConfigError::ArenaTooSmall(self.arena_bytes));
        }
        let (item, arena) = (self.item_bytes_max, self.arena_bytes);
        if !(ITEM_BYTES_MIN..=ITEM_BYTES_MAX).contains(&item) || item > arena / 2 {
            return Err(KvConfigError::ItemLimit { item, arena });
        }
        if self.lanes == 0 {
            return Err(KvConfigError::NoLane);
        }
        Ok(())
    }
}

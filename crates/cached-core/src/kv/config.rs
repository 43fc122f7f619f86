//! The configuration of a store, and its limits.

use super::hook::{ChangeHook, EvictionHook};
use crate::arena::ArenaError;
use crate::clock::{Clock, SystemClock};
use crate::policy::{Policy, S3Fifo};
use std::sync::Arc;

/// The configuration of a [`Kv`](super::Kv). [`Kv::builder`](super::Kv::builder) makes one field by field.
///
/// ```
/// use cached_core::kv::{Kv, KvConfig};
///
/// let kv = Kv::new(KvConfig { arena_bytes: 256 << 20, evict: false, ..KvConfig::default() })?;
/// # Ok::<(), cached_core::kv::KvConfigError>(())
/// ```
pub struct KvConfig {
    /// Memory for items (keys, values and their headers) and for what the policy remembers of evicted
    /// ones, in bytes; at least [`ARENA_BYTES_MIN`]. The index takes about 8 bytes an item beside it.
    pub arena_bytes: usize,
    /// The limit for an item, key and value together, in bytes: [`ITEM_BYTES_MIN`] to [`ITEM_BYTES_MAX`], and
    /// at most half of `arena_bytes`.
    pub item_bytes_max: usize,
    /// How many threads may append at the same time without waiting for each other; at least 1.
    pub lanes: usize,
    /// Whether every item has a CAS value, which takes 8 bytes.
    pub cas: bool,
    /// What happens when memory is used up: evict (true) or refuse to store (false, memcached's `-M`).
    pub evict: bool,
    /// The eviction policy; [`by_name`](crate::policy::by_name) finds one by its name.
    pub policy: Box<dyn Policy>,
    /// Whether to ask the system for huge pages (best effort).
    pub huge_pages: bool,
    /// The clock by which items expire.
    pub clock: Arc<dyn Clock>,
    /// Called at every change of an item.
    pub change_hook: Option<Arc<dyn ChangeHook>>,
    /// Called at every eviction, with the item.
    pub eviction_hook: Option<Arc<dyn EvictionHook>>,
    /// The seed of the key hash; `None` draws a random one, so that clients cannot aim keys at one hash
    /// bucket.
    pub hash_seed: Option<u64>,
    /// Smaller regions than the arena's size asks for, so that a test has many of them.
    #[cfg(test)]
    pub(crate) region_bytes: Option<usize>,
}

impl std::fmt::Debug for KvConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvConfig")
            .field("arena_bytes", &self.arena_bytes)
            .field("item_bytes_max", &self.item_bytes_max)
            .field("lanes", &self.lanes)
            .field("cas", &self.cas)
            .field("evict", &self.evict)
            .field("policy", &self.policy.name())
            .field("huge_pages", &self.huge_pages)
            .field("change_hook", &self.change_hook.is_some())
            .field("eviction_hook", &self.eviction_hook.is_some())
            .finish_non_exhaustive()
    }
}

impl Default for KvConfig {
    /// 64 MiB, items up to 1 MiB, four lanes, with CAS values, evicting: memcached's defaults except for the
    /// policy.
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

/// The smallest [`KvConfig::arena_bytes`].
pub const ARENA_BYTES_MIN: usize = 1 << 20;
/// The smallest [`KvConfig::item_bytes_max`].
pub const ITEM_BYTES_MIN: usize = 1 << 10;
/// The largest [`KvConfig::item_bytes_max`].
pub const ITEM_BYTES_MAX: usize = 1 << 30;

/// The reason why a [`KvConfig`] does not make a store.
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
        /// The item limit requested.
        item: usize,
        /// The arena's size.
        arena: usize,
    },
    /// There is no lane.
    #[error("lanes must be at least 1")]
    NoLane,
    /// The system refused the memory.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The system refused the index's address space.
    #[error("cannot reserve address space for the index: {0}")]
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

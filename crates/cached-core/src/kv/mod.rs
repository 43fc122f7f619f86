//! The byte-keyed store: memcached's semantics on a log of regions.
//!
//! Items are appended to regions and found through the index; what is overwritten, deleted or
//! expired leaves garbage behind, and the reclaimer turns the oldest or emptiest regions back into free
//! ones, keeping what the policy wants kept. There are no size classes, so memory goes to whatever
//! sizes are in use.
//!
//! Open in this order: `ops/get.rs` and `ops/store.rs` (what commands do), `item.rs` (the bytes),
//! `index/` (finding), `log.rs` (placing), `reclaim.rs` (making room), `extent.rs` (large values).
//!
//! `order.rs` has the order of the locks.

mod config;
mod extent;
mod flush;
mod front;
pub mod hook;
mod index;
mod inner;
mod item;
mod live;
mod lock_ranks;
mod log;
mod ops;
mod request;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod stats;
#[cfg(all(test, not(shuttle)))]
mod tests;
#[cfg(any(test, feature = "validate"))]
mod validate;
mod view;

pub use crate::policy;
pub use config::{ARENA_BYTES_MIN, ITEM_BYTES_MAX, ITEM_BYTES_MIN, KvConfig, KvConfigError};
pub use front::{CasError, CountError, StoreError};
pub use item::KEY_BYTES_MAX;
pub use ops::{READ_BATCH, Reservation, ScanCursor};
pub use request::*;
pub use stats::{KvLimits, KvStats};
pub use view::{ItemView, PinnedValue};

use crate::KeyHash;
use crate::arena::{Arena, ArenaConfig, region_bytes_for};
use crate::hash::KeyHasher;
use crate::sync::Arc;
use flush::FlushSchedule;
use index::Index;
use inner::{Expirations, Inner};
use log::{Log, LogConfig};

/// A handle on a store. Clones share the store.
#[derive(Clone)]
pub struct Kv {
    inner: Arc<Inner>,
}

/// Items usually take this much or more; the policy's ghosts are as many as fits that.
const ENTRY_BYTES_USUAL: usize = 256;

impl Kv {
    /// Makes an empty store. Memory is mapped, not touched.
    ///
    /// # Errors
    /// [`KvConfigError`] when the configuration contradicts itself or the system refuses the memory.
    pub fn new(config: KvConfig) -> Result<Kv, KvConfigError> {
        config.check()?;
        let mut policy = config.policy;
        // What the policy remembers of evicted items comes out of the same memory.
        let policy_bytes =
            if config.evict { policy.attach(config.arena_bytes, ENTRY_BYTES_USUAL) } else { 0 };
        let region_bytes = region_bytes_for(config.arena_bytes);
        #[cfg(test)]
        let region_bytes = config.region_bytes.unwrap_or(region_bytes);
        let regions = ((config.arena_bytes - policy_bytes) / region_bytes) as u32;
        let arena = Arena::new(ArenaConfig {
            bytes: regions as usize * region_bytes,
            region_bytes,
            kv_regions_max: regions,
            objects_regions_max: 0,
            huge_pages: config.huge_pages,
        })?;
        // Locations have 32 bits: 4-byte granules reach 16 GiB, each doubling doubles the reach.
        let granule_shift = (2..).find(|shift| arena.bytes() >> shift <= u32::MAX as usize).unwrap_or(2);
        let entry_bytes_min = item::entry_bytes_min(config.cas).next_multiple_of(1 << granule_shift);
        let index = Index::new((arena.bytes() / entry_bytes_min) as u64).map_err(KvConfigError::Index)?;
        let log = Log::new(LogConfig {
            granule_shift,
            evicts: config.evict,
            lanes: config.lanes,
            policy,
            policy_bytes,
            reserved_bytes_max: (arena.bytes() as u64 / 4).max(config.item_bytes_max as u64),
            // One value alone is always accepted.
            reserved_regions_max: (regions / 4).max((config.item_bytes_max / region_bytes) as u32 + 2),
            arena,
        });
        let inner = Inner {
            index,
            log,
            hasher: KeyHasher::new(config.hash_seed),
            clock: config.clock,
            flush: FlushSchedule::new(),
            has_cas: config.cas,
            inline_bytes_max: region_bytes / 16,
            item_bytes_max: config.item_bytes_max,
            change_hook: config.change_hook,
            eviction_hook: config.eviction_hook,
            expirations: Expirations::default(),
        };
        Ok(Kv { inner: Arc::new(inner) })
    }

    /// Hashes a key for this store: the first step of every operation.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.inner.hasher.hash(key)
    }

    /// The current second of the store's clock.
    pub fn now_secs(&self) -> u32 {
        self.inner.clock.now_secs()
    }

    /// The limit for an item: bytes of its key and value.
    pub fn item_bytes_max(&self) -> usize {
        self.inner.item_bytes_max
    }
}

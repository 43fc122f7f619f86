//! The byte-keyed store: an embeddable cache with memcached's semantics.
//!
//! A [`Kv`] maps keys of up to 250 bytes to values of up to 1 GiB, in an amount of memory that is fixed when
//! it is made. When that is full, an [eviction policy](crate::policy) decides which items stay. Handles are
//! cheap to clone, and all methods take `&self`: threads share a store without a lock around it.
//!
//! Choose it where values are bytes, and the memory that a cache takes must be known: keys, values and
//! headers lie in the arena, with 16 bytes beside key and value and 8 bytes of index an item, and without
//! size classes. Choose a cache of objects (such as `moka` or `quick_cache`) where values are Rust types that
//! are expensive to encode. Nothing is persistent.
//!
//! ```
//! use cached_core::kv::{Kv, NewValue};
//! use std::time::Duration;
//!
//! let kv = Kv::with_capacity_bytes(64 << 20)?;
//!
//! kv.set(b"greeting", b"hello")?;
//! kv.set_for(b"session:42", b"{}", Duration::from_secs(300))?;
//! assert_eq!(kv.get(b"greeting").as_deref(), Some(&b"hello"[..]));
//!
//! // Of the threads that miss a key at the same time, one makes the value.
//! let page = kv.get_or_insert_with(b"page:home", || {
//!     NewValue::new("<html>...</html>").ttl(Duration::from_secs(30))
//! });
//!
//! // The value is read in place, without a copy.
//! let bytes = kv.read(b"page:home", kv.hash(b"page:home"), |item| item.value_bytes());
//! assert_eq!(bytes, Ok(page.len()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to look
//!
//! - Configuration: [`Kv::with_capacity_bytes`], [`Kv::builder`], [`KvConfig`]. The most memory that a store
//!   takes: [`Kv::limits`].
//! - Owned values and ordinary errors: [`Kv::get`], [`Kv::set`], [`Kv::add`], [`Kv::compare_and_set`],
//!   [`Kv::increment`], [`Kv::remove`], [`Kv::iter`].
//! - Values that are made on a miss: [`Kv::get_or_insert_with`], [`Kv::get_or_insert_async`].
//! - Without copies, and with every option of the memcached protocols: [`Kv::read`], [`Kv::read_many`],
//!   [`Kv::fetch`], [`Kv::store`], [`Kv::reserve`], [`Kv::delete`], [`Kv::arithmetic`]. They take the key's
//!   [hash](Kv::hash), so that it is computed once.
//! - Upkeep: [`Kv::maintain`], about once a second. A store that evicts works without it; flushed memory is
//!   then reclaimed as it is needed.
//! - Observation: [`Kv::stats`], and the [`hook`]s for changes and evictions.
//!
//! # How it works
//!
//! Items are appended to regions and found through an index. Items that are overwritten, deleted or expired
//! leave garbage, and the reclaimer frees the regions with the most garbage or the oldest items, copying the
//! items that the policy keeps. Memory goes to whatever sizes are in use.
//!
//! In the source, read on in `ops/get.rs` and `ops/store.rs` (the operations), `inner.rs` (what they share),
//! `item/` (the bytes of an item), `index/` (look-up), `log/` (allocation and reclaiming; `log/owner.rs` is
//! its interface to the store) and `extent.rs` (large values). `lock_ranks.rs` has the order of the locks.

mod builder;
mod config;
mod error;
mod extent;
mod flight;
mod flush;
mod get_or_insert;
pub mod hook;
mod index;
mod inner;
mod item;
mod iter;
mod live;
mod lock_ranks;
mod log;
mod map;
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
pub use builder::KvBuilder;
pub use config::{ARENA_BYTES_MIN, ITEM_BYTES_MAX, ITEM_BYTES_MIN, KvConfig, KvConfigError};
pub use error::{CasError, CountError, StoreError};
pub use get_or_insert::NewValue;
pub use item::KEY_BYTES_MAX;
pub use iter::{Iter, Keys};
pub use ops::{READ_BATCH, Reservation, ScanCursor};
pub use request::*;
pub use stats::{KvLimits, KvStats};
pub use view::{ItemView, PinnedValue};

use crate::KeyHash;
use crate::arena::{Arena, ArenaConfig, region_bytes_for};
use crate::hash::KeyHasher;
use crate::sync::Arc;
use flight::Flights;
use flush::FlushSchedule;
use index::Index;
use inner::{Expirations, Inner};
use log::{Log, LogConfig};

/// A handle on a store. Clones share the store; it is freed with the last of them.
#[derive(Clone)]
pub struct Kv {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Kv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (_, items) = self.inner.index.stored_and_items();
        f.debug_struct("Kv")
            .field("items", &items)
            .field("arena_bytes", &self.inner.log.arena().bytes())
            .field("policy", &self.inner.log.policy().name())
            .finish_non_exhaustive()
    }
}

/// Items usually take this much or more; the policy's ghosts are as many as fits that.
const ENTRY_BYTES_USUAL: usize = 256;

impl Kv {
    /// Makes an empty store. Memory is mapped, not touched. [`Kv::with_capacity_bytes`] and [`Kv::builder`]
    /// are shorter.
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
            flights: Flights::new(),
            has_cas: config.cas,
            inline_bytes_max: region_bytes / 16,
            item_bytes_max: config.item_bytes_max,
            change_hook: config.change_hook,
            eviction_hook: config.eviction_hook,
            expirations: Expirations::default(),
        };
        Ok(Kv { inner: Arc::new(inner) })
    }

    /// Returns the hash of a key in this store, which the operations without copies take.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.inner.hasher.hash(key)
    }

    /// The current second of the store's clock.
    #[must_use]
    pub fn now_secs(&self) -> u32 {
        self.inner.clock.now_secs()
    }

    /// The limit for an item, key and value together, in bytes.
    #[must_use]
    pub fn item_bytes_max(&self) -> usize {
        self.inner.item_bytes_max
    }
}

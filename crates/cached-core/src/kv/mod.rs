//! The byte-keyed store: an embeddable cache with memcached's semantics.
//!
//! A [`Kv`] maps keys of up to 250 bytes to values of up to 1 GiB, in an amount of memory that is
//! fixed at its creation. When the memory is full, an [eviction policy](crate::policy) decides
//! which items stay. Handles are cheap to clone, and all methods take `&self`: threads share a
//! store without a lock around it.
//!
//! Choose it if values are bytes and the memory of the cache must be known: keys, values and
//! headers are in the arena, with 16 bytes per item besides key and value and 8 bytes of index, and
//! without size classes. Choose a cache of objects (such as `moka` or `quick_cache`) if values are
//! Rust types that are expensive to encode. Nothing is persistent, except that a store may have its
//! memory in [a file](crate::arena::ArenaFile), which the next process takes over.
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
//! // If several threads miss a key at the same time, one of them creates the value.
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
//! - Configuration: [`Kv::with_capacity_bytes`], [`KvConfig`]. The maximum memory use of a store:
//!   [`Kv::limits`].
//! - Owned values and ordinary errors: [`Kv::get`], [`Kv::set`], [`Kv::add`],
//!   [`Kv::compare_and_set`], [`Kv::increment`], [`Kv::remove`], [`Kv::iter`].
//! - Values created on a miss: [`Kv::get_or_insert_with`], [`Kv::get_or_insert_async`].
//! - Without copies, and with every option of the memcached protocols: [`Kv::read`],
//!   [`Kv::read_many`], [`Kv::fetch`], [`Kv::store`], [`Kv::reserve`], [`Kv::delete`],
//!   [`Kv::arithmetic`]. They take the key's [hash](Kv::hash), so that it is computed once.
//! - Removal of many items: [`Kv::flush_all`], [`Kv::flush_prefix`].
//! - Upkeep: [`Kv::maintain`], about once a second. A store that evicts works without it; flushed
//!   memory is then reclaimed as it is needed.
//! - Copies: [`Kv::add_change_hook`] and [`Kv::scan`] in one store, [`Kv::import`] in the other.
//! - Observation: [`Kv::stats`], and the hooks [`ChangeHook`] and [`EvictionHook`]. With
//!   [`KvConfig::insight`], [`Kv::miss_ratio_curve`] predicts the miss ratios of other amounts of
//!   memory, and [`Kv::misses_by_reason`] counts why keys were missed.
//!
//! # How it works
//!
//! Items are appended to regions and found through an index. Items that are overwritten, deleted or
//! expired leave garbage, and the reclaimer frees the regions with the most garbage or the oldest
//! items, copying the items that the policy keeps. Memory is not divided by item size.
//!
//! In the source, read on in `ops/get.rs` and `ops/store.rs` (the operations), `inner.rs` (what
//! they share), `item/` (the bytes of an item), `index/` (look-up), `log/` (allocation and
//! reclaiming; `log/mod.rs` has its interface to the store), and `prefixes.rs` (flushes of a
//! prefix).

mod config;
mod flight;
mod hooks;
mod index;
mod inner;
mod item;
mod live;
mod log;
mod map;
mod memory;
mod ops;
mod prefixes;
mod rebuild;
mod request;
mod restart;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod stats;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod view;

pub use crate::policy;
pub(crate) use log::Released;

pub use config::{
    ARENA_BYTES_MIN, CasError, CountError, ITEM_BYTES_MAX, ITEM_BYTES_MIN, KvConfig, KvConfigError,
    PrefixError, StoreError,
};
pub use flight::NewValue;
pub use hooks::AddedHook;
pub use item::KEY_BYTES_MAX;
pub use ops::{ImportOptions, Imported, READ_BATCH, Reservation, ScanCursor};
pub use prefixes::PrefixFlushStats;
pub use request::*;
pub use restart::{HandedOver, Restart};
pub use stats::{KvLimits, KvStats};
pub use view::{ItemView, PinnedValue};

use std::collections::{HashMap, HashSet};

use crate::KeyHash;
use crate::arena::{ArenaConfig, RegionId, RegionState, region_bytes_for};
use crate::clock::Expiry;
use crate::insight::Insight;
use crate::sync::Arc;
use flight::Flights;
use hooks::ChangeHooks;
use index::Index;
use inner::{Expirations, FlushSchedule, Inner};
use item::extent::{List, PIECE_HEADER_BYTES, Piece};
use log::{Log, LogConfig};
use memory::KvMemory;
use prefixes::PrefixFlushes;
use rebuild::{Kind, Scan};

/// A handle to a store. Clones share the store, which is freed with the last of them.
#[derive(Clone)]
pub struct Kv {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Kv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (_, items) = self.inner.index.stored_and_items();
        f.debug_struct("Kv")
            .field("items", &items)
            .field("arena_bytes", &self.inner.log.present_bytes())
            .field("policy", &self.inner.log.policy.name())
            .finish_non_exhaustive()
    }
}

/// The size that most items exceed. It determines the number of ghosts (the policy's records of
/// evicted items).
const ENTRY_BYTES_USUAL: usize = 256;

/// The number of arena bytes per mark. While a flush of a prefix is swept, newly stored keys with
/// that prefix are marked: at most one key per `MARK_PER_BYTES` of the arena, or `MARKS_MIN` if
/// that is more. At 40 bytes each, the marks take a fiftieth of the arena.
const MARK_PER_BYTES: usize = 2048;
const MARKS_MIN: usize = 1024;

impl Kv {
    /// Creates an empty store. Its memory is mapped, but not touched. [`Kv::with_capacity_bytes`]
    /// is shorter.
    ///
    /// # Errors
    /// Returns [`KvConfigError`] if the configuration is inconsistent or the system refuses the
    /// memory.
    pub fn new(mut config: KvConfig) -> Result<Kv, KvConfigError> {
        config.check()?;
        let mut policy = std::mem::replace(&mut config.policy, Box::new(policy::Lru::default()));
        let insight = if config.evict {
            Insight::new(policy.name(), config.arena_bytes as u64, config.lanes, config.insight)
        } else {
            Insight::off()
        };
        // The policy's records of evicted items belong to the same memory.
        let (bytes_min, bytes_max) = (config.arena_bytes_min(), config.arena_bytes_max());
        let policy_bytes = if config.evict { policy.attach(bytes_max, ENTRY_BYTES_USUAL) } else { 0 };
        let region_bytes = region_bytes_for(bytes_min);
        #[cfg(test)]
        let region_bytes = config.region_bytes.unwrap_or(region_bytes);
        let regions_in = |bytes: usize| (bytes.saturating_sub(policy_bytes) / region_bytes) as u32;
        let regions_min = regions_in(bytes_min);
        let arena_config = ArenaConfig {
            bytes: regions_in(bytes_max) as usize * region_bytes,
            region_bytes,
            kv_regions_max: regions_in(config.arena_bytes),
            objects_regions_max: 0,
            huge_pages: config.huge_pages,
        };
        // Locations have 32 bits: 4-byte granules cover 16 GiB, and each doubling covers twice as
        // much.
        let granule_shift = (2..).find(|shift| arena_config.bytes >> shift <= u32::MAX as usize).unwrap_or(2);
        // Without eviction, the memory has another layout, and every entry has an expiry field.
        let policy_name = if config.evict { policy.name() } else { "none" };
        let memory = KvMemory::new(arena_config, granule_shift, &mut config, policy_name)?;
        let KvMemory { arena, superblock, hasher, has_checksums, .. } = memory;
        if config.memory_range.is_some() {
            arena.keep_pages_small();
        }
        let least_bytes = regions_min as usize * region_bytes;
        let entry_bytes_min = item::entry_bytes_min(config.cas).next_multiple_of(1 << granule_shift);
        let index = Index::new((arena.bytes() / entry_bytes_min) as u64).map_err(KvConfigError::Index)?;
        let log = Log::new(LogConfig {
            granule_shift,
            has_checksums,
            evicts: config.evict,
            lanes: config.lanes,
            policy,
            policy_bytes,
            regions_min,
            reserved_bytes_max: (least_bytes as u64 / 4).max(config.item_bytes_max as u64),
            // A single value is always accepted.
            reserved_regions_max: (regions_min / 4).max((config.item_bytes_max / region_bytes) as u32 + 2),
            arena,
            superblock: superblock.clone(),
        });
        let prefixes = PrefixFlushes::new(
            config.lanes,
            (bytes_max / MARK_PER_BYTES).max(MARKS_MIN) as u64,
            &hasher.seeded_state(),
        );
        let mut inner = Inner {
            index,
            log,
            hasher,
            clock: config.clock,
            flush: FlushSchedule::new(superblock.clone()),
            prefixes,
            flights: Flights::new(),
            has_cas: config.cas,
            inline_bytes_max: region_bytes / 16,
            item_bytes_max: config.item_bytes_max,
            change_hooks: ChangeHooks::new(config.change_hook, config.lanes),
            eviction_hook: config.eviction_hook,
            expirations: Expirations::default(),
            insight,
            store_file: None,
        };
        if let Some(file) = memory.mapped {
            inner.index.persist_cas(&superblock);
            restart::take_over(&mut inner, file, superblock);
        }
        Ok(Kv { inner: Arc::new(inner) })
    }

    /// Returns the hash of a key in this store, which the operations without copies need.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.inner.hasher.hash(key)
    }

    /// Returns the current second of the store's clock.
    #[must_use]
    pub fn now_secs(&self) -> u32 {
        self.inner.clock.now_secs()
    }

    /// Returns the size limit of an item (key and value together), in bytes.
    #[must_use]
    pub fn item_bytes_max(&self) -> usize {
        self.inner.item_bytes_max
    }

    /// Checks that index, items, regions, queues and counters agree. No other thread may use the
    /// store during the call.
    ///
    /// # Panics
    /// Panics if they do not agree. The message names the contradiction.
    // This and what it calls are compiled only where they are used, which is in tests.
    #[inline]
    pub fn validate(&self) {
        let inner = &self.inner;
        let log = &inner.log;
        let mut live = vec![0u64; log.arena.region_count() as usize];
        let mut expiring = HashMap::new();
        let mut locations = HashSet::new();
        for shard in inner.index.shards() {
            let mut bytes = 0;
            shard.validate(|bucket, location| {
                assert!(locations.insert(location), "location {location} twice in the index");
                let item = inner.item_at(location);
                let key = item.key();
                assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "a key of {} bytes", key.len());
                let hash = inner.hasher.hash(key);
                assert!(std::ptr::eq(inner.index.shard(hash), shard), "key in the wrong shard");
                assert!(shard.belongs(bucket, hash), "key in the wrong hash bucket");
                bytes += inner.item_bytes(item);
                inner.each_entry(item, location, |place, entry_bytes| {
                    let region = log.region_of(place);
                    live[region.0 as usize] += u64::from(entry_bytes);
                    if item.expiry() != Expiry::NEVER {
                        let span = log.arena.expiring.span_in(region, item.expiry());
                        *expiring.entry((region.0, span)).or_insert(0) += entry_bytes;
                    }
                });
                if item.shape().fields().extents {
                    let list = List::new(item.payload());
                    let mut value_bytes = 0;
                    for piece in list.pieces() {
                        assert!(locations.insert(piece.location), "a piece in two lists");
                        value_bytes += piece.bytes as usize;
                        self.validate_piece(piece);
                    }
                    assert_eq!(value_bytes, list.value_bytes(), "pieces do not add up to the value");
                }
            });
            assert_eq!(bytes, shard.item_bytes(), "bytes counted and found in a shard");
        }
        self.validate_marks(&locations);
        log.validate(&live, expiring);
    }

    #[inline]
    fn validate_piece(&self, piece: Piece) {
        let log = &self.inner.log;
        let bytes = log.padded(PIECE_HEADER_BYTES + piece.bytes as usize);
        assert!(
            !log.has_checksums() || log.matches_piece_checksum(piece.location, piece.bytes, bytes),
            "a piece without its checksum"
        );
    }

    /// Checks that exactly the items in the index are marked live, and that every region can be walked over.
    #[inline]
    fn validate_marks(&self, locations: &HashSet<u32>) {
        let log = &self.inner.log;
        let mut live = 0;
        for id in (0..log.arena.region_count()).map(RegionId) {
            if log.arena.region(id).state() == RegionState::Free {
                continue;
            }
            let mut scan = Scan::new(log, id);
            for entry in scan.by_ref() {
                if let Kind::Item(item) = entry.kind
                    && item.is_live()
                {
                    live += 1;
                    assert!(
                        locations.contains(&entry.location),
                        "a live item to which the index does not lead"
                    );
                    assert!(
                        !log.has_checksums() || item.matches_checksum(entry.bytes),
                        "an item without its checksum"
                    );
                }
            }
            assert!(scan.is_complete(), "region {} cannot be walked over", id.0);
        }
        let (_, items) = self.inner.index.stored_and_items();
        assert_eq!(live, items, "live items and items in the index");
    }
}

/// The order in which a thread takes the store's locks. Every build with debug assertions checks it.
///
/// ```text
///  a flush that is due ─> lanes, in their order ─> reclaimer ─> a shard's growth ─> hash bucket ─> one leaf: overflow pool,
///                                                                                      queues or free regions
/// ```
/// While a hash bucket is locked, a lane is only *tried*. The hooks run under all of these locks
/// except the leaves, so the locks that the hooks take rank above.
mod lock_ranks {
    use crate::lock_order::Rank;

    /// The lowest lock level of the store.
    pub(super) const LOWEST: u32 = 10;

    /// Taken while no other lock is held. Operations that start during the flush wait until it has
    /// ended.
    pub(super) static FLUSH: Rank = Rank::new("kv: a flush that is due", 9);
    pub(super) static LANE: Rank = Rank::new("kv: lane", LOWEST);
    pub(super) static RECLAIMER: Rank = Rank::new("kv: reclaimer", 20);
    pub(super) static GROWTH: Rank = Rank::new("kv: growth of an index shard", 30);
    /// The sweep of flushed prefixes, and the table of these prefixes. Both are held while hash
    /// buckets are locked or copies of the table are replaced.
    pub(super) static SWEEP: Rank = Rank::new("kv: sweep of flushed prefixes", 25);
    pub(super) static PREFIX_TABLE: Rank = Rank::new("kv: table of flushed prefixes", 35);
    pub(super) static BUCKET: Rank = Rank::new("kv: hash bucket", 40);
    /// Taken with a hash bucket locked, by operations while a prefix is pending.
    pub(super) static PREFIXES: Rank = Rank::new("kv: copy of the table of flushed prefixes", 44);
    pub(super) static MARKS: Rank = Rank::new("kv: marks of keys stored again", 46);
    /// Taken with a hash bucket locked, while hooks are called.
    pub(super) static HOOKS: Rank = Rank::new("kv: copy of the list of change hooks", 58);
    pub(super) static OVERFLOW: Rank = Rank::new("kv: overflow pool of an index shard", 50);
    /// Taken while no other lock is held, and held only briefly.
    pub(super) static FLIGHTS: Rank = Rank::new("kv: table of flights", 8);
    pub(super) static FLIGHT: Rank = Rank::new("kv: flight", 9);
    pub(super) static QUEUES: Rank = Rank::new("kv: queues of regions", 50);
}

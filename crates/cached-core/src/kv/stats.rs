//! The store's metrics and the limits of its memory.

use super::Kv;
use crate::sync::Ordering;

/// The metrics of a store at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct KvStats {
    /// The number of items. Expired ones count until they are removed, flushed ones do not.
    pub items: u64,
    /// The bytes of those items, headers and padding included.
    pub item_bytes: u64,
    /// The number of items ever stored.
    pub items_stored: u64,
    /// The number of items evicted.
    pub evictions: u64,
    /// The number of items evicted without having been read.
    pub evicted_unfetched: u64,
    /// The number of items that expired without having been read.
    pub expired_unfetched: u64,
    /// The number of expired items removed while room was made.
    pub reclaimed: u64,
    /// The number of regions walked by the reclaimer.
    pub regions_reclaimed: u64,
    /// The bytes of the index in use.
    pub index_bytes: usize,
    /// The bytes of the arena, used or not; what an [`arbiter`](crate::arbiter) has moved away is not there.
    pub arena_bytes: usize,
    /// The number of free regions.
    pub regions_free: u32,
    /// The number of regions.
    pub regions: u32,
    /// The bytes of garbage in sealed regions.
    pub garbage_bytes: u64,
    /// The bytes of incomplete values, counted as a whole, for which there are reservations.
    pub reserved_bytes: u64,
    /// The number of regions in which such values lie.
    pub reserved_regions: u32,
}

/// The most memory that a store takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLimits {
    /// Bytes for keys, values and their headers, at present where an [`arbiter`](crate::arbiter) changes them.
    pub arena_bytes: usize,
    /// Bytes of the index, if the arena were full of the smallest items, and of the table of regions.
    pub index_bytes_max: usize,
    /// Bytes in which the eviction policy remembers evicted items. Together with the arena at most
    /// [`KvConfig::arena_bytes`](super::KvConfig::arena_bytes).
    pub policy_bytes: usize,
    /// Bytes of the arena that incomplete values may take.
    pub reserved_bytes_max: u64,
    /// Bytes that flushes of prefixes may take until they have been swept.
    pub prefix_flush_bytes_max: usize,
}

impl Kv {
    /// Reads the store's metrics. That walks over the table of regions, not over the items.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"k", b"v")?;
    /// assert_eq!(kv.stats().items, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stats(&self) -> KvStats {
        let inner = &self.inner;
        let log = inner.log.metrics();
        let mut stats = KvStats {
            arena_bytes: inner.log.present_bytes(),
            index_bytes: inner.index.bytes(),
            regions: log.regions,
            regions_free: log.regions_free,
            garbage_bytes: log.garbage_bytes,
            evictions: log.evictions,
            evicted_unfetched: log.evicted_unfetched,
            regions_reclaimed: log.regions_reclaimed,
            expired_unfetched: inner.expirations.unfetched.load(Ordering::Relaxed),
            reclaimed: inner.expirations.reclaimed.load(Ordering::Relaxed),
            reserved_bytes: inner.log.reserved().bytes(),
            reserved_regions: inner.log.reserved().regions(),
            ..KvStats::default()
        };
        for shard in inner.index.shards() {
            let (flushed_items, flushed_bytes) = shard.flushed();
            stats.items += shard.items().saturating_sub(flushed_items);
            stats.item_bytes += shard.item_bytes().saturating_sub(flushed_bytes);
            stats.items_stored += shard.stored();
        }
        stats
    }

    /// The bytes of incomplete values, counted as a whole, for which there are reservations. One relaxed
    /// load.
    pub fn reserved_bytes(&self) -> u64 {
        self.inner.log.reserved().bytes()
    }

    /// The most memory that the store takes.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// let limits = kv.limits();
    /// assert!(limits.arena_bytes + limits.policy_bytes <= 64 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limits(&self) -> KvLimits {
        KvLimits {
            arena_bytes: self.inner.log.present_bytes(),
            policy_bytes: self.inner.log.policy_bytes(),
            index_bytes_max: self.inner.index.bytes_max() + self.inner.log.arena().table_bytes(),
            reserved_bytes_max: self.inner.log.reserved().bytes_max(),
            prefix_flush_bytes_max: self.inner.prefixes.bytes_max(),
        }
    }
}

//! What the store counts, and what it may take at most.

use super::Kv;
use crate::sync::Ordering;

/// A store's figures at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct KvStats {
    /// Items (expired ones count until they are met, flushed ones do not).
    pub items: u64,
    /// Memory of those items, headers and padding included.
    pub item_bytes: u64,
    /// Items ever stored.
    pub items_stored: u64,
    /// Items removed to make room.
    pub evictions: u64,
    /// Of those, never read.
    pub evicted_unfetched: u64,
    /// Items that expired without ever having been read.
    pub expired_unfetched: u64,
    /// Expired items removed while making room.
    pub reclaimed: u64,
    /// Regions walked by the reclaimer.
    pub regions_reclaimed: u64,
    /// Memory of the index in use.
    pub index_bytes: usize,
    /// Memory of the arena, used or not.
    pub arena_bytes: usize,
    /// Regions that belong to nobody.
    pub regions_free: u32,
    /// All regions.
    pub regions: u32,
    /// Bytes in sealed regions that are dead.
    pub garbage_bytes: u64,
    /// Bytes reserved for values that are still arriving, the whole of each.
    pub reserved_bytes: u64,
    /// Regions in which such values lie.
    pub reserved_regions: u32,
}

/// What a store may take at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLimits {
    /// Keys, values, their headers.
    pub arena_bytes: usize,
    /// The index, if the arena were full of the smallest items, and what is known of each region.
    pub index_bytes_max: usize,
    /// What the eviction policy remembers of evicted items. With the arena no more than the
    /// configuration's `arena_bytes`.
    pub policy_bytes: usize,
    /// Values under way that are not items yet; part of the arena.
    pub reserved_bytes_max: u64,
}

impl Kv {
    /// The store's figures now. Takes a walk over the region table, not over the items.
    pub fn stats(&self) -> KvStats {
        let inner = &self.inner;
        let log = inner.log.metrics();
        let mut stats = KvStats {
            arena_bytes: inner.log.arena().bytes(),
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

    /// Bytes reserved for values that are still arriving, the whole of each: cheap to ask.
    pub fn reserved_bytes(&self) -> u64 {
        self.inner.log.reserved().bytes()
    }

    /// What the store may take at most.
    pub fn limits(&self) -> KvLimits {
        KvLimits {
            arena_bytes: self.inner.log.arena().bytes(),
            policy_bytes: self.inner.log.policy_bytes(),
            index_bytes_max: self.inner.index.bytes_max() + self.inner.log.arena().table_bytes(),
            reserved_bytes_max: self.inner.log.reserved().bytes_max(),
        }
    }
}

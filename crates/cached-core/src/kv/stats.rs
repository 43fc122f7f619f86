//! The store's metrics, the limits of its memory, and its part of [`insight`](crate::insight).

use super::inner::Inner;
use super::item::ItemPtr;
use super::{Kv, Miss, ScanCursor};
use crate::KeyHash;
use crate::arena::{Owner, RegionState};
use crate::clock::Expiry;
use crate::insight::{Event, ItemShape, MissRatioCurve, MissesByReason, Present, Sample, Totals};
use crate::sync::Ordering;
use blocker::metrics::counters;
use serde::Serialize;

counters! {
    /// A snapshot of a store's metrics.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
    #[non_exhaustive]
    pub struct KvStats {
        /// Items in the cache. Expired ones count until they are removed, flushed ones do not.
        #[serde(rename = "count")]
        pub items: u64 => "cached_items",
        /// Bytes of items with their headers.
        #[serde(rename = "bytes")]
        pub item_bytes: u64 => "cached_item_bytes",
        /// Items ever stored.
        #[serde(rename = "stored")]
        pub items_stored: u64 => "cached_items_stored_total",
        /// Items evicted to make room.
        pub evictions: u64 => "cached_items_evicted_total",
        /// Items evicted that had not been read.
        pub evicted_unfetched: u64 => "cached_items_evicted_unfetched_total",
        /// Items that expired without having been read.
        pub expired_unfetched: u64 => "cached_items_expired_unfetched_total",
        /// Expired items removed while room was made.
        pub reclaimed: u64 => "cached_items_reclaimed_total",
        /// Regions walked by the reclaimer.
        pub regions_reclaimed: u64 => "cached_regions_reclaimed_total",
        /// The bytes of the index in use.
        pub index_bytes: usize,
        /// The bytes of the arena, used or not, without the bytes that an
        /// [`arbiter`](crate::arbiter) has taken away.
        pub arena_bytes: usize,
        /// Free regions of the arena.
        pub regions_free: u32 => "cached_regions_free",
        /// Regions of the arena.
        pub regions: u32 => "cached_regions",
        /// Bytes of garbage in sealed regions.
        pub garbage_bytes: u64 => "cached_garbage_bytes",
        /// The full size of all incomplete values that have reservations, in bytes.
        pub reserved_bytes: u64,
        /// The number of regions that contain incomplete values.
        pub reserved_regions: u32,
    }
}

/// The maximum memory use of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLimits {
    /// Bytes for keys, values and their headers: the present number, if an
    /// [`arbiter`](crate::arbiter) changes it.
    pub arena_bytes: usize,
    /// Bytes of the index if the arena were full of the smallest items, and of the table of
    /// regions.
    pub index_bytes_max: usize,
    /// Bytes of the eviction policy's records of evicted items. Together with the arena, they are
    /// at most [`KvConfig::arena_bytes`](super::KvConfig::arena_bytes).
    pub policy_bytes: usize,
    /// The most bytes of the arena that incomplete values may occupy.
    pub reserved_bytes_max: u64,
    /// The maximum number of bytes that prefix flushes may occupy until they have been swept.
    pub prefix_flush_bytes_max: usize,
}

impl Kv {
    /// Reads the store's metrics. This goes through the table of regions, but not through the
    /// items.
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
        let log = &inner.log;
        let mut stats = KvStats {
            arena_bytes: log.present_bytes(),
            index_bytes: inner.index.bytes(),
            regions: log.arena.share(Owner::Kv),
            evictions: log.evictions.items.load(Ordering::Relaxed),
            evicted_unfetched: log.evictions.unfetched.load(Ordering::Relaxed),
            regions_reclaimed: log.regions_reclaimed(),
            expired_unfetched: inner.expirations.unfetched.load(Ordering::Relaxed),
            reclaimed: inner.expirations.reclaimed.load(Ordering::Relaxed),
            reserved_bytes: log.reserved.bytes(),
            reserved_regions: log.reserved.regions(),
            ..KvStats::default()
        };
        for region in log.arena.table() {
            match region.state() {
                RegionState::Free => stats.regions_free += 1,
                RegionState::Sealed => {
                    stats.garbage_bytes += u64::from(region.used_bytes().saturating_sub(region.live_bytes()));
                }
                _ => {}
            }
        }
        // Regions that the store must not use at present also count as free in the table.
        let absent = log.arena.region_count() - stats.regions;
        stats.regions_free = stats.regions_free.saturating_sub(absent);
        (stats.items, stats.item_bytes) = self.items_and_bytes();
        stats.items_stored = inner.index.shards().iter().map(|shard| shard.stored()).sum();
        stats
    }

    /// Returns [`KvStats::items`] and [`KvStats::item_bytes`], without the pass over all regions
    /// that the other statistics need.
    pub fn items_and_bytes(&self) -> (u64, u64) {
        let (mut items, mut bytes) = (0, 0);
        for shard in self.inner.index.shards() {
            let (flushed_items, flushed_bytes) = shard.flushed();
            items += shard.items().saturating_sub(flushed_items);
            bytes += shard.item_bytes().saturating_sub(flushed_bytes);
        }
        (items, bytes)
    }

    /// Returns the full size of all incomplete values that have reservations, in bytes. Costs one
    /// relaxed load.
    pub fn reserved_bytes(&self) -> u64 {
        self.inner.log.reserved.bytes()
    }

    /// Returns the maximum memory use of the store.
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
            policy_bytes: self.inner.log.policy_bytes,
            index_bytes_max: self.inner.index.bytes_max() + self.inner.log.arena.table_bytes(),
            reserved_bytes_max: self.inner.log.reserved.bytes_max,
            prefix_flush_bytes_max: self.inner.prefixes.bytes_max(),
        }
    }
}

/// The character after a key's prefix, which counts as its namespace.
const DELIMITER: u8 = b':';

fn prefix(key: &[u8]) -> &[u8] {
    key.iter().position(|byte| *byte == DELIMITER).map_or(b"", |end| &key[..end])
}

impl Inner {
    /// Samples a read. The item's hash bucket is locked.
    #[cold]
    #[inline(never)]
    pub(super) fn sample_read(&self, hash: KeyHash, key: &[u8], found: Result<ItemPtr, Miss>) {
        let sample = match found {
            Ok(item) => Sample::new(hash.0, Event::Hit).entry(self.item_bytes(item), item.expiry().as_secs()),
            Err(Miss::Expired) => Sample::new(hash.0, Event::Expired),
            Err(Miss::Flushed) => Sample::new(hash.0, Event::Flushed),
            Err(_) => Sample::new(hash.0, Event::Absent),
        };
        self.insight.sampler.push(sample.prefix(prefix(key)));
    }

    /// Samples a read that may change the expiry. The item's hash bucket is locked.
    #[cold]
    #[inline(never)]
    pub(super) fn sample_fetch(
        &self,
        hash: KeyHash,
        key: &[u8],
        found: Result<ItemPtr, Miss>,
        touch: Option<Expiry>,
    ) {
        match (found, touch) {
            (Ok(item), Some(expiry)) => {
                let sample = Sample::new(hash.0, Event::Touch);
                self.insight.sampler.push(sample.entry(self.item_bytes(item), expiry.as_secs()));
            }
            _ => self.sample_read(hash, key, found),
        }
    }

    /// Samples a store. The item's hash bucket is locked.
    #[cold]
    #[inline(never)]
    pub(super) fn sample_store(&self, hash: KeyHash, key: &[u8], item: ItemPtr) {
        let sample = Sample::new(hash.0, Event::Store).entry(self.item_bytes(item), item.expiry().as_secs());
        self.insight.sampler.push(sample.prefix(prefix(key)));
    }

    /// Samples a deletion.
    #[cold]
    #[inline(never)]
    pub(super) fn sample_delete(&self, hash: KeyHash) {
        self.insight.sampler.push(Sample::new(hash.0, Event::Delete));
    }
}

impl Kv {
    /// Simulates other amounts of memory with the samples since the last call, and returns the
    /// number of samples. Call it some ten times a second, from any thread: the number of waiting
    /// samples is limited, and the rest is dropped. `totals` are the caller's counters of reads
    /// since the start; without them, the ratios depend on which keys happen to be sampled.
    ///
    /// Does nothing without [`KvConfig::insight`](super::KvConfig::insight).
    ///
    /// ```
    /// use cached_core::insight::{Sampling, Totals};
    /// use cached_core::kv::{Kv, KvConfig};
    ///
    /// let kv = Kv::new(KvConfig { insight: Sampling::Share(1.0), ..KvConfig::default() })?;
    /// kv.set(b"k", b"v")?;
    /// assert!(kv.get(b"k").is_some() && kv.get(b"other").is_none());
    /// kv.take_samples(Some(Totals { requests: 2, misses: 1, ..Totals::default() }));
    /// let curve = kv.miss_ratio_curve().expect("it is on");
    /// assert!(curve.points.iter().all(|point| point.miss_ratio == 0.5), "{curve:?}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_samples(&self, totals: Option<Totals>) -> usize {
        let inner = &self.inner;
        let stats = self.stats();
        // The memory consists of the items and the ghosts.
        let memory = (inner.log.present_bytes() + inner.log.policy_bytes) as u64;
        let used = (stats.evictions > 0).then_some((memory, stats.item_bytes));
        let flushes = inner.flush.flushes();
        let present = Present { now: inner.now(), totals, used, flushes, entries: stats.items };
        inner.insight.take_samples(&present, |sample| sample.prefix_of().to_vec())
    }

    /// Returns the miss ratios at other amounts of memory, for all keys and for each prefix (the
    /// part of a key before the first `:`). `None` without
    /// [`KvConfig::insight`](super::KvConfig::insight).
    pub fn miss_ratio_curve(&self) -> Option<MissRatioCurve> {
        self.inner.insight.curve()
    }

    /// Returns the number of misses by reason. Reasons that the store sees at the moment of the
    /// miss (expired, flushed) are exact, as are the totals given to
    /// [`take_samples`](Kv::take_samples). The others are divided in proportion to the sampled
    /// keys, which are remembered for about four times as many keys as the store holds. `None`
    /// without [`KvConfig::insight`](super::KvConfig::insight).
    pub fn misses_by_reason(&self) -> Option<MissesByReason> {
        self.inner.insight.misses_by_reason()
    }

    /// Returns the memory use of samples and simulation in bytes; 0 without
    /// [`KvConfig::insight`](super::KvConfig::insight).
    pub fn insight_bytes(&self) -> usize {
        self.inner.insight.bytes()
    }

    /// Samples at most about `items_max` items, in hash buckets spread over the whole index, and
    /// returns their sizes, idle times, ages and lifetimes. This takes about 100 ns for each item.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"k", &[0; 100])?;
    /// let shape = kv.item_shape(1000);
    /// assert_eq!((shape.sampled, shape.sizes[7]), (1, 1), "65 to 128 bytes");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn item_shape(&self, items_max: u64) -> ItemShape {
        let mut shape = ItemShape::default();
        let inner = &self.inner;
        let buckets: u64 = inner.index.shards().iter().map(|shard| shard.bucket_count()).sum();
        // The step spreads the sampled hash buckets over the whole index.
        let items_max = items_max.max(1);
        // An index never shrinks. In one that was larger before, the number of hash buckets visited
        // stays the same.
        let step = (self.stats().items / items_max + 1).max(buckets / items_max).min(buckets.max(1));
        for (shard, of) in inner.index.shards().iter().enumerate() {
            let mut bucket = 0;
            while bucket < of.bucket_count() {
                self.scan(ScanCursor::at(shard as u32, bucket as u32), |item| {
                    shape.sampled += 1;
                    count(&mut shape.sizes, item.bytes());
                    count(&mut shape.idle_secs, u64::from(item.now().saturating_sub(item.last_access())));
                    count(&mut shape.age_secs, u64::from(item.region_age_secs()));
                    match item.expiry().remaining_secs(item.now()) {
                        Some(secs) => count(&mut shape.ttl_secs, u64::from(secs)),
                        None => shape.without_expiry += 1,
                    }
                    shape.fetched += u64::from(item.fetched());
                });
                bucket += step;
            }
        }
        shape
    }
}

/// Counts a value in the class of its power of two.
fn count(classes: &mut Vec<u64>, value: u64) {
    let class = value.next_power_of_two().ilog2() as usize;
    if classes.len() <= class {
        classes.resize(class + 1, 0);
    }
    classes[class] += 1;
}

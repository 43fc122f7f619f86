//! What a cache shows of itself: counters, the same by namespace, and [`insight`](crate::insight).

use std::time::Duration;

use blocker::metrics::{Collect, Families};
use blocker::{BUCKET_BYTES, Namespace, Timestamp, WriteMode};

use super::cache::ObjectCache;
use super::control::quotas::QuotaUse;
use super::control::records::{NamespaceRecord, StoreCounters};
use super::memory::slots::State;
use super::read_ahead::FlowCounters;
use super::shared::Shared;
use crate::insight::{HotNames, MissRatioCurve, MissesByReason, Present};
use crate::sync::{AtomicU64, Ordering};

/// What a cache holds and has done. Sizes are in bytes; the rest counts since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// The number of objects that the index has.
    pub objects: u64,
    /// Memory of all buckets.
    pub memory_bytes: u64,
    /// Memory of free buckets.
    pub free_bytes: u64,
    /// Data that the store has as well.
    pub clean_bytes: u64,
    /// Data that wait to be stored, or are being written: data by whole buckets, zeros by what they cover,
    /// and 4 KiB for each object that is to be cut, removed, or created.
    pub dirty_bytes: u64,
    /// Dirty data on their way to the store.
    pub writing_bytes: u64,
    /// Known zeros, which take no memory.
    pub zero_bytes: u64,
    /// Data being read from the store.
    pub loading_bytes: u64,
    /// Buckets reserved for payloads that are received, or that no write has taken over yet.
    pub receive_buffer_bytes: u64,
    /// Payload that writes have taken over from receive buffers without a copy.
    pub zero_copy_bytes: u64,
    /// Reads answered from the cache.
    pub read_hits: u64,
    /// Reads that had to read the store.
    pub read_misses: u64,
    /// Changes applied in the cache.
    pub writes_back: u64,
    /// Changes forwarded to the store.
    pub writes_through: u64,
    /// Changes that waited because the limit of dirty data was reached.
    pub writes_throttled: u64,
    /// Flushes of objects that succeeded.
    pub flushes: u64,
    /// Flushes of objects that failed and are tried again.
    pub flush_failures: u64,
    /// Requests that flushes have sent.
    pub flush_requests: u64,
    /// Bytes that flushes have sent.
    pub flush_bytes: u64,
    /// Acknowledged data that the store has refused for good (`Fenced`).
    pub lost_bytes: u64,
    /// Objects with losses that have not been repaired: [`super::ObjectCache::lost`] lists them.
    pub lost_objects: u64,
    /// Data that were read from the store before a caller had asked for them.
    pub read_ahead_bytes: u64,
    /// Of these, data that a caller then has asked for.
    pub read_ahead_used_bytes: u64,
    /// Of these, data that were evicted, overwritten or dropped before.
    pub read_ahead_wasted_bytes: u64,
    /// Data that were read in order for long, and not kept.
    pub bypassed_read_bytes: u64,
    /// Data that were written in order for long, and went around the cache.
    pub bypassed_write_bytes: u64,
    /// Buckets that have been evicted.
    pub bucket_evictions: u64,
    /// Objects that have been evicted.
    pub object_evictions: u64,
}

impl Collect for Counters {
    fn collect(&self, into: &mut Families) {
        into.gauge("cache_objects", "Objects that the index knows.", self.objects);
        into.gauge("cache_memory_bytes", "Memory of all buckets.", self.memory_bytes);
        into.gauge("cache_free_bytes", "Memory of free buckets.", self.free_bytes);
        into.gauge("cache_clean_bytes", "Data that the store has as well.", self.clean_bytes);
        into.gauge("cache_dirty_bytes", "Data that the store does not have yet.", self.dirty_bytes);
        into.gauge("cache_writing_bytes", "Dirty data on their way to the store.", self.writing_bytes);
        into.gauge("cache_zero_bytes", "Known zeros, which take no memory.", self.zero_bytes);
        into.gauge("cache_loading_bytes", "Data being read from the store.", self.loading_bytes);
        let help = "Buckets reserved for payloads that are received, or that no write has taken over yet.";
        into.gauge("cache_receive_buffer_bytes", help, self.receive_buffer_bytes);
        let help = "Payload that writes have taken over from receive buffers without a copy.";
        into.counter("cache_received_bytes_total", help, self.zero_copy_bytes);
        into.counter("cache_read_hits_total", "Reads answered from the cache.", self.read_hits);
        into.counter("cache_read_misses_total", "Reads that had to read the store.", self.read_misses);
        into.counter("cache_writes_back_total", "Changes applied in the cache.", self.writes_back);
        into.counter("cache_writes_through_total", "Changes forwarded to the store.", self.writes_through);
        let help = "Changes that waited because the limit of dirty data was reached.";
        into.counter("cache_writes_throttled_total", help, self.writes_throttled);
        into.counter("cache_flushes_total", "Flushes of objects that succeeded.", self.flushes);
        let help = "Flushes of objects that failed and are tried again.";
        into.counter("cache_flush_failures_total", help, self.flush_failures);
        into.counter(
            "cache_flush_requests_total",
            "Changes that flushes sent to the store.",
            self.flush_requests,
        );
        into.counter("cache_flush_bytes_total", "Bytes that flushes sent.", self.flush_bytes);
        let help = "Acknowledged data that the store refused for good.";
        into.counter("cache_lost_bytes_total", help, self.lost_bytes);
        let help = "Objects with losses that have not been repaired.";
        into.gauge("cache_lost_objects", help, self.lost_objects);
        let help = "Data read from the store before a client asked for them.";
        into.counter("cache_read_ahead_bytes_total", help, self.read_ahead_bytes);
        let help = "Data read ahead that a client then asked for.";
        into.counter("cache_read_ahead_used_bytes_total", help, self.read_ahead_used_bytes);
        let help = "Data read ahead that were gone before a client asked for them, or lay between what was expected.";
        into.counter("cache_read_ahead_wasted_bytes_total", help, self.read_ahead_wasted_bytes);
        let help = "Data read in order for long, and not kept.";
        into.counter("cache_bypassed_read_bytes_total", help, self.bypassed_read_bytes);
        let help = "Data written in order for long, around the cache.";
        into.counter("cache_bypassed_write_bytes_total", help, self.bypassed_write_bytes);
        into.counter("cache_bucket_evictions_total", "Buckets evicted.", self.bucket_evictions);
        into.counter("cache_object_evictions_total", "Objects evicted.", self.object_evictions);
    }
}

/// Returns the counters of a cache.
pub(crate) fn counters(shared: &Shared) -> Counters {
    let metrics = &shared.metrics;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let bytes =
        |states: &[State]| states.iter().map(|state| metrics.count_of(*state)).sum::<u64>() * BUCKET_BYTES;
    Counters {
        objects: shared.index.count(),
        memory_bytes: u64::from(shared.pool.count()) * BUCKET_BYTES,
        free_bytes: u64::from(shared.pool.free()) * BUCKET_BYTES,
        clean_bytes: bytes(&[State::Clean]),
        dirty_bytes: bytes(&[State::Dirty, State::DirtyWhole, State::Writing])
            + metrics.bucketless() * BUCKET_BYTES,
        writing_bytes: bytes(&[State::Writing]),
        zero_bytes: bytes(&[State::ZeroClean, State::ZeroDirty, State::ZeroWriting]),
        receive_buffer_bytes: u64::from(shared.pool.receiving()) * BUCKET_BYTES,
        zero_copy_bytes: read(&metrics.zero_copy) * BUCKET_BYTES,
        loading_bytes: read(&metrics.loading) * BUCKET_BYTES,
        read_hits: metrics.hits(),
        read_misses: metrics.misses(),
        writes_back: metrics.writes_back(),
        writes_through: metrics.writes_through(),
        writes_throttled: metrics.throttled(),
        flushes: read(&metrics.flushes),
        flush_failures: read(&metrics.flush_failures),
        flush_requests: read(&metrics.flush_requests),
        flush_bytes: read(&metrics.flush_bytes),
        lost_bytes: read(&metrics.lost_bytes),
        lost_objects: shared.losses.objects(),
        read_ahead_bytes: shared.read_ahead.total(|counters| &counters.ahead) * BUCKET_BYTES,
        read_ahead_used_bytes: shared.read_ahead.total(|counters| &counters.used) * BUCKET_BYTES,
        read_ahead_wasted_bytes: shared.read_ahead.total(|counters| &counters.wasted) * BUCKET_BYTES,
        bypassed_read_bytes: shared.read_ahead.total(|counters| &counters.bypassed_read_bytes),
        bypassed_write_bytes: shared.read_ahead.total(|counters| &counters.bypassed_write_bytes),
        bucket_evictions: read(&metrics.bucket_evictions),
        object_evictions: read(&metrics.object_evictions),
    }
}

// The counters that a cache shows by namespace.

/// What one namespace has of a cache, and what has been done with it. Sizes are in bytes; reads and writes
/// count since the start.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NamespaceCounters {
    /// Its name; `None` for all that are not counted apart.
    pub namespace: Option<Namespace>,
    /// Whether it is named in the configuration in force.
    pub is_configured: bool,
    /// How writes to it are treated, while the cache is attached.
    pub write_mode: WriteMode,
    /// Whether something of an earlier write mode is left: a change under way, or data to be stored.
    pub is_mode_changing: bool,
    /// Objects that the index has.
    pub objects: u64,
    /// Data in memory.
    pub cached_bytes: u64,
    /// Data that wait to be stored, or are being written, as [`Counters::dirty_bytes`](super::Counters)
    /// counts them.
    pub dirty_bytes: u64,
    /// The most data that may, if the namespace has a limit of its own.
    pub dirty_bytes_max: Option<u64>,
    /// The age of the oldest change that is not stored; at most that, where very many objects are dirty.
    pub dirty_age: Duration,
    /// The memory that is meant for it, if it has a share of its own.
    pub memory_target_bytes: Option<u64>,
    /// Data that it had to load again so soon after their eviction that a quarter more of all memory would
    /// have kept them, if it has a share of its own.
    pub ghost_hit_bytes: Option<u64>,
    /// The time of loads that more memory might have saved it lately, multiplied by its weight: memory moves
    /// to the namespace with the most. If it has a share of its own.
    pub memory_gain: Option<Duration>,
    /// Changes that waited for room for dirty data.
    pub writes_throttled: u64,
    /// Reads answered from the cache.
    pub read_hits: u64,
    /// Reads that had to read the store.
    pub read_misses: u64,
    /// Data that were read from the store before a caller had asked for them.
    pub read_ahead_bytes: u64,
    /// Of these, data that a caller then has asked for.
    pub read_ahead_used_bytes: u64,
    /// Of these, data that were evicted, overwritten or dropped before.
    pub read_ahead_wasted_bytes: u64,
    /// Data that were read in order for long, and not kept.
    pub bypassed_read_bytes: u64,
    /// Data that were written in order for long, and went around the cache.
    pub bypassed_write_bytes: u64,
    /// Changes by the durability with which they are acknowledged, least first: *cached*, *journaled*,
    /// *replicated*, *stored*.
    pub writes: [u64; 4],
    /// Its requests to the store.
    pub store: StoreCounters,
    /// Its quota, if it has one.
    pub quota: Option<QuotaUse>,
    /// Changes refused because the quota was used up.
    pub quota_refusals: u64,
}

/// The names of [`NamespaceCounters::writes`].
pub const DURABILITIES: [&str; 4] = ["cached", "journaled", "replicated", "stored"];

/// Returns the counters of every namespace that has been used, and of the others together.
pub(crate) fn namespace_counters(shared: &Shared) -> Vec<NamespaceCounters> {
    let metrics = &shared.metrics;
    let oldest = shared.dirty_queue.oldest_of_each();
    let now = shared.clock.now();
    let age = |since: Option<Timestamp>| since.map_or(Duration::ZERO, |since| now.since(since));
    let of = |record: &NamespaceRecord| {
        let (space, namespace) = (&record.metrics, record.name.clone());
        let flow = |of: fn(&FlowCounters) -> &AtomicU64| {
            let counters = shared.read_ahead.counters(record.number);
            counters.map_or(0, |counters| of(counters).load(Ordering::Relaxed))
        };
        let bytes =
            |states: &[State]| states.iter().map(|state| space.count_of(*state)).sum::<u64>() * BUCKET_BYTES;
        let dirty = [State::Dirty, State::DirtyWhole, State::Writing];
        let dirty_bytes = bytes(&dirty) + space.bucketless() * BUCKET_BYTES;
        let share = shared.shares.report(&shared.queues, record.number);
        NamespaceCounters {
            is_configured: record.is_configured.load(Ordering::Relaxed),
            write_mode: record.write_phases.set_mode(),
            is_mode_changing: record.write_phases.is_changing(),
            objects: record.objects.load(Ordering::Relaxed),
            cached_bytes: bytes(&[State::Clean]) + bytes(&dirty),
            dirty_bytes,
            // The last of it may have been stored since.
            dirty_age: if dirty_bytes > 0 {
                age(oldest.get(&record.number).copied())
            } else {
                Duration::ZERO
            },
            dirty_bytes_max: metrics.dirty_room.own_max(record.number).map(|max| max * BUCKET_BYTES),
            memory_target_bytes: share.as_ref().map(|share| share.target_buckets * BUCKET_BYTES),
            ghost_hit_bytes: share.as_ref().map(|share| share.ghost_hits * BUCKET_BYTES),
            memory_gain: share.map(|share| Duration::from_nanos(share.gain_nanos)),
            writes_throttled: space.throttled(),
            read_hits: space.hits(),
            read_misses: space.misses(),
            read_ahead_bytes: flow(|counters| &counters.ahead) * BUCKET_BYTES,
            read_ahead_used_bytes: flow(|counters| &counters.used) * BUCKET_BYTES,
            read_ahead_wasted_bytes: flow(|counters| &counters.wasted) * BUCKET_BYTES,
            bypassed_read_bytes: flow(|counters| &counters.bypassed_read_bytes),
            bypassed_write_bytes: flow(|counters| &counters.bypassed_write_bytes),
            writes: space.writes(),
            store: space.store.counters(),
            quota: shared.quotas.get(record.number),
            quota_refusals: space.quota_refusals.load(Ordering::Relaxed),
            namespace,
        }
    };
    let is_used = |one: &NamespaceCounters| {
        one.objects > 0
            || one.read_misses > 0
            || one.read_hits > 0
            || one.writes.iter().any(|count| *count > 0)
    };
    shared.namespaces.records().map(of).filter(|one| one.namespace.is_some() || is_used(one)).collect()
}

// What a cache knows about itself beyond counters, see [`insight`](crate::insight).

impl ObjectCache {
    /// Simulates other amounts of memory with what has been sampled since the last call, and returns the
    /// number of samples. Call it some ten times a second, from any thread: what waits for it is bounded, and
    /// dropped beyond. Does nothing without [`ObjectCacheConfig::insight`](super::ObjectCacheConfig::insight).
    pub fn take_samples(&self) -> usize {
        let shared = self.shared();
        let buckets_bytes = u64::from(shared.pool.count()) * blocker::BUCKET_BYTES;
        let present = Present {
            now: shared.clock.now().since(shared.made_at).as_secs().try_into().unwrap_or(u32::MAX),
            totals: None,
            used: Some((shared.config.memory_bytes_max, buckets_bytes)),
            flushes: 0,
            entries: u64::from(shared.pool.count().saturating_sub(shared.pool.free())),
        };
        shared.hot.age(shared.clock.now(), self.reads());
        let namespace = |node| shared.index.namespace_at(node).unwrap_or_default();
        shared.queues.insight.take_samples(&present, |sample| namespace(sample.owner))
    }

    /// Returns the miss ratios that other amounts of memory would give, for all buckets and for each
    /// namespace. `None` without [`ObjectCacheConfig::insight`](super::ObjectCacheConfig::insight).
    ///
    /// A request is one of one bucket: a read of several counts for each. The ratios are those of the sampled
    /// buckets. What is dirty counts as evictable, and the number of objects that the index has as unlimited.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use blocker::{BlockerExt, Memory, ObjectId};
    /// use cached_core::insight::Sampling;
    /// use cached_core::object::ObjectCache;
    ///
    /// let cache = ObjectCache::builder(Arc::new(Memory::default())).insight(Sampling::Share(1.0)).start()?;
    /// let disk: ObjectId = "vm/disk.0".parse()?;
    /// blocker::executor::block_on(async {
    ///     cache.put(&disk, &[7; 4096]).await?;
    ///     for _ in 0..4 {
    ///         cache.get(&disk).await?;
    ///     }
    ///     Ok::<_, blocker::Error>(())
    /// })?;
    /// cache.take_samples();
    /// let curve = cache.miss_ratio_curve().expect("it is on");
    /// assert_eq!((curve.requests, curve.points[2].miss_ratio), (4, 0.0));
    /// assert_eq!(curve.namespaces[0].namespace.as_deref(), Some("vm"));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn miss_ratio_curve(&self) -> Option<MissRatioCurve> {
        self.shared().queues.insight.curve()
    }

    /// Returns why buckets had to be read from the store, estimated from the sampled ones. `None` without
    /// [`ObjectCacheConfig::insight`](super::ObjectCacheConfig::insight).
    ///
    /// A bucket counts as *deleted* if its object was deleted or overwritten, or its content discarded or
    /// invalidated; nothing expires, and nothing is flushed.
    #[must_use]
    pub fn misses_by_reason(&self) -> Option<MissesByReason> {
        self.shared().queues.insight.misses_by_reason()
    }

    /// Returns the `count` objects and the `count` namespaces that have been read most in the last minutes, by
    /// one read in about 256. An object's name follows its namespace's
    /// and a `/`. `None` without
    /// [`ObjectCacheConfig::insight`](super::ObjectCacheConfig::insight).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use blocker::{BlockerExt, Memory, ObjectId};
    /// use cached_core::insight::Sampling;
    /// use cached_core::object::ObjectCache;
    ///
    /// let cache = ObjectCache::builder(Arc::new(Memory::default())).insight(Sampling::Share(1.0)).start()?;
    /// let disk: ObjectId = "vm/disk.0".parse()?;
    /// blocker::executor::block_on(async {
    ///     cache.put(&disk, &[7; 4096]).await?;
    ///     for _ in 0..1000 {
    ///         cache.get(&disk).await?;
    ///     }
    ///     Ok::<_, blocker::Error>(())
    /// })?;
    /// let hot = cache.hot_objects(10).expect("it is on");
    /// assert_eq!((&*hot.names[0].name, &*hot.groups[0].name), (&b"vm/disk.0"[..], &b"vm"[..]));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn hot_objects(&self, count: usize) -> Option<HotNames> {
        let shared = self.shared();
        shared.hot.age(shared.clock.now(), self.reads());
        shared.hot.report(count, shared.clock.now(), self.reads())
    }

    /// The number of reads since the start.
    fn reads(&self) -> u64 {
        let metrics = &self.shared().metrics;
        metrics.hits() + metrics.misses()
    }
}

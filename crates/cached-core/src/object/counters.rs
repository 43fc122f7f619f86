//! The visible state of a cache: counters, counters by namespace, and [`insight`](crate::insight).

use std::time::Duration;

use blocker::metrics::{Counter, counters};
use blocker::{BUCKET_BYTES, Namespace, Timestamp, WriteMode};

use super::cache::ObjectCache;
use super::control::Counters;
use super::control::attach_state::AttachState;
use super::control::quotas::QuotaUse;
use super::control::records::{NamespaceMetrics, NamespaceRecord, StoreCounters};
use super::memory::slots::State;
use crate::insight::{HotNames, MissRatioCurve, MissesByReason, Present};
use crate::sync::Ordering;

// The counters that a cache shows by namespace.

counters! {
    /// The state and the counters of a namespace in a cache. Sizes are in bytes; reads and writes
    /// count since the start.
    #[derive(Clone, PartialEq, Eq, Debug)]
    #[non_exhaustive]
    pub struct NamespaceCounters {
        /// The namespace; `None` for all namespaces that are not counted separately.
        pub namespace: Option<Namespace>,
        /// Whether the configuration in force names the namespace.
        pub is_configured: bool,
        /// The effective write mode while the cache is attached.
        pub write_mode: WriteMode,
        /// Whether changes of an earlier write mode are still in flight, or its data not stored.
        pub is_mode_changing: bool,
        /// Objects in the index, by namespace.
        pub objects: u64 => "cache_namespace_objects",
        /// Data in memory, by namespace.
        pub cached_bytes: u64 => "cache_namespace_cached_bytes",
        /// Data that are not stored yet, by namespace.
        pub dirty_bytes: u64 => "cache_namespace_dirty_bytes",
        /// The dirty-data limit of a namespace that has its own.
        pub dirty_bytes_max: Option<u64> => "cache_namespace_dirty_limit_bytes",
        /// The age of the oldest change that is not stored yet, by namespace; an upper bound if
        /// very many objects are dirty.
        pub dirty_age: Duration => "cache_namespace_dirty_age_seconds",
        /// The age at which the flush of a change begins, by namespace.
        pub dirty_age_max: Duration => "cache_namespace_dirty_age_limit_seconds",
        /// The target size of a namespace's own share of the memory.
        pub memory_target_bytes: Option<u64> => "cache_namespace_memory_target_bytes",
        /// Data that a namespace with its own share loaded again so soon after their eviction that
        /// a quarter more of all memory would have kept them.
        pub ghost_hit_bytes: Option<u64> => "cache_namespace_ghost_hit_bytes_total",
        /// The load time that more memory might recently have saved a namespace with its own share,
        /// times its weight: memory moves to the namespace with the most.
        pub memory_gain: Option<Duration> => "cache_namespace_memory_gain_seconds",
        /// Changes that waited because the dirty-data limit was reached, by namespace.
        pub writes_throttled: u64 => "cache_namespace_writes_throttled_total",
        /// Reads answered from the cache, by namespace.
        pub read_hits: u64 => "cache_namespace_read_hits_total",
        /// Reads that had to read the store, by namespace.
        pub read_misses: u64 => "cache_namespace_read_misses_total",
        /// Data read from the store before a client asked for them, by namespace.
        pub read_ahead_bytes: u64 => "cache_namespace_read_ahead_bytes_total",
        /// Data read ahead that a client then asked for, by namespace.
        pub read_ahead_used_bytes: u64 => "cache_namespace_read_ahead_used_bytes_total",
        /// Data read ahead that were evicted before a client asked for them, by namespace.
        pub read_ahead_wasted_bytes: u64 => "cache_namespace_read_ahead_wasted_bytes_total",
        /// Data of long sequential reads, which are not cached, by namespace.
        pub bypassed_read_bytes: u64 => "cache_namespace_bypassed_read_bytes_total",
        /// Data of long sequential writes, which bypass the cache, by namespace.
        pub bypassed_write_bytes: u64 => "cache_namespace_bypassed_write_bytes_total",
        /// Changes by the durability with which they are acknowledged, least first: *cached*, *journaled*,
        /// *replicated*, *stored*.
        pub writes: [u64; 4],
        /// The namespace's requests to the store.
        pub store: StoreCounters,
        /// The namespace's quota, if it has one.
        pub quota: Option<QuotaUse>,
        /// Changes refused because the quota was used up, by namespace.
        pub quota_refusals: u64 => "cache_namespace_quota_refusals_total",
    }
}

/// The names of [`NamespaceCounters::writes`].
pub const DURABILITIES: [&str; 4] = ["cached", "journaled", "replicated", "stored"];

impl ObjectCache {
    /// Returns the counters of the cache.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use blocker::Memory;
    /// # use cached_core::object::ObjectCache;
    /// let cache = ObjectCache::builder(Arc::new(Memory::default())).memory_bytes(64 << 20).start()?;
    /// assert_eq!(cache.counters().dirty_bytes, 0);
    /// # Ok::<_, cached_core::object::ConfigError>(())
    /// ```
    #[must_use]
    pub fn counters(&self) -> Counters {
        let shared = self.shared();
        let metrics = &shared.metrics;
        let flow = shared.read_ahead.total();
        let count = |state: State| metrics.total(|of| of.count_of(state));
        let bytes = |states: &[State]| states.iter().map(|state| count(*state)).sum::<u64>() * BUCKET_BYTES;
        Counters {
            objects: shared.objects.index.count(),
            memory_bytes: u64::from(shared.memory.pool.count()) * BUCKET_BYTES,
            free_bytes: u64::from(shared.memory.pool.free()) * BUCKET_BYTES,
            clean_bytes: bytes(&[State::Clean]),
            dirty_bytes: bytes(&[State::Dirty, State::DirtyWhole, State::Writing])
                + metrics.total(|of| of.bucketless.load(Ordering::Relaxed)) * BUCKET_BYTES,
            writing_bytes: bytes(&[State::Writing]),
            zero_bytes: bytes(&[State::ZeroClean, State::ZeroDirty, State::ZeroWriting]),
            receive_buffer_bytes: u64::from(shared.memory.pool.receiving()) * BUCKET_BYTES,
            loading_bytes: metrics.loading.load(Ordering::Relaxed) * BUCKET_BYTES,
            read_hits: metrics.total(|of| of.hits.get()),
            read_misses: metrics.total(|of| of.misses.get()),
            writes_back: metrics.total(NamespaceMetrics::writes_back),
            writes_through: metrics.total(NamespaceMetrics::writes_through),
            writes_throttled: metrics.total(|of| of.throttled.get()),
            lost_objects: shared.objects.losses.objects(),
            attached: u64::from(shared.control.attaching.status().state != AttachState::Detached),
            gate_width: shared.store.gate.width().into(),
            gate_waiting: shared.store.gate.waiting().into(),
            read_ahead_bytes: flow.ahead * BUCKET_BYTES,
            read_ahead_used_bytes: flow.used * BUCKET_BYTES,
            read_ahead_wasted_bytes: flow.wasted * BUCKET_BYTES,
            bypassed_read_bytes: flow.bypassed_read_bytes,
            bypassed_write_bytes: flow.bypassed_write_bytes,
            ..metrics.counts.map(Counter::get)
        }
    }

    /// Returns the counters of each namespace that was configured or used, up to 4096 of them, and
    /// of all others together.
    #[must_use]
    pub fn namespaces(&self) -> Vec<NamespaceCounters> {
        let shared = self.shared();
        let metrics = &shared.metrics;
        let oldest = shared.objects.dirty_queue.oldest_of_each();
        let now = shared.clock.now();
        let age = |since: Option<Timestamp>| since.map_or(Duration::ZERO, |since| now.since(since));
        let of = |record: &NamespaceRecord| {
            let (space, namespace) = (&record.metrics, record.name.clone());
            let flow = shared.read_ahead.of(record.number);
            let bytes = |states: &[State]| {
                states.iter().map(|state| space.count_of(*state)).sum::<u64>() * BUCKET_BYTES
            };
            let dirty = [State::Dirty, State::DirtyWhole, State::Writing];
            let dirty_bytes = bytes(&dirty) + space.bucketless.load(Ordering::Relaxed) * BUCKET_BYTES;
            let share = shared.memory.shares.report(&shared.memory.queues, record.number);
            NamespaceCounters {
                is_configured: record.is_configured.load(Ordering::Relaxed),
                write_mode: record.write_phases.set_mode(),
                is_mode_changing: record.write_phases.is_changing(),
                objects: record.objects.load(Ordering::Relaxed),
                cached_bytes: bytes(&[State::Clean]) + bytes(&dirty),
                dirty_bytes,
                // All dirty data may have been stored since.
                dirty_age: if dirty_bytes > 0 {
                    age(oldest.get(&record.number).copied())
                } else {
                    Duration::ZERO
                },
                dirty_age_max: shared.control.live.dirty_age_max(record),
                dirty_bytes_max: metrics.dirty_room.own_max(record.number).map(|max| max * BUCKET_BYTES),
                memory_target_bytes: share.as_ref().map(|share| share.target_buckets * BUCKET_BYTES),
                ghost_hit_bytes: share.as_ref().map(|share| share.ghost_hits * BUCKET_BYTES),
                memory_gain: share.map(|share| Duration::from_nanos(share.gain_nanos)),
                writes_throttled: space.throttled.get(),
                read_hits: space.hits.get(),
                read_misses: space.misses.get(),
                read_ahead_bytes: flow.ahead * BUCKET_BYTES,
                read_ahead_used_bytes: flow.used * BUCKET_BYTES,
                read_ahead_wasted_bytes: flow.wasted * BUCKET_BYTES,
                bypassed_read_bytes: flow.bypassed_read_bytes,
                bypassed_write_bytes: flow.bypassed_write_bytes,
                writes: space.writes(),
                store: space.store.counters(),
                quota: shared.control.quotas.get(record.number),
                quota_refusals: space.quota_refusals.get(),
                namespace,
            }
        };
        let is_used = |one: &NamespaceCounters| {
            one.objects > 0
                || one.read_misses > 0
                || one.read_hits > 0
                || one.writes.iter().any(|count| *count > 0)
        };
        let all = shared.control.namespaces.records().map(of);
        all.filter(|one| one.namespace.is_some() || is_used(one)).collect()
    }

    /// Simulates other memory sizes with the samples taken since the last call, and returns the
    /// number of samples. Call it about ten times per second, from any thread: the number of
    /// waiting samples is bounded, and further ones are dropped. Does nothing without
    /// [`ObjectCacheConfig::insight`](super::ObjectCacheConfig::insight).
    pub fn take_samples(&self) -> usize {
        let shared = self.shared();
        let buckets_bytes = u64::from(shared.memory.pool.count()) * blocker::BUCKET_BYTES;
        let present = Present {
            now: shared.clock.now().since(shared.made_at).as_secs().try_into().unwrap_or(u32::MAX),
            totals: None,
            used: Some((shared.control.config.memory_bytes_max, buckets_bytes)),
            flushes: 0,
            entries: u64::from(shared.memory.pool.count().saturating_sub(shared.memory.pool.free())),
        };
        shared.hot.age(shared.clock.now(), shared.metrics.reads());
        let namespace = |node| shared.objects.index.namespace_at(node).unwrap_or_default();
        shared.memory.queues.insight.take_samples(&present, |sample| namespace(sample.owner))
    }

    /// Returns the miss ratios that other memory sizes would give, for all buckets and for each
    /// namespace. `None` without [`ObjectCacheConfig::insight`](super::ObjectCacheConfig::insight).
    ///
    /// A request is for a single bucket: a read of several buckets counts once for each. The ratios
    /// are measured on sampled buckets. They assume that dirty buckets are evictable, and that the
    /// number of objects in the index is unlimited.
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
        self.shared().memory.queues.insight.curve()
    }

    /// Returns why buckets had to be read from the store, estimated from the sampled ones. `None` without
    /// [`ObjectCacheConfig::insight`](super::ObjectCacheConfig::insight).
    ///
    /// A bucket counts as *deleted* if its object was deleted or overwritten, or its content discarded or
    /// invalidated; nothing expires, and nothing is flushed.
    #[must_use]
    pub fn misses_by_reason(&self) -> Option<MissesByReason> {
        self.shared().memory.queues.insight.misses_by_reason()
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
        shared.hot.age(shared.clock.now(), shared.metrics.reads());
        shared.hot.report(count, shared.clock.now(), shared.metrics.reads())
    }
}

//! What a cache knows about itself beyond counters, see [`insight`](crate::insight).

use super::cache::ObjectCache;
use crate::insight::{HotNames, MissRatioCurve, MissesByReason, Present};

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

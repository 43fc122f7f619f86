//! The cache itself: how it is made, and what it shows of its state.

use std::sync::Arc;

use blocker::{Blocker, Clock, Namespace, ObjectId, Result, WriteMode};

use super::background::Background;
use super::config::{ConfigError, ObjectCacheConfig};
use super::counters::Counters;
use super::hooks::{Hooks, NoHooks};
use super::index::Index;
use super::losses::LostWrites;
use super::pool::Pool;
use super::queue::Queues;
use super::receive::ReceiveBuffer;
use super::shared::Shared;
use super::{counters, validate};

/// A cache of objects in front of a store. Clones are cheap, and handles of the same cache.
///
/// It keeps the storage contract ([`Blocker`]), with *cached* meaning: in the memory of this process.
///
/// ```
/// use std::sync::Arc;
/// use blocker::{BlockerExt, Memory, ObjectId, WriteMode};
/// use cached_core::object::ObjectCache;
///
/// let cache = ObjectCache::builder(Arc::new(Memory::default()))
///     .memory_bytes(64 << 20)
///     .write_mode(WriteMode::Back)
///     .start()?;
/// let disk: ObjectId = "vm/disk.0".parse()?;
/// blocker::executor::block_on(async {
///     // Stored when this returns.
///     cache.put(&disk, b"hello").await?;
///     assert_eq!(cache.get(&disk).await?, b"hello"[..]);
///     Ok::<_, blocker::Error>(())
/// })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ObjectCache {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.background.close();
    }
}

impl ObjectCache {
    /// Returns an empty cache over `below`, and its background, which must run for as long as the cache is
    /// used.
    ///
    /// Deadlines, ages and delays are by `clock`, which must be the callers' clock.
    ///
    /// # Errors
    /// The first key of `config` that cannot work, or the memory that cannot be mapped.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use blocker::{Memory, SystemClock};
    /// use cached_core::object::{ObjectCache, ObjectCacheConfig};
    ///
    /// let store = Arc::new(Memory::default());
    /// let (cache, background) = ObjectCache::new(store, ObjectCacheConfig::default(), Arc::new(SystemClock))?;
    /// let background = std::thread::spawn(|| blocker::executor::block_on(background));
    /// drop(cache);
    /// background.join().expect("the background ends with the last handle of the cache");
    /// # Ok::<_, cached_core::object::ConfigError>(())
    /// ```
    pub fn new(
        below: Arc<dyn Blocker>,
        config: ObjectCacheConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Background), ConfigError> {
        Self::with_hooks(below, config, clock, Arc::new(NoHooks))
    }

    /// As [`Self::new`], with `hooks` that are called when objects enter and leave the index.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_hooks(
        below: Arc<dyn Blocker>,
        config: ObjectCacheConfig,
        clock: Arc<dyn Clock>,
        hooks: Arc<dyn Hooks>,
    ) -> Result<(Self, Background), ConfigError> {
        config.check(&below.capabilities())?;
        let memory = |why: String| ConfigError { key: "memory_bytes_max", why };
        // What the policy remembers of evicted buckets is taken out of the memory.
        let buckets = u32::try_from(config.memory_bytes_max / blocker::BUCKET_BYTES)
            .map_err(|_| memory("must be below 16 TiB".into()))?;
        let policy = ConfigError { key: "eviction_policy", why: "is not known".into() };
        let remembered = Queues::new(&config.eviction_policy, buckets).ok_or(policy.clone())?.policy_bytes();
        let bytes = config.memory_bytes_max.saturating_sub(remembered as u64);
        let pool = Pool::new(bytes, config.huge_pages).map_err(|error| memory(error.to_string()))?;
        let queues = Queues::new(&config.eviction_policy, pool.count()).ok_or(policy)?;
        let objects =
            |error: std::io::Error| ConfigError { key: "objects_count_max", why: error.to_string() };
        let index = Index::new(config.objects_count_max).map_err(objects)?;
        let shared = Arc::new(Shared::new(below, config, clock, hooks, pool, queues, index));
        let background = Background::new(Arc::clone(&shared));
        Ok((Self { inner: Arc::new(Inner { shared }) }, background))
    }

    /// Returns what the cache holds and has done.
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
        counters::counters(self.shared())
    }

    /// Returns what has been acknowledged as *cached*, can never be stored, and has not been repaired yet.
    ///
    /// Every flush that covers any of it returns [`Error::WritesLost`](blocker::Error::WritesLost) until the
    /// objects are written in full or deleted, or the scope is invalidated.
    #[must_use]
    pub fn lost(&self) -> LostWrites {
        self.shared().losses.all()
    }

    /// Sets the write mode of a namespace, for operations that begin from now on. Operations under way end in
    /// the mode in which they began.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`](blocker::Error::OutOfSpace) once 65 536 namespaces have a mode of their own.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use blocker::Memory;
    /// use blocker::{Namespace, WriteMode};
    /// # use cached_core::object::ObjectCache;
    /// # let cache = ObjectCache::builder(Arc::new(Memory::default())).memory_bytes(64 << 20).start()?;
    /// cache.set_write_mode(Namespace::new("scratch")?, WriteMode::Back)?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_write_mode(&self, namespace: Namespace, mode: WriteMode) -> Result<(), blocker::Error> {
        self.shared().write_modes.set(namespace, mode)
    }

    /// Returns memory of the cache for `len_bytes` that are to be written at `offset` of `object`.
    ///
    /// `None` where receiving into the cache is no use (no whole bucket is filled, or the namespace is
    /// written around), or where there is no room at once: receive into other memory then.
    #[must_use]
    pub fn receive_buffer(&self, object: &ObjectId, offset: u64, len_bytes: usize) -> Option<ReceiveBuffer> {
        ReceiveBuffer::new(self.shared(), object, offset, len_bytes)
    }

    /// Checks every invariant of the cache. Operations may wait for the store meanwhile; none may be inside
    /// the cache.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn validate(&self) -> Result<(), String> {
        validate::validate(self.shared())
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }
}

impl std::fmt::Debug for ObjectCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectCache").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

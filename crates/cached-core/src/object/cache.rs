//! The cache itself: how it is made, what it shows of its state, and its side towards a kernel that sends
//! buckets in place and an arbiter that moves memory.

use std::sync::{Arc, Weak};
use std::time::Duration;

use blocker::{BUCKET_BYTES, Blocker, Clock, ObjectId, Pending, Result, Timestamp};

use super::background::Background;
use super::config::{ConfigError, ObjectCacheConfig};
use super::control::attach_state::AttachStatus;
use super::control::metrics::Counters;
use super::control::namespaces::Namespaces;
use super::counters::NamespaceCounters;
use super::journal::unapplied::{Recovery, RecoveryProgress};
use super::journal::{ChangeLog, JournalHealth, JournalOptions, OpenJournal, check_without_journal};
use super::memory::pool::{Pool, PoolMemory};
use super::memory::queue::Queues;
use super::recovery::RecoveryError;
use super::shared::resources::reserve_up_to;
use super::shared::{Shared, log_waits, validate};
use super::state::index::Index;
use super::state::losses::LostWrites;
use super::write::receive::ReceiveBuffer;
use super::{counters, detach, recovery};
use crate::arena::MemoryRange;
use crate::balance::Needs;
use crate::insight::Sampling;

/// A cache of objects in front of a store. Clones are cheap, and handles of the same cache.
///
/// It keeps the storage contract ([`Blocker`]), with *cached* meaning: in the memory of this process.
///
/// Its futures are boxed: an unboxed one, and all that it awaits, is compiled again in each crate that awaits it.
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

/// A handle that keeps neither the cache nor its store: for what shows or reports a cache.
#[derive(Clone)]
pub struct WeakObjectCache {
    inner: Weak<Inner>,
    shared: Weak<Shared>,
}

impl WeakObjectCache {
    /// Returns the cache, as long as there is another handle of it.
    #[must_use]
    pub fn upgrade(&self) -> Option<ObjectCache> {
        self.inner.upgrade().map(|inner| ObjectCache { inner })
    }

    /// Returns whether nothing of the cache is left: no handle, and no operation that keeps its store or its journal.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.shared.strong_count() == 0
    }
}

impl std::fmt::Debug for WeakObjectCache {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("WeakObjectCache").finish_non_exhaustive()
    }
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
    /// Returns a handle that keeps neither the cache nor its store.
    #[must_use]
    pub fn downgrade(&self) -> WeakObjectCache {
        WeakObjectCache { inner: Arc::downgrade(&self.inner), shared: Arc::downgrade(self.shared()) }
    }

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
        Self::make(below, config, clock, None)
    }

    /// As [`Self::new`], with a journal.
    pub(super) fn make(
        below: Arc<dyn Blocker>,
        config: ObjectCacheConfig,
        clock: Arc<dyn Clock>,
        journal: Option<(OpenJournal, JournalOptions)>,
    ) -> Result<(Self, Background), ConfigError> {
        config.check(&below.capabilities())?;
        let memory = |why: String| ConfigError { key: "memory_bytes_max", why };
        // What the policy remembers of evicted buckets is taken out of the memory.
        let bytes_max = config.memory_range.map_or(config.memory_bytes_max, |range| range.bytes_max);
        let buckets = u32::try_from(bytes_max / blocker::BUCKET_BYTES)
            .map_err(|_| memory("must be below 16 TiB".into()))?;
        let policy = ConfigError { key: "eviction_policy", why: "is not known".into() };
        let remembered =
            Queues::new(&config.eviction_policy, buckets).ok_or(policy.clone())?.policy_bytes_each();
        // Each share of the memory remembers as much.
        let shares = 1 + config.namespaces.iter().filter(|each| each.has_own_memory()).count();
        let without = |bytes: u64| bytes.saturating_sub((remembered * shares) as u64);
        let pool = Pool::new(PoolMemory {
            bytes: without(config.memory_bytes_max),
            range: config.memory_range.map(|range| MemoryRange {
                bytes_min: without(range.bytes_min),
                bytes_max: without(range.bytes_max),
            }),
            huge_pages: config.huge_pages,
            lends: config.lends_buckets,
        })
        .map_err(|error| memory(error.to_string()))?;
        let mut queues = Queues::new(&config.eviction_policy, pool.count_max()).ok_or(policy)?;
        if config.insight != Sampling::Off {
            queues = queues.with_insight(&config.eviction_policy, config.memory_bytes_max, config.insight);
        }
        let objects =
            |error: std::io::Error| ConfigError { key: "objects_count_max", why: error.to_string() };
        let namespaces = Namespaces::new(&config);
        let index = Index::new(config.objects_count_max, &namespaces).map_err(objects)?;
        let (log, replay) = match journal {
            None => {
                check_without_journal(&config)?;
                (None, None)
            }
            Some((OpenJournal { journal, replay, events, is_stepped }, options)) => {
                let log = ChangeLog::new(journal, events, options, &config, Arc::clone(&clock))?;
                (Some(log), Some((replay, is_stepped)))
            }
        };
        let (replay, is_stepped) = replay.unzip();
        let recovery = Recovery::new(replay, log.as_ref(), is_stepped == Some(false));
        let attached = config.attached;
        let shared =
            Arc::new(Shared::new(below, config, clock, namespaces, pool, queues, index, log, recovery));
        if !attached {
            // The background stores what an earlier process had logged, if there is anything, and goes on from there.
            detach::put_in_force(&shared, false);
        }
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

    /// Returns what each namespace has of the cache that was configured or used, up to 4 096 of them, and all
    /// others together.
    #[must_use]
    pub fn namespaces(&self) -> Vec<NamespaceCounters> {
        counters::namespace_counters(self.shared())
    }

    /// Returns what has been acknowledged as *cached*, can never be stored, and has not been repaired yet.
    ///
    /// Every flush that covers any of it returns [`Error::WritesLost`](blocker::Error::WritesLost) until the
    /// objects are written in full or deleted, or the scope is invalidated.
    #[must_use]
    pub fn lost(&self) -> LostWrites {
        self.shared().objects.losses.all()
    }

    /// Returns whether the store has stored everything that this cache has acknowledged, as far as no operation is
    /// under way: a [flush](Blocker::flush) of everything would have nothing to do.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        let shared = self.shared();
        let recovered = shared.journal.recovery.progress();
        recovered.is_done
            && recovered.objects_failed == 0
            && shared.objects.dirty_queue.oldest().is_none()
            && !shared.objects.losses.is_any()
            && !shared.journal.forwarded.is_any()
    }

    /// Returns the age of the oldest change that is not stored yet; zero if everything is stored.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use blocker::Memory;
    /// # use cached_core::object::ObjectCache;
    /// let cache = ObjectCache::builder(Arc::new(Memory::default())).memory_bytes(64 << 20).start()?;
    /// assert!(cache.dirty_age().is_zero());
    /// # Ok::<_, cached_core::object::ConfigError>(())
    /// ```
    #[must_use]
    pub fn dirty_age(&self) -> Duration {
        let shared = self.shared();
        let oldest = shared.objects.dirty_queue.oldest();
        oldest.map_or(Duration::ZERO, |since| shared.clock.now().since(since))
    }

    /// Returns the most data that may be dirty, in bytes.
    #[must_use]
    pub fn dirty_bytes_max(&self) -> u64 {
        self.shared().metrics.dirty_room.dirty_max() * blocker::BUCKET_BYTES
    }

    /// Returns how long a change may be dirty before its flush begins.
    #[must_use]
    pub fn dirty_age_max(&self) -> Duration {
        self.shared().control.config.dirty_age_max
    }

    /// Takes the cache out of the path of requests, which go on without failing for it: everything is stored,
    /// what is cached is dropped, and requests go to the store; returns when that is done. A cache that is
    /// detached stays so until [`attach_cache`](Self::attach_cache) is called.
    ///
    /// While it is detached, reads go straight to the store; changes go around the cache in every namespace that
    /// is not read-only, with the same stamps, conditions, quotas and rates. What other clients change in the
    /// store is seen at once. With a journal, there is nothing to replay when this returns.
    ///
    /// The work begins with the call and is done in the background; a further call waits for the same. If the
    /// store is away, the cache stays attached as it is until the store has taken what is dirty.
    ///
    /// # Cancel safety
    /// Dropped, it is not waited for any longer; the cache is detached all the same.
    ///
    /// # Errors
    /// [`Error::NotStored`](blocker::Error::NotStored) if the deadline passes before, with the state and why;
    /// [`Error::Retryable`](blocker::Error::Retryable) if the cache is attached again meanwhile;
    /// [`Error::Unsupported`](blocker::Error::Unsupported) if its background has ended.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use blocker::{BlockerExt, Memory, ObjectId};
    /// # use blocker::executor::block_on;
    /// # use cached_core::object::{AttachState, ObjectCache};
    /// # let cache = ObjectCache::builder(Arc::new(Memory::default())).memory_bytes(64 << 20).start()?;
    /// # let disk: ObjectId = "vm/disk.0".parse()?;
    /// block_on(cache.detach_cache(None))?;
    /// assert_eq!(cache.attach_status().state, AttachState::Detached);
    /// block_on(cache.put(&disk, b"straight to the store"))?;
    /// block_on(cache.attach_cache(None))?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn detach_cache(&self, deadline: Option<Timestamp>) -> Pending<()> {
        let shared = Arc::clone(self.shared());
        let turn = detach::begin(&shared);
        Box::pin(async move { detach::finish(&shared, turn, deadline).await })
    }

    /// Puts the cache back into the path of requests: what it knew is dropped, and the write modes that were set
    /// are in force again. Returns when nothing is left of the changes that went around it. Also ends a
    /// [`detach_cache`](Self::detach_cache) that is under way. Of a cache that is attached nothing changes.
    ///
    /// # Errors
    /// [`Error::NotStored`](blocker::Error::NotStored) if the deadline passes while changes that began before are
    /// under way: the cache is attached all the same; [`Error::Retryable`](blocker::Error::Retryable) if too many
    /// requests wait for memory: then nothing has changed.
    pub fn attach_cache(&self, deadline: Option<Timestamp>) -> Pending<()> {
        let shared = Arc::clone(self.shared());
        Box::pin(async move { detach::attach(&shared, deadline).await })
    }

    /// Returns whether the cache is in the path of requests.
    #[must_use]
    pub fn attach_status(&self) -> AttachStatus {
        self.shared().control.attaching.status()
    }

    /// Returns memory of the cache for `len_bytes` that are to be written at `offset` of `object`.
    ///
    /// `None` where receiving into the cache is no use (no whole bucket is filled, or the namespace is
    /// written around), or where there is no room at once: receive into other memory then.
    #[must_use]
    pub fn receive_buffer(&self, object: &ObjectId, offset: u64, len_bytes: usize) -> Option<ReceiveBuffer> {
        ReceiveBuffer::new(self.shared(), object, offset, len_bytes)
    }

    /// Closes the cache's journal, if it has one: at the end, after a [flush](Blocker::flush) of everything.
    /// If everything is stored, a restart has nothing to replay. If objects could not be recovered
    /// ([`RecoveryProgress::objects_failed`]), the journal keeps its records: the next start finds the damage
    /// again. Changes that come later are not logged.
    ///
    /// # Errors
    /// [`Error::NotStored`](blocker::Error::NotStored) if what is in the journal is not durable, because its
    /// disk has failed.
    pub fn close_journal(&self) -> Pending<()> {
        let shared = Arc::clone(self.shared());
        Box::pin(async move { log_waits::close(&shared.journal).await })
    }

    /// Returns the state of the cache's journal, if it has one.
    #[must_use]
    pub fn journal_health(&self) -> Option<JournalHealth> {
        self.shared().journal.log.as_ref().map(|log| log.events.condition.health())
    }

    /// Begins to recover what an earlier process logged: claims the namespaces of its changes. Without a
    /// journal, or if that is empty, there is nothing to do.
    ///
    /// Call it before the cache is used: until it has succeeded, operations wait. After it, the background
    /// makes the changes again, those of an object that is asked for first. It may be called again after an
    /// error.
    ///
    /// # Errors
    /// If another writer has taken over a namespace since, or the journal is damaged; and if its disk fails or the
    /// store does not answer, which may pass.
    pub fn begin_recovery(&self) -> Pending<(), RecoveryError> {
        let shared = Arc::clone(self.shared());
        Box::pin(async move { recovery::begin(&shared).await })
    }

    /// Returns how far the recovery is.
    #[must_use]
    pub fn recovery(&self) -> RecoveryProgress {
        self.shared().journal.recovery.progress()
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

impl ObjectCache {
    /// Returns whether buckets can be lent: it was [asked for](super::ObjectCacheConfig::lends_buckets), and the system takes single
    /// pages of memory back.
    #[must_use]
    pub fn lends(&self) -> bool {
        self.shared().memory.pool.lends()
    }

    /// Lends the bucket that `bytes`, of a segment of this cache, lie in: from now on its bytes never change, even when every
    /// segment is dropped and the bucket is used for another object. Pages of it can be handed to the kernel (`vmsplice`), without
    /// knowing when it has done with them.
    ///
    /// Returns false if nothing was lent: the cache does not lend, or these are not bytes of one bucket.
    #[must_use]
    pub fn lend(&self, bytes: &[u8]) -> bool {
        self.shared().memory.pool.lend(bytes)
    }

    /// Returns whether these bytes, of a segment of this cache, were lent.
    #[must_use]
    pub fn has_lent(&self, bytes: &[u8]) -> bool {
        self.shared().memory.pool.has_lent(bytes)
    }
}

// The cache as one half of a memory that it shares with a byte-keyed store: what the arbiter sees of it, and
// how buckets go and come.
//
// The buckets that go are those that the eviction policy would evict next. What is dirty or pinned is in no
// queue, so it stays: the least memory of a cache is sized so that it has room for all that may be dirty.

impl ObjectCache {
    /// Returns what the cache needs of a shared memory.
    pub(crate) fn needs(&self) -> Needs {
        let shared = self.shared();
        let pool = &shared.memory.pool;
        let used = pool.count().saturating_sub(pool.free());
        Needs {
            bytes: self.bytes(),
            bytes_min: self.bytes_min(),
            spare_bytes: u64::from(pool.free()) * BUCKET_BYTES,
            ghost_hits: shared.memory.shares.ghost_hits(&shared.memory.queues),
            stored: shared.metrics.counts.bucket_evictions.get() + u64::from(used),
            miss_nanos: shared.memory.shares.load_nanos(),
            entry_bytes: BUCKET_BYTES,
        }
    }

    /// Returns the memory of all buckets, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.shared().memory.pool.count()) * BUCKET_BYTES
    }

    /// Returns the least that this can be.
    pub(crate) fn bytes_min(&self) -> u64 {
        u64::from(self.shared().memory.pool.count_min()) * BUCKET_BYTES
    }

    /// Returns the most that this can be.
    pub(crate) fn bytes_max(&self) -> u64 {
        u64::from(self.shared().memory.pool.count_max()) * BUCKET_BYTES
    }

    /// Gives the memory of up to `count` buckets up; returns how many. Never takes a bucket for which a task
    /// waits, and never waits.
    ///
    /// # Errors
    /// If the system does not take some of the memory back; those buckets are free.
    pub(crate) fn give_buckets(&self, count: u32) -> std::io::Result<u32> {
        let shared = self.shared();
        let given = give(shared, count);
        shared.memory.shares.resize(shared.memory.pool.count());
        given
    }

    /// Takes the memory of up to `count` buckets; returns how many, less if the cache has the most then.
    pub(crate) fn take_buckets(&self, count: u32) -> u32 {
        let shared = self.shared();
        let taken = shared.memory.pool.take_back(count);
        shared.memory.shares.resize(shared.memory.pool.count());
        taken
    }
}

fn give(shared: &Shared, count: u32) -> std::io::Result<u32> {
    let fresh = shared.memory.pool.give_fresh(count);
    if fresh == count || shared.memory.pool.waiters().has_waiters() {
        return Ok(fresh);
    }
    let reserved = reserve_up_to(shared, count - fresh);
    if shared.memory.pool.waiters().has_waiters() {
        // A task has found nothing meanwhile: it gets them, by the drop.
        return Ok(fresh);
    }
    Ok(fresh + shared.memory.pool.give_up(reserved)?)
}

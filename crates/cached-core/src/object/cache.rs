//! The cache itself: its construction, its visible state, and its interfaces to a kernel that sends
//! buckets in place and to an arbiter that moves memory.

use std::sync::{Arc, Weak};
use std::time::Duration;

use blocker::{BUCKET_BYTES, Blocker, Clock, Epoch, ObjectId, Pending, ReceiveBuffers, Result, Timestamp};

use super::background::Background;
use super::config::{ConfigError, OTHERS, ObjectCacheConfig};
use super::control::attach_state::AttachStatus;
use super::journal::unapplied::RecoveryProgress;
use super::journal::{JournalHealth, JournalOptions, OpenJournal};
use super::recovery::RecoveryError;
use super::shared::resources::reserve_up_to;
use super::shared::{Shared, log_waits, validate};
use super::state::losses::LostWrites;
use super::write::receive::ReceiveBuffer;
use super::{detach, recovery};
use crate::balance::Needs;

/// A cache of objects in front of a store. Clones are cheap, and are handles of the same cache.
///
/// It implements the storage contract ([`Blocker`]); *cached* means: in the memory of this process.
///
/// Its futures are boxed: an unboxed future, with everything that it awaits, would be compiled
/// again in each crate that awaits it.
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

/// A handle that keeps neither the cache nor its store alive, for code that shows or reports a
/// cache.
#[derive(Clone, Debug)]
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

    /// Returns whether nothing of the cache is left: neither a handle nor an operation that keeps
    /// its store or its journal alive.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.shared.strong_count() == 0
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
    /// Returns a handle that keeps neither the cache nor its store alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakObjectCache {
        WeakObjectCache { inner: Arc::downgrade(&self.inner), shared: Arc::downgrade(self.shared()) }
    }

    /// Returns an empty cache over `below`, and its background, which must run for as long as the cache is
    /// used.
    ///
    /// Deadlines, ages and delays are measured by `clock`, which must be the callers' clock.
    ///
    /// # Errors
    /// The first invalid key of `config`, or `memory_bytes_max` if the memory cannot be mapped.
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

    /// Does the same as [`Self::new`], with a journal.
    pub(super) fn make(
        below: Arc<dyn Blocker>,
        config: ObjectCacheConfig,
        clock: Arc<dyn Clock>,
        journal: Option<(OpenJournal, JournalOptions)>,
    ) -> Result<(Self, Background), ConfigError> {
        let attached = config.attached;
        let shared = Arc::new(Shared::new(below, config, clock, journal)?);
        if !attached {
            // The background stores the changes that an earlier process logged, if any, and then
            // continues.
            detach::put_in_force(&shared, false);
        }
        let background = Background::new(Arc::clone(&shared));
        Ok((Self { inner: Arc::new(Inner { shared }) }, background))
    }

    /// Returns the epoch of another leader that has taken over from this cache, if the cache was
    /// [elected](super::Writer::Elected) and the store has refused its epoch: the cache then does
    /// nothing more that needs the store. [`Event::Fenced`](blocker::Event::Fenced) reports the
    /// moment.
    #[must_use]
    pub fn deposed_by(&self) -> Option<Epoch> {
        self.shared().store.epochs.deposed_by()
    }

    /// Returns the changes that were acknowledged as *cached*, can never be stored, and have not
    /// been repaired yet.
    ///
    /// Every flush that covers any of them returns
    /// [`Error::WritesLost`](blocker::Error::WritesLost) until the objects are written in full or
    /// deleted, or the scope is invalidated.
    #[must_use]
    pub fn lost(&self) -> LostWrites {
        self.shared().objects.losses.all()
    }

    /// Returns whether the store has stored everything that this cache has acknowledged, ignoring
    /// operations in flight: a [flush](Blocker::flush) of everything would have nothing to do.
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

    /// Returns the dirty-data limit, in bytes.
    #[must_use]
    pub fn dirty_bytes_max(&self) -> u64 {
        self.shared().metrics.dirty_room.dirty_max() * blocker::BUCKET_BYTES
    }

    /// Returns the maximum time that a change stays dirty before its flush begins, in namespaces
    /// without a maximum of their own.
    #[must_use]
    pub fn dirty_age_max(&self) -> Duration {
        let control = &self.shared().control;
        control.live.dirty_age_max(control.namespaces.record(OTHERS))
    }

    /// Returns, for each namespace with changes that are not stored yet, the age of the oldest one,
    /// and the maximum time that a change to the namespace stays dirty before its flush begins.
    #[must_use]
    pub fn dirty_ages(&self) -> Vec<(Duration, Duration)> {
        let shared = self.shared();
        let (oldest, now) = (shared.objects.dirty_queue.oldest_of_each(), shared.clock.now());
        let max = |number| shared.control.live.dirty_age_max(shared.control.namespaces.record(number));
        oldest.into_iter().map(|(number, since)| (now.since(since), max(number))).collect()
    }

    /// Detaches the cache from the request path without failing any request: everything is stored,
    /// the cached data are dropped, and requests go to the store; returns when that is done. The
    /// cache stays detached until [`attach_cache`](Self::attach_cache) is called.
    ///
    /// While the cache is detached, reads go directly to the store; changes bypass the cache in
    /// every namespace that is not read-only, with the same stamps, conditions, quotas and rates.
    /// Changes that other clients make in the store are visible at once. With a journal, there is
    /// nothing to replay when this returns.
    ///
    /// The work begins with the call and is done in the background; a further call waits for the
    /// same work. If the store is unreachable, the cache stays attached until the store has
    /// accepted the dirty data.
    ///
    /// # Cancel safety
    /// If the future is dropped, the cache is detached all the same.
    ///
    /// # Errors
    /// [`Error::NotStored`](blocker::Error::NotStored) if the deadline passes first, with the state
    /// and the reason; [`Error::Retryable`](blocker::Error::Retryable) if the cache is reattached
    /// in the meantime; [`Error::Unsupported`](blocker::Error::Unsupported) if its background has
    /// ended.
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

    /// Reattaches the cache: its old contents are dropped, and the configured write modes take
    /// effect again. Returns when all changes that bypassed the cache have ended. Also ends a
    /// [`detach_cache`](Self::detach_cache) in progress. Has no effect on an attached cache.
    ///
    /// # Errors
    /// [`Error::NotStored`](blocker::Error::NotStored) if the deadline passes while changes that
    /// began before are in flight: the cache is attached all the same;
    /// [`Error::Retryable`](blocker::Error::Retryable) if too many requests are waiting for memory: in
    /// this case nothing has changed.
    pub fn attach_cache(&self, deadline: Option<Timestamp>) -> Pending<()> {
        let shared = Arc::clone(self.shared());
        Box::pin(async move { detach::attach(&shared, deadline).await })
    }

    /// Returns whether the cache is in the request path.
    #[must_use]
    pub fn attach_status(&self) -> AttachStatus {
        self.shared().control.attaching.status()
    }

    /// Returns memory of the cache for `len_bytes` that are to be written at `offset` of `object`.
    ///
    /// `None` if receiving into the cache is of no use (no whole bucket is filled, or the namespace
    /// is in write-around mode), or if there is no room at once: the caller must then receive into
    /// other memory.
    #[must_use]
    pub fn receive_buffer(&self, object: &ObjectId, offset: u64, len_bytes: usize) -> Option<ReceiveBuffer> {
        ReceiveBuffer::new(self.shared(), object, offset, len_bytes)
    }

    /// Returns a function through which a server in front of the cache obtains
    /// [receive buffers](Self::receive_buffer).
    #[must_use]
    pub fn receive_buffers(&self) -> ReceiveBuffers {
        let cache = self.clone();
        Arc::new(move |object, offset, len_bytes| {
            let buffer = cache.receive_buffer(object, offset, len_bytes)?;
            Some(Box::new(buffer) as _)
        })
    }

    /// Closes the cache's journal, if it has one: call it at the end, after a
    /// [flush](Blocker::flush) of everything. If everything is stored, a restart has nothing to
    /// replay. If objects could not be recovered ([`RecoveryProgress::objects_failed`]), the
    /// journal keeps their records, and the next start finds the damage again. Later changes are
    /// not logged.
    ///
    /// # Errors
    /// [`Error::NotStored`](blocker::Error::NotStored) if the contents of the journal are not
    /// durable, because its disk has failed.
    pub fn close_journal(&self) -> Pending<()> {
        let shared = Arc::clone(self.shared());
        Box::pin(async move { log_waits::close(&shared.journal).await })
    }

    /// Returns the state of the cache's journal, if it has one.
    #[must_use]
    pub fn journal_health(&self) -> Option<JournalHealth> {
        self.shared().journal.log.as_ref().map(|log| log.events.condition.health())
    }

    /// Returns whether this cache has a journal and acknowledges changes as *journaled*. An
    /// [elected](super::Writer::Elected) one acknowledges them as *stored* instead.
    #[must_use]
    pub fn acknowledges_journaled(&self) -> bool {
        self.shared().journal.log.is_some() && !self.shared().stores_if_journaled()
    }

    /// Begins to recover the changes that an earlier process logged: claims their namespaces.
    /// Without a journal, or if it is empty, there is nothing to do.
    ///
    /// Call this before the cache is used: operations wait until it has succeeded. Afterwards the
    /// background applies the changes again, first those of objects that are requested. It may be
    /// called again after an error.
    ///
    /// # Errors
    /// A [`RecoveryError`] if another writer has taken over a namespace since, or the journal is
    /// damaged; or if its disk fails or the store does not respond, which may be temporary.
    pub fn begin_recovery(&self) -> Pending<(), RecoveryError> {
        let shared = Arc::clone(self.shared());
        Box::pin(async move { recovery::begin(&shared).await })
    }

    /// Returns the progress of the recovery.
    #[must_use]
    pub fn recovery(&self) -> RecoveryProgress {
        self.shared().journal.recovery.progress()
    }

    /// Checks every invariant of the cache. Meanwhile, operations may wait for the store, but none
    /// may be inside the cache.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    // This and what it calls are compiled only where they are used, which is in tests.
    #[inline]
    pub fn validate(&self) -> Result<(), String> {
        validate(self.shared())
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
    /// Returns whether buckets can be lent: lending was
    /// [requested](super::ObjectCacheConfig::lends_buckets), and the system takes back single pages
    /// of memory.
    #[must_use]
    pub fn lends(&self) -> bool {
        self.shared().memory.pool.lends()
    }

    /// Lends the buckets that contain `bytes`, which are part of a segment of this cache. From now
    /// on the bytes never change, even when every segment is dropped and the buckets are reused for
    /// another object. So the buckets' pages can be handed to the kernel (`vmsplice`) without
    /// knowing when it has finished with them.
    ///
    /// Returns false if nothing was lent, because the cache does not lend, or the bytes are not in
    /// its buckets.
    #[must_use]
    pub fn lend(&self, bytes: &[u8]) -> bool {
        self.shared().memory.pool.lend(bytes)
    }

    /// Returns whether these bytes, which are part of a segment of this cache, are lent.
    #[must_use]
    pub fn has_lent(&self, bytes: &[u8]) -> bool {
        self.shared().memory.pool.has_lent(bytes)
    }

    // The cache as a part of memory shared with a byte-keyed store: the arbiter's view of it, and how
    // buckets are given up and taken back.
    //
    // The cache gives up the buckets that the eviction policy would evict next. Dirty or pinned buckets
    // are in no queue, so they stay: the minimum memory of a cache has room for all data that may be
    // dirty.

    /// Returns the cache's needs in the shared memory.
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

    /// Returns the minimum memory of all buckets, in bytes.
    pub(crate) fn bytes_min(&self) -> u64 {
        u64::from(self.shared().memory.pool.count_min()) * BUCKET_BYTES
    }

    /// Returns the maximum memory of all buckets, in bytes.
    pub(crate) fn bytes_max(&self) -> u64 {
        u64::from(self.shared().memory.pool.count_max()) * BUCKET_BYTES
    }

    /// Gives up the memory of up to `count` buckets; returns how many. Never takes a bucket for
    /// which a task waits, and never waits.
    ///
    /// # Errors
    /// Errors of the system, if it does not take back some of the memory; those buckets are freed.
    pub(crate) fn give_buckets(&self, count: u32) -> std::io::Result<u32> {
        let shared = self.shared();
        let given = give(shared, count);
        shared.memory.shares.resize(shared.memory.pool.count());
        given
    }

    /// Takes the memory of up to `count` buckets; returns how many, fewer if the cache reaches its
    /// maximum.
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
        // A task has found no bucket in the meantime: the drop passes these to it.
        return Ok(fresh);
    }
    Ok(fresh + shared.memory.pool.give_up(reserved)?)
}

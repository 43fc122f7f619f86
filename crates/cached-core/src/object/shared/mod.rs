//! What all operations of one cache share: its parts, the names and versions of objects, and the way into an
//! object's exclusive section.

pub(crate) mod calls;
pub(crate) mod claim;
pub(crate) mod handle;
pub(crate) mod log_waits;
pub(crate) mod resources;
pub(crate) mod validate;

use blocker::{Blocker, Capabilities, Clock, EventHub, ObjectId, Timestamp};

use super::config::{ObjectCacheConfig, Writer};
use super::control::attach_state::Attaching;
use super::control::metrics::Metrics;
use super::control::namespaces::Namespaces;
use super::control::quotas::Quotas;
use super::control::settings::{LiveValues, Settings, dirty_limits, quotas, set_limited, store_terms};
use super::control::shares::MemoryShares;
use super::journal::unapplied::Recovery;
use super::journal::{ChangeLog, Forwarded};
use super::lock_ranks;
use super::memory::pool::Pool;
use super::memory::queue::Queues;
use super::mutation::ContentOwner;
use super::read_ahead::ReadAhead;
use super::state::Versions;
use super::state::dirty_queue::DirtyQueue;
use super::state::index::{InUse, Index};
use super::state::losses::Losses;
use super::state::{Env, Object};
use super::store::Gate;
use super::store::epochs::{Epochs, KnownClaims};
use super::tasks::background_queue::BackgroundQueue;
use super::tasks::wait_queue::{Permits, WaitQueue};
use crate::hash::KeyHasher;
use crate::insight::{HotSketch, Sampling};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};

const VERSION_STRIPES: usize = 8;

/// See the module.
pub(crate) struct Shared {
    /// The store.
    pub(crate) below: Arc<dyn Blocker>,
    /// What the store could do when the cache was made.
    pub(crate) can: Capabilities,
    /// As it was at the start; what can change since is in `live`, `namespaces`, `metrics` and the gate.
    pub(crate) config: ObjectCacheConfig,
    /// What is in force for the namespaces, by its sources; held while that changes.
    pub(crate) settings: Mutex<Settings>,
    pub(crate) live: LiveValues,
    /// Whether requests go to the cache.
    pub(crate) attaching: Attaching,
    pub(crate) namespaces: Namespaces,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) pool: Pool,
    pub(crate) queues: Queues,
    /// The namespaces' shares of the memory.
    pub(crate) shares: MemoryShares,
    /// The objects that are read most.
    pub(crate) hot: HotSketch,
    pub(crate) metrics: Metrics,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) index: Index,
    pub(crate) dirty_queue: DirtyQueue,
    /// What was acknowledged here and can never be stored.
    pub(crate) losses: Losses,
    /// The subscribers to this cache's events.
    pub(crate) hub: EventHub,
    hasher: KeyHasher,
    /// Callers' claims.
    pub(crate) claims: KnownClaims,
    /// The claims of this cache, where it is the writer.
    pub(crate) epochs: Epochs,
    versions: [AtomicU64; VERSION_STRIPES],
    pub(crate) remembered: Versions,
    /// The shard of the eviction queues from which the next victim is taken.
    next_shard: AtomicU32,
    /// An eviction was given up because a thread was inside the object; read at the end of every exclusive
    /// section.
    has_missed_eviction: AtomicBool,
    /// Tasks that wait for a node of the index.
    pub(crate) node_waiters: WaitQueue,
    /// Where requests to the store are put in order.
    pub(crate) gate: Gate,
    /// Flushes under way of namespaces that are limited there.
    pub(crate) limited_flushes: AtomicU32,
    pub(crate) quotas: Quotas,
    pub(crate) background: BackgroundQueue,
    /// One object at a time is read back and written in full.
    pub(crate) restoring: Permits,
    /// For the one copy that may hold one object's node while it waits for another's.
    pub(crate) pairing: Permits,
    /// Flushes that failed since one succeeded.
    pub(crate) failing: AtomicU32,
    /// The log of changes, if the cache has a journal.
    pub(crate) log: Option<ChangeLog>,
    /// What the store has taken of this cache's callers.
    pub(crate) forwarded: Forwarded,
    /// When the cache was made.
    pub(crate) made_at: Timestamp,
    /// What an earlier process has logged and this one has not applied.
    pub(crate) recovery: Recovery,
}

impl Shared {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        below: Arc<dyn Blocker>,
        config: ObjectCacheConfig,
        clock: Arc<dyn Clock>,
        namespaces: Namespaces,
        pool: Pool,
        queues: Queues,
        index: Index,
        log: Option<ChangeLog>,
        recovery: Recovery,
    ) -> Self {
        let seed = config.hash_seed;
        let random = |stripe: usize| {
            let own = seed.map(|seed| seed.wrapping_add(1 + stripe as u64));
            KeyHasher::new(own).hash(b"versions").0
        };
        let hasher = KeyHasher::new(seed);
        let gate = Gate::new(Arc::clone(&clock), config.load_requests_max, config.flush_requests_max);
        let terms = store_terms(&config, &namespaces);
        gate.set_terms(&terms);
        set_limited(&namespaces, &terms);
        let own_quotas = quotas(&config, &namespaces);
        let shares = MemoryShares::new(pool.count());
        // No bucket is in a queue yet, so none is to be moved.
        shares.set(&config, &namespaces, &queues, pool.count_max());
        Self {
            can: below.capabilities(),
            attaching: Attaching::default(),
            settings: Mutex::ranked(Settings::new(config.clone()), &lock_ranks::SETTINGS),
            epochs: Epochs::new(&hasher, log.as_ref().map(ChangeLog::writer)),
            metrics: Metrics::new(&namespaces, &dirty_limits(&config, pool.count_min(), &namespaces)),
            read_ahead: ReadAhead::new(&config, pool.count_min(), &namespaces),
            live: LiveValues::new(&config, &namespaces),
            namespaces,
            hot: HotSketch::new(config.insight != Sampling::Off, clock.now()),
            index,
            dirty_queue: DirtyQueue::default(),
            losses: Losses::default(),
            hub: EventHub::new(),
            hasher,
            claims: KnownClaims::default(),
            remembered: Versions::new(config.objects_count_max),
            versions: std::array::from_fn(|stripe| AtomicU64::new(random(stripe))),
            next_shard: AtomicU32::new(0),
            has_missed_eviction: AtomicBool::new(false),
            node_waiters: WaitQueue::default(),
            gate,
            limited_flushes: AtomicU32::new(0),
            quotas: Quotas::new(&own_quotas),
            background: BackgroundQueue::default(),
            restoring: Permits::new(1),
            pairing: Permits::new(1),
            failing: AtomicU32::new(0),
            forwarded: Forwarded::default(),
            log,
            made_at: clock.now(),
            recovery,
            below,
            config,
            clock,
            pool,
            queues,
            shares,
        }
    }

    #[inline]
    pub(crate) fn hash(&self, id: &ObjectId) -> u64 {
        self.hasher.hash_pair(id.namespace.as_bytes(), id.name.as_bytes())
    }

    /// Returns a version that was never used before.
    pub(crate) fn next_version(&self, hash: u64) -> u64 {
        self.versions[hash as usize % VERSION_STRIPES].fetch_add(1, Ordering::Relaxed)
    }

    /// Whether stamps and claims of callers are accepted.
    pub(crate) fn fences_callers(&self) -> bool {
        self.can.fencing && self.config.writer == Writer::Callers
    }

    pub(crate) fn env(&self, node: u32, hash: u64) -> Env<'_> {
        Env {
            pool: &self.pool,
            queues: &self.queues,
            metrics: &self.metrics,
            versions: &self.remembered,
            read_ahead: &self.read_ahead,
            node,
            hash,
            namespace: self.index.namespace_of(node),
            clock: &*self.clock,
        }
    }

    /// Returns the object called `id`, in use, if the index has it.
    #[inline]
    pub(crate) fn find(&self, hash: u64, id: &ObjectId) -> Option<InUse<'_>> {
        self.index.get(hash, id)
    }

    /// Whether an object has changes of an earlier process that are not applied yet: no caller may see it.
    #[inline]
    pub(crate) fn is_unrecovered(&self, hash: u64) -> bool {
        self.recovery.is_active() && !self.recovery.is_recovered(hash)
    }

    /// Runs `job` in the exclusive section of the object called `id`, if the index has it, it is recovered,
    /// and no thread is inside. `ahead` runs before the name has been compared, to prefetch memory that `job`
    /// will read.
    #[inline]
    pub(crate) fn at_once<R>(
        &self,
        hash: u64,
        id: &ObjectId,
        ahead: impl FnOnce(&Object, &Env<'_>),
        job: impl FnOnce(&mut Object, &Env<'_>) -> R,
    ) -> Option<R> {
        if self.is_unrecovered(hash) {
            return None;
        }
        self.enter_at_once(hash, id, ahead, job)
    }

    /// As [`Self::at_once`], whether the object is recovered or not.
    #[inline]
    pub(crate) fn enter_at_once<R>(
        &self,
        hash: u64,
        id: &ObjectId,
        ahead: impl FnOnce(&Object, &Env<'_>),
        job: impl FnOnce(&mut Object, &Env<'_>) -> R,
    ) -> Option<R> {
        let mut found = self.index.enter_section(hash)?;
        let env = self.env(found.at, hash);
        ahead(found.section.value(), &env);
        if !found.matches(id) {
            return None;
        }
        let answer = job(found.section.value(), &env);
        drop(found);
        // A thread that wanted to evict the object, or a bucket of it, may have found us inside.
        self.node_waiters.notify();
        self.section_ended();
        Some(answer)
    }

    /// Notes that an eviction is about to be given up: the end of an exclusive section wakes the tasks that
    /// wait for buckets.
    pub(crate) fn note_missed_eviction(&self) {
        self.has_missed_eviction.store(true, Ordering::SeqCst);
    }

    /// Called when an exclusive section, or something else that keeps buckets from being evicted, has ended.
    #[inline]
    pub(crate) fn section_ended(&self) {
        if self.has_missed_eviction.load(Ordering::SeqCst)
            && self.has_missed_eviction.swap(false, Ordering::SeqCst)
        {
            self.pool.waiters().notify();
        }
    }

    /// Runs `job` in the object's exclusive section if no thread is inside.
    #[inline]
    pub(crate) fn try_enter<R, F>(&self, in_use: InUse<'_>, job: F) -> Option<R>
    where
        F: FnOnce(&mut Object, &Env<'_>) -> R,
    {
        let env = self.env(in_use.at, in_use.node.hash());
        in_use.node.serial.try_run(|object| job(object, &env)).ok()
    }

    /// Empties an object that is about to leave the index; returns whether it could.
    pub(crate) fn clear_for_eviction(&self, at: u32, hash: u64, object: &mut Object) -> bool {
        let goes = object.is_idle();
        if goes {
            object.clear_all(&self.env(at, hash));
        }
        goes
    }

    /// Called when an operation on the node `at` has ended: an object that was marked to leave goes if
    /// nothing keeps it.
    pub(crate) fn finalize(&self, at: u32) {
        if !self.index.is_leaving(at) {
            return;
        }
        let evicted = self.index.finalize(at, |at, hash, object| self.clear_for_eviction(at, hash, object));
        if evicted.is_some() {
            self.metrics.counts.object_evictions.increment();
            self.node_waiters.notify();
        }
    }

    /// Ends a use of a node: a task that waits for one may find it free.
    #[inline]
    pub(crate) fn unuse(&self, in_use: InUse<'_>) {
        self.index.unuse(in_use);
        self.node_waiters.notify();
        self.section_ended();
    }

    /// Returns the shard of the eviction queues to begin with, another one each time.
    pub(crate) fn next_queue_shard(&self) -> usize {
        self.next_shard.fetch_add(1, Ordering::Relaxed) as usize
    }

    /// Whether flushing something should not wait for age.
    pub(crate) fn is_under_pressure(&self) -> bool {
        self.metrics.dirty_room.is_any_pressed() || self.is_memory_short()
    }

    /// Whether tasks wait for what any flush gives back: flushing should not wait for age, whatever the
    /// namespace.
    pub(crate) fn is_memory_short(&self) -> bool {
        self.pool.waiters().has_waiters()
            || self.node_waiters.has_waiters()
            || self.log.as_ref().is_some_and(|log| log.events.room.has_waiters())
    }

    /// Whether an object's change may be acknowledged as far as the writer goes: callers are the writers, or
    /// its namespace has been looked up since an epoch last became unconfirmed.
    #[inline]
    pub(crate) fn owns(&self, object: &Object) -> bool {
        self.config.writer == Writer::Callers || object.head.owned == self.epochs.generation()
    }
}

impl ContentOwner for Shared {
    fn pool(&self) -> &Pool {
        &self.pool
    }
    fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

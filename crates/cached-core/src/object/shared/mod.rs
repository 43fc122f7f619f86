//! The state that all operations of a cache share: its parts, the names and versions of objects,
//! and the entry into an object's exclusive section.

pub(crate) mod calls;
pub(crate) mod claim;
pub(crate) mod handle;
pub(crate) mod log_waits;
pub(crate) mod parts;
pub(crate) mod resources;

use std::collections::{HashMap, HashSet};

use blocker::{BUCKET_BYTES, Blocker, Clock, EventHub, ObjectId, Timestamp, WriteMode};
use parts::{Control, JournalSide, Memory, Objects, StoreSide};

use super::config::{ConfigError, ObjectCacheConfig, Writer};
use super::control::Metrics;
use super::control::namespaces::Namespaces;
use super::control::settings::dirty_limits;
use super::journal::unapplied::Recovery;
use super::journal::{ChangeLog, Forwarded, JournalOptions, OpenJournal, check_without_journal};
use super::memory::pool::{Pool, PoolMemory};
use super::memory::queue::{Queues, UNREAD};
use super::memory::slots::{STATES, State};
use super::mutation::ContentOwner;
use super::read_ahead::ReadAhead;
use super::state::index::{InUse, Index};
use super::state::{Env, Object};
use super::store::epochs::Epochs;
use super::tasks::BackgroundQueue;
use crate::arena::MemoryRange;
use crate::ensure;
use crate::insight::{HotSketch, Sampling};
use crate::sync::{Arc, Ordering, lock};

/// The state that all operations of a cache share.
pub(crate) struct Shared {
    pub(crate) store: StoreSide,
    pub(crate) memory: Memory,
    pub(crate) control: Control,
    /// Dropped before the objects, so that their holds on records of unstored changes are released
    /// only once the journal has ended.
    pub(crate) journal: JournalSide,
    pub(crate) objects: Objects,
    pub(crate) clock: Arc<dyn Clock>,
    /// The most frequently read objects.
    pub(crate) hot: HotSketch,
    pub(crate) metrics: Metrics,
    pub(crate) read_ahead: ReadAhead,
    /// The subscribers to this cache's events.
    pub(crate) hub: EventHub,
    pub(crate) background: BackgroundQueue,
    /// The time when the cache was created.
    pub(crate) made_at: Timestamp,
}

impl Shared {
    /// Creates the state of a cache over `below`.
    ///
    /// # Errors
    /// The first invalid key of `config`, or `memory_bytes_max` if the memory cannot be mapped.
    pub(crate) fn new(
        below: Arc<dyn Blocker>,
        config: ObjectCacheConfig,
        clock: Arc<dyn Clock>,
        journal: Option<(OpenJournal, JournalOptions)>,
    ) -> Result<Self, ConfigError> {
        config.check(&below.capabilities())?;
        if config.leadership.is_some() != (config.writer == Writer::Elected) {
            let why = "must be set if the writer is Elected, and only then".into();
            return Err(ConfigError { key: "leadership", why });
        }
        let (pool, queues) = memory(&config)?;
        let namespaces = Namespaces::new(&config);
        let index = Index::new(config.objects_count_max, &namespaces)
            .map_err(|error| ConfigError { key: "objects_count_max", why: error.to_string() })?;
        let (log, recovery) = match journal {
            None => {
                check_without_journal(&config)?;
                (None, Recovery::new(None, false))
            }
            Some((OpenJournal { journal, replay, events, is_stepped }, options)) => {
                let log = ChangeLog::new(journal, events, options, &config, Arc::clone(&clock))?;
                let recovery = Recovery::new(Some((replay, &log)), !is_stepped);
                (Some(log), recovery)
            }
        };
        let objects = Objects::new(index, &config);
        let elected = config.leadership.as_ref().map(|leadership| leadership.writer);
        let epochs = Epochs::new(&objects.hasher, elected.or_else(|| log.as_ref().map(ChangeLog::writer)));
        Ok(Self {
            metrics: Metrics::new(&namespaces, &dirty_limits(&config, pool.count_min(), &namespaces)),
            read_ahead: ReadAhead::new(&config, pool.count_min(), &namespaces),
            hot: HotSketch::new(config.insight != Sampling::Off, clock.now()),
            store: StoreSide::new(below, &config, &clock, &namespaces, epochs),
            memory: Memory::new(pool, queues, &config, &namespaces),
            control: Control::new(config, namespaces),
            journal: JournalSide { log, forwarded: Forwarded::default(), recovery },
            objects,
            hub: EventHub::new(),
            background: BackgroundQueue::default(),
            made_at: clock.now(),
            clock,
        })
    }

    /// Returns whether a caller that requests *journaled* gets *stored*: the next leader of an
    /// election does not have the journal.
    pub(crate) fn stores_if_journaled(&self) -> bool {
        self.control.config.writer == Writer::Elected
    }

    #[inline]
    pub(crate) fn hash(&self, id: &ObjectId) -> u64 {
        self.objects.hasher.hash_pair(id.namespace.as_bytes(), id.name.as_bytes())
    }

    /// Returns whether stamps and claims of callers are accepted.
    #[inline]
    pub(crate) fn fences_callers(&self) -> bool {
        self.store.can.fencing && self.control.config.writer == Writer::Callers
    }

    #[inline]
    pub(crate) fn env(&self, node: u32, hash: u64) -> Env<'_> {
        Env {
            pool: &self.memory.pool,
            queues: &self.memory.queues,
            metrics: &self.metrics,
            versions: &self.objects.remembered,
            read_ahead: &self.read_ahead,
            node,
            hash,
            namespace: self.objects.index.namespace_of(node),
            clock: &*self.clock,
        }
    }

    /// Returns the object called `id`, in use, if the index has it.
    #[inline]
    pub(crate) fn find(&self, hash: u64, id: &ObjectId) -> Option<InUse<'_>> {
        self.objects.index.get(hash, id)
    }

    /// Returns whether an object has unapplied changes of an earlier process: then no caller may
    /// see the object.
    #[inline]
    pub(crate) fn is_unrecovered(&self, hash: u64) -> bool {
        self.journal.recovery.is_active() && !self.journal.recovery.is_recovered(hash)
    }

    /// Runs `job` in the exclusive section of the object called `id`, if the object is in the index
    /// and recovered, and no thread is inside. `ahead` runs before the name has been compared, to
    /// prefetch memory that `job` will read.
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

    /// Does the same as [`Self::at_once`], whether or not the object is recovered.
    #[inline]
    pub(crate) fn enter_at_once<R>(
        &self,
        hash: u64,
        id: &ObjectId,
        ahead: impl FnOnce(&Object, &Env<'_>),
        job: impl FnOnce(&mut Object, &Env<'_>) -> R,
    ) -> Option<R> {
        let mut found = self.objects.index.enter_section(hash)?;
        let env = self.env(found.at, hash);
        ahead(found.section.value(), &env);
        let answer = found.matches(id).then(|| job(found.section.value(), &env));
        drop(found);
        self.section_ended();
        answer
    }

    /// Visits every object in the index, which is in use meanwhile.
    pub(crate) fn for_each<'a>(&'a self, visit: impl FnMut(InUse<'a>)) {
        self.objects.index.for_each(visit);
        self.section_ended();
    }

    /// Records the end of an exclusive section or of a use. Another thread may have found this one inside
    /// when it tried to evict the object or a bucket of it, or to take the node after the object had left.
    #[inline]
    pub(crate) fn section_ended(&self) {
        self.objects.node_waiters.notify();
        self.memory.section_ended();
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

    /// Called when an operation on the node `at` has ended: evicts an object that is marked as
    /// leaving, if nothing keeps it.
    pub(crate) fn finalize(&self, at: u32) {
        if !self.objects.index.is_leaving(at) {
            return;
        }
        let evicted =
            self.objects.index.finalize(at, |at, hash, object| self.clear_for_eviction(at, hash, object));
        if evicted.is_some() {
            self.metrics.counts.object_evictions.increment();
            self.objects.node_waiters.notify();
        }
    }

    /// Ends a use of a node, which a waiting task may then find free.
    #[inline]
    pub(crate) fn unuse(&self, in_use: InUse<'_>) {
        self.objects.index.unuse(in_use);
        self.section_ended();
    }

    /// Returns whether tasks wait for resources that any flush frees. In this case flushes of all
    /// namespaces should begin, regardless of age.
    pub(crate) fn is_memory_short(&self) -> bool {
        self.memory.pool.waiters().has_waiters()
            || self.objects.node_waiters.has_waiters()
            || self.journal.log.as_ref().is_some_and(|log| log.events.room.has_waiters())
    }

    /// Returns whether the writer's epoch permits a change of an object to be acknowledged: callers
    /// are the writers, or the object's namespace has been looked up since an epoch last became
    /// unconfirmed.
    #[inline]
    pub(crate) fn owns(&self, object: &Object) -> bool {
        self.control.config.writer == Writer::Callers || object.head.owned == self.store.epochs.generation()
    }
}

/// Maps the memory of a cache, and creates the queues of its buckets.
fn memory(config: &ObjectCacheConfig) -> Result<(Pool, Queues), ConfigError> {
    let wrong = |why: String| ConfigError { key: "memory_bytes_max", why };
    let queues_for = |buckets: u32| {
        let unknown = ConfigError { key: "eviction_policy", why: "is not known".into() };
        Queues::new(&config.eviction_policy, buckets).ok_or(unknown)
    };
    // The policy's history of evicted buckets is taken out of the memory.
    let bytes_max = config.memory_range.map_or(config.memory_bytes_max, |range| range.bytes_max);
    let buckets =
        u32::try_from(bytes_max / BUCKET_BYTES).map_err(|_| wrong("must be below 16 TiB".into()))?;
    let remembered = queues_for(buckets)?.policy_bytes_each;
    // Each share of the memory has a history of this size.
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
    .map_err(|error| wrong(error.to_string()))?;
    let queues = queues_for(pool.count_max())?;
    let queues = queues.with_insight(&config.eviction_policy, config.memory_bytes_max, config.insight);
    Ok((pool, queues))
}

impl ContentOwner for Shared {
    fn pool(&self) -> &Pool {
        &self.memory.pool
    }
    fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

/// Checks every invariant; see [`ObjectCache::validate`](crate::object::ObjectCache::validate).
#[inline]
pub(crate) fn validate(shared: &Shared) -> Result<(), String> {
    shared.objects.index.validate()?;
    let mut states = [0; STATES];
    let mut pointed: HashMap<u32, u32> = HashMap::new();
    let mut clean = Vec::new();
    let mut dirty = 0;
    let mut problem = Ok(());
    shared.for_each(|in_use| {
        let id = shared.objects.index.id(in_use);
        let looked: Option<Result<_, String>> = shared.try_enter(in_use, |object, env| {
            let counts = object.validate(env)?;
            for (_, slot) in object.slots.known_from(0).filter(|(_, slot)| slot.state().has_bucket()) {
                *pointed.entry(slot.bucket()).or_default() += 1;
                if slot.state() == State::Clean {
                    clean.push(slot.bucket());
                }
                dirty += u64::from(matches!(slot.state(), State::Dirty | State::DirtyWhole));
            }
            dirty += u64::from(object.pending.bucketless);
            if object.pending.bucketless > 0 && !object.has_pending() {
                return Err("room is held, but no change is pending".into());
            }
            Ok(counts)
        });
        match looked {
            Some(Ok(counts)) => states.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count),
            Some(Err(what)) => problem = Err(format!("{id}: {what}")),
            None => problem = Err(format!("{id}: a thread is inside")),
        }
    });
    problem?;
    for state in State::ALL.into_iter().skip(1) {
        let (counted, found) = (shared.metrics.total(|of| of.count_of(state)), states[state as usize]);
        ensure(counted == found, || format!("{found} slots are {state:?}, but {counted} are counted"))?;
    }
    let room = shared.metrics.dirty_room.dirty();
    ensure(dirty <= room, || format!("{dirty} buckets are dirty, but room is taken for {room}"))?;
    shared.metrics.dirty_room.validate()?;
    shared.store.gate.validate()?;
    shared.control.namespaces.validate(&lock(&shared.control.settings).in_force())?;
    // Recovered changes of an earlier process are written back whatever the mode.
    let records = shared.control.namespaces.records().filter(|_| shared.journal.log.is_none());
    for record in records {
        let (phases, dirty) = (&record.write_phases, record.dirty_taken.load(Ordering::SeqCst));
        let mode = phases.mode();
        let may_be_dirty = mode == WriteMode::Back || phases.is_changing() || phases.is_busy();
        ensure(may_be_dirty || dirty == 0, || {
            format!("{dirty} buckets of namespace {} are dirty in mode {mode}", record.number)
        })?;
    }
    ensure(!shared.control.attaching.is_direct() || dirty == 0, || {
        format!("{dirty} buckets are dirty while reads go directly to the store")
    })?;
    let pool = &shared.memory.pool;
    let (free, counted) = (pool.free_list(), pool.free());
    ensure(free.len() as u64 == u64::from(counted), || {
        format!("{} buckets are free, but {counted} are counted", free.len())
    })?;
    let absent = pool.absent_list()?;
    let in_use = |bucket: &u32| pointed.contains_key(bucket);
    none(free.iter().find(|bucket| in_use(bucket)), "is free and in use")?;
    let absent_in_use = absent.iter().find(|bucket| in_use(bucket) || pool.meta(**bucket).refs() != 0);
    none(absent_in_use, "is absent and in use")?;
    let absent: HashSet<u32> = absent.into_iter().collect();
    none(free.iter().find(|bucket| absent.contains(bucket)), "is absent and free")?;
    let (receiving, counted) = (pool.receiving_list(), pool.receiving());
    // Some buckets may be counted but not marked yet.
    ensure(receiving.len() as u64 <= u64::from(counted), || {
        format!("{} buckets are receiving, but {counted} are counted", receiving.len())
    })?;
    let is_free = |bucket: &u32| pool.meta(*bucket).refs() == 0 || free.contains(bucket);
    let wrong = receiving.iter().find(|bucket| in_use(bucket) || is_free(bucket));
    none(wrong, "is receiving, and free or in use")?;
    for (bucket, slots) in &pointed {
        let refs = u32::from(pool.meta(*bucket).refs());
        ensure(refs >= *slots, || format!("{slots} slots refer to bucket {bucket}, but {refs} are counted"))?;
    }
    shared.memory.shares.validate(pool.count())?;
    let unread = clean.iter().filter(|bucket| pool.meta(**bucket).has_flags(UNREAD)).count() as u64;
    let counted = shared.read_ahead.unread();
    ensure(unread == u64::from(counted), || {
        format!("{unread} buckets are unread, but {counted} are counted")
    })?;
    let is_clean: HashSet<u32> = clean.iter().copied().collect();
    let flagged =
        pointed.keys().find(|bucket| pool.meta(**bucket).is_flagged() && !is_clean.contains(bucket));
    none(flagged, "has flags, and is not clean")?;
    let mut queued = shared.memory.queues.all(pool)?;
    queued.sort_unstable();
    clean.sort_unstable();
    ensure(queued == clean, || format!("{} buckets are clean, {} are in queues", clean.len(), queued.len()))
}

/// Returns an error if there is a `bucket`: the first one for which `what` holds, which is a
/// contradiction.
#[inline]
fn none(bucket: Option<&u32>, what: &str) -> Result<(), String> {
    bucket.map_or(Ok(()), |bucket| Err(format!("bucket {bucket} {what}")))
}

//! The separately owned parts of a cache. A function that needs only a single part takes only that
//! part.

use blocker::{Blocker, Capabilities, Clock};

use crate::hash::KeyHasher;
use crate::object::config::ObjectCacheConfig;
use crate::object::control::attach_state::Attaching;
use crate::object::control::namespaces::Namespaces;
use crate::object::control::quotas::Quotas;
use crate::object::control::settings::{LiveValues, Settings, quotas, set_limited, store_terms};
use crate::object::control::shares::MemoryShares;
use crate::object::journal::unapplied::Recovery;
use crate::object::journal::{ChangeLog, Forwarded};
use crate::object::lock_ranks;
use crate::object::memory::pool::Pool;
use crate::object::memory::queue::Queues;
use crate::object::state::Versions;
use crate::object::state::dirty_queue::DirtyQueue;
use crate::object::state::index::Index;
use crate::object::state::losses::Losses;
use crate::object::store::Gate;
use crate::object::store::epochs::{Epochs, KnownClaims};
use crate::object::tasks::wait_queue::{Permits, WaitQueue};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};

/// The store, with its known state and counters.
pub(crate) struct StoreSide {
    pub(crate) below: Arc<dyn Blocker>,
    /// The capabilities of the store when the cache was created.
    pub(crate) can: Capabilities,
    /// The gate, which orders requests to the store.
    pub(crate) gate: Arc<Gate>,
    /// Callers' claims.
    pub(crate) claims: KnownClaims,
    /// The claims of this cache, if it is the writer.
    pub(crate) epochs: Epochs,
    /// The number of flushes in flight of namespaces that are limited at the gate.
    pub(crate) limited_flushes: AtomicU32,
    /// The number of flushes that have failed since one last succeeded.
    pub(crate) failing: AtomicU32,
}

impl StoreSide {
    pub(super) fn new(
        below: Arc<dyn Blocker>,
        config: &ObjectCacheConfig,
        clock: &Arc<dyn Clock>,
        namespaces: &Namespaces,
        epochs: Epochs,
    ) -> Self {
        let gate = Gate::new(Arc::clone(clock), config.load_requests_max, config.flush_requests_max);
        let terms = store_terms(config, namespaces);
        gate.set_terms(&terms);
        set_limited(namespaces, &terms);
        Self {
            can: below.capabilities(),
            below,
            gate: Arc::new(gate),
            claims: KnownClaims::default(),
            epochs,
            limited_flushes: AtomicU32::new(0),
            failing: AtomicU32::new(0),
        }
    }
}

/// The buckets and their eviction queues.
pub(crate) struct Memory {
    pub(crate) pool: Pool,
    pub(crate) queues: Queues,
    /// The namespaces' shares of the buckets.
    pub(crate) shares: MemoryShares,
    /// The shard of the eviction queues from which the next victim is taken.
    pub(crate) next_shard: AtomicU32,
    /// Whether an eviction was given up because a thread was inside the object; read at the end of
    /// every exclusive section.
    has_missed_eviction: AtomicBool,
}

impl Memory {
    pub(super) fn new(
        pool: Pool,
        queues: Queues,
        config: &ObjectCacheConfig,
        namespaces: &Namespaces,
    ) -> Self {
        let shares = MemoryShares::new(pool.count());
        // No bucket is in a queue yet, so no bucket has to be moved.
        shares.set(config, namespaces, &queues, pool.count_max());
        Self {
            pool,
            queues,
            shares,
            next_shard: AtomicU32::new(0),
            has_missed_eviction: AtomicBool::new(false),
        }
    }

    /// Records that an eviction is about to be given up: the end of an exclusive section will wake
    /// the tasks that wait for buckets.
    pub(crate) fn note_missed_eviction(&self) {
        self.has_missed_eviction.store(true, Ordering::SeqCst);
    }

    /// Records the end of an exclusive section, or of another state that prevents evictions, and
    /// wakes the tasks that wait for buckets if an eviction was given up.
    #[inline]
    pub(crate) fn section_ended(&self) {
        if self.has_missed_eviction.load(Ordering::SeqCst)
            && self.has_missed_eviction.swap(false, Ordering::SeqCst)
        {
            self.pool.waiters().notify();
        }
    }
}

/// The configuration of the cache and its namespaces, and the terms that result from it.
pub(crate) struct Control {
    /// The configuration at the start. Values that can change are in `live`, `namespaces`, the
    /// metrics and the gate.
    pub(crate) config: ObjectCacheConfig,
    /// The current settings of the namespaces by source; locked while they change.
    pub(crate) settings: Mutex<Settings>,
    pub(crate) live: LiveValues,
    pub(crate) namespaces: Namespaces,
    pub(crate) quotas: Quotas,
    /// The attach state: whether requests go through the cache.
    pub(crate) attaching: Attaching,
}

impl Control {
    pub(super) fn new(config: ObjectCacheConfig, namespaces: Namespaces) -> Self {
        Self {
            settings: Mutex::ranked(Settings::new(config.clone()), &lock_ranks::SETTINGS),
            live: LiveValues::new(&config, &namespaces),
            quotas: Quotas::new(&quotas(&config, &namespaces)),
            attaching: Attaching::default(),
            config,
            namespaces,
        }
    }
}

/// The log of changes, and the records of an earlier process.
pub(crate) struct JournalSide {
    /// The log, if the cache has a journal.
    pub(crate) log: Option<ChangeLog>,
    /// Changes by callers of this cache that the store has accepted, but not necessarily stored
    /// durably.
    pub(crate) forwarded: Forwarded,
    /// The recovery of changes that an earlier process has logged and this one has not applied.
    pub(crate) recovery: Recovery,
}

/// The number of counters that versions are drawn from.
const VERSION_STRIPES: usize = 8;

/// A counter in a cache line of its own, so that threads that write different objects do not delay
/// each other.
#[repr(align(64))]
struct Versioner(AtomicU64);

/// The known objects.
pub(crate) struct Objects {
    pub(crate) index: Index,
    pub(crate) dirty_queue: DirtyQueue,
    /// Acknowledged changes that can never be stored.
    pub(crate) losses: Losses,
    pub(super) hasher: KeyHasher,
    versions: [Versioner; VERSION_STRIPES],
    /// The versions that callers see in place of the store's.
    pub(crate) remembered: Versions,
    /// Tasks that wait for a node of the index.
    pub(crate) node_waiters: WaitQueue,
    /// Allows a single object at a time to be read back and written in full.
    pub(crate) restoring: Permits,
    /// Allows a single copy at a time to hold an object's node while it waits for another's.
    pub(crate) pairing: Permits,
}

impl Objects {
    pub(super) fn new(index: Index, config: &ObjectCacheConfig) -> Self {
        let random = |stripe: usize| {
            let own = config.hash_seed.map(|seed| seed.wrapping_add(1 + stripe as u64));
            KeyHasher::new(own).hash(b"versions").0
        };
        Self {
            index,
            dirty_queue: DirtyQueue::default(),
            losses: Losses::default(),
            hasher: KeyHasher::new(config.hash_seed),
            versions: std::array::from_fn(|stripe| Versioner(AtomicU64::new(random(stripe)))),
            remembered: Versions::new(config.objects_count_max),
            node_waiters: WaitQueue::default(),
            restoring: Permits::new(1),
            pairing: Permits::new(1),
        }
    }

    /// Returns a version that was never used before.
    pub(crate) fn next_version(&self, hash: u64) -> u64 {
        self.versions[hash as usize % VERSION_STRIPES].0.fetch_add(1, Ordering::Relaxed)
    }
}

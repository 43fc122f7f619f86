//! The record of each namespace: its name, settings and counters, looked up by number.

use std::sync::OnceLock;
use std::time::Duration;

use blocker::Namespace;
use blocker::metrics::{Counter, counters};

use super::dirty_room::DirtyPool;
use super::write_phases::WritePhases;
use crate::object::config::{NAMESPACES_MAX, OTHERS};
use crate::object::lock_ranks;
use crate::object::memory::slots::{STATES, State};
use crate::sync::{Arc, AtomicBool, AtomicU16, AtomicU32, AtomicU64, Mutex, Ordering, lock, thread_number};

/// The state that a cache keeps for a single namespace, or for all others together.
pub(crate) struct NamespaceRecord {
    pub(crate) number: u16,
    /// The namespace's name; `None` in the shared record of all others.
    pub(crate) name: Option<Namespace>,
    /// Whether the most recently read configuration names the namespace.
    pub(crate) is_configured: AtomicBool,
    pub(crate) metrics: NamespaceMetrics,
    pub(crate) write_phases: WritePhases,
    /// Whether a background task is settling the namespace.
    pub(crate) is_settling: AtomicBool,
    /// Whether dirty data of the namespace are discarded instead of being stored.
    pub(crate) discards_dirty: AtomicBool,
    /// The amount of dirty data discarded so far, in bytes.
    pub(crate) discarded_bytes: AtomicU64,
    /// The number of the namespace's objects in the index.
    pub(crate) objects: AtomicU64,
    /// The namespace's own maximum dirty age in nanoseconds; [`NO_OWN`] if it has none.
    pub(crate) dirty_age_nanos: AtomicU64,
    /// The buckets of dirty room that the namespace has taken.
    pub(crate) dirty_taken: AtomicU64,
    /// The number of the namespace from whose pool this one takes dirty room.
    pub(crate) dirty_pool_of: AtomicU16,
    /// The namespace's own pool of dirty room, if it has one.
    pub(crate) dirty_pool: DirtyPool,
    /// The namespace's flushes in flight, if the gate to the store limits it.
    pub(crate) limited_flushes: LimitedFlushes,
}

/// Marks a setting for which a namespace has no value of its own.
pub(crate) const NO_OWN: u64 = u64::MAX;

impl NamespaceRecord {
    fn new(number: u16, name: Option<Namespace>, write_phases: WritePhases) -> Self {
        Self {
            number,
            name,
            is_configured: AtomicBool::new(false),
            metrics: NamespaceMetrics::default(),
            write_phases,
            is_settling: AtomicBool::new(false),
            discards_dirty: AtomicBool::new(false),
            discarded_bytes: AtomicU64::new(0),
            objects: AtomicU64::new(0),
            dirty_age_nanos: AtomicU64::new(NO_OWN),
            dirty_taken: AtomicU64::new(0),
            dirty_pool_of: AtomicU16::new(OTHERS),
            dirty_pool: DirtyPool::default(),
            limited_flushes: LimitedFlushes::default(),
        }
    }
}

/// The table of namespaces: a record for each namespace that has been used or configured, looked up
/// by number. Clones share the same table.
///
/// ```text
///  node of an object ── number ──> place ──> record: name, settings, counters
///                                    └─────> the record of the others, while the place is empty
/// ```
/// A record is created when its namespace is first used or configured, and is never removed: its
/// counters never decrease, and a number is never reassigned. So an operation that has an object
/// finds its namespace's record without a lock. Each record takes about 1.5 KiB.
#[derive(Clone)]
pub(crate) struct NamespaceTable(Arc<Table>);

struct Table {
    others: NamespaceRecord,
    /// The records of namespaces at their numbers; the place of [`OTHERS`] stays empty.
    places: Box<[OnceLock<Box<NamespaceRecord>>]>,
    /// The number of records, including `others`.
    count: AtomicU32,
    /// Held while a record is added.
    adding: Mutex<()>,
}

impl NamespaceTable {
    /// Returns a table with only the record of the others.
    pub(crate) fn new(write_phases: WritePhases) -> Self {
        Self(Arc::new(Table {
            others: NamespaceRecord::new(OTHERS, None, write_phases),
            places: (0..=NAMESPACES_MAX).map(|_| OnceLock::new()).collect(),
            count: AtomicU32::new(1),
            adding: Mutex::ranked((), &lock_ranks::NAMESPACES),
        }))
    }

    /// Returns the record of the namespace with this number.
    #[inline]
    pub(crate) fn record(&self, number: u16) -> &NamespaceRecord {
        self.0.places[usize::from(number)].get().map_or(&self.0.others, Box::as_ref)
    }

    /// Returns all records in the order of their numbers, beginning with the shared record of the
    /// others.
    pub(crate) fn records(&self) -> impl Iterator<Item = &NamespaceRecord> {
        (0..self.count()).map(|number| self.record(number as u16))
    }

    /// Returns the number of records, including that of the others.
    pub(crate) fn count(&self) -> u32 {
        self.0.count.load(Ordering::Acquire)
    }

    /// Creates the record of a namespace that has none, and returns its number; [`OTHERS`] if the
    /// table is full.
    pub(crate) fn add(&self, name: Namespace, write_phases: WritePhases) -> u16 {
        let _adding = lock(&self.0.adding);
        let count = self.count();
        let Some(place) = self.0.places.get(count as usize) else { return OTHERS };
        place.get_or_init(|| Box::new(NamespaceRecord::new(count as u16, Some(name), write_phases)));
        self.0.count.store(count + 1, Ordering::Release);
        count as u16
    }
}

// Hits and changes in memory are counted in stripes, so that threads write to different cache lines; all
// other counts are plain atomics.

const STRIPES: usize = 8;

/// The number of durability levels; the first is *cached*.
const DURABILITIES: usize = 4;

/// A striped counter.
#[derive(Default)]
pub(crate) struct Striped([Padded; STRIPES]);

#[repr(align(64))]
#[derive(Default)]
struct Padded(Counter);

impl Striped {
    /// Adds one.
    #[inline]
    pub(crate) fn increment(&self) {
        self.0[thread_number() % STRIPES].0.increment();
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.get()).sum()
    }
}

/// The counters of a single namespace.
#[derive(Default)]
pub(crate) struct NamespaceMetrics {
    /// Reads answered from memory.
    pub(crate) hits: Striped,
    /// Changes acknowledged as *cached*, the usual case.
    written: Striped,
    states: [AtomicU64; STATES],
    /// The part of the dirty data that accounts for changes without a bucket.
    pub(crate) bucketless: AtomicU64,
    /// Reads that had to read the store.
    pub(crate) misses: Counter,
    /// Changes that waited for room for dirty data.
    pub(crate) throttled: Counter,
    /// Changes applied in the cache and acknowledged with a higher durability, by durability.
    written_safely: [Counter; DURABILITIES],
    /// Changes forwarded to the store, by durability; the last element counts failures.
    forwarded: [Counter; DURABILITIES + 1],
    /// The namespace's requests to the store.
    pub(crate) store: StoreMetrics,
    /// Changes refused because the quota was used up.
    pub(crate) quota_refusals: Counter,
}

impl NamespaceMetrics {
    /// Returns the number of slots in `state`; the result is meaningless for absent slots.
    pub(crate) fn count_of(&self, state: State) -> u64 {
        self.states[state as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of changes by the durability of their acknowledgement.
    pub(crate) fn writes(&self) -> [u64; DURABILITIES] {
        let mut writes = std::array::from_fn(|at| self.written_safely[at].get() + self.forwarded[at].get());
        writes[0] += self.written.get();
        writes
    }

    pub(crate) fn writes_back(&self) -> u64 {
        self.written.get() + self.written_safely.iter().map(Counter::get).sum::<u64>()
    }

    pub(crate) fn writes_through(&self) -> u64 {
        self.forwarded.iter().map(Counter::get).sum()
    }

    /// Counts a change that was applied in the cache and is acknowledged with the durability of
    /// this rank.
    #[inline]
    pub(crate) fn count_write(&self, durability: usize) {
        match durability {
            0 => self.written.increment(),
            // These changes wait for a disk, so a plain counter suffices.
            other => self.written_safely[other].increment(),
        }
    }

    /// Counts a change forwarded to the store, by the rank of the durability that the store
    /// acknowledged; `None` if the change failed.
    pub(crate) fn count_forwarded(&self, durability: Option<usize>) {
        self.forwarded[durability.unwrap_or(DURABILITIES)].increment();
    }

    /// Counts a slot's change of state.
    pub(crate) fn shift(&self, from: State, to: State) {
        self.states[from as usize].fetch_sub(1, Ordering::Relaxed);
        self.states[to as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// The counters of a namespace's requests to the store. Each request takes as long as the store
/// does, so plain counters suffice.
#[derive(Default)]
pub(crate) struct StoreMetrics {
    requests: Counter,
    bytes: Counter,
    latency_nanos: Counter,
    waits: Counter,
    wait_nanos: Counter,
}

counters! {
    /// The requests to the store of one namespace since the start.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct StoreCounters {
        /// Completed requests to the store, by namespace: loads, forwarded changes, flushes, size
        /// queries.
        pub requests: u64 => "cache_namespace_store_requests_total",
        /// Bytes that requests read from the store and wrote to it, by namespace.
        pub bytes: u64 => "cache_namespace_store_bytes_total",
        /// The time that the store took for requests, by namespace; divided by the number of
        /// requests, the mean latency.
        pub latency: Duration => "cache_namespace_store_seconds_total",
        /// Requests queued before they were sent to the store, by namespace: because of rates,
        /// weights or the number of requests in flight.
        pub waits: u64 => "cache_namespace_store_waits_total",
        /// The time that requests were queued before they were sent to the store, by namespace.
        pub waited: Duration => "cache_namespace_store_wait_seconds_total",
    }
}

impl std::ops::AddAssign for StoreCounters {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.latency += other.latency;
        self.waits += other.waits;
        self.waited += other.waited;
    }
}

/// Returns a duration in nanoseconds, of which 64 bits suffice for centuries.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl StoreMetrics {
    /// Counts a request that has ended.
    pub(crate) fn count(&self, bytes: u64, latency: Duration) {
        self.requests.increment();
        self.bytes.add(bytes);
        self.latency_nanos.add(nanos(latency));
    }

    /// Counts a request that has waited at the gate.
    pub(crate) fn count_wait(&self, waited: Duration) {
        self.waits.increment();
        self.wait_nanos.add(nanos(waited));
    }

    pub(crate) fn counters(&self) -> StoreCounters {
        StoreCounters {
            requests: self.requests.get(),
            bytes: self.bytes.get(),
            latency: Duration::from_nanos(self.latency_nanos.get()),
            waits: self.waits.get(),
            waited: Duration::from_nanos(self.wait_nanos.get()),
        }
    }
}

// Flushes of namespaces that are limited at the gate to the store.
//
// Such a flush may wait for a long time. It does not count towards the maximum number of flushes in
// flight, or a namespace with a low limit would keep all others from being flushed. Instead, each
// limited namespace may have a few flushes in flight, plus as many urgent ones as a cache without
// limits may have in total. The remaining dirty objects wait in the dirty queue, where they are
// logged again if they hold back a crowded log.

/// The maximum number of flushes in flight of a limited namespace, not counting urgent ones.
const EACH_MAX: u32 = 4;

/// The flushes of a single namespace, if it is limited.
#[derive(Default)]
pub(crate) struct LimitedFlushes {
    is_limited: AtomicBool,
    under_way: AtomicU32,
    urgent: AtomicU32,
}

impl LimitedFlushes {
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::SeqCst)
    }

    pub(crate) fn set_limited(&self, is_limited: bool) {
        self.is_limited.store(is_limited, Ordering::SeqCst);
    }

    /// Counts a flush that begins.
    pub(crate) fn begin(&self, is_urgent: bool) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        self.urgent.fetch_add(u32::from(is_urgent), Ordering::SeqCst);
    }

    /// Counts a flush that has ended; `is_urgent` has the same value as for [`Self::begin`].
    pub(crate) fn end(&self, is_urgent: bool) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        self.urgent.fetch_sub(u32::from(is_urgent), Ordering::SeqCst);
    }

    /// Returns whether the namespace is limited and its non-urgent flushes have reached their
    /// maximum.
    pub(crate) fn is_full(&self) -> bool {
        self.is_limited() && self.under_way.load(Ordering::SeqCst) >= EACH_MAX
    }

    /// Returns whether the namespace is limited and has `max` urgent flushes in flight.
    pub(crate) fn is_full_of_urgent(&self, max: usize) -> bool {
        self.is_limited() && self.urgent.load(Ordering::SeqCst) as usize >= max
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use blocker::WriteMode;

    use super::*;

    #[test]
    fn every_number_has_a_record_and_the_last_ones_share_that_of_the_others() {
        let phases = || WritePhases::new(WriteMode::Through, WriteMode::Through);
        let table = NamespaceTable::new(phases());
        assert_eq!(table.record(7).number, OTHERS);
        let name = |at: usize| Namespace::new(format!("n{at}")).unwrap();
        for at in 1..=NAMESPACES_MAX {
            assert_eq!(usize::from(table.add(name(at), phases())), at);
        }
        assert_eq!((table.add(name(0), phases()), table.records().count()), (OTHERS, NAMESPACES_MAX + 1));
        let last = table.record(NAMESPACES_MAX as u16);
        assert_eq!(
            (usize::from(last.number), last.name.clone()),
            (NAMESPACES_MAX, Some(name(NAMESPACES_MAX)))
        );
        assert!(table.records().enumerate().all(|(at, record)| usize::from(record.number) == at));
    }
}

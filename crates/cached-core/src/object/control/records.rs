//! The record of each namespace: its name, its own settings and its counters, found by number.

use std::ptr::NonNull;
use std::time::Duration;

use blocker::Namespace;
use blocker::metrics::{Counter, counters};

use super::dirty_room::DirtyPool;
use super::write_phases::WritePhases;
use crate::object::config::{NAMESPACES_MAX, OTHERS};
use crate::object::lock_ranks;
use crate::object::memory::slots::{STATES, State};
use crate::sync::{Arc, AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// What a cache has of one namespace, or of all others together.
pub(crate) struct NamespaceRecord {
    pub(crate) number: u16,
    /// Its name; `None` for the others.
    pub(crate) name: Option<Namespace>,
    /// Whether the configuration that was read last names it.
    pub(crate) is_configured: AtomicBool,
    pub(crate) metrics: NamespaceMetrics,
    pub(crate) write_phases: WritePhases,
    /// Whether a task of the background settles it.
    pub(crate) is_settling: AtomicBool,
    /// Whether what is dirty of it is dropped instead of being stored.
    pub(crate) discards_dirty: AtomicBool,
    /// What has been dropped so, in bytes.
    pub(crate) discarded_bytes: AtomicU64,
    /// The number of its objects that the index has.
    pub(crate) objects: AtomicU64,
    /// Its own dirty age in nanoseconds; [`NO_OWN`] if it has none.
    pub(crate) dirty_age_nanos: AtomicU64,
    /// The buckets that it has taken of the room for dirty data.
    pub(crate) dirty_taken: AtomicU64,
    /// The number of the namespace whose pool it takes them from.
    pub(crate) dirty_pool_of: AtomicU16,
    /// Its own pool, if it has one.
    pub(crate) dirty_pool: DirtyPool,
    /// Its flushes under way, if it is limited at the gate to the store.
    pub(crate) limited_flushes: LimitedFlushes,
}

/// Stands for a setting that a namespace does not have of its own.
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

/// The table of namespaces: a record for each that has been used or configured, found by number. A clone is the
/// same table.
///
/// ```text
///  node of an object ── number ──> place ──> record: name, settings, counters
///                                    └─────> the record of the others, until the number is given
/// ```
/// A record is made when its namespace is first used or configured, and stays: what is counted in it never
/// falls, and a number is never given to another namespace. So an operation that has an object has its
/// namespace's record by one load. Each record takes about 1.5 KiB.
#[derive(Clone)]
pub(crate) struct NamespaceTable {
    /// Each leads to a record of `made`.
    places: Arc<[AtomicPtr<NamespaceRecord>]>,
    made: Arc<Records>,
}

/// What keeps the records.
struct Records {
    /// All of them, in the order of their numbers. None is ever taken out.
    all: Mutex<Vec<Made>>,
    /// How many there are.
    count: AtomicU32,
}

/// A record, dropped with this.
struct Made(NonNull<NamespaceRecord>);

// SAFETY: it owns the record, as a box would.
unsafe impl Send for Made {}

impl Made {
    fn new(record: NamespaceRecord) -> Self {
        Self(NonNull::from(Box::leak(Box::new(record))))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: it was made by `new` from a box, and is dropped once. No reference is left: they borrow from
        // a table, and the last one is gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl NamespaceTable {
    /// Returns a table that has the record of the others.
    pub(crate) fn new(write_phases: WritePhases) -> Self {
        let others = Made::new(NamespaceRecord::new(OTHERS, None, write_phases));
        let places = (0..=NAMESPACES_MAX).map(|_| AtomicPtr::new(others.0.as_ptr())).collect();
        Self {
            places,
            made: Arc::new(Records {
                all: Mutex::ranked(vec![others], &lock_ranks::NAMESPACES),
                count: AtomicU32::new(1),
            }),
        }
    }

    /// Returns the record of the namespace with this number.
    #[inline]
    pub(crate) fn record(&self, number: u16) -> &NamespaceRecord {
        let place = &self.places[usize::from(number)];
        // SAFETY: from the start on a place leads to a record in `made`, which keeps every record until the
        // last clone of this table is dropped, and of which nothing but shared references is given out.
        unsafe { &*place.load(Ordering::Acquire) }
    }

    /// Returns all records in the order of their numbers, that of the others first.
    pub(crate) fn records(&self) -> impl Iterator<Item = &NamespaceRecord> {
        (0..self.count()).map(|number| self.record(number as u16))
    }

    /// Returns the number of records, with that of the others.
    pub(crate) fn count(&self) -> u32 {
        self.made.count.load(Ordering::Acquire)
    }

    /// Makes a record of a namespace that has none, and returns its number; [`OTHERS`] if the table is full.
    pub(crate) fn add(&self, name: Namespace, write_phases: WritePhases) -> u16 {
        let mut made = lock(&self.made.all);
        if made.len() > NAMESPACES_MAX {
            return OTHERS;
        }
        let number = made.len() as u16;
        let record = Made::new(NamespaceRecord::new(number, Some(name), write_phases));
        self.places[usize::from(number)].store(record.0.as_ptr(), Ordering::Release);
        made.push(record);
        self.made.count.store(made.len() as u32, Ordering::Release);
        number
    }
}

// Hits and changes in memory are counted in stripes, so that threads that use different objects write to
// different cache lines; the rest are plain atomics.

const STRIPES: usize = 8;

/// The number of kinds of durability, of which the first is *cached*.
const DURABILITIES: usize = 4;

/// A count in stripes.
#[derive(Default)]
pub(crate) struct Striped([Padded; STRIPES]);

#[repr(align(64))]
#[derive(Default)]
struct Padded(Counter);

impl Striped {
    /// Counts one; `stripe` is any number, another one for another object.
    #[inline]
    pub(crate) fn increment(&self, stripe: u64) {
        self.0[stripe as usize % STRIPES].0.increment();
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.get()).sum()
    }
}

/// What is counted of one namespace.
#[derive(Default)]
pub(crate) struct NamespaceMetrics {
    /// Reads that were answered at once.
    pub(crate) hits: Striped,
    /// Changes acknowledged as *cached*, the usual ones.
    written: Striped,
    states: [AtomicU64; STATES],
    /// The part of its dirty data that stands for what has no bucket.
    pub(crate) bucketless: AtomicU64,
    /// Reads that had to read the store.
    pub(crate) misses: Counter,
    /// Changes that waited for room for dirty data.
    pub(crate) throttled: Counter,
    /// Other changes that were applied here, by durability.
    written_safely: [Counter; DURABILITIES],
    /// Changes forwarded to the store, by durability; the last of them failed.
    forwarded: [Counter; DURABILITIES + 1],
    /// Its requests to the store.
    pub(crate) store: StoreMetrics,
    /// Changes refused because the quota was used up.
    pub(crate) quota_refusals: Counter,
}

impl NamespaceMetrics {
    /// How many slots are in `state`; of no meaning for absent ones.
    pub(crate) fn count_of(&self, state: State) -> u64 {
        self.states[state as usize].load(Ordering::Relaxed)
    }

    /// Changes by the durability with which they are acknowledged.
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

    /// Counts a change that was applied here and is acknowledged with the durability of this rank; `stripe` is
    /// any number, another one for another object.
    #[inline]
    pub(crate) fn count_write(&self, stripe: u64, durability: usize) {
        match durability {
            0 => self.written.increment(stripe),
            // It waits for a disk.
            other => self.written_safely[other].increment(),
        }
    }

    /// Counts a change that was forwarded to the store, which has acknowledged it with the durability of this
    /// rank, or has not.
    pub(crate) fn count_forwarded(&self, durability: Option<usize>) {
        self.forwarded[durability.unwrap_or(DURABILITIES)].increment();
    }

    /// Counts a slot that has changed its state.
    pub(crate) fn shift(&self, from: State, to: State) {
        self.states[from as usize].fetch_sub(1, Ordering::Relaxed);
        self.states[to as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// What is counted of the requests of one namespace to the store. Each request takes a store's time, so plain
/// counters do.
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
        /// Requests to the store that have ended, by namespace: loads, forwarded changes, flushes, questions for
        /// a size.
        pub requests: u64 => "cache_namespace_store_requests_total",
        /// What requests to the store carried, read and written, by namespace.
        pub bytes: u64 => "cache_namespace_store_bytes_total",
        /// The time that the store took for requests, by namespace; by their number, the mean latency.
        pub latency: Duration => "cache_namespace_store_seconds_total",
        /// Requests that waited before the store was asked, by namespace: because of rates, weights or the
        /// number under way.
        pub waits: u64 => "cache_namespace_store_waits_total",
        /// The time that requests waited before the store was asked, by namespace.
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

fn nanos(time: Duration) -> u64 {
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
// Such a flush may wait for long. It is not counted among the flushes that may be under way, or a namespace
// with a low limit would keep all others from being flushed; instead each limited namespace has a few at
// once, and apart from them as many urgent ones as a cache without limits has of all. The others wait in the
// queue of what is dirty, where they are logged again if they hold a crowded log.

/// The flushes that a limited namespace has under way at most, but for those that are urgent.
const EACH_MAX: u32 = 4;

/// What one namespace has of them.
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

    /// Counts a flush that has ended, which was urgent or not when it began.
    pub(crate) fn end(&self, is_urgent: bool) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        self.urgent.fetch_sub(u32::from(is_urgent), Ordering::SeqCst);
    }

    /// Whether the namespace is limited, and has as many flushes under way as it may, but for urgent ones.
    pub(crate) fn is_full(&self) -> bool {
        self.is_limited() && self.under_way.load(Ordering::SeqCst) >= EACH_MAX
    }

    /// Whether the namespace is limited, and has `max` urgent flushes under way.
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

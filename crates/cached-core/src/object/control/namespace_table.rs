//! The table of namespaces: a record for each that has been used or configured, found by number.
//!
//! ```text
//!  node of an object ── number ──> place ──> record: name, settings, counters
//!                                    └─────> the record of the others, until the number is given
//! ```
//! A record is made when its namespace is first used or configured, and stays: what is counted in it never
//! falls, and a number is never given to another namespace. So an operation that has an object has its
//! namespace's record by one load. Each record takes about 1.5 KiB.

use std::ptr::NonNull;

use blocker::Namespace;

use super::dirty_pool::DirtyPool;
use super::limited_flushes::LimitedFlushes;
use super::namespace_metrics::NamespaceMetrics;
use super::write_phases::WritePhases;
use crate::object::lock_ranks;
use crate::object::namespace_numbers::{NAMESPACES_MAX, OTHERS};
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
            metrics: NamespaceMetrics::new(),
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

/// See the module. A clone is the same table.
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

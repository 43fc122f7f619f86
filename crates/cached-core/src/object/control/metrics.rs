//! The state of the whole cache in O(1): buckets in each state, room for dirty data, and what has happened.
//!
//! What is counted by namespace lies in the namespace's record ([`super::records`]); the sums over all
//! of them are made when they are asked for.

use blocker::metrics::Histogram;

use super::dirty_room::{DirtyLimits, DirtyRoom};
use super::records::{NamespaceMetrics, NamespaceTable};
use crate::object::memory::slots::{Slot, State};
use crate::sync::{AtomicU64, Ordering};

/// The bounds of the sizes of flush requests: a bucket, and then each four times the one before.
const FLUSH_SIZES: [f64; 7] = [4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];

/// See the module.
pub(crate) struct Metrics {
    /// What is counted of each namespace is in its record.
    namespaces: NamespaceTable,
    pub(crate) dirty_room: DirtyRoom,
    pub(crate) loading: AtomicU64,
    /// Reads that went straight to the store.
    pub(crate) direct_reads: AtomicU64,
    /// Buckets that writes have taken over.
    pub(crate) zero_copy: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) flush_failures: AtomicU64,
    pub(crate) flush_requests: AtomicU64,
    pub(crate) flush_bytes: AtomicU64,
    /// The bytes of each request that a flush sends.
    pub(crate) flush_sizes: Histogram,
    pub(crate) lost_bytes: AtomicU64,
    pub(crate) bucket_evictions: AtomicU64,
    pub(crate) object_evictions: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Metrics {
    pub(crate) fn new(namespaces: &NamespaceTable, limits: &DirtyLimits) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            namespaces: namespaces.clone(),
            dirty_room: DirtyRoom::new(namespaces, limits),
            loading: zero(),
            direct_reads: zero(),
            zero_copy: zero(),
            flushes: zero(),
            flush_failures: zero(),
            flush_requests: zero(),
            flush_bytes: zero(),
            flush_sizes: Histogram::new(FLUSH_SIZES),
            lost_bytes: zero(),
            bucket_evictions: zero(),
            object_evictions: zero(),
        }
    }

    /// Returns what is counted of the namespace with this number.
    #[inline]
    fn of(&self, namespace: u16) -> &NamespaceMetrics {
        &self.namespaces.record(namespace).metrics
    }

    /// A slot of an object in this namespace has changed its state.
    pub(crate) fn shift(&self, namespace: u16, from: Slot, to: Slot) {
        if from.state() != to.state() {
            self.of(namespace).shift(from.state(), to.state());
        }
    }

    /// How many slots are in `state`; of no meaning for absent ones.
    pub(crate) fn count_of(&self, state: State) -> u64 {
        self.total(|of| of.count_of(state))
    }

    fn total(&self, count: impl Fn(&NamespaceMetrics) -> u64) -> u64 {
        // A slot may change between two: then the sum of its states wraps around, and back.
        self.namespaces.records().fold(0, |sum, record| sum.wrapping_add(count(&record.metrics)))
    }

    /// Notes that room taken before is held for what has no bucket.
    pub(crate) fn hold_bucketless(&self, namespace: u16, count: u32) {
        self.of(namespace).hold_bucketless(count);
    }

    /// Returns such room.
    pub(crate) fn return_bucketless(&self, namespace: u16, count: u32) {
        self.of(namespace).return_bucketless(count);
        self.dirty_room.give_back(namespace, count);
    }

    /// How much of it is held.
    pub(crate) fn bucketless(&self) -> u64 {
        self.total(NamespaceMetrics::bucketless)
    }

    /// Counts a read that was answered at once.
    #[inline]
    pub(crate) fn count_hit(&self, namespace: u16, hash: u64) {
        // Striped by object: two threads that read different objects write different lines.
        self.of(namespace).count_hit(hash);
    }

    /// Counts a read that had to read the store.
    pub(crate) fn count_miss(&self, namespace: u16) {
        self.of(namespace).count_miss();
    }

    /// Counts a change that waits for room for dirty data.
    pub(crate) fn count_throttled(&self, namespace: u16) {
        self.of(namespace).count_throttled();
    }

    /// Changes that waited for room for dirty data.
    pub(crate) fn throttled(&self) -> u64 {
        self.total(NamespaceMetrics::throttled)
    }

    /// A change was applied here that is acknowledged with the durability of this rank.
    #[inline]
    pub(crate) fn count_write(&self, namespace: u16, hash: u64, durability: usize) {
        self.of(namespace).count_write(hash, durability);
    }

    /// A change was forwarded to the store, which has acknowledged it with the durability of this rank, or
    /// has not.
    pub(crate) fn count_forwarded(&self, namespace: u16, durability: Option<usize>) {
        self.of(namespace).count_forwarded(durability);
    }

    pub(crate) fn misses(&self) -> u64 {
        self.total(NamespaceMetrics::misses)
    }

    pub(crate) fn writes_through(&self) -> u64 {
        self.total(NamespaceMetrics::writes_through)
    }

    pub(crate) fn writes_back(&self) -> u64 {
        self.total(NamespaceMetrics::writes_back)
    }

    pub(crate) fn hits(&self) -> u64 {
        self.total(NamespaceMetrics::hits)
    }
}

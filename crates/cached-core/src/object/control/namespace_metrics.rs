//! What is counted of one namespace.
//!
//! Hits and changes in memory are counted in stripes, so that threads that use different objects write to
//! different cache lines; the rest are plain atomics.

use super::store_metrics::StoreMetrics;
use crate::object::memory::slots::{STATES, State};
use crate::sync::{AtomicU64, Ordering};

const STRIPES: usize = 8;

/// The number of kinds of durability, of which the first is *cached*.
const DURABILITIES: usize = 4;

#[repr(align(64))]
#[derive(Default)]
struct Padded(AtomicU64);

/// What is counted of one namespace.
pub(crate) struct NamespaceMetrics {
    hits: [Padded; STRIPES],
    /// Changes acknowledged as *cached*, the usual ones.
    written: [Padded; STRIPES],
    states: [AtomicU64; STATES],
    /// The part of its dirty data that stands for what has no bucket.
    bucketless: AtomicU64,
    misses: AtomicU64,
    /// Changes that waited for room for dirty data.
    throttled: AtomicU64,
    /// Other changes that were applied here, by durability.
    written_safely: [AtomicU64; DURABILITIES],
    /// Changes forwarded to the store, by durability; the last of them failed.
    forwarded: [AtomicU64; DURABILITIES + 1],
    /// Its requests to the store.
    pub(crate) store: StoreMetrics,
    /// Changes refused because the quota was used up.
    pub(crate) quota_refusals: AtomicU64,
}

impl NamespaceMetrics {
    pub(crate) fn new() -> Self {
        Self {
            hits: Default::default(),
            written: Default::default(),
            states: std::array::from_fn(|_| AtomicU64::new(0)),
            bucketless: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
            written_safely: std::array::from_fn(|_| AtomicU64::new(0)),
            forwarded: std::array::from_fn(|_| AtomicU64::new(0)),
            store: StoreMetrics::default(),
            quota_refusals: AtomicU64::new(0),
        }
    }

    /// How many slots are in `state`; of no meaning for absent ones.
    pub(crate) fn count_of(&self, state: State) -> u64 {
        self.states[state as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn bucketless(&self) -> u64 {
        self.bucketless.load(Ordering::Relaxed)
    }

    pub(crate) fn hits(&self) -> u64 {
        sum(&self.hits)
    }

    pub(crate) fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    pub(crate) fn throttled(&self) -> u64 {
        self.throttled.load(Ordering::Relaxed)
    }

    /// Changes by the durability with which they are acknowledged.
    pub(crate) fn writes(&self) -> [u64; DURABILITIES] {
        let read = |counters: &[AtomicU64], at: usize| counters[at].load(Ordering::Relaxed);
        let cached = sum(&self.written);
        std::array::from_fn(|at| {
            let first = if at == 0 { cached } else { 0 };
            first + read(&self.written_safely, at) + read(&self.forwarded, at)
        })
    }

    pub(crate) fn writes_back(&self) -> u64 {
        sum(&self.written)
            + self.written_safely.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>()
    }

    pub(crate) fn writes_through(&self) -> u64 {
        self.forwarded.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Counts a read that was answered at once; `stripe` is any number, another one for another object.
    #[inline]
    pub(crate) fn count_hit(&self, stripe: u64) {
        self.hits[stripe as usize % STRIPES].0.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a read that had to read the store.
    pub(crate) fn count_miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a change that waits for room for dirty data.
    pub(crate) fn count_throttled(&self) {
        self.throttled.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a change that was applied here and is acknowledged with the durability of this rank; `stripe` is
    /// any number, another one for another object.
    #[inline]
    pub(crate) fn count_write(&self, stripe: u64, durability: usize) {
        match durability {
            0 => self.written[stripe as usize % STRIPES].0.fetch_add(1, Ordering::Relaxed),
            // It waits for a disk.
            other => self.written_safely[other].fetch_add(1, Ordering::Relaxed),
        };
    }

    /// Counts a change that was forwarded to the store, which has acknowledged it with the durability of this
    /// rank, or has not.
    pub(crate) fn count_forwarded(&self, durability: Option<usize>) {
        self.forwarded[durability.unwrap_or(DURABILITIES)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a slot that has changed its state.
    pub(crate) fn shift(&self, from: State, to: State) {
        self.states[from as usize].fetch_sub(1, Ordering::Relaxed);
        self.states[to as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that room taken before is held for what has no bucket.
    pub(crate) fn hold_bucketless(&self, count: u32) {
        self.bucketless.fetch_add(u64::from(count), Ordering::Relaxed);
    }

    /// Notes that it no longer is.
    pub(crate) fn return_bucketless(&self, count: u32) {
        self.bucketless.fetch_sub(u64::from(count), Ordering::Relaxed);
    }
}

fn sum(stripes: &[Padded; STRIPES]) -> u64 {
    stripes.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum()
}

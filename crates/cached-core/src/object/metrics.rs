//! The state of the whole cache in O(1): buckets in each state, room in the dirty limit, and what has
//! happened.
//!
//! States change on misses and first writes; their counters are plain atomics. Hits are counted in stripes,
//! so that threads that read different objects write to different cache lines.

use super::slots::{STATES, Slot, State};
use super::wait_queue::WaitQueue;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

const STRIPES: usize = 8;

/// See the module.
pub(crate) struct Metrics {
    states: [AtomicU64; STATES],
    dirty: AtomicU64,
    /// The part of `dirty` that stands for what has no bucket.
    bucketless: AtomicU64,
    dirty_max: u64,
    /// More than half of the room has been taken since [`Self::pressure_has_begun`] was last called.
    is_half_full: AtomicBool,
    /// The tasks that wait until less is dirty.
    pub(crate) dirty_waiters: WaitQueue,
    hits: [Padded; STRIPES],
    pub(crate) loading: AtomicU64,
    /// Buckets that writes have taken over.
    pub(crate) zero_copy: AtomicU64,
    pub(crate) misses: AtomicU64,
    writes_back: [Padded; STRIPES],
    pub(crate) writes_through: AtomicU64,
    pub(crate) throttled: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) flush_failures: AtomicU64,
    pub(crate) flush_requests: AtomicU64,
    pub(crate) flush_bytes: AtomicU64,
    pub(crate) lost_bytes: AtomicU64,
    pub(crate) bucket_evictions: AtomicU64,
    pub(crate) object_evictions: AtomicU64,
}

#[repr(align(64))]
#[derive(Default)]
struct Padded(AtomicU64);

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Metrics {
    /// At most `dirty_max` buckets may be dirty.
    pub(crate) fn new(dirty_max: u64) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            states: std::array::from_fn(|_| zero()),
            dirty: zero(),
            bucketless: zero(),
            dirty_max,
            is_half_full: AtomicBool::new(false),
            dirty_waiters: WaitQueue::default(),
            hits: Default::default(),
            loading: zero(),
            zero_copy: zero(),
            misses: zero(),
            writes_back: Default::default(),
            writes_through: zero(),
            throttled: zero(),
            flushes: zero(),
            flush_failures: zero(),
            flush_requests: zero(),
            flush_bytes: zero(),
            lost_bytes: zero(),
            bucket_evictions: zero(),
            object_evictions: zero(),
        }
    }

    /// A slot has changed its state.
    pub(crate) fn shift(&self, from: Slot, to: Slot) {
        if from.state() != to.state() {
            self.states[from.state() as usize].fetch_sub(1, Ordering::Relaxed);
            self.states[to.state() as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many slots are in `state`; of no meaning for absent ones.
    pub(crate) fn count_of(&self, state: State) -> u64 {
        self.states[state as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of buckets that are dirty or being written, with the room taken for those that are
    /// about to be.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::SeqCst)
    }

    pub(crate) fn dirty_max(&self) -> u64 {
        self.dirty_max
    }

    /// Takes room for `count` dirty buckets. One that alone is beyond the limit gets it once nothing else
    /// is dirty, so that no request waits for ever.
    pub(crate) fn take_credits(&self, count: u32) -> bool {
        if count == 0 {
            return true;
        }
        let more = |dirty: u64| {
            let after = dirty + u64::from(count);
            (after <= self.dirty_max || dirty == 0).then_some(after)
        };
        let taken = self.dirty.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        if let Ok(before) = taken
            && !self.is_above_half(before)
            && self.is_above_half(before + u64::from(count))
        {
            self.is_half_full.store(true, Ordering::SeqCst);
        }
        taken.is_ok()
    }

    /// Whether this number of dirty buckets is more than half of those that may be: then flushing begins, so
    /// that writers seldom wait for it.
    fn is_above_half(&self, dirty: u64) -> bool {
        dirty > self.dirty_max / 2
    }

    /// Whether flushing should not wait for age.
    pub(crate) fn is_pressed(&self) -> bool {
        self.is_above_half(self.dirty())
    }

    /// Whether that has just become so. True once each time.
    pub(crate) fn pressure_has_begun(&self) -> bool {
        self.is_half_full.load(Ordering::Relaxed) && self.is_half_full.swap(false, Ordering::SeqCst)
    }

    /// Takes back what the same slot returned a moment ago, or will return in a moment.
    pub(crate) fn retake_credits(&self, count: u32) {
        self.dirty.fetch_add(u64::from(count), Ordering::SeqCst);
    }

    /// Returns room to the limit.
    pub(crate) fn return_credits(&self, count: u32) {
        if count > 0 {
            self.dirty.fetch_sub(u64::from(count), Ordering::SeqCst);
            self.dirty_waiters.notify();
        }
    }

    /// Notes that room taken before is held for what has no bucket.
    pub(crate) fn hold_bucketless(&self, count: u32) {
        add(&self.bucketless, u64::from(count));
    }

    /// Returns such room to the limit.
    pub(crate) fn return_bucketless(&self, count: u32) {
        self.bucketless.fetch_sub(u64::from(count), Ordering::Relaxed);
        self.return_credits(count);
    }

    /// How much of it is held.
    pub(crate) fn bucketless(&self) -> u64 {
        self.bucketless.load(Ordering::Relaxed)
    }

    /// Counts a read that was answered at once.
    #[inline]
    pub(crate) fn count_hit(&self, hash: u64) {
        // Striped by object: two threads that read different objects write different lines.
        add(&self.hits[hash as usize % STRIPES].0, 1);
    }

    /// A change was applied here.
    #[inline]
    pub(crate) fn count_write(&self, hash: u64) {
        add(&self.writes_back[hash as usize % STRIPES].0, 1);
    }

    pub(crate) fn writes_back(&self) -> u64 {
        self.writes_back.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn hits(&self) -> u64 {
        self.hits.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn room_for_dirty_data_is_limited_and_every_waiter_gets_some() {
        let metrics = Metrics::new(4);
        assert!(metrics.take_credits(3));
        assert!(!metrics.take_credits(2));
        assert!(metrics.take_credits(1));
        metrics.return_credits(4);
        assert!(metrics.take_credits(9), "alone, even beyond the limit");
        assert!(!metrics.take_credits(1));
        assert!(metrics.take_credits(0));
    }

    #[test]
    fn half_of_the_room_taken_is_reported_once_each_time() {
        let metrics = Metrics::new(4);
        assert!(metrics.take_credits(2) && !metrics.pressure_has_begun());
        assert!(metrics.take_credits(1) && metrics.is_pressed());
        assert!(metrics.pressure_has_begun() && !metrics.pressure_has_begun());
        assert!(metrics.take_credits(1) && !metrics.pressure_has_begun(), "reported before");
        metrics.return_credits(3);
        assert!(metrics.take_credits(2) && metrics.pressure_has_begun());
    }
}

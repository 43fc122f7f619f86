//! What the whole cache holds, in O(1): buckets in each state, room for dirty data, and what happened.
//!
//! States change on misses and first writes; those figures are plain atomics. Hits are counted in
//! stripes, so that a hit writes no line that every hit writes.

use super::slots::{STATES, Slot, State};
use super::wait::WaitQueue;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

const STRIPES: usize = 8;

/// Figures of an object cache. Sizes in bytes, the rest counts since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Objects that the index knows.
    pub objects: u64,
    /// Memory of all buckets, and of those that are free.
    pub memory_bytes: u64,
    /// See `memory_bytes`.
    pub free_bytes: u64,
    /// Data that the store has as well.
    pub clean_bytes: u64,
    /// What waits to be stored, on its way or not: data by whole buckets, zeros by what they cover, and 4 KiB for each
    /// object that is to be cut, removed, or made.
    pub dirty_bytes: u64,
    /// Data on their way to the store.
    pub writing_bytes: u64,
    /// Known zeros, which take no memory.
    pub zero_bytes: u64,
    /// What is being read from the store.
    pub loading_bytes: u64,
    /// Buckets claimed for bytes that arrive, or have arrived and not been written yet.
    pub landing_bytes: u64,
    /// What writes have taken over from where it had landed, without a copy.
    pub landed_bytes: u64,
    /// Reads answered at once, and reads for which the store was asked.
    pub read_hits: u64,
    /// See `read_hits`.
    pub read_misses: u64,
    /// Changes applied in the cache, and changes forwarded to the store.
    pub writes_back: u64,
    /// See `writes_back`.
    pub writes_through: u64,
    /// Changes that had to wait because too much was dirty.
    pub writes_throttled: u64,
    /// Flushes of objects that succeeded, and that failed and will be tried again.
    pub flushes: u64,
    /// See `flushes`.
    pub flush_failures: u64,
    /// Requests and bytes that flushes have sent.
    pub flush_requests: u64,
    /// See `flush_requests`.
    pub flush_bytes: u64,
    /// Dirty data that the store has refused for good (`Fenced`), and that are gone.
    pub lost_bytes: u64,
    /// Objects that have lost changes and have not been made good: [`super::ObjectCache::lost`] names them.
    pub lost_objects: u64,
    /// Buckets that have been evicted, and objects.
    pub bucket_evictions: u64,
    /// See `bucket_evictions`.
    pub object_evictions: u64,
}

/// The figures as they move.
pub(crate) struct Gauges {
    states: [AtomicU64; STATES],
    dirty: AtomicU64,
    /// Of those, the ones that stand for what has no bucket.
    room: AtomicU64,
    dirty_max: u64,
    /// More than half of the room has been taken since somebody last asked.
    is_half_full: AtomicBool,
    /// Who waits until less is dirty.
    pub(crate) dirty_waiters: WaitQueue,
    hits: [Padded; STRIPES],
    pub(crate) loading: AtomicU64,
    /// Buckets that writes have taken over.
    pub(crate) landed: AtomicU64,
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

/// Adds to a figure.
pub(crate) fn add(figure: &AtomicU64, count: u64) {
    figure.fetch_add(count, Ordering::Relaxed);
}

impl Gauges {
    /// At most `dirty_max` buckets may be dirty.
    pub(crate) fn new(dirty_max: u64) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            states: std::array::from_fn(|_| zero()),
            dirty: zero(),
            room: zero(),
            dirty_max,
            is_half_full: AtomicBool::new(false),
            dirty_waiters: WaitQueue::default(),
            hits: Default::default(),
            loading: zero(),
            landed: zero(),
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

    /// Buckets that are dirty or on their way, with the room taken for those that are about to be.
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

    /// Whether so many dirty buckets are more than half of those that may be: then flushing begins, so that
    /// writers are seldom kept waiting for it.
    fn is_above_half(&self, dirty: u64) -> bool {
        dirty > self.dirty_max / 2
    }

    /// Whether flushing should not wait for age.
    pub(crate) fn presses(&self) -> bool {
        self.is_above_half(self.dirty())
    }

    /// Whether that has just become so. True once each time.
    pub(crate) fn has_begun_to_press(&self) -> bool {
        self.is_half_full.load(Ordering::Relaxed) && self.is_half_full.swap(false, Ordering::SeqCst)
    }

    /// Takes back what was given back a moment ago, or will be in a moment, by the same slot.
    pub(crate) fn take_again(&self, count: u32) {
        self.dirty.fetch_add(u64::from(count), Ordering::SeqCst);
    }

    /// Gives room back.
    pub(crate) fn give_back(&self, count: u32) {
        if count > 0 {
            self.dirty.fetch_sub(u64::from(count), Ordering::SeqCst);
            self.dirty_waiters.notify();
        }
    }

    /// Room taken before is held for what has no bucket.
    pub(crate) fn hold_room(&self, count: u32) {
        add(&self.room, u64::from(count));
    }

    /// Gives such room back.
    pub(crate) fn give_room_back(&self, count: u32) {
        self.room.fetch_sub(u64::from(count), Ordering::Relaxed);
        self.give_back(count);
    }

    /// How much of it is held.
    pub(crate) fn room(&self) -> u64 {
        self.room.load(Ordering::Relaxed)
    }

    /// A read was answered at once.
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
    fn room_for_dirty_data_is_limited_but_nobody_waits_for_ever() {
        let gauges = Gauges::new(4);
        assert!(gauges.take_credits(3));
        assert!(!gauges.take_credits(2));
        assert!(gauges.take_credits(1));
        gauges.give_back(4);
        assert!(gauges.take_credits(9), "alone, even beyond the limit");
        assert!(!gauges.take_credits(1));
        assert!(gauges.take_credits(0));
    }

    #[test]
    fn half_of_the_room_taken_is_told_once_each_time() {
        let gauges = Gauges::new(4);
        assert!(gauges.take_credits(2) && !gauges.has_begun_to_press());
        assert!(gauges.take_credits(1) && gauges.presses());
        assert!(gauges.has_begun_to_press() && !gauges.has_begun_to_press());
        assert!(gauges.take_credits(1) && !gauges.has_begun_to_press(), "told before");
        gauges.give_back(3);
        assert!(gauges.take_credits(2) && gauges.has_begun_to_press());
    }
}

//! Forgetting everything at once.
//!
//! A flush closes all open regions and draws a line in the age order: items in older regions are
//! gone from that moment. Their bytes are cleaned up afterwards, a region at a time, by
//! [`Kv::maintain`] and by whoever needs memory.

use crate::arena::RegionId;
use crate::kv::reclaim::Effort;
use crate::kv::{Inner, Kv};
use crate::sync::{Ordering, lock};

impl Kv {
    /// Every item stored before this call is gone when it returns.
    pub fn flush_all(&self) {
        // It takes the place of one that is to come; one that is due already happens first.
        self.inner.now();
        let due = self.inner.flush_due.load(Ordering::Relaxed);
        self.inner.flush();
        let _ = self.inner.flush_due.compare_exchange(due, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Everything that is stored when the clock reaches `secs` is gone from then on. A later call
    /// replaces an earlier one; 0 takes it back.
    pub fn flush_at(&self, secs: u32) {
        // One that is due already happens first.
        self.inner.now();
        self.inner.flush_due.store(secs, Ordering::Relaxed);
    }

    /// Background work, a few milliseconds at most; true when more is waiting. Call it about once a
    /// second (and again at once while it returns true), from any thread.
    pub fn maintain(&self) -> bool {
        let inner = &self.inner;
        let now = inner.now();
        let boundary = inner.flush_boundary.load(Ordering::Acquire);
        if boundary == 0 {
            return inner.make_room(now);
        }
        if !inner.has_regions_before(boundary) {
            // Nothing older is left: lookups need not compare any more. A flush that came in
            // between has moved the line, and stays.
            let moved =
                inner.flush_boundary.compare_exchange(boundary, 0, Ordering::AcqRel, Ordering::Relaxed);
            if moved.is_ok() {
                inner.index.shards().iter().for_each(|shard| shard.count_flushed(true));
            }
            return false;
        }
        // Flushed regions are all garbage, so they come first. Those that are read or written are left for another time.
        inner.reclaim_some(now)
    }
}

impl Inner {
    /// Flushes for the operation that finds it due. Others that begin meanwhile wait for it: none may still see what is gone.
    #[cold]
    pub(in crate::kv) fn flush_if_due(&self, due: u32) {
        let _flushing = lock(&self.flushing);
        if self.flush_due.load(Ordering::Relaxed) == due {
            self.flush();
            // Unless another has been asked for, in its place.
            let _ = self.flush_due.compare_exchange(due, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    fn flush(&self) {
        // While the line is drawn no region may be opened, sealed or filled: one that is open on
        // both sides of it would take later items along, or give earlier ones a later number.
        self.with_lanes_sealed(|| {
            let mut reclaimer = lock(&self.reclaimer);
            self.seal_survivors(&mut reclaimer);
            self.flush_boundary.fetch_max(self.arena.next_sequence(), Ordering::AcqRel);
        });
        self.index.shards().iter().for_each(|shard| shard.count_flushed(false));
    }

    /// A store that does not evict turns what has been deleted into free regions before somebody has to wait for one.
    fn make_room(&self, now: u32) -> bool {
        !self.evict
            && self.arena.kv_available() < self.pace_below.load(Ordering::Relaxed)
            && self.reclaim_some(now)
    }

    /// Some steps of upkeep; false if there was nothing to do.
    fn reclaim_some(&self, now: u32) -> bool {
        const STEPS: usize = 16;
        const ENTRIES: usize = 256;
        let mut reclaimer = lock(&self.reclaimer);
        (0..STEPS).take_while(|_| self.reclaim_step(&mut reclaimer, now, ENTRIES, Effort::Upkeep)).count() > 0
    }

    fn has_regions_before(&self, boundary: u64) -> bool {
        (0..self.arena.region_count()).map(RegionId).any(|region| {
            let record = self.arena.region(region);
            record.state() != crate::arena::RegionState::Free && record.sequence() < boundary
        })
    }
}

//! Flushes and upkeep.

use crate::kv::Kv;

impl Kv {
    /// Removes every item: what was stored before this call is gone when it returns. Memory is reclaimed
    /// afterwards.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"k", b"v")?;
    /// kv.flush_all();
    /// assert_eq!(kv.get(b"k"), None);
    /// while kv.maintain() {}
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush_all(&self) {
        let inner = &self.inner;
        // This flush replaces a scheduled one; one that is due already runs first.
        inner.now();
        let due = inner.flush.due();
        inner.flush.flush(&inner.log, &inner.index);
        inner.flush.clear(due);
    }

    /// Schedules a flush: every item that is stored when the clock reaches `secs` is gone from then on. A
    /// later call replaces an earlier one; 0 cancels it.
    pub fn flush_at(&self, secs: u32) {
        // One that is due already runs first.
        self.inner.now();
        self.inner.flush.set_due(secs);
    }

    /// Does background work for a few milliseconds at most. Returns whether more is waiting. Call it about
    /// once a second (and again at once while it returns true), from any thread.
    pub fn maintain(&self) -> bool {
        let inner = &*self.inner;
        let now = inner.now();
        #[cfg(not(any(miri, shuttle)))]
        inner.note_time(now);
        let has_more = self.sweep_prefixes();
        let boundary = inner.log.boundary();
        if boundary == 0 {
            return inner.log.make_room(inner, now) || has_more;
        }
        if !inner.log.has_regions_before(boundary) {
            // Nothing older is left: lookups need not compare any more.
            if inner.log.clear_boundary(boundary) {
                inner.index.shards().iter().for_each(|shard| shard.count_flushed(true));
            }
            return has_more;
        }
        // Flushed regions are all garbage, so they come first. Those that are pinned or written to stay for a
        // later call.
        inner.log.reclaim_some(inner, now) || has_more
    }
}

//! Changing the memory of a pool while it is used: buckets become *absent*, and return.
//!
//! ```text
//!  number of bucket   0                    used           end                count_max
//!                     ├─────────────────────┼──────────────┼─────────────────────┤
//!                       in use, free, or      never used,    absent, never used
//!                       absent (in `absent`)  free
//! ```
//! A bucket is a page of memory, so each can be given up individually: the eviction policy chooses
//! which, and no region has to be cleared of buckets in use.

use super::{BUCKET, Core, Pool, Reserved, Stack};
use crate::arena::MemoryRange;
use crate::ensure;
use crate::sync::{Ordering, lock};

/// The memory of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolMemory {
    /// The memory at the start, in bytes.
    pub(crate) bytes: u64,
    /// The range in which the memory can change, in bytes; `None` if it is fixed.
    pub(crate) range: Option<MemoryRange>,
    /// Whether to ask the system for huge pages.
    pub(crate) huge_pages: bool,
    /// Whether buckets may be lent.
    pub(crate) lends: bool,
}

impl PoolMemory {
    /// Returns memory of a fixed size.
    #[cfg(test)]
    pub(crate) fn fixed(bytes: u64) -> Self {
        Self { bytes, range: None, huge_pages: false, lends: false }
    }

    /// Returns the maximum memory, in bytes.
    pub(super) fn bytes_max(&self) -> u64 {
        self.range.map_or(self.bytes, |range| range.bytes_max)
    }

    /// Returns the minimum, the initial and the maximum number of buckets, if there is space for
    /// `count` in regions with `headers` headers, whose memory always stays.
    pub(super) fn counts(&self, count: u32, headers: u32) -> [u32; 3] {
        let Some(range) = self.range else { return [count; 3] };
        [range.bytes_min, self.bytes, range.bytes_max].map(|bytes| {
            let buckets = (bytes / BUCKET as u64).saturating_sub(headers.into());
            u32::try_from(buckets).unwrap_or(u32::MAX).min(count)
        })
    }
}

/// The buckets that were never used, and the absent ones. Protected by a single lock.
pub(super) struct Fresh {
    /// Buckets below this have been used.
    pub(super) used: u32,
    /// Buckets from here on are absent and were never used.
    pub(super) end: u32,
    /// Absent buckets that have been used.
    absent: Stack,
}

impl Fresh {
    pub(super) fn new(present: u32) -> Self {
        Self { used: 0, end: present, absent: Stack::default() }
    }
}

impl Pool {
    /// Makes up to `count` buckets that were never used absent, but keeps the minimum. Returns how
    /// many.
    pub(crate) fn give_fresh(&self, count: u32) -> u32 {
        let core = &self.core;
        let mut fresh = lock(&core.fresh);
        let present = core.present.load(Ordering::Relaxed);
        let given = count.min(fresh.end - fresh.used).min(present.saturating_sub(core.count_min));
        fresh.end -= given;
        core.present.fetch_sub(given, Ordering::Relaxed);
        core.free.fetch_sub(given, Ordering::Relaxed);
        given
    }

    /// Makes reserved buckets absent, but keeps the minimum, and returns their memory to the
    /// system. Returns how many; the others are freed.
    ///
    /// # Errors
    /// Errors of the system, if it does not take back some of the memory; those buckets are freed.
    pub(crate) fn give_up(&self, mut reserved: Reserved<'_>) -> std::io::Result<u32> {
        let core = &self.core;
        let mut numbers = Vec::with_capacity(reserved.count() as usize);
        while let Some(bucket) = reserved.pop() {
            numbers.push(bucket);
        }
        // Adjacent buckets are discarded in a single call.
        numbers.sort_unstable();
        let mut result = Ok(());
        let mut given: u32 = 0;
        for run in numbers.chunk_by(|one, next| one + 1 == *next) {
            let can = {
                let present = core.present.load(Ordering::Relaxed);
                (present.saturating_sub(core.count_min) as usize).min(run.len())
            };
            let (run, back) = run.split_at(can);
            back.iter().for_each(|bucket| reserved.put(*bucket));
            if run.is_empty() {
                continue;
            }
            match core.discard(run) {
                Ok(()) => {
                    self.make_absent(run);
                    given += run.len() as u32;
                }
                Err(error) => {
                    run.iter().for_each(|bucket| reserved.put(*bucket));
                    result = Err(error);
                }
            }
        }
        result.map(|()| given)
    }

    fn make_absent(&self, buckets: &[u32]) {
        let mut fresh = lock(&self.core.fresh);
        for bucket in buckets {
            self.core.unmark(*bucket);
            self.meta(*bucket).next.store(fresh.absent.top, Ordering::Relaxed);
            fresh.absent.top = bucket + 1;
            fresh.absent.count += 1;
        }
        self.core.present.fetch_sub(buckets.len() as u32, Ordering::Relaxed);
    }

    /// Makes up to `count` absent buckets free. Returns how many.
    pub(crate) fn take_back(&self, count: u32) -> u32 {
        let core = &self.core;
        let mut reserved = Reserved::none(self);
        let mut fresh = lock(&core.fresh);
        while reserved.count() < count && fresh.absent.count > 0 {
            let bucket = fresh.absent.top - 1;
            fresh.absent.top = self.meta(bucket).next.load(Ordering::Relaxed);
            fresh.absent.count -= 1;
            reserved.put(bucket);
        }
        let new = (count - reserved.count()).min(core.count_max - fresh.end);
        fresh.end += new;
        core.free.fetch_add(new, Ordering::SeqCst);
        let taken = reserved.count() + new;
        core.present.fetch_add(taken, Ordering::Relaxed);
        drop(fresh);
        // The drop frees them, and wakes a task that waits for one.
        drop(reserved);
        core.waiters.notify();
        taken
    }

    /// Returns the absent buckets that have been used; checks that the present ones make up the
    /// rest.
    #[inline]
    pub(crate) fn absent_list(&self) -> Result<Vec<u32>, String> {
        let fresh = lock(&self.core.fresh);
        let mut absent = Vec::new();
        let mut at = fresh.absent.top;
        for _ in 0..fresh.absent.count {
            let bucket = at.checked_sub(1).ok_or("the list of absent buckets is shorter than its length")?;
            absent.push(bucket);
            at = self.meta(bucket).next.load(Ordering::Relaxed);
        }
        let (present, count) = (self.count(), fresh.absent.count);
        let end = fresh.end;
        let is_within = present >= self.core.count_min && end <= self.core.count_max;
        ensure(is_within && present + count == end, || {
            format!("{present} buckets are there, {count} are absent of the first {end}")
        })?;
        Ok(absent)
    }
}

impl Core {
    /// Returns the memory of neighbouring buckets to the system.
    pub(super) fn discard(&self, run: &[u32]) -> std::io::Result<()> {
        let Some(first) = run.first() else { return Ok(()) };
        // SAFETY: the caller has removed the buckets from the free ones, so nothing refers to them.
        // Their numbers are consecutive, so their memory is.
        unsafe { self.arena.discard(*first as usize * BUCKET, run.len() * BUCKET) }
    }
}

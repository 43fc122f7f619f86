//! Buckets that are taken and not in use yet.

use super::meta::RECEIVING;
use super::{BUCKET, Pool};
use crate::sync::Ordering;

/// Buckets taken for a job; those that it does not use go back.
pub(crate) struct Reserved<'a> {
    pub(super) pool: &'a Pool,
    /// Linked like a stack of free ones.
    top: u32,
    count: u32,
}

impl<'a> Reserved<'a> {
    /// No buckets.
    pub(crate) fn none(pool: &'a Pool) -> Self {
        Self { pool, top: 0, count: 0 }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn put(&mut self, bucket: u32) {
        self.pool.meta(bucket).next.store(self.top, Ordering::Relaxed);
        self.top = bucket + 1;
        self.count += 1;
    }

    /// Adds the buckets of another reservation.
    pub(crate) fn merge(&mut self, mut other: Reserved<'a>) {
        while let Some(bucket) = other.pop() {
            self.put(bucket);
        }
    }

    pub(super) fn pop(&mut self) -> Option<u32> {
        let bucket = self.top.checked_sub(1)?;
        let meta = self.pool.meta(bucket);
        self.top = meta.next.load(Ordering::Relaxed);
        self.count -= 1;
        Some(bucket)
    }

    /// Takes one of them whose memory the kernel does not refer to.
    fn pop_own(&mut self) -> Option<u32> {
        let bucket = self.pop()?;
        if !self.pool.is_lent(bucket) {
            return Some(bucket);
        }
        self.put(bucket);
        self.renew();
        self.pop()
    }

    /// Takes one of them, filled by `fill` before any other thread sees it; its count belongs to the caller.
    pub(crate) fn take(&mut self, fill: impl FnOnce(&mut [u8])) -> Option<u32> {
        let bucket = self.pop_own()?;
        let meta = self.pool.meta(bucket);
        meta.refs.store(1, Ordering::Relaxed);
        // SAFETY: the bucket was free and belongs to this thread alone; it lies whole within the arena, whose
        // memory is initialised (zeroed by the system, or written before).
        fill(unsafe { std::slice::from_raw_parts_mut(self.pool.at(bucket), BUCKET) });
        Some(bucket)
    }

    /// Takes one count of a bucket away; it is one of these when none is left.
    pub(crate) fn release(&mut self, bucket: u32) {
        if self.pool.core.drop_count(bucket) {
            self.put(bucket);
        }
    }

    /// Takes one of them for a receive buffer; [`Pool::reserve_receive`] has counted it. Its count belongs to
    /// the caller.
    pub(crate) fn take_receiving(&mut self) -> Option<u32> {
        let bucket = self.pop_own()?;
        let meta = self.pool.meta(bucket);
        meta.refs.store(1, Ordering::Relaxed);
        meta.owner.store(RECEIVING, Ordering::Relaxed);
        Some(bucket)
    }

    /// Ends the borrow of the pool, and keeps the buckets.
    pub(crate) fn detach(mut self) -> Detached {
        let detached = Detached { top: self.top, count: self.count };
        (self.top, self.count) = (0, 0);
        detached
    }
}

/// A reservation without its pool: it must go back into one by [`Reserved::attach`].
#[must_use]
pub(crate) struct Detached {
    top: u32,
    count: u32,
}

impl Detached {
    pub(crate) fn count(&self) -> u32 {
        self.count
    }
}

impl<'a> Reserved<'a> {
    pub(crate) fn attach(pool: &'a Pool, detached: Detached) -> Self {
        Self { pool, top: detached.top, count: detached.count }
    }
}

impl Reserved<'_> {
    /// Gives the buckets back and wakes no task: they were too few for the first that waits, which is the one
    /// that took them, or looks again when the caller has looked.
    pub(crate) fn put_back(mut self) {
        self.put_all_free();
    }

    fn put_all_free(&mut self) {
        let Some(first) = self.top.checked_sub(1) else { return };
        let mut last = first;
        while let Some(next) = self.pool.meta(last).next.load(Ordering::Relaxed).checked_sub(1) {
            last = next;
        }
        self.pool.core.put_free(first, last, self.count);
        (self.top, self.count) = (0, 0);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.count == 0 {
            return;
        }
        self.put_all_free();
        self.pool.core.waiters.notify();
    }
}

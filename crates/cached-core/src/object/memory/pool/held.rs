//! Buckets that no slot refers to: reserved but not in use yet, or lent to the kernel.

use std::ops::Range;

use super::meta::RECEIVING;
use super::{BUCKET, Core, Pool, REFS_STUCK};
use crate::arena::Arena;
use crate::sync::{AtomicU32, Ordering};

/// Buckets reserved for a job; unused ones are returned when this is dropped.
pub(crate) struct Reserved<'a> {
    pub(super) pool: &'a Pool,
    /// The buckets, linked like a stack of free ones.
    top: u32,
    count: u32,
}

impl<'a> Reserved<'a> {
    /// Returns an empty reservation.
    pub(crate) fn none(pool: &'a Pool) -> Self {
        Self { pool, top: 0, count: 0 }
    }

    pub(crate) fn attach(pool: &'a Pool, detached: Detached) -> Self {
        Self { pool, top: detached.top, count: detached.count }
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

    /// Takes a bucket whose memory is not lent to the kernel.
    fn pop_own(&mut self) -> Option<u32> {
        let bucket = self.pop()?;
        if !self.pool.is_lent(bucket) {
            return Some(bucket);
        }
        self.put(bucket);
        self.renew();
        self.pop()
    }

    /// Takes a bucket, filled by `fill` before any other thread sees it; the caller owns its
    /// reference.
    pub(crate) fn take(&mut self, fill: impl FnOnce(&mut [u8])) -> Option<u32> {
        let bucket = self.pop_own()?;
        let meta = self.pool.meta(bucket);
        meta.refs.store(1, Ordering::Relaxed);
        // SAFETY: the bucket was free and belongs only to this thread; it lies completely within
        // the arena, whose memory is initialised (zeroed by the system, or written before).
        fill(unsafe { std::slice::from_raw_parts_mut(self.pool.at(bucket), BUCKET) });
        Some(bucket)
    }

    /// Drops a reference to a bucket; if it was the last one, the bucket joins this reservation.
    pub(crate) fn release(&mut self, bucket: u32) {
        if self.pool.core.drop_count(bucket) {
            self.put(bucket);
        }
    }

    /// Takes a bucket for a receive buffer; [`Pool::reserve_receive`] has counted it. The caller
    /// owns its reference.
    pub(crate) fn take_receiving(&mut self) -> Option<u32> {
        let bucket = self.pop_own()?;
        let meta = self.pool.meta(bucket);
        meta.refs.store(1, Ordering::Relaxed);
        meta.owner.store(RECEIVING, Ordering::Relaxed);
        Some(bucket)
    }

    /// Ends the borrow of the pool, but keeps the buckets.
    pub(crate) fn detach(mut self) -> Detached {
        let detached = Detached { top: self.top, count: self.count };
        (self.top, self.count) = (0, 0);
        detached
    }
}

/// A reservation without its pool: it must be returned to one by [`Reserved::attach`].
#[must_use]
pub(crate) struct Detached {
    top: u32,
    pub(crate) count: u32,
}

impl Reserved<'_> {
    /// Returns the buckets without waking a task: they were too few for the first waiting task.
    /// Either that task itself took them, or it checks again after the caller has.
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

// Buckets whose memory is lent to the kernel, which may refer to it for longer than any segment
// does.
//
// A page that was spliced into a socket is sent from where it is, and nothing tells when the
// network, or a receiver on the same machine, has finished with it. So the bytes of a lent bucket
// never change again, whatever becomes of the bucket: while it is in use, it is treated like a
// bucket that a reader sees, and before it is reused, its page is returned to the system. The
// mapping then has a new page, and the kernel keeps the old one for as long as it needs it.
//
// A bucket is marked as lent by a holder of a reference, and unmarked by its only holder, so the
// reference counts order the two.

/// The set of lent buckets: a bit for each number.
pub(super) struct Lent(Box<[AtomicU32]>);

impl Lent {
    /// Returns a set for `numbers` bucket numbers; `None` if the system does not take back single
    /// pages of this memory.
    pub(super) fn new(arena: &Arena, numbers: u32) -> Option<Self> {
        arena.keep_pages_small();
        // SAFETY: the arena is new: nothing refers to its memory. It has at least one region of at least 64 KiB.
        unsafe { arena.discard(BUCKET, BUCKET) }.ok()?;
        Some(Self((0..numbers.div_ceil(32)).map(|_| AtomicU32::new(0)).collect()))
    }

    #[inline]
    fn has(&self, bucket: u32) -> bool {
        self.0[bucket as usize / 32].load(Ordering::Relaxed) & 1 << (bucket % 32) != 0
    }

    fn mark(&self, bucket: u32) {
        if !self.has(bucket) {
            self.0[bucket as usize / 32].fetch_or(1 << (bucket % 32), Ordering::Relaxed);
        }
    }

    fn unmark(&self, bucket: u32) {
        self.0[bucket as usize / 32].fetch_and(!(1 << (bucket % 32)), Ordering::Relaxed);
    }
}

impl Pool {
    /// Returns whether buckets can be lent.
    pub(crate) fn lends(&self) -> bool {
        self.core.lent.is_some()
    }

    /// Returns whether the memory of a bucket is lent, so that it must never change again.
    #[inline]
    pub(crate) fn is_lent(&self, bucket: u32) -> bool {
        self.core.is_lent(bucket)
    }

    /// Lends the buckets that contain `bytes`, which the caller can see; returns false if they are
    /// not in buckets of this pool, or if buckets cannot be lent.
    pub(crate) fn lend(&self, bytes: &[u8]) -> bool {
        let (Some(lent), Some(buckets)) = (&self.core.lent, self.core.buckets_of(bytes)) else {
            return false;
        };
        buckets.for_each(|bucket| lent.mark(bucket));
        true
    }

    /// Returns whether these bytes, which the caller can see, are in lent buckets.
    #[inline]
    pub(crate) fn has_lent(&self, bytes: &[u8]) -> bool {
        let Some(lent) = &self.core.lent else { return false };
        self.core.buckets_of(bytes).is_some_and(|mut buckets| buckets.all(|bucket| lent.has(bucket)))
    }
}

impl Core {
    #[inline]
    pub(super) fn is_lent(&self, bucket: u32) -> bool {
        self.lent.as_ref().is_some_and(|lent| lent.has(bucket))
    }

    /// Records that the memory of a bucket is no longer the memory that was lent.
    pub(super) fn unmark(&self, bucket: u32) {
        if let Some(lent) = &self.lent {
            lent.unmark(bucket);
        }
    }

    /// Returns the buckets that contain these bytes, which a segment has; `None` if they are
    /// elsewhere.
    #[inline]
    pub(super) fn buckets_of(&self, bytes: &[u8]) -> Option<Range<u32>> {
        let start = bytes.as_ptr().addr().checked_sub(self.arena.at(0).addr())?;
        let end = start.checked_add(bytes.len()).filter(|end| *end <= self.metas.len() * BUCKET)?;
        (!bytes.is_empty()).then_some((start / BUCKET) as u32..end.div_ceil(BUCKET) as u32)
    }
}

impl Reserved<'_> {
    /// Gives new memory to all lent buckets in the reservation. Buckets for which the system
    /// refuses are never used again.
    #[cold]
    pub(super) fn renew(&mut self) {
        let core = &self.pool.core;
        let mut numbers = Vec::with_capacity(self.count() as usize);
        let mut others = Vec::new();
        while let Some(bucket) = self.pop() {
            if core.is_lent(bucket) { numbers.push(bucket) } else { others.push(bucket) }
        }
        // Put the others back in their original order.
        others.into_iter().rev().for_each(|bucket| self.put(bucket));
        // Adjacent buckets are discarded in a single call.
        numbers.sort_unstable();
        for run in numbers.chunk_by(|one, next| one + 1 == *next).rev() {
            let is_renewed = core.discard(run).is_ok();
            for bucket in run.iter().rev() {
                if is_renewed {
                    core.unmark(*bucket);
                    self.put(*bucket);
                } else {
                    self.pool.meta(*bucket).refs.store(REFS_STUCK - 512, Ordering::Relaxed);
                }
            }
        }
    }
}

//! Buckets whose memory is lent to the kernel: it may refer to it for longer than any segment does.
//!
//! A page that was spliced into a socket is sent from where it is, and nothing tells when the network, or a receiver on the same
//! machine, has done with it. So the bytes of a lent bucket never change again, whatever becomes of the bucket: while it is in
//! use it is treated as one that a reader sees, and before it is used anew its page goes back to the system. The mapping
//! has a new page then, and the kernel keeps the old one for as long as it needs it.
//!
//! A mark is set by a party that holds a count of the bucket, and is taken away by the one that alone has it, so the counts
//! order both.

use super::{BUCKET, Core, Pool, REFS_STUCK, Reserved};
use crate::arena::Arena;
use crate::sync::{AtomicU32, Ordering};

/// Which buckets are lent: a bit for each number.
pub(super) struct Lent(Box<[AtomicU32]>);

impl Lent {
    /// Returns marks for so many numbers; `None` if the system does not take single pages of this memory back.
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

    /// Returns whether the memory of a bucket is lent, so that it never changes again.
    #[inline]
    pub(crate) fn is_lent(&self, bucket: u32) -> bool {
        self.core.is_lent(bucket)
    }

    /// Lends the bucket in which bytes lie that the caller can see; returns false if they are not bytes of one bucket, or if
    /// buckets cannot be lent.
    pub(crate) fn lend(&self, bytes: &[u8]) -> bool {
        let (Some(lent), Some(bucket)) = (&self.core.lent, self.core.bucket_of(bytes)) else { return false };
        lent.mark(bucket);
        true
    }

    /// Returns whether these bytes, which the caller can see, lie in a bucket that is lent.
    #[inline]
    pub(crate) fn has_lent(&self, bytes: &[u8]) -> bool {
        self.core.bucket_of(bytes).is_some_and(|bucket| self.core.is_lent(bucket))
    }
}

impl Core {
    #[inline]
    pub(super) fn is_lent(&self, bucket: u32) -> bool {
        self.lent.as_ref().is_some_and(|lent| lent.has(bucket))
    }

    /// States that the memory of a bucket is another one than that which was lent.
    pub(super) fn unmark(&self, bucket: u32) {
        if let Some(lent) = &self.lent {
            lent.unmark(bucket);
        }
    }

    /// Returns the bucket in which these bytes lie; `None` if they are elsewhere, or in more than one.
    #[inline]
    fn bucket_of(&self, bytes: &[u8]) -> Option<u32> {
        let offset = bytes.as_ptr().addr().checked_sub(self.arena.at(0).addr())?;
        let is_within = offset < self.metas.len() * BUCKET && offset % BUCKET + bytes.len() <= BUCKET;
        // Regions follow each other in the order of their numbers, so a bucket's number is its place.
        (is_within && !bytes.is_empty()).then_some((offset / BUCKET) as u32)
    }
}

impl Reserved<'_> {
    /// Gives all of these buckets that are lent new memory. Those for which the system refuses that are never used again.
    #[cold]
    pub(super) fn renew(&mut self) {
        let core = &self.pool.core;
        let mut numbers = Vec::with_capacity(self.count() as usize);
        let mut others = Vec::new();
        while let Some(bucket) = self.pop() {
            if core.is_lent(bucket) { numbers.push(bucket) } else { others.push(bucket) }
        }
        // In the order in which they were.
        others.into_iter().rev().for_each(|bucket| self.put(bucket));
        // Neighbours go in one call.
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

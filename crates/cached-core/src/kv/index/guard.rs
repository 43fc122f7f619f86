//! References to a hash bucket, and its lock.

use super::bucket::{Bucket, SLOTS};
use super::shard::Shard;
use crate::KeyHash;
use crate::kv::lock_ranks;
use crate::sync::Ordering;

/// The hash bucket to which a hash belongs until the bucket is split: located once, prefetched
/// early, locked later.
#[derive(Clone, Copy)]
pub(crate) struct BucketRef<'a> {
    shard: &'a Shard,
    bucket: &'a Bucket,
    /// The shard's extent at the time when `bucket` was located.
    extent: u64,
}

impl<'a> BucketRef<'a> {
    #[inline]
    pub(super) fn new(shard: &'a Shard, bucket: &'a Bucket, extent: u64) -> BucketRef<'a> {
        BucketRef { shard, bucket, extent }
    }

    /// Returns the hash bucket, for reading its first line.
    #[inline]
    pub(super) fn hint(self) -> BucketHint<'a> {
        BucketHint(self.bucket)
    }

    /// Prefetches the hash bucket's line.
    #[inline]
    pub(crate) fn prefetch(&self) {
        crate::arena::prefetch(std::ptr::from_ref(self.bucket));
    }

    /// Locks the hash bucket to which `hash` belongs.
    #[inline(always)]
    pub(crate) fn lock(&self, hash: KeyHash) -> BucketGuard<'a> {
        let BucketRef { shard, bucket, extent } = *self;
        let lock = BucketLock::lock(bucket);
        // Splitting a hash bucket needs its lock, so the location is final while the lock is held.
        if shard.extent.load(Ordering::Acquire) == extent {
            return BucketGuard { shard, lock };
        }
        lock_again(shard, hash, lock)
    }
}

/// Locks the hash bucket to which `hash` belongs, if the table has grown since it was located.
#[cold]
fn lock_again<'a>(shard: &'a Shard, hash: KeyHash, mut lock: BucketLock<'a>) -> BucketGuard<'a> {
    loop {
        let bucket = shard.locate(hash).bucket;
        if std::ptr::eq(bucket, lock.bucket) {
            return BucketGuard { shard, lock };
        }
        drop(lock);
        lock = BucketLock::lock(bucket);
    }
}

/// The hash bucket to which a hash belonged recently. An item found in it after locking is the
/// right one; an item that is not found may have moved in a split.
#[derive(Clone, Copy)]
pub(crate) struct BucketHint<'a>(&'a Bucket);

impl<'a> BucketHint<'a> {
    /// Prefetches the hash bucket's line.
    #[inline]
    pub(crate) fn prefetch(self) {
        crate::arena::prefetch(std::ptr::from_ref(self.0));
    }

    /// Guesses the item's slot and location without the lock. It serves for a prefetch, and tells
    /// [`BucketLock::location`] where to look first.
    #[inline]
    pub(crate) fn peek(self, hash: KeyHash) -> Option<(usize, u32)> {
        // The first slot with the tag is tried. In one of forty cases it is empty or belongs to
        // another key.
        let slot = self.0.matches(hash.tag()).next()?;
        Some((slot, self.0.location(slot)))
    }

    /// Locks the hash bucket.
    #[inline]
    pub(crate) fn lock(self) -> BucketLock<'a> {
        BucketLock::lock(self.0)
    }
}

/// The lock of a hash bucket, with which a thread may read and change the items to which the bucket
/// refers.
pub(crate) struct BucketLock<'a> {
    bucket: &'a Bucket,
    /// The lock's entry in the thread's lock order; dropped after the lock has been released.
    _order: crate::lock_order::Held,
}

impl<'a> BucketLock<'a> {
    /// Locks a hash bucket.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn lock(bucket: &'a Bucket) -> BucketLock<'a> {
        let _order = lock_ranks::BUCKET.enter();
        bucket.lock();
        BucketLock { bucket, _order }
    }

    /// Returns the location of the item in a slot of the first line, if there is one, regardless of
    /// its key.
    #[inline]
    pub(crate) fn location(&self, slot: usize) -> Option<u32> {
        let location = self.bucket.location_or_none(slot);
        (location != 0).then_some(location)
    }
}

impl Drop for BucketLock<'_> {
    #[inline]
    fn drop(&mut self) {
        self.bucket.unlock();
    }
}

/// The locked hash bucket to which a hash belongs. An item that is not found in it does not exist.
pub(crate) struct BucketGuard<'a> {
    shard: &'a Shard,
    lock: BucketLock<'a>,
}

/// A slot found in a locked hash bucket.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    line: &'a Bucket,
    slot: usize,
}

impl Slot<'_> {
    /// Records that the item has moved. The caller holds the hash bucket's lock.
    pub(crate) fn set_location(&self, location: u32) {
        self.line.set_location(self.slot, location);
    }
}

impl<'a> BucketGuard<'a> {
    /// Locks a hash bucket of the shard.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn lock(shard: &'a Shard, bucket: &'a Bucket) -> BucketGuard<'a> {
        BucketGuard { shard, lock: BucketLock::lock(bucket) }
    }

    pub(crate) fn shard(&self) -> &'a Shard {
        self.shard
    }

    /// Keeps only the lock, without the hash bucket's shard.
    #[inline]
    pub(crate) fn into_lock(self) -> BucketLock<'a> {
        self.lock
    }

    #[inline]
    pub(super) fn bucket(&self) -> &'a Bucket {
        self.lock.bucket
    }

    /// Returns the slot with the hash's tag and a location for which `is_it` returns true.
    pub(crate) fn find(&self, hash: KeyHash, mut is_it: impl FnMut(u32) -> bool) -> Option<Slot<'a>> {
        self.find_map(hash, |location| is_it(location).then_some(())).map(|(slot, ())| slot)
    }

    /// Returns the slot with the hash's tag and a location for which `find` returns a value.
    #[inline(always)]
    pub(crate) fn find_map<T>(
        &self,
        hash: KeyHash,
        mut find: impl FnMut(u32) -> Option<T>,
    ) -> Option<(Slot<'a>, T)> {
        let mut line = self.bucket();
        loop {
            for slot in line.matches(hash.tag()) {
                let location = line.location(slot);
                if location != 0
                    && let Some(found) = find(location)
                {
                    return Some((Slot { line, slot }, found));
                }
            }
            match line.link() {
                0 => return None,
                link => line = self.shard.line(link),
            }
        }
    }

    /// Adds an item. Returns false if the shard has no space left.
    #[must_use]
    pub(crate) fn insert(&self, hash: KeyHash, location: u32, entry_bytes: u64) -> bool {
        debug_assert_ne!(location, 0);
        let mut line = self.bucket();
        let slot = loop {
            if let Some(slot) = line.empty_slot() {
                break slot;
            }
            match line.link() {
                0 => {
                    let Some(link) = self.shard.take_line() else { return false };
                    line.set_link(link);
                    line = self.shard.line(link);
                }
                link => line = self.shard.line(link),
            }
        };
        line.set(slot, hash.tag(), location);
        self.shard.counters.items.fetch_add(1, Ordering::Relaxed);
        self.shard.adjust_bytes(entry_bytes, 0);
        true
    }

    /// Removes an item, and fills its slot from the chain's last line so that the chain stays
    /// short.
    pub(crate) fn remove(&self, slot: Slot<'a>, entry_bytes: u64) {
        slot.line.set_location(slot.slot, 0);
        self.shard.counters.items.fetch_sub(1, Ordering::Relaxed);
        self.shard.adjust_bytes(0, entry_bytes);
        if self.bucket().link() != 0 {
            self.compact();
        }
    }

    /// Moves items of the last line into empty slots of earlier ones, and frees empty lines.
    pub(super) fn compact(&self) {
        while self.bucket().link() != 0 {
            let (mut before, mut last) = (self.bucket(), self.shard.line(self.bucket().link()));
            let mut hole = before.empty_slot().map(|slot| (before, slot));
            while last.link() != 0 {
                hole = hole.or_else(|| last.empty_slot().map(|slot| (last, slot)));
                (before, last) = (last, self.shard.line(last.link()));
            }
            match ((0..SLOTS).find(|&slot| last.location(slot) != 0), hole) {
                (None, _) => {
                    let link = before.link();
                    before.set_link(0);
                    self.shard.give_line(link);
                }
                (Some(slot), Some((into, hole))) => {
                    into.set(hole, last.tag(slot), last.location(slot));
                    last.set_location(slot, 0);
                }
                (Some(_), None) => return,
            }
        }
    }

    pub(super) fn for_each_slot(&self, mut each: impl FnMut(&'a Bucket, usize)) {
        let mut line = self.bucket();
        loop {
            for slot in 0..SLOTS {
                if line.location(slot) != 0 {
                    each(line, slot);
                }
            }
            match line.link() {
                0 => return,
                link => line = self.shard.line(link),
            }
        }
    }

    /// Calls `each` with every location in this hash bucket.
    pub(crate) fn for_each(&self, mut each: impl FnMut(u32)) {
        self.for_each_slot(|line, slot| each(line.location(slot)));
    }
}

//! One shard: a linear-hashing table with a lock per hash bucket.
//!
//! The table has `(base << level) + split` hash buckets. A hash belongs to number `hash mod
//! base·2^level` or, if that is below `split`, to `hash mod base·2^(level+1)`: the hash buckets
//! below `split` have already been split in this round. An insertion that raises the mean load
//! above the target splits the hash bucket at `split` and increments `split`. A split holds the
//! lock of only that hash bucket; a reader that waited for the lock then checks that its hash still
//! belongs there.
//!
//! Lock order: the growth lock, then a hash bucket, then the overflow pool.

use super::bucket::{Bucket, Buckets, SLOTS};
use super::guard::{BucketGuard, BucketHint, BucketRef};
use crate::KeyHash;
use crate::arena::Superblock;
use crate::kv::lock_ranks;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock, try_lock};

/// The load, in items per hash bucket, above which a shard grows. At 10, the index occupies 7.7–8.3
/// bytes per item, and a look-up reads 1.25 lines on average (with 12 slots per line, and including
/// the unevenness of linear hashing).
const ITEMS_PER_BUCKET: u64 = 10;
/// The number of CAS values that are recorded as used at a time.
const CAS_VALUES_AHEAD: u64 = 1 << 20;
/// The number of hash buckets of an empty shard.
pub(super) const BUCKETS_INITIAL: u32 = 16;

/// The table.
#[repr(align(128))]
pub(crate) struct Shard {
    /// `(2 · base · 2^level − 1) << 32 | split`; the upper half is the mask for hash buckets that
    /// have been split. A thread writes it only while it holds `growing`.
    pub(super) extent: AtomicU64,
    buckets: Buckets,
    overflow: Buckets,
    buckets_max: u32,
    overflow_max: u32,
    growing: Mutex<()>,
    overflow_pool: Mutex<OverflowPool>,
    /// The number of shards. Each shard assigns CAS values that are congruent to its number modulo
    /// this one.
    cas_step: u64,
    /// Stores the upper bound of used CAS values for a later process, if the memory outlives this
    /// process.
    superblock: Option<Arc<Superblock>>,
    pub(super) counters: Counters,
}

/// Counters of changes, on a separate cache line that look-ups do not read.
#[repr(align(128))]
pub(super) struct Counters {
    pub(super) items: AtomicU64,
    bytes: AtomicU64,
    stored: AtomicU64,
    /// The next CAS value.
    cas: AtomicU64,
    /// The recorded bound. A later process may use the values from here on.
    cas_bound: AtomicU64,
    /// Flushed items that have not been removed yet, and their bytes.
    flushed_items: AtomicU64,
    flushed_bytes: AtomicU64,
}

struct OverflowPool {
    free: Vec<u32>,
    /// Lines from this index on have never been used.
    unused: u32,
}

/// The extent of an empty table.
const EXTENT_INITIAL: u64 = (BUCKETS_INITIAL as u64 * 2 - 1) << 32;

/// Returns the number of hash buckets at the start of this round.
fn round_of(extent: u64) -> u32 {
    (extent >> 33) as u32 + 1
}

/// Returns the number of hash buckets.
fn bucket_count(extent: u64) -> u64 {
    u64::from(round_of(extent)) + u64::from(extent as u32)
}

/// Returns the number of the hash bucket to which a hash belongs.
#[inline]
fn address(extent: u64, hash: KeyHash) -> u32 {
    let wide = hash.low() & (extent >> 32) as u32;
    let narrow = wide & (extent >> 33) as u32;
    if narrow >= extent as u32 { narrow } else { wide }
}

impl Shard {
    /// Creates an empty shard, number `number` of `shards`.
    pub(super) fn new(items_max: u64, number: u64, shards: u64) -> std::io::Result<Shard> {
        let buckets_max = (items_max.div_ceil(ITEMS_PER_BUCKET) as u32).max(BUCKETS_INITIAL) + 1;
        // At the target load, less than a third of the hash buckets have a second line. Half of
        // them is ample, and a shard that has used all its hash buckets can still add lines.
        let overflow_max = buckets_max / 2 + 64;
        Ok(Shard {
            extent: AtomicU64::new(EXTENT_INITIAL),
            buckets: Buckets::reserve(buckets_max)?,
            overflow: Buckets::reserve(overflow_max)?,
            buckets_max,
            overflow_max,
            growing: Mutex::ranked((), &lock_ranks::GROWTH),
            overflow_pool: Mutex::ranked(OverflowPool { free: Vec::new(), unused: 0 }, &lock_ranks::OVERFLOW),
            cas_step: shards,
            superblock: None,
            counters: Counters {
                items: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                stored: AtomicU64::new(0),
                cas: AtomicU64::new(shards + number),
                cas_bound: AtomicU64::new(u64::MAX),
                flushed_items: AtomicU64::new(0),
                flushed_bytes: AtomicU64::new(0),
            },
        })
    }

    pub(super) fn bytes_max(&self) -> usize {
        (self.buckets_max as usize + self.overflow_max as usize) * size_of::<Bucket>()
    }

    pub(super) fn bytes(&self) -> usize {
        let lines = self.bucket_count() + u64::from(lock(&self.overflow_pool).unused);
        lines as usize * size_of::<Bucket>()
    }

    pub(crate) fn bucket_count(&self) -> u64 {
        bucket_count(self.extent.load(Ordering::Acquire))
    }

    /// Returns the number of items.
    pub(crate) fn items(&self) -> u64 {
        self.counters.items.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the items' entries, including the pieces of large values.
    pub(crate) fn item_bytes(&self) -> u64 {
        self.counters.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of flushed items that have not been removed yet, and their bytes.
    pub(crate) fn flushed(&self) -> (u64, u64) {
        let Counters { flushed_items, flushed_bytes, .. } = &self.counters;
        (flushed_items.load(Ordering::Relaxed), flushed_bytes.load(Ordering::Relaxed))
    }

    /// Records that all items have been flushed or, with `done`, that no flushed item remains.
    ///
    /// Before the second call, items stored while a flush sets its boundary may be counted on the
    /// wrong side.
    pub(crate) fn count_flushed(&self, done: bool) {
        let (items, bytes) = if done { (0, 0) } else { (self.items(), self.item_bytes()) };
        self.counters.flushed_items.store(items, Ordering::Relaxed);
        self.counters.flushed_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Records that a flushed item has been removed.
    pub(crate) fn flushed_item_gone(&self, bytes: u64) {
        let take = |counter: &AtomicU64, amount| {
            let less = |left: u64| Some(left.saturating_sub(amount));
            // The closure always returns a value, so the update cannot fail.
            let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        };
        take(&self.counters.flushed_items, 1);
        take(&self.counters.flushed_bytes, bytes);
    }

    /// Returns the number of items ever stored.
    pub(crate) fn stored(&self) -> u64 {
        self.counters.stored.load(Ordering::Relaxed)
    }

    /// Returns a new CAS value: higher than all earlier ones of the shard, never 0, and unique among all
    /// shards.
    pub(crate) fn next_cas(&self) -> u64 {
        let cas = self.counters.cas.fetch_add(self.cas_step, Ordering::Relaxed);
        if cas >= self.counters.cas_bound.load(Ordering::Relaxed) {
            self.raise_cas_bound(cas);
        }
        cas
    }

    /// Records for a later process that values up to a bound above `cas` may have been used.
    #[cold]
    fn raise_cas_bound(&self, cas: u64) {
        let Some(superblock) = &self.superblock else { return };
        let bound = cas.saturating_add(CAS_VALUES_AHEAD.saturating_mul(self.cas_step));
        superblock.notes().raise_cas_bound(bound);
        self.counters.cas_bound.fetch_max(bound, Ordering::Relaxed);
    }

    /// From now on, assigns only CAS values that no earlier process has assigned, and records the
    /// used values for later processes. This must be called before the first value is assigned.
    pub(super) fn persist_cas(&mut self, superblock: &Arc<Superblock>) {
        let first = self.counters.cas.load(Ordering::Relaxed);
        let earlier = superblock.notes().cas_bound().saturating_sub(first).div_ceil(self.cas_step);
        let first = first.saturating_add(earlier.saturating_mul(self.cas_step));
        self.counters.cas.store(first, Ordering::Relaxed);
        self.counters.cas_bound.store(first, Ordering::Relaxed);
        self.superblock = Some(superblock.clone());
    }

    /// From now on, assigns only CAS values above `at_least`. A value that no counter can have
    /// reached is treated as half of the range.
    pub(crate) fn raise_cas(&self, at_least: u64) {
        let at_least = at_least.min(u64::MAX / 2);
        let raised = |next: u64| {
            let steps = at_least.checked_sub(next)? / self.cas_step + 1;
            Some(next + steps * self.cas_step)
        };
        // Nothing changes if the next value is above already.
        if self.counters.cas.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raised).is_ok() {
            // Imported items have values up to `at_least`, also if this process never assigns another.
            self.raise_cas_bound(at_least);
        }
    }

    /// Returns the next CAS value.
    pub(super) fn cas_ahead(&self) -> u64 {
        self.counters.cas.load(Ordering::Relaxed)
    }

    /// Creates hash buckets for this many items in an empty shard.
    pub(super) fn reserve(&self, items: u64) {
        debug_assert_eq!(self.items(), 0);
        let (least, most) = (u64::from(BUCKETS_INITIAL), u64::from(self.buckets_max));
        let count = items.div_ceil(ITEMS_PER_BUCKET).clamp(least, most);
        let round = least << (count / least).ilog2();
        self.extent.store(((2 * round - 1) << 32) | (count - round), Ordering::Release);
    }

    /// Counts a stored item.
    pub(crate) fn count_stored(&self) {
        self.counters.stored.fetch_add(1, Ordering::Relaxed);
    }

    /// Adjusts the bytes after an item is replaced or part of it has moved.
    pub(crate) fn adjust_bytes(&self, added: u64, removed: u64) {
        self.counters.bytes.fetch_add(added.wrapping_sub(removed), Ordering::Relaxed);
    }

    #[inline]
    fn bucket(&self, index: u32) -> &Bucket {
        self.buckets.get(index)
    }

    /// Returns a line of the overflow area, by its link.
    #[inline]
    pub(super) fn line(&self, link: u32) -> &Bucket {
        debug_assert!(link != 0);
        self.overflow.get(link - 1)
    }

    /// Returns the hash bucket to which `hash` belongs at present.
    #[inline]
    pub(crate) fn locate(&self, hash: KeyHash) -> BucketRef<'_> {
        let extent = self.extent.load(Ordering::Acquire);
        BucketRef::new(self, self.bucket(address(extent, hash)), extent)
    }

    /// Returns the hash bucket to which `hash` belongs at present, for reading its first line.
    #[inline]
    pub(crate) fn hint(&self, hash: KeyHash) -> BucketHint<'_> {
        self.locate(hash).hint()
    }

    /// Locks the hash bucket to which `hash` belongs.
    #[inline]
    pub(crate) fn lock(&self, hash: KeyHash) -> BucketGuard<'_> {
        self.locate(hash).lock(hash)
    }

    /// Locks the hash bucket at an index, for a walk over all hash buckets; `None` beyond the last
    /// one.
    pub(crate) fn lock_bucket(&self, index: u64) -> Option<BucketGuard<'_>> {
        (index < self.bucket_count()).then(|| BucketGuard::lock(self, self.bucket(index as u32)))
    }

    /// Splits one hash bucket if the shard's load is above the target. `rehash` returns the hash of
    /// the item at a location; it is called while the item's hash bucket is locked.
    pub(crate) fn grow(&self, rehash: impl Fn(u32) -> KeyHash) {
        let count = self.bucket_count();
        if self.items() <= count * ITEMS_PER_BUCKET || count >= u64::from(self.buckets_max) {
            return;
        }
        // If another thread is already splitting a hash bucket, this thread need not wait for it,
        // because the target is only a mean.
        let Some(_growing) = try_lock(&self.growing) else { return };
        let extent = self.extent.load(Ordering::Acquire);
        let count = bucket_count(extent);
        if count >= u64::from(self.buckets_max) {
            return;
        }
        let split = extent as u32;
        let new = count as u32;
        let old = BucketGuard::lock(self, self.bucket(split));
        let round = round_of(extent);
        let moved_bit = round;
        // No thread can reach the new hash bucket before `extent` is written below, so it need not
        // be locked.
        let fresh = self.bucket(new);
        let mut tail = fresh;
        let mut filled = 0;
        let mut complete = true;
        old.for_each_slot(|line, slot| {
            let location = line.location(slot);
            if !complete || rehash(location).low() & moved_bit == 0 {
                return;
            }
            if filled == SLOTS {
                match self.take_line() {
                    Some(link) => {
                        tail.set_link(link);
                        tail = self.line(link);
                        filled = 0;
                    }
                    None => {
                        complete = false;
                        return;
                    }
                }
            }
            tail.set(filled, line.tag(slot), location);
            filled += 1;
        });
        if !complete {
            // No line is left for the new chain. This undoes the split, and leaves the table as it
            // was.
            self.clear_chain(fresh);
            return;
        }
        old.for_each_slot(|line, slot| {
            if rehash(line.location(slot)).low() & moved_bit != 0 {
                line.set_location(slot, 0);
            }
        });
        old.compact();
        let next = if split + 1 == round { (u64::from(round) * 4 - 1) << 32 } else { extent + 1 };
        self.extent.store(next, Ordering::Release);
    }

    fn clear_chain(&self, bucket: &Bucket) {
        let mut link = bucket.link();
        bucket.set_link(0);
        for slot in 0..SLOTS {
            bucket.set_location(slot, 0);
        }
        while link != 0 {
            let line = self.line(link);
            let next = line.link();
            self.give_line(link);
            link = next;
        }
    }

    pub(super) fn take_line(&self) -> Option<u32> {
        let mut pool = lock(&self.overflow_pool);
        if let Some(link) = pool.free.pop() {
            return Some(link);
        }
        if pool.unused == self.overflow_max {
            return None;
        }
        pool.unused += 1;
        Some(pool.unused)
    }

    pub(super) fn give_line(&self, link: u32) {
        let line = self.line(link);
        line.set_link(0);
        for slot in 0..SLOTS {
            line.set_location(slot, 0);
        }
        lock(&self.overflow_pool).free.push(link);
    }

    // Checks that tests make.

    /// Checks counters and chains, and calls `each` with the hash bucket and the location of every
    /// item. No other thread may use the shard.
    pub(crate) fn validate(&self, mut each: impl FnMut(u64, u32)) {
        let mut items = 0;
        let mut lines = 0;
        for index in 0..self.bucket_count() {
            let locked = self.lock_bucket(index).expect("below the count");
            locked.for_each(|location| {
                items += 1;
                each(index, location);
            });
            let mut link = locked.bucket().link();
            while link != 0 {
                lines += 1;
                assert!(!self.line(link).is_empty(), "an empty overflow line is left in a chain");
                link = self.line(link).link();
            }
        }
        assert_eq!(items, self.items(), "items counted and found");
        let pool = lock(&self.overflow_pool);
        assert_eq!(lines + pool.free.len(), pool.unused as usize, "overflow lines used and free");
    }

    /// Returns whether `hash` belongs to hash bucket `index`.
    pub(crate) fn belongs(&self, index: u64, hash: KeyHash) -> bool {
        u64::from(address(self.extent.load(Ordering::Acquire), hash)) == index
    }
}

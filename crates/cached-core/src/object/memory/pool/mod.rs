//! The bucket pool: buckets of 4 KiB in the arena's regions, their reference counts, and the free
//! ones.
//!
//! ```text
//!  region   ┌────────┬──────────┬──────────┬─ ─ ─┐   the header keeps the first bucket's place
//!           │ header │ bucket 0 │ bucket 1 │     │
//!           └────────┴──────────┴──────────┴─ ─ ─┘
//!  beside   20 bytes for each bucket: [`Meta`]
//! ```
//! A bucket's number has the region in its upper bits and the place within it in the lower ones, so
//! that no hit needs a division; the numbers of headers are not used for buckets.
//!
//! A bucket is *free*, *reserved* (for a job that has not begun) or *in use*, with a count of its
//! references: slots of objects, segments held by callers, flushes. A bucket is written only while
//! a single slot refers to it, in that object's exclusive section; so bytes that a reader can see
//! never change. A job reserves buckets, then enters the section, then uses or returns them: no job
//! waits for a bucket while it holds others.
//!
//! The memory may have a range in which its size changes while the pool is used (`present.rs`):
//! then some buckets are *absent*, that is, unused and without memory. Memory may also be *lent* to
//! the kernel (`held.rs`).
//!
//! Free buckets form stacks linked through `Meta::next`, one per group of threads, so that the most
//! recently used bucket is reused first; buckets never used are taken in the order of their
//! addresses.

mod held;
mod meta;
mod present;
mod run;

use blocker::{BUCKET_BYTES, Segment, SegmentOwner};

use super::slots::BUCKETS_MAX;
use crate::arena::{
    Arena, ArenaConfig, ArenaError, Owner, REGION_BYTES_MAX, REGION_BYTES_MIN, RegionHeader, RegionId, Table,
};
use crate::object::lock_ranks;
use crate::object::tasks::wait_queue::WaitQueue;
use crate::sync::{Arc, AtomicU32, Mutex, Ordering, lock, thread_number};

use held::Lent;
pub(crate) use held::{Detached, Reserved};
pub(crate) use meta::Meta;
use meta::RECEIVING;
use present::Fresh;
pub(crate) use present::PoolMemory;
pub(crate) use run::Run;
use run::buckets_of;

/// Bytes of one bucket.
pub(crate) const BUCKET: usize = BUCKET_BYTES as usize;

const STRIPES: usize = 8;
/// The number of groups of threads, of which each usually has one thread.
const OWNERS: usize = 64;
/// The numbers of fresh buckets whose memory is obtained together. Very few cost no less that way, and
/// a caller that takes very many fills them only later.
const POPULATED: std::ops::RangeInclusive<u32> = 4..=1024;
/// From this reference count on, a reader gets a copy instead of another pin.
const PINS_MAX: u16 = 0x8000;
/// A reference count that has reached this value never changes again, and the bucket is never
/// reused. This takes 2^15 clones of the same segment.
const REFS_STUCK: u16 = u16::MAX;

/// All buckets.
pub(crate) struct Pool {
    core: Arc<Core>,
    /// An owner for each group of threads: threads of different groups count their segments in
    /// different cache lines, and a thread finds its own line in its nearest cache.
    owners: [Arc<GroupOwner>; OWNERS],
}

struct Core {
    /// Memory whose regions are all taken, so that they are adjacent, in the order of their numbers.
    arena: Arena,
    /// In a separate mapping. Every hit accesses a random entry, so the mapping asks for huge pages,
    /// whatever the setting for the arena: it needs only a few.
    metas: Table<Meta>,
    /// The lent buckets; `None` if buckets are never lent.
    lent: Option<Lent>,
    /// The maximum and minimum number of buckets; `metas` has a few more entries.
    count_max: u32,
    count_min: u32,
    /// The number of buckets that are not absent.
    present: AtomicU32,
    /// The binary logarithm of the number of places in a region, including the header's place.
    region_shift: u32,
    stripes: [Stripe; STRIPES],
    /// The buckets that were never used, and those that are absent.
    fresh: Mutex<Fresh>,
    /// The number of free buckets, including those never used; absent buckets are not free.
    free: AtomicU32,
    /// The number of buckets of receive buffers and of payloads that no write has taken over yet.
    receiving: AtomicU32,
    /// The tasks that wait for buckets.
    waiters: WaitQueue,
}

#[repr(align(64))]
struct Stripe(Mutex<Stack>);

/// Free buckets, linked through `Meta::next`.
#[derive(Default)]
struct Stack {
    top: u32,
    count: u32,
}

/// Owns the segments that a group of threads makes of buckets.
#[repr(align(64))]
struct GroupOwner(Arc<Core>);

impl Pool {
    /// Creates a pool of the buckets that fit into the memory.
    ///
    /// # Errors
    /// The same as for [`Arena::new`].
    pub(crate) fn new(memory: PoolMemory) -> Result<Self, ArenaError> {
        let PoolMemory { huge_pages, .. } = memory;
        let bytes = usize::try_from(memory.bytes_max()).unwrap_or(usize::MAX);
        let wanted = (bytes / 16).max(1);
        let region_bytes = (1 << wanted.ilog2()).clamp(REGION_BYTES_MIN, REGION_BYTES_MAX);
        // The address space is rounded up; how much of it has memory is counted in buckets.
        let bytes = match memory.range {
            Some(_) => bytes.checked_next_multiple_of(region_bytes).unwrap_or(bytes),
            None => bytes,
        };
        let count = u32::try_from(bytes / region_bytes).unwrap_or(u32::MAX);
        let arena = Arena::new(ArenaConfig {
            bytes,
            region_bytes,
            kv_regions_max: 0,
            objects_regions_max: count,
            huge_pages,
        })?;
        let regions = (0_u32..).map_while(|number| {
            let region = arena.take(Owner::Objects, 0)?;
            debug_assert_eq!(region.0, number);
            Some(region)
        });
        let regions = regions.count() as u64;
        let region_shift = (region_bytes / BUCKET).trailing_zeros();
        // If the memory has more buckets than there are numbers, the rest remains unused.
        let numbers = (regions << region_shift).min(u64::from(BUCKETS_MAX)) as u32;
        let headers = numbers >> region_shift;
        let [count_min, present, count_max] = memory.counts(numbers - headers, headers);
        if memory.range.is_some() {
            arena.keep_pages_small();
        }
        let lent = if memory.lends { Lent::new(&arena, numbers) } else { None };
        let stripe = |_| Stripe(Mutex::ranked(Stack::default(), &lock_ranks::FREE_STACK));
        let core = Arc::new(Core {
            arena,
            metas: Table::new(numbers as usize, true).map_err(|source| ArenaError::Map { bytes, source })?,
            lent,
            count_max,
            count_min,
            present: AtomicU32::new(present),
            region_shift,
            stripes: std::array::from_fn(stripe),
            fresh: Mutex::ranked(Fresh::new(present), &lock_ranks::FRESH),
            free: AtomicU32::new(present),
            receiving: AtomicU32::new(0),
            waiters: WaitQueue::default(),
        });
        let owners = std::array::from_fn(|_| Arc::new(GroupOwner(Arc::clone(&core))));
        Ok(Self { core, owners })
    }

    /// Returns the current number of buckets.
    pub(crate) fn count(&self) -> u32 {
        self.core.present.load(Ordering::Relaxed)
    }

    /// Returns the maximum number of buckets.
    pub(crate) fn count_max(&self) -> u32 {
        self.core.count_max
    }

    /// Returns the minimum number of buckets, which determines the size of everything that must
    /// always fit.
    pub(crate) fn count_min(&self) -> u32 {
        self.core.count_min
    }

    /// Returns the number of free buckets; exact while no thread uses the pool.
    pub(crate) fn free(&self) -> u32 {
        self.core.free.load(Ordering::Relaxed)
    }

    /// Returns the queue of the tasks that wait for buckets.
    pub(crate) fn waiters(&self) -> &WaitQueue {
        &self.core.waiters
    }

    #[inline]
    pub(crate) fn meta(&self, bucket: u32) -> &Meta {
        &self.core.metas[bucket as usize]
    }

    /// Returns the first byte of a bucket.
    #[inline]
    pub(crate) fn at(&self, bucket: u32) -> *mut u8 {
        self.core.at(bucket)
    }

    /// Takes up to `count` free buckets.
    pub(crate) fn reserve_up_to(&self, count: u32) -> Reserved<'_> {
        let mut reserved = Reserved::none(self);
        let own = thread_number() % STRIPES;
        for each in 0..STRIPES {
            if reserved.count() == count {
                break;
            }
            let mut stack = lock(&self.core.stripes[(own + each) % STRIPES].0);
            while reserved.count() < count && stack.count > 0 {
                let top = stack.top;
                stack.top = self.meta(top - 1).next.load(Ordering::Relaxed);
                stack.count -= 1;
                reserved.put(top - 1);
            }
        }
        let (mut used, mut more) = (0, 0);
        if reserved.count() < count {
            let mut fresh = lock(&self.core.fresh);
            (used, more) = (fresh.used, (count - reserved.count()).min(fresh.end - fresh.used));
            // The last is put first, so that they are taken in the order of their addresses.
            (used..used + more).rev().for_each(|nth| reserved.put(self.core.number(nth)));
            self.core.write_headers(used, more);
            fresh.used += more;
        }
        self.core.free.fetch_sub(reserved.count(), Ordering::Relaxed);
        self.core.populate(used, more);
        reserved
    }

    /// Returns the number of buckets of receive buffers and of payloads that no write has taken over yet.
    pub(crate) fn receiving(&self) -> u32 {
        self.core.receiving.load(Ordering::Relaxed)
    }

    /// Returns the buckets of receive buffers and of payloads that no write has taken over yet, for
    /// [`crate::object::ObjectCache::validate`].
    #[inline]
    pub(crate) fn receiving_list(&self) -> Vec<u32> {
        let all = self.core.metas.iter().enumerate();
        // Numbers are below 2^29.
        all.filter(|(_, meta)| meta.is_receiving()).map(|(bucket, _)| bucket as u32).collect()
    }

    /// Counts `count` more buckets as used for receiving, unless the count would exceed `most`.
    pub(crate) fn reserve_receive(&self, count: u32, most: u32) -> bool {
        let claim = |receiving: u32| receiving.checked_add(count).filter(|receiving| *receiving <= most);
        self.core.receiving.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim).is_ok()
    }

    /// Takes back a count of [`Self::reserve_receive`] that was not used.
    pub(crate) fn unreserve_receive(&self, count: u32) {
        self.core.receiving.fetch_sub(count, Ordering::Relaxed);
    }

    /// Returns the bucket that a segment covers completely, if it is a bucket of this pool.
    pub(crate) fn whole_bucket(&self, segment: &Segment) -> Option<u32> {
        let bytes = segment.as_slice();
        let bucket = self.core.buckets_of(bytes)?.start;
        (bytes.len() == BUCKET && std::ptr::eq(bytes.as_ptr(), self.at(bucket))).then_some(bucket)
    }

    /// Adds a reference for a slot that takes over a bucket to which the caller's segment refers.
    /// Returns true if the bucket came from a receive buffer and no write has taken it over before.
    pub(crate) fn adopt(&self, bucket: u32) -> bool {
        self.core.retain(bucket);
        self.core.end_receiving(bucket)
    }

    /// Returns a segment of a whole received bucket; the segment takes over the caller's reference.
    pub(crate) fn received_segment(&self, bucket: u32) -> Segment {
        self.meta(bucket).set_valid(u8::MAX);
        self.segment(bucket.into(), 0..BUCKET)
    }

    /// Returns a segment of the bytes `range` of a token's buckets; the segment takes over the caller's
    /// reference to each.
    #[inline]
    fn segment(&self, token: u64, range: std::ops::Range<usize>) -> Segment {
        let owner = &self.owners[thread_number() % OWNERS];
        Segment::pinned(Arc::clone(owner) as _, token, range)
    }

    /// Adds a reference of another slot or flush.
    pub(crate) fn retain(&self, bucket: u32) {
        self.core.retain(bucket);
    }

    /// Drops a reference; the bucket is free if it was the last one.
    pub(crate) fn release(&self, bucket: u32) {
        self.core.release(bucket);
    }

    /// Returns a segment of the bytes `range` of a bucket; `None` if the bucket already has too
    /// many references.
    #[inline]
    pub(crate) fn pin(&self, bucket: u32, range: std::ops::Range<usize>) -> Option<Segment> {
        if self.meta(bucket).refs() >= PINS_MAX {
            return None;
        }
        self.core.retain(bucket);
        Some(self.segment(bucket.into(), range))
    }

    /// Returns the bytes of a bucket. The caller is in the exclusive section of an object that
    /// refers to the bucket, so no thread writes them.
    #[inline]
    pub(crate) fn bytes(&self, bucket: u32) -> &[u8] {
        self.core.bytes(bucket)
    }

    /// Returns the numbers of all buckets that were ever used.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let used = lock(&self.core.fresh).used;
        (0..used).map(|nth| self.core.number(nth))
    }

    /// Returns every bucket that is on a free stack or was never used, for
    /// [`crate::object::ObjectCache::validate`].
    #[inline]
    pub(crate) fn free_list(&self) -> Vec<u32> {
        let (used, end) = {
            let fresh = lock(&self.core.fresh);
            (fresh.used, fresh.end)
        };
        let mut free: Vec<u32> = (used..end).map(|nth| self.core.number(nth)).collect();
        for stripe in &self.core.stripes {
            let stack = lock(&stripe.0);
            let mut at = stack.top;
            for _ in 0..stack.count {
                free.push(at - 1);
                at = self.meta(at - 1).next.load(Ordering::Relaxed);
            }
        }
        free
    }
}

impl Core {
    /// Returns the number of the `nth` bucket, skipping headers, the first place of each region.
    fn number(&self, nth: u32) -> u32 {
        nth + nth / self.per_region() + 1
    }

    fn per_region(&self) -> u32 {
        (1 << self.region_shift) - 1
    }

    /// Returns the first byte of a bucket, whose number gives its position.
    #[inline]
    fn at(&self, bucket: u32) -> *mut u8 {
        self.arena.at(bucket as usize * BUCKET)
    }

    #[inline]
    fn bytes(&self, bucket: u32) -> &[u8] {
        self.bytes_of(bucket, 1)
    }

    /// Returns the bytes of `count` adjacent buckets.
    #[inline]
    fn bytes_of(&self, first: u32, count: usize) -> &[u8] {
        // SAFETY: the buckets lie completely within the arena, which lives as long as `self`, one
        // after another because their numbers are consecutive. Each is written only through `Reserved`
        // before any other thread knows it, or in its owner's exclusive section while only a single
        // slot refers to it; the caller holds a reference to it, or is in that section.
        unsafe { std::slice::from_raw_parts(self.at(first), count * BUCKET) }
    }

    /// Writes the headers of the regions that fresh buckets begin.
    fn write_headers(&self, fresh: u32, more: u32) {
        let first = fresh.div_ceil(self.per_region());
        for index in first..(fresh + more).div_ceil(self.per_region()) {
            let region = RegionId(index);
            let sequence = self.arena.region(region).sequence();
            let header = RegionHeader {
                owner: Owner::Objects as u8,
                granule_shift: BUCKET.trailing_zeros() as u8,
                sequence,
                opened_at: 0,
            };
            self.arena.write_header(region, &header);
        }
    }

    /// Obtains the memory of fresh buckets, which their holder is about to fill.
    fn populate(&self, fresh: u32, more: u32) {
        if POPULATED.contains(&more) {
            let (first, last) = (self.number(fresh), self.number(fresh + more - 1));
            self.arena.populate(first as usize * BUCKET, (last - first + 1) as usize * BUCKET);
        }
    }

    #[inline]
    fn retain(&self, bucket: u32) {
        let refs = &self.metas[bucket as usize].refs;
        if refs.fetch_add(1, Ordering::Relaxed) >= REFS_STUCK - 1024 {
            // This is rare, and far from wrapping around: a thousand threads would have to be here
            // at the same time.
            refs.store(REFS_STUCK - 512, Ordering::Relaxed);
        }
    }

    /// Removes a bucket from the count of receiving ones; returns whether it was counted.
    fn end_receiving(&self, bucket: u32) -> bool {
        let owner = &self.metas[bucket as usize].owner;
        let ended = owner.load(Ordering::Relaxed) == RECEIVING
            && owner.compare_exchange(RECEIVING, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if ended {
            self.receiving.fetch_sub(1, Ordering::Relaxed);
        }
        ended
    }

    #[inline]
    fn release(&self, bucket: u32) {
        if self.drop_count(bucket) {
            self.put_free(bucket, bucket, 1);
            self.waiters.notify();
        }
    }

    /// Drops a reference. Returns whether it was the last one: in this case the caller owns the
    /// bucket.
    #[inline]
    fn drop_count(&self, bucket: u32) -> bool {
        let meta = &self.metas[bucket as usize];
        if meta.refs.load(Ordering::Relaxed) >= REFS_STUCK - 1024 {
            return false;
        }
        // Release: this thread's reads complete before the bucket is rewritten. Acquire: the same
        // holds for all other threads.
        match meta.refs.fetch_sub(1, Ordering::AcqRel) {
            1 => {
                self.end_receiving(bucket);
                meta.set_owner(None);
                meta.set_valid(0);
                meta.set_dirty(0);
                true
            }
            // The bucket is no longer pinned, and can be evicted for a waiting task.
            2 => {
                self.waiters.notify();
                false
            }
            _ => false,
        }
    }

    /// Frees `count` buckets: those from `first` to `last`, linked through `Meta::next`.
    fn put_free(&self, first: u32, last: u32, count: u32) {
        let mut stack = lock(&self.stripes[thread_number() % STRIPES].0);
        self.metas[last as usize].next.store(stack.top, Ordering::Relaxed);
        stack.top = first + 1;
        stack.count += count;
        drop(stack);
        self.free.fetch_add(count, Ordering::SeqCst);
    }
}

impl SegmentOwner for GroupOwner {
    #[inline]
    fn bytes(&self, token: u64) -> &[u8] {
        let buckets = buckets_of(token);
        self.0.bytes_of(buckets.start, buckets.len())
    }
    fn retain(&self, token: u64) {
        buckets_of(token).for_each(|bucket| self.0.retain(bucket));
    }
    fn release(&self, token: u64) {
        buckets_of(token).for_each(|bucket| self.0.release(bucket));
    }
}

#[cfg(all(test, shuttle))]
mod shuttle_tests;
#[cfg(all(test, not(shuttle)))]
mod tests;

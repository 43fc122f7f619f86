//! The bucket pool: buckets of 4 KiB in the arena's regions, what refers to each, and which are free.
//!
//! ```text
//!  region   ┌────────┬──────────┬──────────┬─ ─ ─┐   the header keeps the first bucket's place
//!           │ header │ bucket 0 │ bucket 1 │     │
//!           └────────┴──────────┴──────────┴─ ─ ─┘
//!  beside   20 bytes for each bucket: [`Meta`]
//! ```
//! A bucket's number names its region in the upper bits and its place there in the lower ones, so that no hit
//! divides; the numbers that would be headers are no buckets.
//!
//! A bucket is *free*, *reserved* (taken for a job that has not begun) or *in use*, with a count of what
//! refers to it: slots of objects, segments in callers' hands, flushes. It is written only while one slot
//! alone refers to it, in that object's exclusive section; so bytes that a reader can see never change.
//! Reserve, then enter, then use or give back: no job waits for a bucket while it holds others.
//!
//! Free buckets form stacks through `Meta::next`, one per group of threads, so that the bucket used last is
//! used next; buckets never used are taken in order of address.

use std::cell::Cell;

use blocker::{BUCKET_BYTES, Segment, SegmentOwner};

use super::order;
use super::slots::BUCKETS_MAX;
use super::wait_queue::WaitQueue;
#[cfg(not(shuttle))]
use crate::arena::Memory;
use crate::arena::{Arena, ArenaConfig, ArenaError, Owner, REGION_BYTES_MAX, REGION_BYTES_MIN};
use crate::arena::{RegionHeader, RegionId};
use crate::sync::{Arc, AtomicU8, AtomicU16, AtomicU32, Mutex, Ordering, lock};

/// Bytes of one bucket.
pub(crate) const BUCKET: usize = BUCKET_BYTES as usize;
/// No bucket, and no object.
pub(crate) const NONE: u32 = u32::MAX;

const STRIPES: usize = 8;
/// In the place of an owner: the bucket belongs to a receive buffer or payload that no write has taken over
/// yet.
const RECEIVING: u32 = u32::MAX;
/// From this count on a reader gets a copy instead of one more pin.
const PINS_MAX: u16 = 0x8000;
/// A count that has come here stays: the bucket is never used again. That takes 2^15 clones of one segment.
const REFS_STUCK: u16 = u16::MAX;

/// What is kept beside each bucket. All zero: the bucket was never used.
#[derive(Default)]
pub(crate) struct Meta {
    /// The object, plus one, whose clean or dirty slot this bucket belongs to; 0: none.
    owner: AtomicU32,
    /// The neighbours in an eviction queue, plus one each; `next` also links free buckets.
    pub(super) next: AtomicU32,
    pub(super) prev: AtomicU32,
    /// The number of the owner's slot.
    slot: AtomicU16,
    /// The number of slots, segments and flushes that refer to it.
    refs: AtomicU16,
    /// The sectors whose bytes are meaningful, and those newer than the store.
    valid: AtomicU8,
    dirty: AtomicU8,
    /// The policy's bits.
    pub(super) bits: AtomicU8,
    /// Whether it is in a queue, and in which: see `queue.rs`. Guarded by the queue's lock.
    pub(super) place: AtomicU8,
}

#[cfg(not(shuttle))]
const _: () = assert!(size_of::<Meta>() == 20);

impl Meta {
    /// Returns the object and the slot that the bucket belongs to.
    pub(crate) fn owner(&self) -> Option<(u32, u32)> {
        let owner = self.owner.load(Ordering::Relaxed);
        let owner = if owner == RECEIVING { return None } else { owner.checked_sub(1)? };
        Some((owner, u32::from(self.slot.load(Ordering::Relaxed))))
    }

    pub(crate) fn set_owner(&self, owner: Option<(u32, u32)>) {
        let (object, slot) = owner.map_or((0, 0), |(object, slot)| (object + 1, slot));
        // A slot's number is below 2^16: `OBJECT_BYTES_LIMIT`.
        self.slot.store(slot as u16, Ordering::Relaxed);
        self.owner.store(object, Ordering::Relaxed);
    }

    /// Whether the bucket belongs to a receive buffer or payload that no write has taken over yet.
    pub(crate) fn is_receiving(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == RECEIVING
    }

    pub(crate) fn valid(&self) -> u8 {
        self.valid.load(Ordering::Relaxed)
    }
    pub(crate) fn set_valid(&self, mask: u8) {
        self.valid.store(mask, Ordering::Relaxed);
    }
    pub(crate) fn dirty(&self) -> u8 {
        self.dirty.load(Ordering::Relaxed)
    }
    pub(crate) fn set_dirty(&self, mask: u8) {
        self.dirty.store(mask, Ordering::Relaxed);
    }
    pub(crate) fn refs(&self) -> u16 {
        self.refs.load(Ordering::Acquire)
    }
}

/// All buckets.
pub(crate) struct Pool {
    core: Arc<Core>,
    /// One for each region, so that readers of different regions write to different cache lines.
    owners: Box<[Arc<RegionOwner>]>,
}

struct Core {
    arena: Arena,
    regions: Box<[RegionId]>,
    metas: Metas,
    /// The number of buckets; `metas` has a few more.
    count: u32,
    /// A region has this power of two places, its header's included.
    region_shift: u32,
    stripes: [Stripe; STRIPES],
    /// The number of buckets that were ever used.
    fresh: Mutex<u32>,
    /// The number of free buckets, those never used included.
    free: AtomicU32,
    /// The number of buckets of receive buffers and of payloads that no write has taken over yet.
    receiving: AtomicU32,
    /// The tasks that wait for buckets.
    waiters: WaitQueue,
}

/// One [`Meta`] for each number, in a mapping of its own that is touched as buckets are used. Every hit looks
/// one up at random, so huge pages are asked for, whatever the arena has: there are few pages of it.
#[cfg(not(shuttle))]
struct Metas {
    memory: Memory,
    count: usize,
}

#[cfg(not(shuttle))]
impl Metas {
    fn new(count: usize) -> std::io::Result<Self> {
        Ok(Self { memory: Memory::map(count * size_of::<Meta>(), true)?, count })
    }
}

#[cfg(not(shuttle))]
impl std::ops::Deref for Metas {
    type Target = [Meta];
    #[inline]
    fn deref(&self) -> &[Meta] {
        // SAFETY: the mapping is large enough, aligned to a page, lives as long as `self`, and was zeroed,
        // which is a valid `Meta`: it is made of atomic integers alone, and is touched in no other way.
        unsafe { std::slice::from_raw_parts(self.memory.base().cast(), self.count) }
    }
}

#[cfg(shuttle)]
struct Metas(Box<[Meta]>);

#[cfg(shuttle)]
impl Metas {
    fn new(count: usize) -> std::io::Result<Self> {
        Ok(Self((0..count).map(|_| Meta::default()).collect()))
    }
}

#[cfg(shuttle)]
impl std::ops::Deref for Metas {
    type Target = [Meta];
    fn deref(&self) -> &[Meta] {
        &self.0
    }
}

#[repr(align(64))]
struct Stripe(Mutex<Stack>);

/// Free buckets, linked through `Meta::next`.
#[derive(Default)]
struct Stack {
    top: u32,
    count: u32,
}

/// Hands out segments of one region's buckets.
struct RegionOwner(Arc<Core>);

impl Pool {
    /// Makes a pool of the buckets that `bytes` of memory hold.
    ///
    /// # Errors
    /// As [`Arena::new`].
    pub(crate) fn new(bytes: u64, huge_pages: bool) -> Result<Self, ArenaError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let wanted = (bytes / 16).max(1);
        let region_bytes = (1 << wanted.ilog2()).clamp(REGION_BYTES_MIN, REGION_BYTES_MAX);
        let count = u32::try_from(bytes / region_bytes).unwrap_or(u32::MAX);
        let arena = Arena::new(ArenaConfig {
            bytes,
            region_bytes,
            kv_regions_max: 0,
            objects_regions_max: count,
            huge_pages,
        })?;
        let regions: Box<[_]> = std::iter::from_fn(|| arena.take(Owner::Objects, 0)).collect();
        let region_shift = (region_bytes / BUCKET).trailing_zeros();
        // If the memory has more buckets than there are numbers, the rest is not used.
        let numbers = ((regions.len() as u64) << region_shift).min(u64::from(BUCKETS_MAX)) as u32;
        let count = numbers - (numbers >> region_shift);
        let core = Arc::new(Core {
            arena,
            metas: Metas::new(numbers as usize).map_err(|source| ArenaError::Map { bytes, source })?,
            count,
            region_shift,
            stripes: std::array::from_fn(|_| Stripe(Mutex::ranked(Stack::default(), &order::FREE_STACK))),
            fresh: Mutex::ranked(0, &order::FRESH),
            free: AtomicU32::new(count),
            receiving: AtomicU32::new(0),
            waiters: WaitQueue::default(),
            regions,
        });
        let owners = core.regions.iter().map(|_| Arc::new(RegionOwner(Arc::clone(&core)))).collect();
        Ok(Self { core, owners })
    }

    /// Returns the number of buckets.
    pub(crate) fn count(&self) -> u32 {
        self.core.count
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
        let mut reserved = Reserved { pool: self, top: 0, count: 0 };
        let own = stripe();
        for each in 0..STRIPES {
            if reserved.count == count {
                break;
            }
            let mut stack = lock(&self.core.stripes[(own + each) % STRIPES].0);
            while reserved.count < count && stack.count > 0 {
                let top = stack.top;
                stack.top = self.meta(top - 1).next.load(Ordering::Relaxed);
                stack.count -= 1;
                reserved.put(top - 1);
            }
        }
        if reserved.count < count {
            let mut fresh = lock(&self.core.fresh);
            let more = (count - reserved.count).min(self.count() - *fresh);
            // Put last first, so that they are taken in order of address.
            (*fresh..*fresh + more).rev().for_each(|nth| reserved.put(self.core.number(nth)));
            self.core.write_headers(*fresh, more);
            *fresh += more;
        }
        self.core.free.fetch_sub(reserved.count, Ordering::Relaxed);
        reserved
    }

    /// Returns the number of buckets of receive buffers and of payloads that no write has taken over yet.
    pub(crate) fn receiving(&self) -> u32 {
        self.core.receiving.load(Ordering::Relaxed)
    }

    /// Returns those buckets, for [`super::ObjectCache::validate`].
    pub(crate) fn receiving_list(&self) -> Vec<u32> {
        let all = self.core.metas.iter().enumerate();
        // Numbers are below 2^29.
        all.filter(|(_, meta)| meta.is_receiving()).map(|(bucket, _)| bucket as u32).collect()
    }

    /// Counts `count` more buckets as used for receiving, unless that makes more than `most`.
    pub(crate) fn reserve_receive(&self, count: u32, most: u32) -> bool {
        let claim = |receiving: u32| receiving.checked_add(count).filter(|receiving| *receiving <= most);
        self.core.receiving.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim).is_ok()
    }

    /// Takes back a count of [`Self::reserve_receive`] that was not used.
    pub(crate) fn unreserve_receive(&self, count: u32) {
        self.core.receiving.fetch_sub(count, Ordering::Relaxed);
    }

    /// Returns the bucket of which a segment is the whole, if it is one of this pool.
    pub(crate) fn whole_bucket(&self, segment: &Segment) -> Option<u32> {
        let (owner, token, range) = segment.pin()?;
        let bucket = u32::try_from(token).ok().filter(|_| range == (0..BUCKET))?;
        let ours = self.owners.get((bucket >> self.core.region_shift) as usize)?;
        std::ptr::addr_eq(Arc::as_ptr(owner), Arc::as_ptr(ours)).then_some(bucket)
    }

    /// Adds the count of a slot that takes over a bucket which a segment of its caller refers to. Returns
    /// true if the bucket came from a receive buffer, and no write has taken it over before.
    pub(crate) fn adopt(&self, bucket: u32) -> bool {
        self.core.retain(bucket);
        self.core.end_receiving(bucket)
    }

    /// Returns a segment of a whole received bucket; it takes over the caller's count.
    pub(crate) fn received_segment(&self, bucket: u32) -> Segment {
        self.meta(bucket).set_valid(u8::MAX);
        let owner = &self.owners[(bucket >> self.core.region_shift) as usize];
        Segment::pinned(Arc::clone(owner) as _, u64::from(bucket), 0..BUCKET)
    }

    /// Adds the count of one more slot or flush.
    pub(crate) fn retain(&self, bucket: u32) {
        self.core.retain(bucket);
    }

    /// Takes one count away; the bucket is free when none is left.
    pub(crate) fn release(&self, bucket: u32) {
        self.core.release(bucket);
    }

    /// Returns a segment of the bytes `range` of a bucket; `None` if too many refer to it already.
    #[inline]
    pub(crate) fn pin(&self, bucket: u32, range: std::ops::Range<usize>) -> Option<Segment> {
        if self.meta(bucket).refs() >= PINS_MAX {
            return None;
        }
        self.core.retain(bucket);
        let owner = &self.owners[(bucket >> self.core.region_shift) as usize];
        Some(Segment::pinned(Arc::clone(owner) as _, u64::from(bucket), range))
    }

    /// Returns the bytes of a bucket. The caller is in the exclusive section of an object that refers to it,
    /// so no thread writes them.
    #[inline]
    pub(crate) fn bytes(&self, bucket: u32) -> &[u8] {
        self.core.bytes(bucket)
    }

    /// Returns every bucket that is on a free stack or was never used, for [`super::ObjectCache::validate`].
    pub(crate) fn free_list(&self) -> Vec<u32> {
        let fresh = *lock(&self.core.fresh);
        let mut free: Vec<u32> = (fresh..self.count()).map(|nth| self.core.number(nth)).collect();
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
    /// Returns the number of the `nth` bucket: headers, the first place of each region, are none.
    fn number(&self, nth: u32) -> u32 {
        nth + nth / self.per_region() + 1
    }

    fn per_region(&self) -> u32 {
        (1 << self.region_shift) - 1
    }

    #[inline]
    fn at(&self, bucket: u32) -> *mut u8 {
        let region = self.regions[(bucket >> self.region_shift) as usize];
        let within = (bucket & ((1 << self.region_shift) - 1)) * BUCKET as u32;
        self.arena.at(self.arena.offset_of(region, within))
    }

    #[inline]
    fn bytes(&self, bucket: u32) -> &[u8] {
        // SAFETY: the bucket lies whole within the arena, which lives as long as `self`. It is written only
        // through `Reserved` before any other thread knows it, or in its owner's exclusive section while one
        // slot alone refers to it; the caller holds a count of it, or is in that section.
        unsafe { std::slice::from_raw_parts(self.at(bucket), BUCKET) }
    }

    /// Writes the headers of the regions that fresh buckets begin.
    fn write_headers(&self, fresh: u32, more: u32) {
        let first = fresh.div_ceil(self.per_region());
        for index in first..(fresh + more).div_ceil(self.per_region()) {
            let region = self.regions[index as usize];
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

    #[inline]
    fn retain(&self, bucket: u32) {
        let refs = &self.metas[bucket as usize].refs;
        if refs.fetch_add(1, Ordering::Relaxed) >= REFS_STUCK - 1024 {
            // Cold, and far from wrapping round: a thousand threads would have to be right here at once.
            refs.store(REFS_STUCK - 512, Ordering::Relaxed);
        }
    }

    /// Takes a bucket out of the count of received ones; returns whether it was in it.
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
        let meta = &self.metas[bucket as usize];
        if meta.refs.load(Ordering::Relaxed) >= REFS_STUCK - 1024 {
            return;
        }
        // Release: what this thread reads is read before the bucket is written anew. Acquire: so it is for
        // all other threads.
        match meta.refs.fetch_sub(1, Ordering::AcqRel) {
            1 => {
                self.end_receiving(bucket);
                meta.set_owner(None);
                meta.set_valid(0);
                meta.set_dirty(0);
                self.put_free(bucket);
                self.waiters.notify();
            }
            // No longer pinned: it can be evicted for a task that waits.
            2 => self.waiters.notify(),
            _ => (),
        }
    }

    fn put_free(&self, bucket: u32) {
        let mut stack = lock(&self.stripes[stripe()].0);
        self.metas[bucket as usize].next.store(stack.top, Ordering::Relaxed);
        stack.top = bucket + 1;
        stack.count += 1;
        drop(stack);
        self.free.fetch_add(1, Ordering::SeqCst);
    }
}

impl SegmentOwner for RegionOwner {
    #[inline]
    fn bytes(&self, token: u64) -> &[u8] {
        self.0.bytes(token as u32)
    }
    fn retain(&self, token: u64) {
        self.0.retain(token as u32);
    }
    fn release(&self, token: u64) {
        self.0.release(token as u32);
    }
}

/// Returns the number of the thread's stripe.
fn stripe() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    thread_local! {
        static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    // A thread that is ending has no stripe of its own any more.
    let own = STRIPE.try_with(|stripe| {
        if stripe.get() == usize::MAX {
            stripe.set(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % STRIPES);
        }
        stripe.get()
    });
    own.unwrap_or(0)
}

/// Buckets taken for a job; those that it does not use go back.
pub(crate) struct Reserved<'a> {
    pool: &'a Pool,
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

    fn put(&mut self, bucket: u32) {
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

    fn pop(&mut self) -> Option<u32> {
        let bucket = self.top.checked_sub(1)?;
        let meta = self.pool.meta(bucket);
        self.top = meta.next.load(Ordering::Relaxed);
        self.count -= 1;
        Some(bucket)
    }

    /// Takes one of them, filled by `fill` before any other thread sees it; its count belongs to the caller.
    pub(crate) fn take(&mut self, fill: impl FnOnce(&mut [u8])) -> Option<u32> {
        let bucket = self.pop()?;
        let meta = self.pool.meta(bucket);
        meta.refs.store(1, Ordering::Relaxed);
        // SAFETY: the bucket was free and belongs to this thread alone; it lies whole within the arena, whose
        // memory is initialised (zeroed by the system, or written before).
        fill(unsafe { std::slice::from_raw_parts_mut(self.pool.at(bucket), BUCKET) });
        Some(bucket)
    }

    /// Takes one of them for a receive buffer; [`Pool::reserve_receive`] has counted it. Its count belongs to
    /// the caller.
    pub(crate) fn take_receiving(&mut self) -> Option<u32> {
        let bucket = self.pop()?;
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
        while let Some(bucket) = self.pop() {
            self.pool.core.put_free(bucket);
        }
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_is_handed_out_once_and_comes_back() {
        let pool = Pool::new(1 << 20, false).unwrap();
        assert_eq!(pool.count(), 16 * 15, "the header takes the first of 16 in each region");
        let mut reserved = pool.reserve_up_to(u32::MAX);
        assert_eq!((reserved.count(), pool.free()), (240, 0));
        let mut taken: Vec<u32> = std::iter::from_fn(|| reserved.take(|bytes| bytes.fill(1))).collect();
        assert!(taken.is_sorted(), "in order of address");
        taken.dedup();
        assert_eq!(taken.len(), 240);
        let segment = pool.pin(taken[7], 10..20).unwrap();
        taken.iter().for_each(|bucket| pool.release(*bucket));
        assert_eq!(pool.free(), 239, "one is pinned");
        assert_eq!(segment.as_slice(), [1; 10]);
        drop(segment);
        assert_eq!(pool.free(), 240);
        assert_eq!(pool.free_list().len(), 240);
    }

    #[test]
    fn what_was_used_last_is_used_next_and_headers_tell_the_owner() {
        let pool = Pool::new(1 << 20, false).unwrap();
        let mut reserved = pool.reserve_up_to(16);
        let (first, second) = (reserved.take(|_| ()).unwrap(), reserved.take(|_| ()).unwrap());
        drop(reserved);
        pool.release(first);
        assert_eq!(pool.reserve_up_to(1).take(|_| ()), Some(first));
        pool.release(second);
        pool.release(first);
        for region in &pool.core.regions[..2] {
            assert_eq!(pool.core.arena.read_header(*region).unwrap().owner, Owner::Objects as u8);
        }
        assert!(pool.core.arena.read_header(pool.core.regions[2]).is_err(), "never used");
    }
}

#[cfg(all(test, shuttle))]
mod shuttle_tests {
    use std::collections::HashSet;

    use super::*;

    const BUCKETS: u32 = 15;

    fn pool() -> Arc<Pool> {
        let pool = Pool::new(REGION_BYTES_MIN as u64, false).unwrap();
        assert_eq!(pool.count(), BUCKETS);
        Arc::new(pool)
    }

    fn all_free(pool: &Pool) {
        let free: HashSet<u32> = pool.free_list().into_iter().collect();
        assert_eq!(
            (free.len() as u32, pool.free_list().len() as u32, pool.free()),
            (BUCKETS, BUCKETS, BUCKETS)
        );
    }

    /// However reservations, uses and returns interleave, no bucket has two holders, and in the end all are
    /// free.
    #[test]
    fn no_bucket_has_two_holders() {
        shuttle::check_random(
            || {
                let pool = pool();
                let held = Arc::new(std::sync::Mutex::new(HashSet::new()));
                let threads: Vec<_> = (1..=3)
                    .map(|wanted| {
                        let (pool, held) = (Arc::clone(&pool), Arc::clone(&held));
                        shuttle::thread::spawn(move || {
                            for _ in 0..2 {
                                let mut reserved = pool.reserve_up_to(4 * wanted);
                                // One goes back unused.
                                let taken: Vec<u32> = (1..reserved.count())
                                    .filter_map(|_| reserved.take(|bytes| bytes[0] = wanted as u8))
                                    .collect();
                                for bucket in &taken {
                                    assert!(held.lock().unwrap().insert(*bucket), "{bucket} has two holders");
                                }
                                drop(reserved);
                                shuttle::thread::yield_now();
                                for bucket in &taken {
                                    assert_eq!(pool.bytes(*bucket)[0], wanted as u8);
                                    assert!(held.lock().unwrap().remove(bucket));
                                    pool.release(*bucket);
                                }
                            }
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                all_free(&pool);
            },
            1_000,
        );
    }

    /// The holder of a pin, or of a clone of one, sees the same bytes until it drops it, whatever becomes of
    /// the slot.
    #[test]
    fn what_is_pinned_stays_as_it_is() {
        shuttle::check_random(
            || {
                let pool = pool();
                let bucket = pool.reserve_up_to(1).take(|bytes| bytes.fill(1)).unwrap();
                let pins = [pool.pin(bucket, 0..10).unwrap(), pool.pin(bucket, 5..15).unwrap()];
                let mut threads: Vec<_> = pins
                    .into_iter()
                    .map(|pin| {
                        shuttle::thread::spawn(move || {
                            let part = pin.slice(2..6);
                            assert_eq!(pin.as_slice(), [1; 10]);
                            drop(pin);
                            shuttle::thread::yield_now();
                            assert_eq!(part.as_slice(), [1; 4]);
                        })
                    })
                    .collect();
                let own = Arc::clone(&pool);
                threads.push(shuttle::thread::spawn(move || own.release(bucket)));
                let own = Arc::clone(&pool);
                // Another thread takes whatever is free, and writes to it.
                threads.push(shuttle::thread::spawn(move || {
                    let mut reserved = own.reserve_up_to(BUCKETS);
                    let taken: Vec<u32> =
                        std::iter::from_fn(|| reserved.take(|bytes| bytes.fill(2))).collect();
                    taken.into_iter().for_each(|bucket| own.release(bucket));
                }));
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                all_free(&pool);
            },
            1_000,
        );
    }
}

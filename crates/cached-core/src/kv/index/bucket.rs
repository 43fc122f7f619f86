//! A hash bucket: one cache line of the index with a lock, a link, twelve tags and twelve
//! locations.
//!
//! ```text
//!  bits 0-30           31     32 … 63       64 … 127      12 × 32 bits
//! ┌──────────────────┬──────┬─────────────┬─────────────┬──────────────────────────┐
//! │ link: next line, │ lock │ tags 0 … 3, │ tags 4 … 11 │ 12 locations, granules   │
//! │ 0 = none         │      │ 8 bits each │             │ from the arena's base    │
//! └──────────────────┴──────┴─────────────┴─────────────┴──────────────────────────┘
//! ```
//! A location of 0 marks an empty slot (granule 0 is a region's header). The lock in a hash
//! bucket's first line guards the whole chain and every item to which it refers.

use crate::sync::{AtomicU64, Ordering, relax};
use std::num::NonZero;
// Only the lock orders anything between threads, so a test scheduler need not see the other words.
use std::sync::atomic::{AtomicU32 as PlainU32, AtomicU64 as PlainU64};

pub(super) const SLOTS: usize = 12;
const LOCK: u64 = 1 << 31;
const LINK: u64 = LOCK - 1;
/// The number of tags in the head word; the others are in the word of tags.
const HEAD_TAGS: usize = 4;

#[repr(C, align(64))]
pub(super) struct Bucket {
    head: AtomicU64,
    tags: PlainU64,
    locations: [PlainU32; SLOTS],
}

// The size is part of the layout. Under shuttle, the atomics are larger, and the size does not
// matter.
#[cfg(not(shuttle))]
const _: () = assert!(size_of::<Bucket>() == 64);

/// An array of hash buckets at a fixed address, touched lazily.
#[cfg(not(shuttle))]
pub(super) struct Buckets(crate::arena::Memory);

#[cfg(not(shuttle))]
impl Buckets {
    pub(super) fn reserve(count: u32) -> std::io::Result<Buckets> {
        Ok(Buckets(crate::arena::Memory::map(count as usize * size_of::<Bucket>(), false)?))
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> &Bucket {
        debug_assert!((index as usize) < self.0.len() / size_of::<Bucket>());
        // SAFETY: callers stay below the count (checked in debug builds), the mapping is aligned to a
        // page, all-zero bytes are a valid empty bucket, buckets are shared and hold only atomics.
        unsafe { &*self.0.base().cast::<Bucket>().add(index as usize) }
    }
}

/// Under shuttle, atomics are objects that must be created one by one.
#[cfg(shuttle)]
pub(super) struct Buckets(Box<[Bucket]>);

#[cfg(shuttle)]
impl Buckets {
    pub(super) fn reserve(count: u32) -> std::io::Result<Buckets> {
        Ok(Buckets((0..count).map(|_| Bucket::new()).collect()))
    }

    pub(super) fn get(&self, index: u32) -> &Bucket {
        &self.0[index as usize]
    }
}

impl Bucket {
    #[cfg(any(test, shuttle))]
    fn new() -> Bucket {
        Bucket {
            head: AtomicU64::new(0),
            tags: PlainU64::new(0),
            locations: std::array::from_fn(|_| PlainU32::new(0)),
        }
    }

    /// Takes the lock. Waiting threads spin, so hold it only for short critical sections.
    #[inline]
    pub(super) fn lock(&self) {
        // A single instruction (`lock bts`) requests the cache line for writing immediately. If the
        // bit is already set, the instruction changes nothing.
        if self.head.fetch_or(LOCK, Ordering::Acquire) & LOCK != 0 {
            self.wait_for_lock();
        }
    }

    #[cold]
    fn wait_for_lock(&self) {
        let mut spins = 0;
        loop {
            relax(&mut spins);
            let head = self.head.load(Ordering::Relaxed);
            if head & LOCK == 0
                && self
                    .head
                    .compare_exchange_weak(head, head | LOCK, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
        }
    }

    /// Releases the lock. While the lock is held, no other thread changes the head: an arriving
    /// thread sets a bit that is already set, and a waiting thread only reads.
    #[inline]
    pub(super) fn unlock(&self) {
        let head = self.head.load(Ordering::Relaxed);
        debug_assert!(head & LOCK != 0);
        self.head.store(head & !LOCK, Ordering::Release);
    }

    /// Returns the next line of the chain: its index in the overflow area plus one, or 0 for none.
    #[inline]
    pub(super) fn link(&self) -> u32 {
        (self.head.load(Ordering::Relaxed) & LINK) as u32
    }

    pub(super) fn set_link(&self, link: u32) {
        let rest = self.head.load(Ordering::Relaxed) & !LINK;
        self.head.store(rest | u64::from(link), Ordering::Relaxed);
    }

    /// Returns the slots with the tag `tag`, in order; they may include empty slots.
    #[inline]
    pub(super) fn matches(&self, tag: u8) -> Matches {
        let (head, tags) = (self.head.load(Ordering::Relaxed), self.tags.load(Ordering::Relaxed));
        Matches(matches_of(head, tags, tag) >> HEAD_TAGS)
    }

    #[inline]
    pub(super) fn location(&self, slot: usize) -> u32 {
        self.locations[slot].load(Ordering::Relaxed)
    }

    /// Returns the [`location`](Bucket::location) in a slot, or 0 for a number that is not a slot.
    #[inline]
    pub(super) fn location_or_none(&self, slot: usize) -> u32 {
        self.locations.get(slot).map_or(0, |location| location.load(Ordering::Relaxed))
    }

    pub(super) fn tag(&self, slot: usize) -> u8 {
        match slot.checked_sub(HEAD_TAGS) {
            None => (self.head.load(Ordering::Relaxed) >> (32 + slot * 8)) as u8,
            Some(slot) => (self.tags.load(Ordering::Relaxed) >> (slot * 8)) as u8,
        }
    }

    /// Fills a slot. The caller holds the lock of the chain; lines after the first have no lock of
    /// their own.
    #[inline]
    pub(super) fn set(&self, slot: usize, tag: u8, location: u32) {
        match slot.checked_sub(HEAD_TAGS) {
            None => {
                let others = self.head.load(Ordering::Relaxed) & !(0xff << (32 + slot * 8));
                self.head.store(others | u64::from(tag) << (32 + slot * 8), Ordering::Relaxed);
            }
            Some(slot) => {
                let others = self.tags.load(Ordering::Relaxed) & !(0xff << (slot * 8));
                self.tags.store(others | u64::from(tag) << (slot * 8), Ordering::Relaxed);
            }
        }
        self.locations[slot].store(location, Ordering::Relaxed);
    }

    pub(super) fn set_location(&self, slot: usize, location: u32) {
        self.locations[slot].store(location, Ordering::Relaxed);
    }

    pub(super) fn empty_slot(&self) -> Option<usize> {
        self.locations.iter().position(|location| location.load(Ordering::Relaxed) == 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.locations.iter().all(|location| location.load(Ordering::Relaxed) == 0)
    }
}

/// A set of slots, as a bit mask.
pub(super) struct Matches(u32);

impl Iterator for Matches {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let slot = NonZero::new(self.0)?.trailing_zeros() as usize;
        // SAFETY: the mask is one of sixteen bits of which the lowest four are shifted out.
        unsafe { std::hint::assert_unchecked(slot < SLOTS) };
        self.0 &= self.0 - 1;
        Some(slot)
    }
}

/// Returns a bit mask of the sixteen bytes of two words that equal `tag`.
#[cfg(target_arch = "x86_64")]
#[inline]
fn matches_of(low: u64, high: u64, tag: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    // SAFETY: SSE2 is part of every x86-64 processor.
    let mask = unsafe {
        let bytes = _mm_set_epi64x(high as i64, low as i64);
        _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(tag as i8)))
    };
    mask as u32
}

/// Returns a bit mask of the sixteen bytes of two words that equal `tag`.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn matches_of(low: u64, high: u64, tag: u8) -> u32 {
    let zeros = |word: u64| {
        let differs = word ^ (u64::from(tag) * 0x0101_0101_0101_0101);
        // Sets the high bit of each byte that is zero. Unlike the well-known shorter form, this one
        // is exact.
        const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        let zero = !(((differs & LOW) + LOW) | differs | LOW);
        (zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    };
    (zeros(low) | zeros(high) << 8) as u32
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn tags_match_exactly() {
        let bucket = Bucket::new();
        for slot in 0..SLOTS {
            bucket.set(slot, (slot as u8) * 21 + 1, slot as u32 + 1);
        }
        for tag in 0..=255u8 {
            let expected: u32 = (0..SLOTS).filter(|&s| bucket.tag(s) == tag).map(|s| 1 << s).sum();
            assert_eq!(bucket.matches(tag).0, expected, "tag {tag}");
        }
        bucket.set(3, 0x80, 9);
        bucket.set(4, 0x80, 9);
        bucket.set(11, 0x80, 9);
        assert_eq!(bucket.matches(0x80).collect::<Vec<_>>(), [3, 4, 11]);
    }

    #[test]
    fn lock_and_link_do_not_disturb_each_other() {
        let bucket = Bucket::new();
        bucket.lock();
        bucket.set_link(7);
        assert_eq!(bucket.link(), 7);
        bucket.unlock();
        assert_eq!(bucket.link(), 7);
        bucket.lock();
        bucket.unlock();
    }
}

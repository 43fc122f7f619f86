//! One cache line of the index: a lock, a link, twelve tags and twelve locations.
//!
//! ```text
//!  word 0                     1     2     3      4 … 15
//! ┌────┬───────────────────┬─────────────────┬──────────────────────────┐
//! │lock│ link: next line   │ 12 tags, 8 bits │ 12 locations, 32 bits:   │
//! │ 1b │ 31 bits, 0 = none │ each            │ granules from the base   │
//! └────┴───────────────────┴─────────────────┴──────────────────────────┘
//! ```
//! A location of 0 is an empty slot (granule 0 is a region's header). The lock of a bucket's first
//! line guards the whole chain and every item it leads to.

use crate::sync::{AtomicU32, Ordering, relax};
// Only the lock orders anything between threads; the rest need not be seen by a test scheduler.
use std::sync::atomic::AtomicU32 as PlainU32;

pub(super) const SLOTS: usize = 12;
const LOCK: u32 = 1 << 31;

#[repr(C, align(64))]
pub(super) struct Bucket {
    header: AtomicU32,
    tags: [PlainU32; 3],
    locations: [PlainU32; SLOTS],
}

// The size is the layout; under shuttle its atomics are larger, and only the shape of the code counts.
#[cfg(not(shuttle))]
const _: () = assert!(size_of::<Bucket>() == 64);

/// An array of empty buckets at a fixed place, touched lazily.
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

/// Under shuttle atomics are objects that must be made one by one.
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
            header: AtomicU32::new(0),
            tags: std::array::from_fn(|_| PlainU32::new(0)),
            locations: std::array::from_fn(|_| PlainU32::new(0)),
        }
    }

    /// Takes the lock. Short critical sections only: waiting burns cycles.
    #[inline]
    pub(super) fn lock(&self) {
        let mut spins = 0;
        loop {
            let header = self.header.load(Ordering::Relaxed);
            if header & LOCK == 0
                && self
                    .header
                    .compare_exchange_weak(header, header | LOCK, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            relax(&mut spins);
        }
    }

    /// Gives the lock back.
    #[inline]
    pub(super) fn unlock(&self) {
        let header = self.header.load(Ordering::Relaxed);
        debug_assert!(header & LOCK != 0);
        self.header.store(header & !LOCK, Ordering::Release);
    }

    /// The next line of the chain: its index in the overflow area plus one, 0 for none.
    #[inline]
    pub(super) fn link(&self) -> u32 {
        self.header.load(Ordering::Relaxed) & !LOCK
    }

    pub(super) fn set_link(&self, link: u32) {
        let lock = self.header.load(Ordering::Relaxed) & LOCK;
        self.header.store(lock | link, Ordering::Relaxed);
    }

    /// The slots whose tag is `tag`, as a bit mask; empty slots may be among them.
    #[inline]
    pub(super) fn matches(&self, tag: u8) -> u32 {
        let wanted = u32::from(tag) * 0x0101_0101;
        let mut mask = 0;
        for (word, tags) in self.tags.iter().enumerate() {
            let differs = tags.load(Ordering::Relaxed) ^ wanted;
            // High bit of each byte that is zero; exact, unlike the shorter well-known form.
            let zero = !(((differs & 0x7f7f_7f7f) + 0x7f7f_7f7f) | differs | 0x7f7f_7f7f);
            let nibble = (zero >> 7).wrapping_mul(0x0102_0408) >> 24;
            mask |= nibble << (word * 4);
        }
        mask
    }

    #[inline]
    pub(super) fn location(&self, slot: usize) -> u32 {
        self.locations[slot].load(Ordering::Relaxed)
    }

    pub(super) fn tag(&self, slot: usize) -> u8 {
        (self.tags[slot / 4].load(Ordering::Relaxed) >> (slot % 4 * 8)) as u8
    }

    #[inline]
    pub(super) fn set(&self, slot: usize, tag: u8, location: u32) {
        let word = &self.tags[slot / 4];
        let shift = slot % 4 * 8;
        let others = word.load(Ordering::Relaxed) & !(0xff << shift);
        word.store(others | u32::from(tag) << shift, Ordering::Relaxed);
        self.locations[slot].store(location, Ordering::Relaxed);
    }

    pub(super) fn set_location(&self, slot: usize, location: u32) {
        self.locations[slot].store(location, Ordering::Relaxed);
    }

    pub(super) fn empty_slot(&self) -> Option<usize> {
        self.locations.iter().position(|location| location.load(Ordering::Relaxed) == 0)
    }

    #[cfg(any(test, feature = "validate"))]
    pub(super) fn is_empty(&self) -> bool {
        self.locations.iter().all(|location| location.load(Ordering::Relaxed) == 0)
    }
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
            assert_eq!(bucket.matches(tag), expected, "tag {tag}");
        }
        bucket.set(3, 0x80, 9);
        bucket.set(4, 0x80, 9);
        bucket.set(11, 0x80, 9);
        assert_eq!(bucket.matches(0x80), 1 << 3 | 1 << 4 | 1 << 11);
    }

    #[test]
    fn lock_and_link_share_a_word() {
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

//! The memory of the cache: the pool of 4 KiB buckets, the eviction queues that choose among clean
//! buckets, the slots through which an object refers to its buckets, and the arithmetic of ranges.
//! This chapter knows nothing of objects, settings of namespaces, or the store.

pub(crate) mod pool;
pub(crate) mod queue;
pub(crate) mod slots;

use blocker::{Segment, Segments};

use pool::BUCKET;
use slots::SECTOR_BYTES;

/// A range of buckets, the end excluded.
pub(crate) type Buckets = std::ops::Range<u32>;

/// The whole object, whatever its size.
pub(crate) const WHOLE: Buckets = 0..u32::MAX;

pub(crate) const BUCKET_U64: u64 = BUCKET as u64;
pub(crate) const SECTORS: usize = BUCKET / SECTOR_BYTES;

/// Returns a mask with a bit for each sector that `lo..hi` touches.
pub(crate) fn touched(lo: usize, hi: usize) -> u8 {
    let (first, last) = (lo / SECTOR_BYTES, hi.div_ceil(SECTOR_BYTES));
    (((1u16 << last) - 1) & !((1u16 << first) - 1)) as u8
}

/// Returns the sectors that `lo..hi` covers only partially.
pub(crate) fn edges(lo: usize, hi: usize) -> u8 {
    let (inner_lo, inner_hi) = (lo.next_multiple_of(SECTOR_BYTES), hi / SECTOR_BYTES * SECTOR_BYTES);
    let whole = if inner_lo < inner_hi { touched(inner_lo, inner_hi) } else { 0 };
    touched(lo, hi) & !whole
}

/// Splits a range at bucket boundaries into slots, each with its start and end within the slot.
pub(crate) fn parts(offset: u64, len: u64) -> impl Iterator<Item = (u32, usize, usize)> {
    let end = offset + len;
    let slots = if len == 0 { 0..0 } else { offset / BUCKET_U64..end.div_ceil(BUCKET_U64) };
    slots.map(move |at| {
        let start = at * BUCKET_U64;
        let (lo, hi) = (offset.saturating_sub(start), (end - start).min(BUCKET_U64));
        (at as u32, lo as usize, hi as usize)
    })
}

/// Returns the buckets that a range touches. The result is meaningless for a range beyond the
/// maximum object size.
pub(crate) fn buckets_of(offset: u64, len: u64) -> Buckets {
    let first = (offset / BUCKET_U64) as u32;
    first..(offset.saturating_add(len).div_ceil(BUCKET_U64) as u32).max(first.saturating_add(1))
}

pub(crate) fn push_zeros(data: &mut Segments, zeros: &mut usize) {
    if *zeros > 0 {
        data.append(Segments::zeros(std::mem::take(zeros)));
    }
}

/// A cursor over a payload.
pub(crate) struct Cursor<'a> {
    rest: &'a [Segment],
    within: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(data: &'a Segments) -> Self {
        Self { rest: data.as_slice(), within: 0 }
    }

    /// Returns the next segment, if none of it has been taken.
    pub(crate) fn next_whole(&self) -> Option<&'a Segment> {
        self.rest.first().filter(|_| self.within == 0)
    }

    /// Skips `count` bytes.
    pub(crate) fn skip(&mut self, mut count: usize) {
        while let (Some(first), true) = (self.rest.first(), count > 0) {
            let step = count.min(first.len_bytes() - self.within);
            self.within += step;
            count -= step;
            if self.within == first.len_bytes() {
                (self.rest, self.within) = (&self.rest[1..], 0);
            }
        }
    }

    pub(crate) fn copy_to(&mut self, mut target: &mut [u8]) {
        while let (Some(first), false) = (self.rest.first(), target.is_empty()) {
            let bytes = &first.as_slice()[self.within..];
            let count = bytes.len().min(target.len());
            let (now, later) = target.split_at_mut(count);
            now.copy_from_slice(&bytes[..count]);
            target = later;
            self.within += count;
            if self.within == first.len_bytes() {
                (self.rest, self.within) = (&self.rest[1..], 0);
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn masks_know_whole_and_partial_sectors() {
        assert_eq!((touched(0, 4096), edges(0, 4096)), (255, 0));
        assert_eq!((touched(512, 1024), edges(512, 1024)), (2, 0));
        assert_eq!((touched(100, 1000), edges(100, 1000)), (3, 3));
        assert_eq!((touched(0, 513), edges(0, 513)), (3, 2));
        assert_eq!((touched(4095, 4096), edges(4095, 4096)), (128, 128));
        assert_eq!(touched(0, 0), 0);
    }

    #[test]
    fn ranges_are_cut_at_buckets() {
        assert_eq!(parts(4000, 5000).collect::<Vec<_>>(), [(0, 4000, 4096), (1, 0, 4096), (2, 0, 808)]);
        assert_eq!(parts(4096, 4096).collect::<Vec<_>>(), [(1, 0, 4096)]);
        assert_eq!(parts(77, 0).count(), 0);
        assert_eq!((buckets_of(4096, 1), buckets_of(0, 0), buckets_of(1, 8192)), (1..2, 0..1, 0..3));
    }
}

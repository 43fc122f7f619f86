//! A histogram per region, stored beside the arena: how many of its bytes expire at which time.
//!
//! Time counts from the second in which the region was opened. The spans are one second long at
//! first, then an eighth of the time at which they start, so every lifetime is recorded with an
//! error of at most an eighth.
//!
//! ```text
//!  seconds after:  0 1 2 3 … 15 16–17 18–19 … 30–31 32–35 36–39 …            … 2^32 − 1
//! ```
//! Bytes are added when an item is linked, moved or given another expiry, and subtracted when it
//! becomes garbage, is moved away or changes. This always happens under the lock of the item's hash
//! bucket, so the histogram of a region is exact while none of its items changes.

use super::RegionId;
use super::memory::Memory;
use crate::clock::Expiry;
// `crate::sync` is not used: these sums order nothing between threads, and are in lazily touched
// memory.
use std::sync::atomic::{AtomicU32, Ordering};

/// The length of a time span as a part of its start time, as a binary logarithm.
const PARTS_SHIFT: u32 = 3;
const PARTS: u32 = 1 << PARTS_SHIFT;
/// The number of spans, which is sufficient for 32 bits.
const SPANS: usize = ((32 - PARTS_SHIFT + 1) << PARTS_SHIFT) as usize;
/// The mark of a histogram in which no expiry is recorded.
const NONE: u32 = u32::MAX;

/// The histogram of a region.
#[repr(C)]
struct Histogram {
    /// The time from which the spans count, in the clock's seconds.
    from: AtomicU32,
    /// [`NONE`] minus a time before which nothing expires, so that zeroed memory is an empty
    /// histogram.
    first_inverted: AtomicU32,
    spans: [AtomicU32; SPANS],
}

/// The histograms of all regions. Only the memory of regions with expiring entries is touched.
pub(crate) struct Expiring {
    memory: Memory,
}

/// The number of bytes of a region that have expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Expired {
    /// The probable number of bytes: the current span counts in proportion to the time that has
    /// passed.
    pub(crate) likely: u32,
    /// The upper bound of the number of bytes.
    pub(crate) most: u32,
}

/// Returns the span of a time.
fn span_of(after: u32) -> usize {
    match after.checked_ilog2() {
        Some(log) if log >= PARTS_SHIFT => {
            let part = (after >> (log - PARTS_SHIFT)) & (PARTS - 1);
            (((log - PARTS_SHIFT + 1) << PARTS_SHIFT) + part) as usize
        }
        _ => after as usize,
    }
}

/// Returns the start of a span; of the one after the last, 2^32.
fn start_of(span: usize) -> u64 {
    let (octave, part) = (span >> PARTS_SHIFT, (span as u64) & u64::from(PARTS - 1));
    match octave {
        0 => part,
        _ => (u64::from(PARTS) + part) << (octave - 1),
    }
}

impl Expiring {
    pub(super) fn new(regions: u32) -> std::io::Result<Expiring> {
        Ok(Expiring { memory: Memory::map(regions as usize * size_of::<Histogram>(), false)? })
    }

    /// Returns the memory use of the histograms if something expires in every region, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.memory.len()
    }

    fn histogram(&self, region: RegionId) -> &Histogram {
        debug_assert!((region.0 as usize) < self.memory.len() / size_of::<Histogram>());
        // SAFETY: callers name regions of the arena, for each of which the mapping has room (checked in debug
        // builds). It is aligned to a page, all-zero bytes are a valid histogram, and histograms are shared
        // and hold only atomics.
        unsafe { &*self.memory.base().cast::<Histogram>().add(region.0 as usize) }
    }

    /// Clears the histogram of an empty region, and counts from `now`.
    pub(super) fn begin(&self, region: RegionId, now: u32) {
        let histogram = self.histogram(region);
        if histogram.first() != NONE {
            histogram.spans.iter().for_each(|span| span.store(0, Ordering::Relaxed));
            histogram.first_inverted.store(0, Ordering::Relaxed);
        }
        histogram.from.store(now, Ordering::Relaxed);
    }

    /// Adds bytes with this expiry.
    pub(crate) fn note(&self, region: RegionId, bytes: u32, expiry: Expiry) {
        if expiry == Expiry::NEVER {
            return;
        }
        let histogram = self.histogram(region);
        histogram.span(expiry).fetch_add(bytes, Ordering::Relaxed);
        histogram.lower_first(expiry);
    }

    /// Subtracts bytes with this expiry.
    pub(crate) fn forget(&self, region: RegionId, bytes: u32, expiry: Expiry) {
        if expiry != Expiry::NEVER {
            self.histogram(region).span(expiry).fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Starts a walk over the region, which reports all of its entries to [`seen`](Expiring::seen).
    pub(crate) fn begin_walk(&self, region: RegionId) {
        self.histogram(region).first_inverted.store(0, Ordering::Relaxed);
    }

    /// Records the expiry of an entry in the walk.
    pub(crate) fn seen(&self, region: RegionId, expiry: Expiry) {
        if expiry != Expiry::NEVER {
            self.histogram(region).lower_first(expiry);
        }
    }

    /// Returns how many bytes of a region have expired at `now`.
    pub(crate) fn expired(&self, region: RegionId, now: u32) -> Expired {
        let histogram = self.histogram(region);
        if histogram.first() > now {
            return Expired::default();
        }
        let age = u64::from(now.saturating_sub(histogram.from.load(Ordering::Relaxed)));
        let (mut over, mut most) = (0u32, 0);
        let mut likely = 0;
        for (span, bytes) in histogram.spans.iter().enumerate() {
            let (start, end) = (start_of(span), start_of(span + 1));
            if start > age {
                break;
            }
            let bytes = bytes.load(Ordering::Relaxed);
            most = over.saturating_add(bytes);
            if end > age + 1 {
                likely = (u64::from(bytes) * (age + 1 - start) / (end - start)) as u32;
                break;
            }
            over = most;
        }
        Expired { likely: over.saturating_add(likely), most }
    }

    /// Calls `each` with every nonempty span and its bytes. For tests.
    pub(crate) fn for_each(&self, region: RegionId, mut each: impl FnMut(usize, u32)) {
        for (span, bytes) in self.histogram(region).spans.iter().enumerate() {
            let bytes = bytes.load(Ordering::Relaxed);
            if bytes != 0 {
                each(span, bytes);
            }
        }
    }

    /// Returns the span of an expiry. For tests.
    pub(crate) fn span_in(&self, region: RegionId, expiry: Expiry) -> usize {
        span_of(expiry.as_secs().saturating_sub(self.histogram(region).from.load(Ordering::Relaxed)))
    }
}

impl Histogram {
    fn first(&self) -> u32 {
        NONE - self.first_inverted.load(Ordering::Relaxed)
    }

    fn lower_first(&self, expiry: Expiry) {
        let inverted = NONE - expiry.as_secs();
        if self.first_inverted.load(Ordering::Relaxed) < inverted {
            self.first_inverted.fetch_max(inverted, Ordering::Relaxed);
        }
    }

    fn span(&self, expiry: Expiry) -> &AtomicU32 {
        let after = expiry.as_secs().saturating_sub(self.from.load(Ordering::Relaxed));
        &self.spans[span_of(after)]
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_every_second_once() {
        let mut next = 0u64;
        for span in 0..SPANS {
            let (start, end) = (start_of(span), start_of(span + 1));
            assert_eq!(start, next);
            assert!(end > start && (end - start) * 8 <= start.max(8), "span {span}");
            assert_eq!((span_of(start as u32), span_of((end - 1) as u32)), (span, span));
            next = end;
        }
        assert_eq!(next, 1 << 32);
        assert_eq!(span_of(u32::MAX), SPANS - 1);
    }

    #[test]
    fn expired_bytes_are_known_for_every_lifetime() {
        let table = Expiring::new(2).unwrap();
        for life in [0, 1, 7, 8, 100, 4_095, 4_096, 5_000, 86_400, 30 * 86_400, 1 << 31] {
            table.begin(RegionId(1), 100);
            table.note(RegionId(1), 1_000, Expiry::at(100 + life));
            table.note(RegionId(1), 500, Expiry::at(u32::MAX - 1));
            let before = table.expired(RegionId(1), (100 + life).saturating_sub(1));
            assert_eq!(before, Expired::default(), "a life of {life} s");
            let then = table.expired(RegionId(1), 100 + life);
            assert_eq!(then.most, 1_000, "a life of {life} s");
            // The estimate has an error of up to an eighth.
            let late = table.expired(RegionId(1), 100 + life + life / 7);
            assert_eq!((late.likely, late.most), (1_000, 1_000), "a life of {life} s");
            table.forget(RegionId(1), 400, Expiry::at(100 + life));
            assert_eq!(table.expired(RegionId(1), 100 + life).most, 600);
        }
        assert_eq!(table.expired(RegionId(0), u32::MAX - 2), Expired::default(), "of another region");
    }

    #[test]
    fn bytes_that_are_expired_when_added_count_at_once() {
        let table = Expiring::new(1).unwrap();
        table.begin(RegionId(0), 1_000);
        table.note(RegionId(0), 100, Expiry::PAST);
        assert_eq!(table.expired(RegionId(0), 1_000), Expired { likely: 100, most: 100 });
    }

    #[test]
    fn a_walk_restores_the_earliest_expiry() {
        let table = Expiring::new(1).unwrap();
        table.begin(RegionId(0), 100);
        table.note(RegionId(0), 100, Expiry::at(5_000));
        table.note(RegionId(0), 100, Expiry::at(5_050));
        assert_eq!(table.expired(RegionId(0), 5_001).most, 200);
        table.forget(RegionId(0), 100, Expiry::at(5_000));
        assert_eq!(
            table.expired(RegionId(0), 5_001).most,
            100,
            "the histogram cannot distinguish it from what expires at 5050"
        );
        table.begin_walk(RegionId(0));
        table.seen(RegionId(0), Expiry::at(5_050));
        assert_eq!(table.expired(RegionId(0), 5_001).most, 0);
        assert_eq!(table.expired(RegionId(0), 5_050).most, 100);
    }
}

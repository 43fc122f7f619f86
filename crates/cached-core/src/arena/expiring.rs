//! What of each region expires when: a histogram of bytes beside the arena.
//!
//! A region counts from the second in which it was opened. The spans are one second long at first, then an eighth of
//! where they begin: so a life of any length has its span, and is known to an eighth of itself.
//!
//! ```text
//!  seconds after:  0 1 2 3 … 15 16–17 18–19 … 30–31 32–35 36–39 …            … 2^32 − 1
//! ```
//! Bytes are noted when an item is linked, moved or given another expiry, and taken off when it dies, moves away or
//! changes: always under its bucket's lock, so the notes of a region at rest are exact.

use super::Memory;
use crate::clock::Expiry;
// Not from `crate::sync`: sums that order nothing between threads, in memory that is touched as it is used.
use std::sync::atomic::{AtomicU32, Ordering};

/// A span's share of where it begins, log2.
const PARTS_SHIFT: u32 = 3;
const PARTS: u32 = 1 << PARTS_SHIFT;
/// Enough for 32 bits.
const SPANS: usize = ((32 - PARTS_SHIFT + 1) << PARTS_SHIFT) as usize;
/// No expiry is noted.
const NONE: u32 = u32::MAX;

/// The notes of one region.
#[repr(C)]
struct Notes {
    /// The clock's second that the spans count from.
    from: AtomicU32,
    /// Nothing noted expires before; [`NONE`] less one where that is nothing, so that zeroed memory reads as nothing.
    first_inverted: AtomicU32,
    spans: [AtomicU32; SPANS],
}

/// The notes of all regions, touched where something expires.
pub(super) struct Expiring {
    memory: Memory,
}

/// What has expired of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Expired {
    /// Bytes, by what is likely: of the span that is not over the part that time has gone through.
    pub(crate) likely: u32,
    /// No more than these bytes.
    pub(crate) most: u32,
}

/// The span of a second.
fn span_of(after: u32) -> usize {
    match after.checked_ilog2() {
        Some(log) if log >= PARTS_SHIFT => {
            let part = (after >> (log - PARTS_SHIFT)) & (PARTS - 1);
            (((log - PARTS_SHIFT + 1) << PARTS_SHIFT) + part) as usize
        }
        _ => after as usize,
    }
}

/// The first second of a span; of the one behind the last, 2^32.
fn start_of(span: usize) -> u64 {
    let (octave, part) = (span >> PARTS_SHIFT, (span as u64) & u64::from(PARTS - 1));
    match octave {
        0 => part,
        _ => (u64::from(PARTS) + part) << (octave - 1),
    }
}

impl Expiring {
    pub(super) fn new(regions: u32) -> std::io::Result<Expiring> {
        Ok(Expiring { memory: Memory::map(regions as usize * size_of::<Notes>(), false)? })
    }

    fn notes(&self, region: u32) -> &Notes {
        debug_assert!((region as usize) < self.memory.len() / size_of::<Notes>());
        // SAFETY: callers name regions of the arena, for each of which the mapping has room (checked in debug builds). It is
        // aligned to a page, all-zero bytes are valid notes, and they are shared and hold only atomics.
        unsafe { &*self.memory.base().cast::<Notes>().add(region as usize) }
    }

    /// The region is empty, and counts from `now`.
    pub(super) fn begin(&self, region: u32, now: u32) {
        let notes = self.notes(region);
        if notes.first() != NONE {
            notes.spans.iter().for_each(|span| span.store(0, Ordering::Relaxed));
            notes.first_inverted.store(0, Ordering::Relaxed);
        }
        notes.from.store(now, Ordering::Relaxed);
    }

    pub(super) fn note(&self, region: u32, bytes: u32, expiry: Expiry) {
        if expiry == Expiry::NEVER {
            return;
        }
        let notes = self.notes(region);
        notes.span(expiry).fetch_add(bytes, Ordering::Relaxed);
        notes.lower_first(expiry);
    }

    /// What was noted with this expiry is not there any more, or has another one.
    pub(super) fn forget(&self, region: u32, bytes: u32, expiry: Expiry) {
        if expiry != Expiry::NEVER {
            self.notes(region).span(expiry).fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// A walk over the region begins that shows everything in it to [`seen`](Expiring::seen).
    pub(super) fn begin_walk(&self, region: u32) {
        self.notes(region).first_inverted.store(0, Ordering::Relaxed);
    }

    pub(super) fn seen(&self, region: u32, expiry: Expiry) {
        if expiry != Expiry::NEVER {
            self.notes(region).lower_first(expiry);
        }
    }

    pub(super) fn expired(&self, region: u32, now: u32) -> Expired {
        let notes = self.notes(region);
        if notes.first() > now {
            return Expired::default();
        }
        let age = u64::from(now.saturating_sub(notes.from.load(Ordering::Relaxed)));
        let (mut over, mut most) = (0u32, 0);
        let mut likely = 0;
        for (span, bytes) in notes.spans.iter().enumerate() {
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

    /// Calls `each` with every span in which something is noted, and with the bytes. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub(super) fn for_each(&self, region: u32, mut each: impl FnMut(usize, u32)) {
        for (span, bytes) in self.notes(region).spans.iter().enumerate() {
            let bytes = bytes.load(Ordering::Relaxed);
            if bytes != 0 {
                each(span, bytes);
            }
        }
    }

    /// The span in which such an expiry is noted. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub(super) fn span_in(&self, region: u32, expiry: Expiry) -> usize {
        span_of(expiry.as_secs().saturating_sub(self.notes(region).from.load(Ordering::Relaxed)))
    }
}

impl Notes {
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
    fn what_has_expired_is_known_whatever_its_life() {
        let table = Expiring::new(2).unwrap();
        for life in [0, 1, 7, 8, 100, 4_095, 4_096, 5_000, 86_400, 30 * 86_400, 1 << 31] {
            table.begin(1, 100);
            table.note(1, 1_000, Expiry::at(100 + life));
            table.note(1, 500, Expiry::at(u32::MAX - 1));
            let before = table.expired(1, (100 + life).saturating_sub(1));
            assert_eq!(before, Expired::default(), "a life of {life} s");
            let then = table.expired(1, 100 + life);
            assert_eq!(then.most, 1_000, "a life of {life} s");
            // To an eighth.
            let late = table.expired(1, 100 + life + life / 7);
            assert_eq!((late.likely, late.most), (1_000, 1_000), "a life of {life} s");
            table.forget(1, 400, Expiry::at(100 + life));
            assert_eq!(table.expired(1, 100 + life).most, 600);
        }
        assert_eq!(table.expired(0, u32::MAX - 2), Expired::default(), "another region's");
    }

    #[test]
    fn what_is_over_at_once_counts_at_once() {
        let table = Expiring::new(1).unwrap();
        table.begin(0, 1_000);
        table.note(0, 100, Expiry::PAST);
        assert_eq!(table.expired(0, 1_000), Expired { likely: 100, most: 100 });
    }

    #[test]
    fn a_walk_finds_the_first_again() {
        let table = Expiring::new(1).unwrap();
        table.begin(0, 100);
        table.note(0, 100, Expiry::at(5_000));
        table.note(0, 100, Expiry::at(5_050));
        assert_eq!(table.expired(0, 5_001).most, 200);
        table.forget(0, 100, Expiry::at(5_000));
        assert_eq!(table.expired(0, 5_001).most, 100, "it cannot be told from what expires at 5050");
        table.begin_walk(0);
        table.seen(0, Expiry::at(5_050));
        assert_eq!(table.expired(0, 5_001).most, 0);
        assert_eq!(table.expired(0, 5_050).most, 100);
    }
}

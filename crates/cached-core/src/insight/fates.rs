//! The last event of each sampled name, which gives a miss its reason: fingerprints in a table of
//! limited size.
//!
//! ```text
//!  a set: eight fates, the latest first
//!   63              35 34   32 31                0
//!  ┌──────────────────┬───────┬───────────────────┐
//!  │ tag (0: empty)   │ fate  │ expiry, or 0      │
//!  └──────────────────┴───────┴───────────────────┘
//! ```
//! A new fate replaces the oldest one in its set. About one name in a few million is mistaken for
//! another.

use super::sampler::{Event, Sample};
use crate::clock::Expiry;

const SETS: usize = 8192;
const WAYS: usize = 8;
const TAG_SHIFT: u32 = 35;
const FATE_SHIFT: u32 = 32;

const STORED: u64 = 0;
const DELETED: u64 = 1;
const FLUSHED: u64 = 2;

/// The reason why a sampled request missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    NeverSeen,
    Expired,
    Evicted,
    Flushed,
    Deleted,
}

/// The table.
pub(super) struct Fates {
    sets: Box<[[u64; WAYS]]>,
}

impl Fates {
    pub(super) fn new() -> Fates {
        Fates { sets: vec![[0; WAYS]; SETS].into() }
    }

    fn find(hash: u64) -> (usize, u64) {
        let mixed = hash.wrapping_mul(0xd6e8_feb8_6659_fd93);
        let tag = (mixed.rotate_left(17) ^ hash) << TAG_SHIFT;
        ((mixed >> 51) as usize % SETS, tag.max(1 << TAG_SHIFT))
    }

    fn look_up(&self, hash: u64) -> Option<u64> {
        let (set, tag) = Self::find(hash);
        self.sets[set].iter().copied().find(|fate| *fate >> TAG_SHIFT << TAG_SHIFT == tag)
    }

    fn record(&mut self, hash: u64, fate: u64, expiry: u32) {
        let (set, tag) = Self::find(hash);
        let set = &mut self.sets[set];
        let known = set.iter().position(|fate| *fate >> TAG_SHIFT << TAG_SHIFT == tag);
        set[..=known.unwrap_or(WAYS - 1)].rotate_right(1);
        set[0] = tag | fate << FATE_SHIFT | u64::from(expiry);
    }

    /// Processes one sample. Returns the reason if it is a miss that the engine cannot explain.
    pub(super) fn learn(&mut self, sample: &Sample, now: u32) -> Option<Reason> {
        match sample.event {
            Event::Hit | Event::Store | Event::Return | Event::Touch => {
                self.record(sample.hash, STORED, sample.expiry);
            }
            Event::Delete => self.record(sample.hash, DELETED, 0),
            // The engine has counted these misses, and has just removed the entry.
            Event::Flushed => self.record(sample.hash, FLUSHED, 0),
            Event::Expired => {}
            Event::Absent => {
                return Some(match self.look_up(sample.hash) {
                    None => Reason::NeverSeen,
                    Some(fate) => match fate >> FATE_SHIFT & 7 {
                        DELETED => Reason::Deleted,
                        FLUSHED => Reason::Flushed,
                        _ if Expiry::from_secs(fate as u32).is_past(now) => Reason::Expired,
                        _ => Reason::Evicted,
                    },
                });
            }
        }
        None
    }

    /// Records that everything stored so far has been flushed.
    pub(super) fn flush(&mut self) {
        for fate in self.sets.iter_mut().flatten() {
            if *fate != 0 && *fate >> FATE_SHIFT & 7 == STORED {
                *fate |= FLUSHED << FATE_SHIFT;
            }
        }
    }

    /// Returns the memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn hash(n: u64) -> u64 {
        (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8
    }

    fn learn(fates: &mut Fates, n: u64, event: Event, expiry: u32) -> Option<Reason> {
        fates.learn(&Sample::new(hash(n), event).entry(1, expiry), 100)
    }

    #[test]
    fn misses_are_told_apart() {
        let mut fates = Fates::new();
        assert_eq!(learn(&mut fates, 1, Event::Absent, 0), Some(Reason::NeverSeen));
        learn(&mut fates, 1, Event::Store, 0);
        learn(&mut fates, 2, Event::Store, 100);
        learn(&mut fates, 3, Event::Store, 0);
        learn(&mut fates, 4, Event::Hit, 101);
        learn(&mut fates, 3, Event::Delete, 0);
        let reasons: Vec<_> = (1..=4).map(|n| learn(&mut fates, n, Event::Absent, 0).unwrap()).collect();
        assert_eq!(reasons, [Reason::Evicted, Reason::Expired, Reason::Deleted, Reason::Evicted]);
        fates.flush();
        assert_eq!(learn(&mut fates, 1, Event::Absent, 0), Some(Reason::Flushed));
        assert_eq!(learn(&mut fates, 3, Event::Absent, 0), Some(Reason::Deleted), "before the flush");
        learn(&mut fates, 1, Event::Store, 0);
        assert_eq!(learn(&mut fates, 1, Event::Absent, 0), Some(Reason::Evicted), "after the flush");
        assert_eq!(learn(&mut fates, 1, Event::Hit, 0), None);
    }

    #[test]
    fn the_table_is_bounded_and_the_latest_stay() {
        let mut fates = Fates::new();
        (0..200_000).for_each(|n| assert_eq!(learn(&mut fates, n, Event::Store, 0), None));
        assert_eq!(fates.bytes(), SETS * WAYS * 8);
        let known = |from: u64, to: u64| (from..to).filter(|n| fates.look_up(hash(*n)).is_some()).count();
        assert!(known(180_000, 200_000) > 19_500, "{}", known(180_000, 200_000));
        assert!(known(0, 50_000) < 500, "{}", known(0, 50_000));
        assert!(known(1_000_000, 1_100_000) < 10, "others are not taken for them");
    }
}

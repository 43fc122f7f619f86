//! Which half should give memory to the other, and how much.
//!
//! The *gain* of a half is what it lost lately by too little memory: what was stored again soon after its
//! eviction, times the cost of a miss. Both count for the same amount of memory, so memory moves from where
//! it gains less to where it gains more:
//!
//! - only to a half that uses what it has;
//! - only if the gains differ by a quarter, and by more than chance makes of so few misses;
//! - by as much as the half that gets it has stored since the last time, less where the gains are close: so
//!   it fills what it gets, and the halves come to rest where their gains are alike.

use std::fmt;

/// Memory moves when the larger gain is this many times the smaller one.
const GAINS_DIFFER: f64 = 1.25;
/// And when the gains differ by this many standard deviations, if misses come by chance.
const DEVIATIONS: f64 = 2.0;
/// How much of a gain is forgotten from one time to the next.
const FORGOTTEN: f64 = 0.25;
/// A decision needs this part of the memory to have been stored since the last one.
const STORED_DIVISOR: u64 = 256;
/// At most this part of the memory moves at a time.
const MOVE_DIVISOR: u64 = 32;
/// A half uses what it has if no more than this part of the whole is free in it.
const SPARE_DIVISOR: u64 = 64;

/// One half of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// The byte-keyed store.
    Items,
    /// The object cache.
    Objects,
}

impl Half {
    /// Both, in the order of their numbers.
    pub const BOTH: [Half; 2] = [Half::Items, Half::Objects];

    /// Returns the other half.
    #[must_use]
    pub fn other(self) -> Half {
        match self {
            Half::Items => Half::Objects,
            Half::Objects => Half::Items,
        }
    }

    /// Returns the name by which it is shown.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Half::Items => "items",
            Half::Objects => "objects",
        }
    }
}

impl fmt::Display for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is known of a half at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    /// Its memory, and the least that it has.
    pub(super) bytes: u64,
    pub(super) bytes_min: u64,
    /// What of it is free.
    pub(super) spare_bytes: u64,
    /// Entries stored again soon after their eviction, since the start.
    pub(super) ghost_hits: u64,
    /// What a miss costs.
    pub(super) miss_nanos: u64,
    /// Entries stored since the start, and how large one is.
    pub(super) stored: u64,
    pub(super) entry_bytes: u64,
}

/// A decision: memory goes from this half to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: Half,
    pub(super) bytes: u64,
}

/// What is remembered of a half.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    ghost_hits: u64,
    stored: u64,
    /// Ghost hits lately, older ones counting less.
    recent_hits: f64,
    miss_nanos: f64,
}

impl Seen {
    fn gain(&self) -> f64 {
        self.recent_hits * self.miss_nanos
    }

    /// The variance of the gain, if misses come by chance.
    fn variance(&self) -> f64 {
        self.recent_hits * self.miss_nanos * self.miss_nanos
    }
}

/// Decides from one sample of both halves to the next.
#[derive(Debug)]
pub(super) struct Decision {
    bytes: u64,
    /// Memory moves in multiples of this.
    unit: u64,
    seen: Option<[Seen; 2]>,
    /// What the half that gains more has a claim to, and that was not enough for a unit yet.
    claim: Option<(Half, f64)>,
}

impl Decision {
    /// For a memory of `bytes`, of which multiples of `unit` move.
    pub(super) fn new(bytes: u64, unit: u64) -> Decision {
        Decision { bytes, unit: unit.max(1), seen: None, claim: None }
    }

    /// Returns the gains of both halves: nanoseconds of misses that they might have saved lately.
    pub(super) fn gains(&self) -> [u64; 2] {
        // An estimate in any case.
        self.seen.map_or([0; 2], |seen| seen.map(|seen| seen.gain() as u64))
    }

    /// Decides, given what is known of items and of objects now. `None`: nothing moves.
    pub(super) fn decide(&mut self, now: &[Sample; 2]) -> Option<Move> {
        let Some(seen) = &mut self.seen else {
            let first = |sample: &Sample| Seen {
                ghost_hits: sample.ghost_hits,
                stored: sample.stored,
                ..Seen::default()
            };
            self.seen = Some([first(&now[0]), first(&now[1])]);
            return None;
        };
        let stored: [u64; 2] = std::array::from_fn(|at| {
            now[at].stored.saturating_sub(seen[at].stored).saturating_mul(now[at].entry_bytes)
        });
        if stored[0].saturating_add(stored[1]) < self.bytes / STORED_DIVISOR {
            return None;
        }
        for (seen, now) in seen.iter_mut().zip(now) {
            let hits = now.ghost_hits.wrapping_sub(seen.ghost_hits) as f64;
            seen.recent_hits = seen.recent_hits * (1.0 - FORGOTTEN) + hits;
            seen.miss_nanos = now.miss_nanos as f64;
            (seen.ghost_hits, seen.stored) = (now.ghost_hits, now.stored);
        }
        let gains = seen.map(|seen| seen.gain());
        let taker = if gains[0] > gains[1] { Half::Items } else { Half::Objects };
        let (to, from) = (taker as usize, taker.other() as usize);
        let difference = gains[to] - gains[from];
        let chance = DEVIATIONS * (seen[0].variance() + seen[1].variance()).sqrt();
        let uses_all = now[to].spare_bytes <= self.bytes / SPARE_DIVISOR;
        if gains[to] <= gains[from] * GAINS_DIFFER || difference <= chance || !uses_all {
            self.claim = None;
            return None;
        }
        let earlier = self.claim.filter(|(half, _)| *half == taker).map_or(0.0, |(_, bytes)| bytes);
        let claim = earlier + stored[to] as f64 * difference / gains[to];
        let most = (self.bytes / MOVE_DIVISOR)
            .max(self.unit)
            .min(now[from].bytes.saturating_sub(now[from].bytes_min));
        let bytes = (claim as u64).min(most) / self.unit * self.unit;
        // What the limits have cut off is not owed.
        let rest = (claim - bytes as f64).min(self.unit as f64);
        self.claim = Some((taker, rest));
        (bytes > 0).then_some(Move { from: taker.other(), bytes })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const WHOLE: u64 = 1 << 30;
    const UNIT: u64 = 1 << 20;

    /// A load: per look, entries stored and ghost hits of each half.
    struct Load {
        decision: Decision,
        now: [Sample; 2],
    }

    impl Load {
        fn new() -> Load {
            let half = Sample {
                bytes: WHOLE / 2,
                bytes_min: WHOLE / 8,
                miss_nanos: 1000,
                entry_bytes: 4096,
                ..Sample::default()
            };
            let mut load = Load { decision: Decision::new(WHOLE, UNIT), now: [half; 2] };
            assert_eq!(load.decision.decide(&load.now), None, "the first look");
            load
        }

        /// Stores these MiB in each half with these ghost hits, and looks.
        fn look(&mut self, stored_mib: [u64; 2], ghost_hits: [u64; 2]) -> Option<Move> {
            for at in 0..2 {
                self.now[at].stored += stored_mib[at] << 8;
                self.now[at].ghost_hits += ghost_hits[at];
            }
            let moved = self.decision.decide(&self.now);
            if let Some(Move { from, bytes }) = moved {
                self.now[from as usize].bytes -= bytes;
                self.now[from.other() as usize].bytes += bytes;
                let least = self.now[from as usize].bytes_min;
                assert!(self.now[from as usize].bytes >= least && bytes > 0 && bytes.is_multiple_of(UNIT));
            }
            moved
        }
    }

    #[test]
    fn memory_goes_to_the_half_that_gains_more_as_fast_as_it_stores_down_to_the_least() {
        let mut load = Load::new();
        assert_eq!(load.look([8, 8], [0, 1000]), Some(Move { from: Half::Items, bytes: 8 << 20 }));
        assert_eq!(load.look([0, 100], [0, 1000]), Some(Move { from: Half::Items, bytes: WHOLE / 32 }));
        while load.look([0, 100], [0, 1000]).is_some() {}
        assert_eq!(load.now[0].bytes, WHOLE / 8);
        // And back, once the gains of before have been forgotten.
        let back = (0..10).find_map(|_| load.look([100, 0], [1000, 0]));
        assert_eq!(back.map(|back| back.from), Some(Half::Objects));
    }

    #[test]
    fn gains_that_are_alike_move_nothing() {
        let mut load = Load::new();
        for _ in 0..50 {
            assert_eq!(load.look([10, 10], [10_000, 12_000]), None);
        }
        assert!(load.look([10, 10], [10_000, 40_000]).is_some());
    }

    #[test]
    fn chance_moves_nothing() {
        let mut load = Load::new();
        for hits in [[3, 6], [2, 5], [4, 2], [0, 3]] {
            assert_eq!(load.look([10, 10], hits), None);
        }
        assert!(load.look([10, 10], [0, 60]).is_some());
    }

    #[test]
    fn a_dear_miss_counts_for_more() {
        let mut load = Load::new();
        load.now[0].miss_nanos = 3000;
        assert_eq!(load.look([8, 8], [1000, 1000]).map(|moved| moved.from), Some(Half::Objects));
        assert_eq!(load.decision.gains(), [3_000_000, 1_000_000]);
    }

    #[test]
    fn a_half_with_room_gets_nothing_and_too_little_is_saved_up() {
        let mut load = Load::new();
        load.now[1].spare_bytes = WHOLE / 64 + 1;
        assert_eq!(load.look([8, 8], [0, 1000]), None);
        load.now[1].spare_bytes = 0;
        assert_eq!(load.look([1, 1], [0, 1000]), None, "too little was stored to decide");
        assert!(load.look([8, 0], [0, 1000]).is_some(), "with what was stored before");
        let mut load = Load::new();
        // 3/4 of a unit at a time: less where the gains are closer.
        let moved = [0; 4].map(|_| load.look([8, 1], [250, 1000]).map_or(0, |moved| moved.bytes));
        assert_eq!(moved, [0, UNIT, UNIT, UNIT]);
    }

    #[test]
    fn loads_come_to_rest_where_their_gains_are_alike() {
        let mut load = Load::new();
        // Each half gains less the more it has: 3 to 1 at the same size.
        let hits = |bytes: u64, weight: u64| weight * 1000 * (WHOLE - bytes) / WHOLE;
        for _ in 0..300 {
            let [items, objects] = load.now.map(|half| half.bytes);
            load.look([8, 8], [hits(items, 3), hits(objects, 1)]);
        }
        let [items, objects] = load.now.map(|half| half.bytes);
        let gains = [hits(items, 3) as f64, hits(objects, 1) as f64];
        assert!(gains[0] / gains[1] < 1.3 && gains[1] / gains[0] < 1.3, "{gains:?}");
    }
}

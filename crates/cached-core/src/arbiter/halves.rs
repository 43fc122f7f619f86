//! The two halves of a shared memory, and the decisions about the balance between them.

use crate::balance::{Balance, Consumer, Needs, Transfer};

/// The minimum part of the memory, as a divisor, that must have been stored between two decisions.
const STORED_DIVISOR: u64 = 256;
/// The maximum part of the memory, as a divisor, that moves in one step.
const MOVE_DIVISOR: u64 = 32;
/// A half counts as full if at most this part of the whole memory, as a divisor, is free in it.
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
    /// Both halves, in the order of their numbers.
    pub const BOTH: [Half; 2] = [Half::Items, Half::Objects];

    /// Returns the other half.
    #[must_use]
    pub fn other(self) -> Half {
        match self {
            Half::Items => Half::Objects,
            Half::Objects => Half::Items,
        }
    }

    /// Returns the name by which the half is reported.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Half::Items => "items",
            Half::Objects => "objects",
        }
    }
}

/// A decision that memory moves from this half to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: Half,
    pub(super) bytes: u64,
}

/// The state of both halves between decisions.
#[derive(Debug)]
pub(super) struct Halves {
    bytes: u64,
    step: u64,
    /// The number of entries stored by each half at the last decision.
    stored: [u64; 2],
    balance: Balance<2>,
}

impl Halves {
    /// Creates the halves of a memory of `bytes`, of which multiples of `unit` are moved.
    pub(super) fn new(bytes: u64, unit: u64, now: &[Needs; 2]) -> Halves {
        let balance = Balance::new(unit, now.map(|half| half.ghost_hits));
        Halves { bytes, step: (bytes / MOVE_DIVISOR).max(unit), stored: now.map(|half| half.stored), balance }
    }

    /// Returns the gains of both halves: the nanoseconds of recent misses that more memory might
    /// have saved.
    pub(super) fn gains(&self) -> [u64; 2] {
        // The gains are estimates, so they may be rounded.
        [0, 1].map(|half| self.balance.gain(half) as u64)
    }

    /// Decides on a move, given the present needs of items and of objects. Returns `None` if
    /// nothing moves.
    pub(super) fn decide(&mut self, now: &[Needs; 2]) -> Option<Move> {
        let filled: [u64; 2] = std::array::from_fn(|at| {
            now[at].stored.saturating_sub(self.stored[at]).saturating_mul(now[at].entry_bytes)
        });
        if filled[0].saturating_add(filled[1]) < self.bytes / STORED_DIVISOR {
            return None;
        }
        self.stored = now.map(|half| half.stored);
        let consumers = std::array::from_fn(|at| {
            Some(Consumer {
                size: now[at].bytes,
                min: now[at].bytes_min,
                max: u64::MAX,
                is_full: now[at].spare_bytes <= self.bytes / SPARE_DIVISOR,
                filled: filled[at],
                ghost_hits: now[at].ghost_hits,
                miss_cost: now[at].miss_nanos as f64,
            })
        });
        let Transfer { from, size: bytes, .. } = self.balance.decide(&consumers, self.step)?;
        Some(Move { from: Half::BOTH[from], bytes })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const WHOLE: u64 = 1 << 30;
    const UNIT: u64 = 1 << 20;

    /// A load: the entries stored and the ghost hits of each half per decision.
    struct Load {
        halves: Halves,
        now: [Needs; 2],
    }

    impl Load {
        fn new() -> Load {
            let half = Needs {
                bytes: WHOLE / 2,
                bytes_min: WHOLE / 8,
                miss_nanos: 1000,
                entry_bytes: 4096,
                ..Needs::default()
            };
            let mut load = Load { halves: Halves::new(WHOLE, UNIT, &[half; 2]), now: [half; 2] };
            assert_eq!(load.halves.decide(&load.now), None, "the first look");
            load
        }

        /// Stores these MiB in each half with these ghost hits, and decides.
        fn look(&mut self, stored_mib: [u64; 2], ghost_hits: [u64; 2]) -> Option<Move> {
            for at in 0..2 {
                self.now[at].stored += stored_mib[at] << 8;
                self.now[at].ghost_hits += ghost_hits[at];
            }
            let moved = self.halves.decide(&self.now);
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
        // The memory moves back once the earlier gains have been forgotten.
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
        assert_eq!(load.halves.gains(), [3_000_000, 1_000_000]);
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
        // Three quarters of a unit move at a time, and less if the gains are closer.
        let moved = [0; 4].map(|_| load.look([8, 1], [250, 1000]).map_or(0, |moved| moved.bytes));
        assert_eq!(moved, [0, UNIT, UNIT, UNIT]);
    }

    #[test]
    fn loads_come_to_rest_where_their_gains_are_alike() {
        let mut load = Load::new();
        // The more memory a half has, the less it gains; at equal sizes, the gains are 3 to 1.
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

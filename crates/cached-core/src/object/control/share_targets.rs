//! The target size of each memory share: targets follow the benefit of a little more memory
//! (`balance.rs`).
//!
//! A share's gain is the load time that too little memory cost it: the number of buckets that it
//! loaded again so soon after their eviction that a quarter more of all memory would have kept
//! them, times the cost of a load, times the share's weight.

use crate::balance::{Balance, Consumer, Needs, Transfer};
use crate::object::config::SHARES;

/// The fraction of the memory that moves at a time.
const STEP_DIVISOR: u64 = 128;

/// The bounds of a namespace's share, in buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) weight: u64,
}

impl Bounds {
    /// The bounds of a share without settings, such as the common one.
    pub(crate) const NONE: Self = Self { min: 0, max: u64::MAX, weight: 1 };
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bounds: Bounds,
    target: u64,
}

/// The targets of the shares in use; they add up to the whole memory.
#[derive(Debug)]
pub(crate) struct Targets {
    pub(super) total: u64,
    entries: [Option<Entry>; SHARES],
    balance: Balance<SHARES>,
}

impl Targets {
    /// Returns targets that assign all of `total` buckets to the common share.
    pub(crate) fn new(total: u64) -> Self {
        let mut entries = [None; SHARES];
        entries[0] = Some(Entry { bounds: Bounds::NONE, target: total });
        Self { total, entries, balance: Balance::new(1, [0; SHARES]) }
    }

    /// Sets the bounds of a share. A new share begins with a target in proportion to its weight.
    pub(crate) fn set(&mut self, share: usize, bounds: Bounds) {
        if let Some(entry) = &mut self.entries[share] {
            entry.bounds = bounds;
        } else {
            let weights: u64 = self.entries.iter().flatten().map(|entry| entry.bounds.weight).sum();
            let part = u128::from(self.total) * u128::from(bounds.weight)
                / u128::from(weights.saturating_add(bounds.weight));
            // The new part is at most the total. The other shares give in proportion to their
            // targets.
            let left = u128::from(self.total) - part;
            for entry in self.entries.iter_mut().flatten() {
                entry.target = (u128::from(entry.target) * left / u128::from(self.total.max(1))) as u64;
            }
            self.entries[share] = Some(Entry { bounds, target: part as u64 });
        }
        self.fit();
    }

    /// Changes the total, and scales each target in proportion as far as its bounds allow.
    pub(crate) fn resize(&mut self, total: u64) {
        for entry in self.entries.iter_mut().flatten() {
            let part = u128::from(entry.target) * u128::from(total) / u128::from(self.total.max(1));
            entry.target = u64::try_from(part).unwrap_or(u64::MAX);
        }
        self.total = total;
        self.fit();
    }

    /// Moves the targets into their bounds, and their sum to the total as far as the bounds allow.
    fn fit(&mut self) {
        for entry in self.entries.iter_mut().flatten() {
            entry.target = entry.target.clamp(entry.bounds.min, entry.bounds.max);
        }
        // Each round either ends, or brings at least one entry to a bound.
        for _ in 0..=2 * SHARES {
            let sum: u64 = self.entries.iter().flatten().map(|entry| entry.target).sum();
            let (missing, excess) = (self.total.saturating_sub(sum), sum.saturating_sub(self.total));
            if missing == 0 && excess == 0 {
                return;
            }
            let can_move = |entry: &Entry| {
                if missing > 0 { entry.target < entry.bounds.max } else { entry.target > entry.bounds.min }
            };
            let movable = self.entries.iter().flatten().filter(|entry| can_move(entry));
            let weight = |entry: &Entry| if missing > 0 { entry.bounds.weight } else { entry.target };
            let weights: u128 = movable.map(|entry| u128::from(weight(entry))).sum();
            if weights == 0 {
                return;
            }
            let mut left = missing.max(excess);
            for entry in self.entries.iter_mut().flatten().filter(|entry| can_move(entry)) {
                let part = u128::from(missing.max(excess)) * u128::from(weight(entry)) / weights;
                // At most the remaining amount, and at least one bucket, so that a remainder is
                // moved too.
                let part = (part as u64).max(1).min(left);
                let before = entry.target;
                entry.target = match missing > 0 {
                    true => (before + part).min(entry.bounds.max),
                    false => before.saturating_sub(part).max(entry.bounds.min),
                };
                left -= entry.target.abs_diff(before);
            }
        }
    }

    /// Moves some memory from the share with the least gain to the one with the most, if their
    /// gains differ; returns whether any was moved. The byte counts of `measured` are in buckets.
    pub(crate) fn rebalance(&mut self, measured: &[Needs; SHARES]) -> bool {
        let step = (self.total / STEP_DIVISOR).max(1);
        let consumers = std::array::from_fn(|share| {
            let (Entry { bounds, target }, now) = (self.entries[share]?, measured[share]);
            Some(Consumer {
                size: target,
                min: bounds.min.max(step),
                max: bounds.max,
                is_full: now.bytes + step >= target,
                // A share fills its memory on demand: only the target moves here.
                filled: u64::MAX,
                ghost_hits: now.ghost_hits,
                miss_cost: now.miss_nanos.max(1) as f64 * bounds.weight as f64,
            })
        });
        let Some(Transfer { from, to, size }) = self.balance.decide(&consumers, step) else { return false };
        for (share, entry) in self.entries.iter_mut().enumerate() {
            let Some(entry) = entry else { continue };
            entry.target += if share == to { size } else { 0 };
            entry.target -= if share == from { size } else { 0 };
        }
        true
    }

    /// Returns the target of a share, in buckets; `None` if the share is not in use.
    pub(crate) fn target(&self, share: usize) -> Option<u64> {
        self.entries[share].map(|entry| entry.target)
    }

    /// Returns the gain of a share: the weighted load time, in nanoseconds, that more memory might
    /// have saved it recently.
    pub(crate) fn gain(&self, share: usize) -> f64 {
        self.balance.gain(share)
    }

    /// Checks that the targets are within their bounds and add up to the total.
    #[inline]
    pub(crate) fn validate(&self) -> Result<(), String> {
        let sum: u64 = self.entries.iter().flatten().map(|entry| entry.target).sum();
        let all = self.entries.iter().flatten();
        let is_within = |entry: &Entry| (entry.bounds.min..=entry.bounds.max).contains(&entry.target);
        match all.clone().find(|entry| !is_within(entry)) {
            Some(entry) => Err(format!("a share's target is out of its bounds: {entry:?}")),
            None if sum != self.total => Err(format!("the targets add up to {sum} of {}", self.total)),
            None => Ok(()),
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn bounds(min: u64, max: u64, weight: u64) -> Bounds {
        Bounds { min, max, weight }
    }

    /// Returns measurements in which every share is full and has these ghost hits.
    fn measured(targets: &Targets, ghost_hits: [u64; 3]) -> [Needs; SHARES] {
        std::array::from_fn(|at| Needs {
            bytes: targets.target(at).unwrap_or(0),
            ghost_hits: ghost_hits.get(at).copied().unwrap_or(0),
            miss_nanos: 1000,
            ..Needs::default()
        })
    }

    #[test]
    fn new_shares_get_their_part_by_weight_within_their_bounds() {
        let mut targets = Targets::new(1000);
        targets.set(1, bounds(0, u64::MAX, 3));
        assert_eq!((targets.target(0), targets.target(1)), (Some(250), Some(750)));
        targets.set(2, bounds(0, 100, 1));
        assert_eq!(targets.target(2), Some(100));
        targets.validate().unwrap();
        targets.set(2, bounds(600, u64::MAX, 1));
        assert_eq!(targets.target(2), Some(600));
        targets.validate().unwrap();
        // All but the common share have a limit.
        targets.set(1, bounds(0, 50, 1));
        targets.set(2, bounds(0, 60, 1));
        assert_eq!([0, 1, 2].map(|share| targets.target(share)), [890, 50, 60].map(Some));
        targets.validate().unwrap();
    }

    #[test]
    fn memory_moves_to_where_it_gains_most_and_no_further_than_the_bounds() {
        let mut targets = Targets::new(12_800);
        targets.set(1, bounds(1000, u64::MAX, 1));
        targets.set(2, bounds(0, 9000, 1));
        let mut hits = 0;
        let mut rounds = 0;
        loop {
            hits += 100;
            rounds += 1;
            let now = measured(&targets, [0, 0, hits]);
            let moved = targets.rebalance(&now);
            targets.validate().unwrap();
            if !moved {
                break;
            }
        }
        assert_eq!(targets.target(2), Some(9000));
        assert!(targets.target(1) >= Some(1000), "{targets:?}");
        assert!(rounds < 2 * STEP_DIVISOR, "{rounds}");
    }

    #[test]
    fn equal_gains_move_nothing_and_weights_count() {
        let mut targets = Targets::new(12_800);
        targets.set(1, bounds(0, u64::MAX, 1));
        for round in 1..50 {
            let now = measured(&targets, [round * 100, round * 90, 0]);
            assert!(!targets.rebalance(&now));
        }
        targets.set(1, bounds(0, u64::MAX, 2));
        let before = targets.target(1);
        for round in 50..60 {
            let now = measured(&targets, [round * 100, round * 90, 0]);
            targets.rebalance(&now);
        }
        assert!(targets.target(1) > before);
    }

    #[test]
    fn a_dear_load_weighs_more_and_an_unused_target_does_not_grow() {
        let mut targets = Targets::new(12_800);
        targets.set(1, bounds(0, u64::MAX, 1));
        let before = targets.target(1);
        let mut now = measured(&targets, [100, 100, 0]);
        now[1].miss_nanos = 5000;
        now[1].bytes = 100;
        assert!(!targets.rebalance(&now), "it has room");
        now[1].bytes = targets.target(1).unwrap();
        now[1].ghost_hits = 200;
        assert!(targets.rebalance(&now));
        assert!(targets.target(1) > before);
    }

    #[test]
    fn another_amount_of_memory_leaves_each_share_its_part_within_its_bounds() {
        let mut targets = Targets::new(1000);
        targets.set(1, bounds(300, u64::MAX, 1));
        targets.set(2, bounds(0, 100, 1));
        for total in [2000, 500, 400, 1000, 301] {
            targets.resize(total);
            targets.validate().unwrap();
        }
        assert!(targets.target(1) >= Some(300), "{targets:?}");
        let mut alone = Targets::new(7);
        alone.resize(3);
        assert_eq!(alone.target(0), Some(3));
    }

    #[test]
    fn bounds_that_cannot_all_hold_leave_the_sum_as_near_as_can_be() {
        let mut targets = Targets::new(100);
        targets.set(1, bounds(80, u64::MAX, 1));
        targets.set(2, bounds(80, u64::MAX, 1));
        assert_eq!([0, 1, 2].map(|share| targets.target(share)), [0, 80, 80].map(Some));
        assert!(targets.validate().is_err());
        assert!(!targets.rebalance(&measured(&targets, [1, 2, 3])));
    }
}

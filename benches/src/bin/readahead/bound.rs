//! The upper bound of the coverage of sequential read-ahead: the misses without read-ahead, except
//! those that even a detector with knowledge of the future needs in order to recognise a sequence.
//!
//! A *chain* is a sequence of misses each of which begins at most [`GAP_MAX`] buckets beyond the
//! end of the previous one, with at most [`REQUESTS_MAX`] other requests in between. A detector
//! that reads ahead upon the second miss of a chain, and knows how far the chain continues, covers
//! everything from the third miss on. No detector covers more, because there is no sequence before
//! the second miss. The figure does not cover longer steps or recurring patterns.

use std::collections::{BTreeMap, VecDeque};

/// The longest gap in a chain, in buckets.
const GAP_MAX: u64 = 8;
/// The most requests between two misses of a chain.
const REQUESTS_MAX: u64 = 1024;
/// The number of misses after which a chain can be predicted.
const FORESEEN_FROM: u32 = 2;

/// The bound, see the module.
#[derive(Default)]
pub(crate) struct Bound {
    /// The positions where chains may continue, each with the number of misses of its chain and the
    /// request of the last miss.
    ends: BTreeMap<u64, (u32, u64)>,
    /// The same positions, oldest first.
    ages: VecDeque<(u64, u64)>,
    buckets: u64,
    covered: u64,
}

impl Bound {
    /// Records that this request missed `missed` buckets between `first` and `end`.
    pub(crate) fn miss(&mut self, request: u64, first: u64, end: u64, missed: u64) {
        while let Some((end, at)) = self.ages.front().copied()
            && at + REQUESTS_MAX < request
        {
            self.ages.pop_front();
            // Another chain may have reached the same end since.
            if self.ends.get(&end).is_some_and(|(_, last)| *last == at) {
                self.ends.remove(&end);
            }
        }
        // The last bucket of the previous miss may be part of the next request too.
        let near = self.ends.range(first.saturating_sub(GAP_MAX)..=first + 1).next_back();
        let before = near.map(|(end, (misses, _))| (*end, *misses));
        let misses = before.map_or(0, |(_, misses)| misses);
        if let Some((end, _)) = before {
            self.ends.remove(&end);
        }
        self.buckets += missed;
        self.covered += if misses >= FORESEEN_FROM { missed } else { 0 };
        self.ends.insert(end, (misses.saturating_add(1), request));
        self.ages.push_back((end, request));
    }

    /// Returns the share of the missed buckets that could be covered.
    pub(crate) fn coverage(&self) -> f64 {
        self.covered as f64 / self.buckets.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_after_two_misses_of_a_chain_is_covered() {
        let mut bound = Bound::default();
        for nth in 0..4 {
            bound.miss(nth, nth * 10, nth * 10 + 2, 2);
        }
        assert_eq!(bound.coverage(), 0.5, "two of four, with gaps of eight");
        bound.miss(2000, 32, 34, 4);
        assert_eq!(bound.coverage(), 4.0 / 12.0, "that chain is over");
        bound.miss(2001, 44, 46, 4);
        assert_eq!(bound.coverage(), 4.0 / 16.0, "a gap of ten is none of it");
    }
}

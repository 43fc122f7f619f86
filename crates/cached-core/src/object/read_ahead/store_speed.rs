//! Whether the store is slow enough for reading ahead to be of use: the median of its last answers.

use std::time::Duration;

use crate::sync::{AtomicU64, Ordering};

/// The least answers by which is judged.
const ANSWERS_MIN: u32 = 8;
/// The place beyond the most answers that are kept.
const LAST: u64 = 1 << 63;

/// See the module: a bit for each of the last 63 answers, the newest lowest, below a bit that is set.
#[derive(Debug)]
pub(crate) struct StoreSpeed(AtomicU64);

impl Default for StoreSpeed {
    fn default() -> Self {
        Self(AtomicU64::new(1))
    }
}

impl StoreSpeed {
    /// Notes how long the store took to answer a read that a caller waited for.
    pub(crate) fn note(&self, took: Duration, slow_from: Duration) {
        let is_slow = u64::from(took >= slow_from);
        let before = self.0.load(Ordering::Relaxed);
        // Of two threads at the same time one may be lost.
        self.0.store(before << 1 | is_slow | before & LAST, Ordering::Relaxed);
    }

    /// Whether at least half of the last answers were slow; false until there have been some.
    pub(crate) fn is_slow(&self) -> bool {
        let answers = self.0.load(Ordering::Relaxed);
        let count = answers.ilog2();
        count >= ANSWERS_MIN && 2 * (answers.count_ones() - 1) >= count
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_last_answers_decides() {
        let speed = StoreSpeed::default();
        let limit = Duration::from_micros(200);
        let note = |micros: u64, times: u32| {
            (0..times).for_each(|_| speed.note(Duration::from_micros(micros), limit));
        };
        note(200, 7);
        assert!(!speed.is_slow(), "too few");
        note(200, 1);
        assert!(speed.is_slow());
        note(199, 8);
        assert!(speed.is_slow(), "half of them");
        note(199, 1);
        assert!(!speed.is_slow());
        note(1000, 100);
        note(0, 31);
        assert!(speed.is_slow(), "31 of the last 63 were fast");
        note(0, 1);
        assert!(!speed.is_slow());
        note(0, 1000);
        note(200, 31);
        assert!(!speed.is_slow());
        note(200, 1);
        assert!(speed.is_slow());
    }
}

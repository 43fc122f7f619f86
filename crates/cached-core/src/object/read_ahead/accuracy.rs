//! The usefulness of read-ahead: the fraction of its data that is used, and the store's speed.

use std::time::Duration;

use super::progressions::Terms;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The number of buckets in each evaluation.
const JUDGED: u32 = 256;
/// The last level. Each level is more cautious than the one before; beyond the last, read-ahead is
/// off.
const LEVEL_MAX: u32 = 3;
const OFF: u32 = LEVEL_MAX + 1;
/// The first window in buckets: 16 KiB. A wrong guess then wastes little, and windows double
/// quickly.
const WINDOW_MIN: u32 = 4;
/// The number of sequential accesses that initially trigger read-ahead.
const IN_ORDER_MIN: u32 = 2;
/// The number of misses after which read-ahead is tried again: the first time, and at most.
const PAUSE_MIN: u32 = 256;
const PAUSE_MAX: u32 = 64 * 1024;

/// The fraction of read-ahead data that is used: the feedback that makes read-ahead more cautious,
/// and turns it off. Concurrent counts may be lost.
#[derive(Debug, Default)]
pub(crate) struct Accuracy {
    /// The outcomes of the current evaluation: the number of buckets that were read in the lower
    /// half, of those that were not in the upper.
    outcomes: AtomicU32,
    level: AtomicU32,
    /// The misses since read-ahead was turned off.
    passed: AtomicU32,
    /// How often the number of misses after which it resumes has been doubled.
    doublings: AtomicU32,
}

impl Accuracy {
    /// Counts the outcome of a bucket that was read ahead: it has been read, or has gone unread.
    pub(crate) fn count(&self, was_read: bool) {
        let outcomes = self.outcomes.fetch_add(if was_read { 1 } else { 1 << 16 }, Ordering::Relaxed);
        if (outcomes & 0xffff) + (outcomes >> 16) + 1 < JUDGED {
            return;
        }
        let outcomes = self.outcomes.swap(0, Ordering::Relaxed);
        let (read, unread) = (outcomes & 0xffff, outcomes >> 16);
        let level = self.level.load(Ordering::Relaxed);
        if level == OFF {
            // The bucket was read ahead before read-ahead was turned off, and decides nothing.
            return;
        }
        let next = if read * 4 < read + unread {
            OFF
        } else if read * 2 < read + unread {
            level + 1
        } else if read * 10 > (read + unread) * 7 {
            self.doublings.store(0, Ordering::Relaxed);
            level.saturating_sub(1)
        } else {
            level
        };
        self.passed.store(0, Ordering::Relaxed);
        self.level.store(next.min(OFF), Ordering::Relaxed);
    }

    /// Returns the current terms of read-ahead upon a miss, with windows of at most `window_max`
    /// buckets.
    pub(crate) fn terms(&self, window_max: u32) -> Terms {
        let mut level = self.level.load(Ordering::Relaxed);
        if level == OFF && self.begins_again() {
            level = LEVEL_MAX;
        }
        let window_min = WINDOW_MIN.min(window_max);
        let window_max = if level == OFF { 0 } else { (window_max >> (2 * level)).max(window_min) };
        Terms { window_min, window_max, in_order_min: IN_ORDER_MIN + level }
    }

    /// Counts a miss while read-ahead is off; returns true once there have been enough misses for
    /// another attempt. Each attempt comes later than the one before, until one succeeds.
    fn begins_again(&self) -> bool {
        let doublings = self.doublings.load(Ordering::Relaxed);
        let pause = PAUSE_MIN << doublings;
        if self.passed.fetch_add(1, Ordering::Relaxed) + 1 < pause {
            return false;
        }
        self.doublings.store(doublings + u32::from(pause < PAUSE_MAX), Ordering::Relaxed);
        self.outcomes.store(0, Ordering::Relaxed);
        self.level.store(LEVEL_MAX, Ordering::Relaxed);
        true
    }
}

/// The minimum number of responses for a decision.
const ANSWERS_MIN: u32 = 8;
/// The bit beyond the maximum number of responses kept.
const LAST: u64 = 1 << 63;

/// Whether the store is slow enough for read-ahead to be useful, by the median of its recent
/// responses: a bit for each of the last 63 responses, the newest lowest, below a bit that is
/// always set.
#[derive(Debug)]
pub(crate) struct StoreSpeed(AtomicU64);

impl Default for StoreSpeed {
    fn default() -> Self {
        Self(AtomicU64::new(1))
    }
}

impl StoreSpeed {
    /// Records how long the store took to respond to a read for which a caller waited.
    pub(crate) fn note(&self, took: Duration, slow_from: Duration) {
        let is_slow = u64::from(took >= slow_from);
        let before = self.0.load(Ordering::Relaxed);
        // If two threads record a response simultaneously, one may be lost.
        self.0.store(before << 1 | is_slow | before & LAST, Ordering::Relaxed);
    }

    /// Returns whether at least half of the recent responses were slow; false until there have been
    /// enough.
    pub(crate) fn is_slow(&self) -> bool {
        let answers = self.0.load(Ordering::Relaxed);
        let count = answers.ilog2();
        count >= ANSWERS_MIN && 2 * (answers.count_ones() - 1) >= count
    }
}

#[cfg(all(test, not(shuttle)))]
mod accuracy_tests {
    use super::*;

    fn judge(accuracy: &Accuracy, read: u32) {
        (0..JUDGED).for_each(|nth| accuracy.count(nth < read));
    }

    #[test]
    fn what_is_not_read_makes_it_more_careful_and_what_is_less() {
        let accuracy = Accuracy::default();
        assert_eq!(accuracy.terms(256), Terms { window_min: 4, window_max: 256, in_order_min: 2 });
        judge(&accuracy, 127);
        assert_eq!(accuracy.terms(256), Terms { window_min: 4, window_max: 64, in_order_min: 3 });
        judge(&accuracy, 128);
        assert_eq!(accuracy.terms(256).window_max, 64, "half is neither good nor bad");
        judge(&accuracy, 179);
        assert_eq!(accuracy.terms(256).window_max, 64);
        judge(&accuracy, 180);
        assert_eq!(accuracy.terms(256).window_max, 256);
        assert_eq!(accuracy.terms(2), Terms { window_min: 2, window_max: 2, in_order_min: 2 });
        assert_eq!(accuracy.terms(0).window_max, 0, "switched off");
    }

    #[test]
    fn it_ends_below_a_quarter_and_each_attempt_comes_later() {
        let accuracy = Accuracy::default();
        let misses = || (1..).find(|_| accuracy.terms(256).window_max > 0).unwrap();
        judge(&accuracy, 63);
        assert_eq!(misses(), PAUSE_MIN);
        assert_eq!(accuracy.terms(256), Terms { window_min: 4, window_max: 4, in_order_min: 5 });
        judge(&accuracy, 127);
        judge(&accuracy, 256);
        assert_eq!(misses(), 2 * PAUSE_MIN, "what was read ahead before decides nothing");
        judge(&accuracy, 63);
        assert_eq!(misses(), 4 * PAUSE_MIN);
        judge(&accuracy, 256);
        assert_eq!(accuracy.terms(256).in_order_min, 4, "one level up");
        judge(&accuracy, 0);
        assert_eq!(misses(), PAUSE_MIN, "it had been of use");
        (0..20).for_each(|_| {
            judge(&accuracy, 0);
            assert!(misses() <= PAUSE_MAX);
        });
    }
}

#[cfg(all(test, not(shuttle)))]
mod store_speed_tests {
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

//! Whether reading ahead pays: how much of what was read ahead is read, and how slow the store is.

use std::time::Duration;

use super::progressions::Terms;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Buckets by which is judged.
const JUDGED: u32 = 256;
/// Each level is more careful than the one before; beyond the last nothing is read ahead.
const LEVEL_MAX: u32 = 3;
const OFF: u32 = LEVEL_MAX + 1;
/// The first window in buckets: 16 KiB. What is read in vain is then little, and windows double soon.
const WINDOW_MIN: u32 = 4;
/// Accesses in order from which on is read ahead at first.
const IN_ORDER_MIN: u32 = 2;
/// Misses after which another attempt is made, the first time and at most.
const PAUSE_MIN: u32 = 256;
const PAUSE_MAX: u32 = 64 * 1024;

/// How much of what is read ahead is read: the feedback that makes reading ahead more careful, and ends it. Where threads meet, a count may be lost.
#[derive(Debug)]
pub(crate) struct Accuracy {
    /// Of the buckets judged next, those that were read in the lower half, those that were not in the upper.
    outcomes: AtomicU32,
    level: AtomicU32,
    /// Misses since it ended, and those after which it begins again.
    passed: AtomicU32,
    pause: AtomicU32,
}

impl Default for Accuracy {
    fn default() -> Self {
        Self {
            outcomes: AtomicU32::new(0),
            level: AtomicU32::new(0),
            passed: AtomicU32::new(0),
            pause: AtomicU32::new(PAUSE_MIN),
        }
    }
}

impl Accuracy {
    /// Counts a bucket that was read ahead: it has been read, or is gone unread.
    pub(crate) fn count(&self, was_read: bool) {
        let outcomes = self.outcomes.fetch_add(if was_read { 1 } else { 1 << 16 }, Ordering::Relaxed);
        if (outcomes & 0xffff) + (outcomes >> 16) + 1 < JUDGED {
            return;
        }
        let outcomes = self.outcomes.swap(0, Ordering::Relaxed);
        let (read, unread) = (outcomes & 0xffff, outcomes >> 16);
        let level = self.level.load(Ordering::Relaxed);
        if level == OFF {
            // It was read ahead before the end, and decides nothing.
            return;
        }
        let next = if read * 4 < read + unread {
            OFF
        } else if read * 2 < read + unread {
            level + 1
        } else if read * 10 > (read + unread) * 7 {
            self.pause.store(PAUSE_MIN, Ordering::Relaxed);
            level.saturating_sub(1)
        } else {
            level
        };
        self.passed.store(0, Ordering::Relaxed);
        self.level.store(next.min(OFF), Ordering::Relaxed);
    }

    /// Returns how far ahead may be read at present, at most `window_max` buckets, upon a miss.
    pub(crate) fn terms(&self, window_max: u32) -> Terms {
        let mut level = self.level.load(Ordering::Relaxed);
        if level == OFF && self.begins_again() {
            level = LEVEL_MAX;
        }
        let window_min = WINDOW_MIN.min(window_max);
        let window_max = if level == OFF { 0 } else { (window_max >> (2 * level)).max(window_min) };
        Terms { window_min, window_max, in_order_min: IN_ORDER_MIN + level }
    }

    /// Counts a miss while nothing is read ahead; returns true once there have been enough to try it
    /// again. Each attempt comes later than the one before, until one succeeds.
    fn begins_again(&self) -> bool {
        let pause = self.pause.load(Ordering::Relaxed);
        if self.passed.fetch_add(1, Ordering::Relaxed) + 1 < pause {
            return false;
        }
        self.pause.store((pause * 2).min(PAUSE_MAX), Ordering::Relaxed);
        self.outcomes.store(0, Ordering::Relaxed);
        self.level.store(LEVEL_MAX, Ordering::Relaxed);
        true
    }
}

/// The least answers by which is judged.
const ANSWERS_MIN: u32 = 8;
/// The place beyond the most answers that are kept.
const LAST: u64 = 1 << 63;

/// Whether the store is slow enough for reading ahead to be of use, by the median of its last answers: a bit for each of the last 63 answers, the newest lowest, below a bit that is set.
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

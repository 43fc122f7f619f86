//! Distributions of durations: four buckets for each power of two, from a microsecond to a minute.
//!
//! All latencies of a program use the same scale, so that distributions can be added, subtracted
//! and compared. The error of a quantile is less than a quarter of its value.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::family::Value;

/// The number of buckets for each power of two.
const STEPS: usize = 4;
/// The number of powers of two, from 1 µs to 2²⁶ µs, which is 67 s.
const OCTAVES: usize = 26;
/// The number of buckets: one for durations up to 1 µs, those of the powers of two, and one for
/// longer durations.
const BUCKETS: usize = 1 + OCTAVES * STEPS + 1;
/// The unit: a quarter of a microsecond, so that the first power of two has four steps of one unit.
const UNIT_NANOS: u64 = 250;

/// Returns the bucket of a duration.
fn bucket_of(nanos: u64) -> usize {
    // One is subtracted, because upper bounds are inclusive.
    let units = nanos.saturating_sub(1) / UNIT_NANOS;
    if units < STEPS as u64 {
        return 0;
    }
    let octave = units.ilog2() - STEPS.ilog2();
    let step = (units >> octave) as usize % STEPS;
    (1 + octave as usize * STEPS + step).min(BUCKETS - 1)
}

/// Returns the inclusive upper bound of a bucket in nanoseconds; `None` for the last bucket.
fn bound_nanos(bucket: usize) -> Option<u64> {
    match bucket {
        0 => Some(STEPS as u64 * UNIT_NANOS),
        _ if bucket >= BUCKETS - 1 => None,
        _ => {
            let (octave, step) = ((bucket - 1) / STEPS, (bucket - 1) % STEPS);
            Some(((STEPS + step + 1) as u64 * UNIT_NANOS) << octave)
        }
    }
}

/// A distribution of durations. Any thread can add to it, with one or two atomic additions per
/// call.
///
/// ```
/// use std::time::Duration;
/// use cached_metrics::Latency;
///
/// let reads = Latency::new();
/// reads.observe(Duration::from_micros(100));
/// reads.observe_many(Duration::from_micros(900), 3);
/// let snapshot = reads.snapshot();
/// assert_eq!(snapshot.count(), 4);
/// assert!(snapshot.quantile(0.5).is_some_and(|median| median >= Duration::from_micros(800)));
/// ```
pub struct Latency {
    counts: [AtomicU64; BUCKETS],
    sum_nanos: AtomicU64,
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

impl Latency {
    /// Returns an empty distribution.
    #[must_use]
    pub const fn new() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS], sum_nanos: AtomicU64::new(0) }
    }

    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        self.observe_many(duration, 1);
    }

    /// Counts the same duration `count` times.
    pub fn observe_many(&self, duration: Duration, count: u64) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(nanos)].fetch_add(count, Ordering::Relaxed);
        self.sum_nanos.fetch_add(nanos.saturating_mul(count), Ordering::Relaxed);
    }

    /// Returns the durations counted so far. Durations counted in the meantime may be in the sum
    /// but not in a bucket, or vice versa.
    #[must_use]
    pub fn snapshot(&self) -> LatencySnapshot {
        let read = |bucket: usize| self.counts[bucket].load(Ordering::Relaxed);
        LatencySnapshot {
            counts: std::array::from_fn(read),
            sum_nanos: self.sum_nanos.load(Ordering::Relaxed),
        }
    }
}

impl std::fmt::Debug for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Latency").field("count", &self.snapshot().count()).finish_non_exhaustive()
    }
}

/// A distribution of durations at one moment, or between two moments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatencySnapshot {
    counts: [u64; BUCKETS],
    sum_nanos: u64,
}

impl Default for LatencySnapshot {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum_nanos: 0 }
    }
}

impl LatencySnapshot {
    /// Adds the durations of `other`.
    pub fn add(&mut self, other: &Self) {
        for (own, other) in self.counts.iter_mut().zip(&other.counts) {
            *own = own.wrapping_add(*other);
        }
        self.sum_nanos = self.sum_nanos.wrapping_add(other.sum_nanos);
    }

    /// Returns the durations counted since `before`, an earlier snapshot of the same distribution.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            counts: std::array::from_fn(|bucket| self.counts[bucket].saturating_sub(before.counts[bucket])),
            sum_nanos: self.sum_nanos.saturating_sub(before.sum_nanos),
        }
    }

    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }

    /// Returns the `quantile` of all durations, interpolated within its bucket; `None` for an empty
    /// distribution. A result above the scale becomes the end of the scale, 67 s.
    ///
    /// A `quantile` outside of 0 to 1 counts as the nearer limit.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = (quantile.clamp(0.0, 1.0) * count as f64).max(1.0);
        let mut below = 0;
        let mut lower = 0;
        for (bucket, number) in self.counts.iter().copied().enumerate() {
            let Some(upper) = bound_nanos(bucket) else { break };
            if number > 0 && (below + number) as f64 >= rank {
                let share = (rank - below as f64) / number as f64;
                return Some(Duration::from_nanos(lower + ((upper - lower) as f64 * share) as u64));
            }
            below += number;
            lower = upper;
        }
        Some(Duration::from_nanos(lower))
    }

    /// Returns the distribution in powers of two: for each nonempty one, the inclusive upper bound
    /// in microseconds, and the number of durations in it. Durations beyond the scale are counted
    /// at twice the scale's end.
    #[must_use]
    pub fn octaves_us(&self) -> Vec<(u64, u64)> {
        let first = (1, self.counts[0]);
        let others = (0..OCTAVES).map(|octave| {
            let from = 1 + octave * STEPS;
            (2 << octave, self.counts[from..from + STEPS].iter().sum())
        });
        let last = (2 << OCTAVES, self.counts[BUCKETS - 1]);
        std::iter::once(first).chain(others).chain([last]).filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the distribution as the value of a histogram in seconds. Its buckets are the powers
    /// of two from `2^first` to `2^last` microseconds; `last` is at most 26.
    #[must_use]
    pub fn value(&self, first: u32, last: u32) -> Value {
        let mut below = 0;
        let mut buckets = Vec::new();
        for (bucket, count) in self.counts.iter().copied().enumerate() {
            below += count;
            let is_octave = bucket % STEPS == 0;
            let octave = (bucket / STEPS) as u32;
            if is_octave && (first..=last.min(OCTAVES as u32)).contains(&octave) {
                // The bound is the floating-point number nearest to the decimal one, so that it is
                // printed with few digits.
                buckets.push(((1u64 << octave) as f64 / 1e6, below));
            }
        }
        Value::Histogram { buckets, sum: self.sum_nanos as f64 / 1e9, count: below }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_the_bucket_whose_bounds_enclose_it() {
        let mut lower = 0;
        for bucket in 0..BUCKETS - 1 {
            let upper = bound_nanos(bucket).expect("all but the last have a bound");
            assert!(upper > lower);
            assert_eq!((bucket_of(lower + 1), bucket_of(upper)), (bucket, bucket), "bucket {bucket}");
            lower = upper;
        }
        assert_eq!(lower, 1000 << OCTAVES);
        assert_eq!((bucket_of(0), bucket_of(lower + 1), bucket_of(u64::MAX)), (0, BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn a_quantile_is_within_a_quarter_of_the_true_one() {
        let latency = Latency::new();
        (1..=10_000).for_each(|micros| latency.observe(Duration::from_micros(micros)));
        for (quantile, truth) in [(0.0, 1.0), (0.5, 5000.0), (0.99, 9900.0), (0.999, 9990.0), (1.0, 10_000.0)]
        {
            let found = latency.snapshot().quantile(quantile).expect("it is not empty").as_secs_f64() * 1e6;
            assert!((found - truth).abs() <= truth * 0.25, "{quantile}: {found} instead of {truth}");
        }
        assert_eq!(LatencySnapshot::default().quantile(0.5), None);
        let long = Latency::new();
        long.observe(Duration::from_secs(3600));
        assert_eq!(long.snapshot().quantile(0.5), Some(Duration::from_micros(1 << OCTAVES)));
    }

    #[test]
    fn a_histogram_has_cumulative_buckets_at_powers_of_two() {
        let latency = Latency::new();
        latency.observe_many(Duration::from_micros(1), 2);
        latency.observe(Duration::from_nanos(1001));
        latency.observe(Duration::from_micros(4));
        latency.observe(Duration::from_secs(100));
        let Value::Histogram { buckets, sum, count } = latency.snapshot().value(1, 3) else { panic!() };
        assert_eq!(buckets, [(0.000002, 3), (0.000004, 4), (0.000008, 4)]);
        assert_eq!(count, 5);
        assert!((sum - 100.000_007_001).abs() < 1e-9);
        assert_eq!(latency.snapshot().octaves_us(), [(1, 2), (2, 1), (4, 1), (1 << 27, 1)]);
    }

    #[test]
    fn the_difference_of_two_snapshots_is_what_was_counted_between_them() {
        let latency = Latency::new();
        latency.observe(Duration::from_micros(10));
        let before = latency.snapshot();
        latency.observe(Duration::from_millis(10));
        let between = latency.snapshot().since(&before);
        assert_eq!((between.count(), between.sum()), (1, Duration::from_millis(10)));
        let mut sum = before;
        sum.add(&between);
        assert_eq!(sum, latency.snapshot());
    }
}

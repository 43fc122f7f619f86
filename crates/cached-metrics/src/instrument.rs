//! Instruments for paths where one shared atomic is cheap enough.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::family::Value;

/// A counter that any thread can increase.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Returns a counter at 0.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Increases the counter by 1.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Increases the counter by `count`.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Increases the counter by `count`, and sets `count` to 0. Writes nothing if it is already 0.
    pub fn take(&self, count: &mut u64) {
        if *count > 0 {
            self.add(std::mem::take(count));
        }
    }

    /// Returns the counter's value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that any thread can set.
#[derive(Default, Debug)]
pub struct Gauge(
    /// The bits of an `f64`.
    AtomicU64,
);

impl Gauge {
    /// Returns a gauge at 0.
    #[must_use]
    pub const fn new() -> Self {
        // 0.0 is represented by zero bits.
        Self(AtomicU64::new(0))
    }

    /// Sets the gauge.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Adds `change`, which may be negative.
    pub fn add(&self, change: f64) {
        add_f64(&self.0, change);
    }

    /// Returns the gauge's value.
    #[must_use]
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

fn add_f64(bits: &AtomicU64, change: f64) {
    // Only the sum matters, not the order of the additions.
    let sum = |old: u64| Some((f64::from_bits(old) + change).to_bits());
    let _ = bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
}

/// A distribution over fixed buckets.
///
/// ```
/// use cached_metrics::{Histogram, Value};
///
/// let sizes = Histogram::new([512.0, 4096.0]);
/// for size in [100.0, 4096.0, 10_000.0] {
///     sizes.observe(size);
/// }
/// let buckets = vec![(512.0, 1), (4096.0, 2)];
/// assert_eq!(sizes.value(), Value::Histogram { buckets, sum: 14_196.0, count: 3 });
/// ```
#[derive(Debug)]
pub struct Histogram {
    bounds: Box<[f64]>,
    /// One count per bound, not cumulative, and a last one for values above all bounds.
    counts: Box<[AtomicU64]>,
    /// The bits of an `f64`.
    sum: AtomicU64,
}

impl Histogram {
    /// Returns an empty histogram whose buckets have these inclusive upper bounds.
    ///
    /// # Panics
    /// Panics if the bounds are not in ascending order, or one is not finite.
    #[must_use]
    pub fn new(bounds: impl Into<Box<[f64]>>) -> Self {
        let bounds = bounds.into();
        assert!(bounds.iter().all(|bound| bound.is_finite()), "a bound of a histogram must be finite");
        assert!(bounds.is_sorted_by(|a, b| a < b), "the bounds of a histogram must be in ascending order");
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    /// Counts `value`. NaN counts as above the last bound, and is not added to the sum.
    pub fn observe(&self, value: f64) {
        let bucket = if value.is_nan() {
            self.bounds.len()
        } else {
            add_f64(&self.sum, value);
            self.bounds.partition_point(|bound| *bound < value)
        };
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the distribution. Values observed in the meantime may be in the sum but not in the
    /// buckets, or vice versa. `count` always equals the total of the buckets.
    #[must_use]
    pub fn value(&self) -> Value {
        let mut count = 0;
        let mut cumulative = self.counts.iter().map(|bucket| {
            count += bucket.load(Ordering::Relaxed);
            count
        });
        let buckets = self.bounds.iter().copied().zip(&mut cumulative).collect();
        // This skips the values above the last bound.
        cumulative.next();
        drop(cumulative);
        Value::Histogram { buckets, sum: f64::from_bits(self.sum.load(Ordering::Relaxed)), count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_moves_both_ways() {
        let gauge = Gauge::new();
        gauge.add(2.5);
        gauge.add(-1.0);
        assert_eq!(gauge.get(), 1.5);
        gauge.set(7.0);
        assert_eq!(gauge.get(), 7.0);
    }

    #[test]
    fn a_histogram_counts_each_value_once() {
        let histogram = Histogram::new([1.0, 2.0]);
        for value in [-1.0, 1.0, 1.5, 2.0, 2.1, f64::INFINITY, f64::NAN] {
            histogram.observe(value);
        }
        let Value::Histogram { buckets, count, .. } = histogram.value() else { panic!("not a histogram") };
        assert_eq!((buckets, count), (vec![(1.0, 2), (2.0, 4)], 7));
    }

    #[test]
    fn threads_lose_no_count() {
        let (counter, histogram) = (Counter::new(), Histogram::new([0.5]));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counter.increment();
                        histogram.observe(1.0);
                    }
                });
            }
        });
        assert_eq!(counter.get(), 4000);
        let expected = Value::Histogram { buckets: vec![(0.5, 0)], sum: 4000.0, count: 4000 };
        assert_eq!(histogram.value(), expected);
    }
}

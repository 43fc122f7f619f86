//! Counters, gauges and histograms.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::record::Position;

/// The number of buckets of a histogram.
pub const BUCKETS: usize = 24;

/// A histogram: bucket `i` counts values up to `2^i`, and above the bucket before; the last one counts all
/// larger ones.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Histogram {
    /// The counts.
    pub buckets: [u64; BUCKETS],
    /// The number of values.
    pub count: u64,
    /// The sum of all values.
    pub sum: u64,
}

#[derive(Default)]
pub(crate) struct HistogramCounter {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl HistogramCounter {
    pub(crate) fn add(&self, value: u64) {
        let bucket = (64 - value.saturating_sub(1).leading_zeros() as usize).min(BUCKETS - 1);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    fn read(&self) -> Histogram {
        let buckets = self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed));
        Histogram { buckets, count: buckets.iter().sum(), sum: self.sum.load(Ordering::Relaxed) }
    }
}

/// A journal's metrics at one moment.
#[derive(Clone, Default, Debug)]
pub struct Metrics {
    /// Bytes in use between the oldest held segment and the end.
    pub fill_bytes: u64,
    /// Bytes that the ready segments have room for.
    pub capacity_bytes: u64,
    /// Segments in use.
    pub live_segments: u64,
    /// Segments that are ready for use.
    pub free_segments: u64,
    /// Bytes that wait in memory for the disk.
    pub unsynced_bytes: u64,
    /// The position that the oldest segment begins with.
    pub oldest: Option<Position>,
    /// The time since the oldest segment was begun by this process.
    pub oldest_age: Option<Duration>,
    /// Whether appends are refused because the disk has failed.
    pub is_failed: bool,
    /// Records appended.
    pub appended_records: u64,
    /// Bytes of payload appended.
    pub appended_bytes: u64,
    /// Bytes written, headers, heads and padding included.
    pub written_bytes: u64,
    /// The bytes of each committed batch.
    pub batch_bytes: Histogram,
    /// The records of each committed batch.
    pub batch_records: Histogram,
    /// The time that write and sync of each committed batch took, in microseconds.
    pub commit_micros: Histogram,
    /// Failures of a write or a sync.
    pub failures: u64,
    /// Restarts after a failure.
    pub restarts: u64,
    /// Records that the last recovery found, without marks and what they cover.
    pub replay_records: u64,
    /// Those of them that were applied.
    pub replay_applied: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) appended_records: AtomicU64,
    pub(crate) appended_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) batch_bytes: HistogramCounter,
    pub(crate) batch_records: HistogramCounter,
    pub(crate) commit_micros: HistogramCounter,
    pub(crate) failures: AtomicU64,
    pub(crate) restarts: AtomicU64,
    pub(crate) replay_records: AtomicU64,
    pub(crate) replay_applied: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }

    /// Returns the metrics that need no lock; the others are zero.
    pub(crate) fn read(&self) -> Metrics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Metrics {
            appended_records: load(&self.appended_records),
            appended_bytes: load(&self.appended_bytes),
            written_bytes: load(&self.written_bytes),
            batch_bytes: self.batch_bytes.read(),
            batch_records: self.batch_records.read(),
            commit_micros: self.commit_micros.read(),
            failures: load(&self.failures),
            restarts: load(&self.restarts),
            replay_records: load(&self.replay_records),
            replay_applied: load(&self.replay_applied),
            ..Metrics::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_a_value_in_the_first_bucket_that_reaches_it() {
        let histogram = HistogramCounter::default();
        [0, 1, 2, 3, 4, 5, u64::MAX / 2].into_iter().for_each(|value| histogram.add(value));
        let read = histogram.read();
        assert_eq!(read.buckets[..4], [2, 1, 2, 1]);
        assert_eq!((read.buckets[BUCKETS - 1], read.count), (1, 7));
    }
}

//! State shared by the caller's threads, the commit thread and the preparing thread, and the
//! counters.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blocker::metrics::{self, Counter, Reading, Value, counters};
use blocker::{Clock, Timestamp};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::append::{Batch, Buffers};
use crate::commit::Committer;
use crate::config::{Event, Level, Observer};
use crate::disk::Disk;
use crate::durability::Durability;
use crate::error::AppendError;
use crate::record::Position;
use crate::segments::SegmentTable;

/// The time between two attempts after a failure.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(5);
/// The number of buffers kept for later batches.
const BUFFERS_MAX: usize = 4;

/// Locks, in the order in which they are taken: `committer`, which only the commit thread takes,
/// `state`, and the one inside `durability`. Wakers and the observer are called with at most
/// `committer` held.
pub(crate) struct Shared {
    pub(crate) disk: Box<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) observer: Observer,
    /// The journal's random number.
    pub(crate) journal: u64,
    pub(crate) unsynced_bytes_max: u64,
    /// The maximum time of a commit.
    pub(crate) commit_timeout: Duration,
    pub(crate) segments_max: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) state: Mutex<State>,
    pub(crate) committer: Mutex<Committer>,
    pub(crate) durability: Arc<Durability>,
    pub(crate) counters: Counters,
    /// Wakes the commit thread.
    pub(crate) work: Condvar,
    /// Wakes the preparing thread.
    pub(crate) prepare: Condvar,
    /// Wakes the thread that watches the commits.
    pub(crate) watch: Condvar,
    /// Wakes threads that wait for the journal's threads to end.
    pub(crate) ended: Condvar,
    pub(crate) lock: Mutex<Option<Box<dyn Send + Sync>>>,
}

/// Whether appends are accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Phase {
    #[default]
    Open,
    /// The disk has failed. A restart is attempted at this time.
    Failed(Timestamp),
}

/// A batch that is being written to the disk.
#[derive(Clone, Copy)]
pub(crate) struct Committing {
    pub(crate) begun: Timestamp,
    pub(crate) segment: u32,
    pub(crate) first_position: u64,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) is_closing: bool,
    pub(crate) table: SegmentTable,
    /// The batch that accepts records, in the last live segment.
    pub(crate) filling: Option<Batch>,
    /// Batches that accept no more records, with their offsets, the oldest first.
    pub(crate) closed: VecDeque<(Batch, u64)>,
    pub(crate) next_position: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) unsynced_bytes: u64,
    pub(crate) buffers: Vec<Buffers>,
    pub(crate) level: Level,
    /// Whether an append or a reservation was refused as full since the last `Event::Room`.
    pub(crate) is_room_wanted: bool,
    /// The number of records in the filling batch at which the commit thread is woken; 0 while it
    /// is awake.
    pub(crate) wake_at_records: u32,
    /// The batch that the disk is making durable.
    pub(crate) committing: Option<Committing>,
    pub(crate) is_watcher_asleep: bool,
    /// The number of running threads that use the disk.
    pub(crate) threads: u32,
    /// The number of segments taken out of the table: by the commit thread for a restart, or being
    /// created.
    pub(crate) in_hand: u64,
    /// The segment, among those taken out of the table, with which the commit thread restarts.
    pub(crate) restarting: Option<u32>,
    /// The life of the tail that the log on disk states.
    pub(crate) durable_tail: u64,
    /// The time before which no segment is created.
    pub(crate) prepare_at: Timestamp,
}

impl State {
    /// Returns the guaranteed free space, including reservations.
    pub(crate) fn available_bytes(&mut self) -> u64 {
        let filling_bytes = self.filling.as_ref().map_or(0, Batch::total_bytes);
        self.table.available_bytes(filling_bytes)
    }

    /// Closes the filling batch to further records.
    pub(crate) fn close_filling(&mut self) {
        let Some(batch) = self.filling.take() else { return };
        let Some(segment) = self.table.find(batch.segment) else { return };
        let offset = segment.end;
        segment.end += batch.total_bytes();
        self.closed.push_back((batch, offset));
    }

    /// Returns the number of records in the filling batch.
    pub(crate) fn filling_records(&self) -> u32 {
        self.filling.as_ref().map_or(0, |batch| batch.count)
    }

    /// Returns whether the commit thread must be woken, because it sleeps and the event for which
    /// it waits has happened. If this returns true, the caller must wake it.
    pub(crate) fn take_wake(&mut self) -> bool {
        let is_there = self.filling_records() >= self.wake_at_records || !self.closed.is_empty();
        let is_due = self.wake_at_records != 0 && is_there;
        if is_due {
            self.wake_at_records = 0;
        }
        is_due
    }

    pub(crate) fn keep_buffers(&mut self, batch: Batch) {
        if self.buffers.len() < BUFFERS_MAX {
            self.buffers.push(batch.buffers);
        }
    }

    /// Returns an error if appends are refused.
    pub(crate) fn check_open(&self) -> Result<(), AppendError> {
        match self.phase {
            _ if self.is_closing => Err(AppendError::Closed),
            Phase::Open => Ok(()),
            Phase::Failed(_) => Err(AppendError::Failed),
        }
    }

    fn fill_level(&self, fill_bytes: u64) -> Level {
        let capacity = self.table.capacity_bytes().max(1);
        match fill_bytes * 10 / capacity {
            9.. => Level::NineTenths,
            5..9 => Level::Half,
            _ => Level::Low,
        }
    }
}

impl Shared {
    /// Unlocks the state and reports its changes.
    pub(crate) fn unlock(&self, mut state: MutexGuard<'_, State>, event: Option<Event>) {
        let level = state.fill_level(state.table.fill_bytes());
        let level_event = (level != state.level).then_some(Event::Level(level));
        state.level = level;
        let has_room = state.is_room_wanted && state.phase == Phase::Open && {
            let spare = state.available_bytes().saturating_sub(state.reserved_bytes);
            spare > 0 && state.unsynced_bytes < self.unsynced_bytes_max
        };
        if has_room {
            state.is_room_wanted = false;
        }
        drop(state);
        event.iter().chain(&level_event).for_each(|event| (self.observer)(event));
        if has_room {
            (self.observer)(&Event::Room);
        }
    }

    /// Frees segments that have lost their last hold.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        if state.table.release() {
            self.prepare.notify_one();
            self.unlock(state, None);
        }
    }
}

/// The number of buckets of a histogram.
pub const BUCKETS: usize = 24;

/// A histogram. Bucket `i` counts the values up to `2^i` that are above the bound of the previous
/// bucket; the last bucket counts all larger values. The metric shows the values divided by `UNIT`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Histogram<const UNIT: u32 = 1> {
    /// The counts.
    pub buckets: [u64; BUCKETS],
    /// The number of values.
    pub count: u64,
    /// The sum of all values.
    pub sum: u64,
}

impl<const UNIT: u32> Reading for Histogram<UNIT> {
    fn value(&self, _: metrics::Kind) -> Option<Value> {
        let (mut count, unit) = (0, f64::from(UNIT));
        // The last bucket has the values above all bounds.
        let bounded = &self.buckets[..BUCKETS - 1];
        let buckets = bounded.iter().enumerate().map(|(at, each)| {
            count += each;
            ((1_u64 << at) as f64 / unit, count)
        });
        Some(Value::Histogram { buckets: buckets.collect(), sum: self.sum as f64 / unit, count: self.count })
    }
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

    pub(crate) fn read<const UNIT: u32>(&self) -> Histogram<UNIT> {
        let buckets = self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed));
        Histogram { buckets, count: buckets.iter().sum(), sum: self.sum.load(Ordering::Relaxed) }
    }
}

counters! {
    /// A journal's counters.
    #[derive(Clone, Copy, Default, Debug)]
    pub struct Counts<C = u64> {
        /// Records appended to the journal.
        appended_records => "cached_journal_records_total",
        /// Bytes of payload appended to the journal.
        appended_bytes => "cached_journal_payload_bytes_total",
        /// Bytes written to the journal's disk, heads and padding included.
        written_bytes => "cached_journal_written_bytes_total",
        /// Failures of the journal's disk.
        failures => "cached_journal_failures_total",
        /// Times that the journal has worked again.
        restarts => "cached_journal_restarts_total",
        /// Records that the journal had to be replayed at the start.
        replay_records => "cached_journal_replay_records",
        /// Records that have been replayed.
        replay_applied => "cached_journal_replayed_records",
    }
}

counters! {
    /// A journal's metrics at one moment.
    #[derive(Clone, Default, Debug)]
    pub struct Metrics {
        /// The counters.
        pub counts: Counts,
        /// Space of the journal in use.
        pub fill_bytes: u64 => "cached_journal_fill_bytes",
        /// Space of the journal that is ready for use.
        pub capacity_bytes: u64 => "cached_journal_capacity_bytes",
        /// Segments of the journal in use.
        pub live_segments: u64 => "cached_journal_live_segments",
        /// Segments of the journal that are ready.
        pub free_segments: u64 => "cached_journal_free_segments",
        /// Bytes that wait in memory for the journal's disk.
        pub unsynced_bytes: u64 => "cached_journal_unsynced_bytes",
        /// The first position of the oldest segment.
        pub oldest: Option<Position>,
        /// Age of the oldest segment of the journal that is in use.
        pub oldest_age: Duration => "cached_journal_oldest_seconds",
        /// Whether appends are refused because the disk has failed.
        pub is_failed: bool,
        /// Bytes of each commit of the journal.
        pub batch_bytes: Histogram => "cached_journal_commit_bytes",
        /// Records of each commit of the journal.
        pub batch_records: Histogram => "cached_journal_commit_records",
        /// Time of the write and the sync of each commit of the journal.
        pub commit_micros: Histogram<1_000_000> => "cached_journal_commit_seconds",
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) counts: Counts<Counter>,
    pub(crate) batch_bytes: HistogramCounter,
    pub(crate) batch_records: HistogramCounter,
    pub(crate) commit_micros: HistogramCounter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_a_value_in_the_first_bucket_that_reaches_it() {
        let histogram = HistogramCounter::default();
        [0, 1, 2, 3, 4, 5, u64::MAX / 2].into_iter().for_each(|value| histogram.add(value));
        let read: Histogram = histogram.read();
        assert_eq!(read.buckets[..4], [2, 1, 2, 1]);
        assert_eq!((read.buckets[BUCKETS - 1], read.count), (1, 7));
    }
}

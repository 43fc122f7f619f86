//! What the log shows of its journal.

use blocker::metrics::{Families, Value};
use cached_journal::Histogram;

use super::ChangeLog;
use crate::sync::Ordering;

impl ChangeLog {
    /// Writes the journal's metrics.
    pub(crate) fn collect(&self, into: &mut Families) {
        let it = self.journal.metrics();
        into.gauge("cached_journal_fill_bytes", "Space of the journal in use.", it.fill_bytes);
        into.gauge(
            "cached_journal_capacity_bytes",
            "Space of the journal that is ready for use.",
            it.capacity_bytes,
        );
        into.gauge("cached_journal_live_segments", "Segments of the journal in use.", it.live_segments);
        into.gauge(
            "cached_journal_free_segments",
            "Segments of the journal that are ready.",
            it.free_segments,
        );
        let help = "Age of the oldest segment of the journal that is in use.";
        let age = it.oldest_age.unwrap_or_default().as_secs_f64();
        into.sample("cached_journal_oldest_seconds", help, Vec::new(), Value::Gauge(age));
        let help = "Bytes that wait in memory for the journal's disk.";
        into.gauge("cached_journal_unsynced_bytes", help, it.unsynced_bytes);
        let help = "The state of the journal: 0 in order, 1 draining, 2 void, 3 resuming.";
        into.gauge("cached_journal_state", help, self.events.condition.state() as u64);
        into.counter("cached_journal_failures_total", "Failures of the journal's disk.", it.failures);
        into.counter(
            "cached_journal_restarts_total",
            "Times that the journal has worked again.",
            it.restarts,
        );
        into.counter("cached_journal_records_total", "Records appended to the journal.", it.appended_records);
        let help = "Bytes of payload appended to the journal.";
        into.counter("cached_journal_payload_bytes_total", help, it.appended_bytes);
        let help = "Bytes written to the journal's disk, heads and padding included.";
        into.counter("cached_journal_written_bytes_total", help, it.written_bytes);
        let help = "Bytes of each commit of the journal.";
        into.sample("cached_journal_commit_bytes", help, Vec::new(), histogram(&it.batch_bytes, 1.0));
        let help = "Records of each commit of the journal.";
        into.sample("cached_journal_commit_records", help, Vec::new(), histogram(&it.batch_records, 1.0));
        let help = "Time of the write and the sync of each commit of the journal.";
        into.sample("cached_journal_commit_seconds", help, Vec::new(), histogram(&it.commit_micros, 1e6));
        let help = "Records that the journal had to be replayed at the start.";
        into.gauge("cached_journal_replay_records", help, it.replay_records);
        let help = "Records that have been replayed.";
        into.gauge("cached_journal_replayed_records", help, it.replay_applied);
        let help = "Changes that waited for room in the journal.";
        into.counter("cached_journal_waits_total", help, self.waits.load(Ordering::Relaxed));
        let help = "Objects that were logged again because the store did not take them.";
        into.counter("cached_journal_logged_again_total", help, self.logged_again.load(Ordering::Relaxed));
    }
}

/// Converts a histogram whose values are `unit` times as large as they are shown.
fn histogram(from: &Histogram, unit: f64) -> Value {
    let mut count = 0;
    // The last bucket has what is above all bounds.
    let bounded = &from.buckets[..from.buckets.len() - 1];
    let buckets = bounded.iter().enumerate().map(|(at, each)| {
        count += each;
        ((1_u64 << at) as f64 / unit, count)
    });
    Value::Histogram { buckets: buckets.collect(), sum: from.sum as f64 / unit, count: from.count }
}

//! `stats objects`, `stats journal` and `stats objects_lost`: the object cache, its store and its listener, if one is
//! configured. The names of metrics are the same in every output.

use super::Sink;
use crate::objects::ObjectStatistics;
use blocker::{Clock, SystemClock};
use cached_core::object::JournalState;

/// `stats objects`.
pub(super) fn write(statistics: &ObjectStatistics, sink: &mut Sink<'_>) {
    for pair in statistics.metrics() {
        sink.put(&pair.name, pair.value);
    }
}

/// `stats objects_lost`: each object with acknowledged changes that are lost, and how much is lost for what
/// reason.
pub(super) fn write_lost(statistics: &ObjectStatistics, sink: &mut Sink<'_>) {
    for (name, text) in statistics.lost() {
        sink.put(&name, text);
    }
}

/// `stats journal`: the state of the journal, how far its recovery is, and its metrics; returns false if there
/// is no journal.
pub(super) fn write_journal(statistics: &ObjectStatistics, sink: &mut Sink<'_>) -> bool {
    let Some(health) = statistics.journal_health() else { return false };
    let state = match health.state {
        JournalState::Ok => "ok",
        JournalState::Draining => "draining",
        JournalState::Void => "void",
        JournalState::Resuming => "resuming",
        _ => "unknown",
    };
    sink.put("state", state);
    let since = SystemClock.now().0.saturating_sub(health.since.0) / 1_000_000_000;
    sink.put("state_seconds", since);
    if let Some(reason) = health.reason {
        sink.put("reason", reason);
    }
    let recovery = statistics.recovery();
    sink.put("recovery_done", u8::from(recovery.is_done));
    sink.put("recovery_records", recovery.records);
    sink.put("recovery_records_applied", recovery.records_applied);
    sink.put("recovery_objects_failed", recovery.objects_failed);
    for pair in statistics.metrics() {
        if pair.name.starts_with("cached_journal_") {
            sink.put(&pair.name, pair.value);
        }
    }
    true
}

//! `stats objects` and `stats objects_lost`: the object cache, its store and its listener, if one is
//! configured. The names of metrics are the same in every output.

use super::Sink;
use crate::objects::ObjectStatistics;

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

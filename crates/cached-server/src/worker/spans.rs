//! Spans of memcached's protocols. A request is not timed by itself, so a span is what one connection was
//! served in a timed turn, of which the tracer samples its share; requests that were slow are all recorded.

use super::timing::Served;
use crate::connections::ConnInfo;
use crate::telemetry::command_latency::Kind;
use crate::telemetry::insight::slow::SlowRequest;
use blocker::trace::{AttributeValue, SpanKind, Tracer};
use std::time::Duration;

/// The names of the attributes with the numbers of commands, in the order of [`Kind::ALL`].
const COUNTS: [&str; Kind::ALL.len()] = [
    "memcached.get",
    "memcached.set",
    "memcached.touch",
    "memcached.delete",
    "memcached.incr",
    "memcached.decr",
    "memcached.flush",
];

/// Records what the connection `info` was served in step `step` of a worker, if it is sampled.
pub(super) fn record_turn(tracer: &Tracer, worker: usize, step: u64, info: &ConnInfo, served: &Served) {
    let counts = COUNTS.into_iter().zip(served.commands).filter(|(_, count)| *count > 0);
    let mut attributes: Vec<(&str, AttributeValue)> =
        counts.map(|(name, count)| (name, AttributeValue::Number(count))).collect();
    if attributes.is_empty() || !tracer.is_sampled() {
        return;
    }
    attributes.push(("client.address", info.client().into()));
    attributes.push(("memcached.request_id", format!("{worker}.{step}").into()));
    tracer.record("memcached.turn", SpanKind::Server, served.took, attributes);
}

/// Records a step of a worker that was slow.
pub(crate) fn record_slow(tracer: &Tracer, worker: usize, took: Duration, slow: &SlowRequest) {
    let mut attributes: Vec<(&str, AttributeValue)> =
        vec![("memcached.command", slow.command.into()), ("memcached.worker", (worker as u64).into())];
    if let Some(client) = &slow.client {
        attributes.push(("client.address", client.clone().into()));
    }
    tracer.record("memcached.slow", SpanKind::Server, took, attributes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_are_named_as_the_commands_are() {
        let names = Kind::ALL.map(|kind| format!("memcached.{}", kind.name()));
        assert_eq!(names, COUNTS);
    }
}

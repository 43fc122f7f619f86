//! What is counted.

use cached_metrics::{Collect, Counter, Families, Gauge, Value};

use crate::auth::Refusals;

/// The counts of a sidecar.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Reads that were answered from memory: allowed by the endpoint, or here while what is known is fresh.
    pub hits: Counter,
    /// Reads that were answered from memory once the endpoint had stated that it holds, rights being decided here.
    pub revalidated: Counter,
    /// Reads that were answered from memory because the endpoint did not answer.
    pub stale: Counter,
    /// Reads of objects that are known not to be there.
    pub absent: Counter,
    /// Reads whose bytes the endpoint sent and the cache took.
    pub misses: Counter,
    /// Requests that were forwarded and not understood, and reads whose answer is not kept.
    pub passed: Counter,
    /// Requests that the proxy refused.
    pub refused: Counter,
    /// Requests that the endpoint did not answer.
    pub failed: Counter,
    /// Requests that may have changed something.
    pub changes: Counter,
    /// Objects, prefixes and buckets that were invalidated by commands.
    pub invalidated_by_command: Counter,
    /// Objects that were invalidated by events.
    pub invalidated_by_event: Counter,
    /// Bytes of bodies that came from memory.
    pub bytes_from_memory: Counter,
    /// Those of them that went into sockets without a copy.
    pub bytes_lent: Counter,
    /// Bytes of bodies that came from the endpoint.
    pub bytes_from_upstream: Counter,
    /// Waits for bytes that another reader's request brought.
    pub shared: Counter,
    /// Requests for the rest of an object of which only the beginning was in memory.
    pub rests: Counter,
    /// Connections of clients, ever.
    pub connections: Counter,
    /// Those that were refused at the limit.
    pub connections_refused: Counter,
    /// Requests that the listener refused, by reason: a part of `refused`.
    pub refusals: Refusals,
    /// Connections of clients, now.
    pub connections_now: Gauge,
}

impl Counts {
    /// Returns the counter of requests with this outcome.
    pub(crate) fn of(&self, outcome: Outcome) -> &Counter {
        match outcome {
            Outcome::Hit => &self.hits,
            Outcome::Revalidated => &self.revalidated,
            Outcome::Stale => &self.stale,
            Outcome::Absent => &self.absent,
            Outcome::Miss => &self.misses,
            Outcome::Passed => &self.passed,
            Outcome::Refused => &self.refused,
            Outcome::Failed => &self.failed,
        }
    }
}

impl Collect for Counts {
    fn collect(&self, into: &mut Families) {
        let help = "Requests of S3 clients by result.";
        for outcome in Outcome::ALL {
            let (labels, count) = (vec![("result", outcome.name()).into()], self.of(outcome).get());
            into.sample("cached_s3_sidecar_requests_total", help, labels, Value::Counter(count));
        }
        let help =
            "What was known of objects of S3 and was made void, by what stated that it may have changed.";
        for (by, count) in [
            ("request", &self.changes),
            ("command", &self.invalidated_by_command),
            ("event", &self.invalidated_by_event),
        ] {
            let (labels, count) = (vec![("by", by).into()], count.get());
            into.sample("cached_s3_sidecar_invalidations_total", help, labels, Value::Counter(count));
        }
        let help = "Bytes of bodies sent to S3 clients, by where they came from.";
        for (from, count) in [("memory", &self.bytes_from_memory), ("upstream", &self.bytes_from_upstream)] {
            let labels = vec![("from", from).into()];
            into.sample("cached_s3_sidecar_bytes_total", help, labels, Value::Counter(count.get()));
        }
        for (name, help, count) in [
            (
                "cached_s3_sidecar_shared_waits_total",
                "Waits for bytes that another client's request brought.",
                &self.shared,
            ),
            (
                "cached_s3_sidecar_rests_total",
                "Requests for the rest of objects that were partly in memory.",
                &self.rests,
            ),
            (
                "cached_s3_sidecar_bytes_lent_total",
                "Bytes of bodies that went from memory into sockets without a copy.",
                &self.bytes_lent,
            ),
            ("cached_s3_sidecar_connections_total", "Connections of S3 clients.", &self.connections),
            (
                "cached_s3_sidecar_connections_refused_total",
                "Connections refused at the limit.",
                &self.connections_refused,
            ),
        ] {
            into.counter(name, help, count.get());
        }
        self.refusals.collect(into);
        let help = "Open connections of S3 clients.";
        into.sample(
            "cached_s3_sidecar_connections",
            help,
            Vec::new(),
            Value::Gauge(self.connections_now.get()),
        );
    }
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// From memory.
    Hit,
    /// From memory, after the endpoint has stated that it holds.
    Revalidated,
    /// From memory, as the endpoint does not answer.
    Stale,
    /// From memory: it is not there.
    Absent,
    /// By the endpoint, and kept.
    Miss,
    /// By the endpoint.
    Passed,
    /// With an error of the proxy's own: the request cannot be forwarded.
    Refused,
    /// With an error of the proxy's own: the endpoint does not answer.
    Failed,
}

impl Outcome {
    /// All of them.
    pub(crate) const ALL: [Outcome; 8] = [
        Outcome::Hit,
        Outcome::Revalidated,
        Outcome::Stale,
        Outcome::Absent,
        Outcome::Miss,
        Outcome::Passed,
        Outcome::Refused,
        Outcome::Failed,
    ];

    /// Returns the word for it in metrics and the access log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Outcome::Hit => "hit",
            Outcome::Revalidated => "revalidated",
            Outcome::Stale => "stale",
            Outcome::Absent => "absent",
            Outcome::Miss => "miss",
            Outcome::Passed => "passed",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
        }
    }
}

//! The sidecar's counters.

use cached_metrics::{Counter, Gauge, LabelledMetric, counters};

use crate::auth::Refusals;

const REQUESTS: LabelledMetric<1> = LabelledMetric::new(
    "cached_s3_sidecar_requests_total",
    ["result"],
    "Requests of S3 clients by result: hit (from memory: allowed by the endpoint, or fresh), revalidated (from memory, \
     and the endpoint has stated that it holds, where rights are decided here), stale (from memory, as the endpoint is \
     away), absent (not there, from memory), miss (from the endpoint, and kept), passed (forwarded), refused (no request \
     that can be forwarded, or one that its client may not make), failed (the endpoint did not answer).",
);
const INVALIDATIONS: LabelledMetric<1> = LabelledMetric::new(
    "cached_s3_sidecar_invalidations_total",
    ["by"],
    "What was known of objects of S3 and was made void, by what stated that it may have changed: a request through the \
     sidecar, a command of an operator, an event (one for each record).",
);
const BYTES: LabelledMetric<1> = LabelledMetric::new(
    "cached_s3_sidecar_bytes_total",
    ["from"],
    "Bytes of bodies sent to S3 clients, by where they came from: memory or upstream.",
);

counters! {
    /// The counters of a sidecar.
    #[derive(Debug, Default)]
    #[non_exhaustive]
    pub struct Counts {
        /// Reads that were answered from memory: allowed by the endpoint, or here while what is known is fresh.
        pub hits: Counter => REQUESTS.of([Outcome::Hit.name()]),
        /// Reads that were answered from memory once the endpoint had stated that it holds, rights being decided here.
        pub revalidated: Counter => REQUESTS.of([Outcome::Revalidated.name()]),
        /// Reads that were answered from memory because the endpoint did not answer.
        pub stale: Counter => REQUESTS.of([Outcome::Stale.name()]),
        /// Reads of objects that are known not to be there.
        pub absent: Counter => REQUESTS.of([Outcome::Absent.name()]),
        /// Reads whose bytes the endpoint sent and the cache took.
        pub misses: Counter => REQUESTS.of([Outcome::Miss.name()]),
        /// Requests that were forwarded and not understood, and reads whose answer is not kept.
        pub passed: Counter => REQUESTS.of([Outcome::Passed.name()]),
        /// Requests that the proxy refused.
        pub refused: Counter => REQUESTS.of([Outcome::Refused.name()]),
        /// Requests that the endpoint did not answer.
        pub failed: Counter => REQUESTS.of([Outcome::Failed.name()]),
        /// Requests that may have changed something.
        pub changes: Counter => INVALIDATIONS.of(["request"]),
        /// Objects, prefixes and buckets that were invalidated by commands.
        pub invalidated_by_command: Counter => INVALIDATIONS.of(["command"]),
        /// Objects that were invalidated by events.
        pub invalidated_by_event: Counter => INVALIDATIONS.of(["event"]),
        /// Bytes of bodies that came from memory.
        pub bytes_from_memory: Counter => BYTES.of(["memory"]),
        /// Bytes of bodies that went from memory into sockets without a copy.
        pub bytes_lent: Counter => "cached_s3_sidecar_bytes_lent_total",
        /// Bytes of bodies that came from the endpoint.
        pub bytes_from_upstream: Counter => BYTES.of(["upstream"]),
        /// Waits for bytes that another client's request brought.
        pub shared: Counter => "cached_s3_sidecar_shared_waits_total",
        /// Requests for the rest of objects that were partly in memory.
        pub rests: Counter => "cached_s3_sidecar_rests_total",
        /// Connections of S3 clients.
        pub connections: Counter => "cached_s3_sidecar_connections_total",
        /// Connections refused at the limit.
        pub connections_refused: Counter => "cached_s3_sidecar_connections_refused_total",
        /// Requests that the listener refused, by reason: a part of `refused`.
        pub refusals: Refusals,
        /// Open connections of S3 clients.
        pub connections_now: Gauge => "cached_s3_sidecar_connections",
    }
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

/// The way in which a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Served from memory.
    Hit,
    /// Served from memory, after the endpoint has confirmed the object.
    Revalidated,
    /// Served from memory, because the endpoint does not respond.
    Stale,
    /// Served from memory: the object is known to be missing.
    Absent,
    /// Served by the endpoint, and kept.
    Miss,
    /// Served by the endpoint, and not kept.
    Passed,
    /// Failed with an error of the proxy, because the request cannot be forwarded.
    Refused,
    /// Failed with an error of the proxy, because the endpoint does not respond.
    Failed,
}

impl Outcome {
    /// Returns the outcome's name in metrics and the access log.
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

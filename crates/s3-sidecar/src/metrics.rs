//! The sidecar's counters.

use cached_metrics::{Counter, Gauge, LabelledMetric, counters};
use serde::Serialize;

use crate::auth::Refusals;

const REQUESTS: LabelledMetric<1> = LabelledMetric::new(
    "cached_s3_sidecar_requests_total",
    ["result"],
    "Requests of S3 clients by result: hit (served from memory, because the endpoint has allowed the request or the \
     cached object is fresh), revalidated (served from memory after the endpoint has confirmed the cached object, \
     where rights are decided here), stale (served from memory, because the endpoint is unreachable), absent (the \
     cached absence was served), miss (served by the endpoint, and cached), passed (forwarded), refused (the request \
     cannot be forwarded, or its client lacks the right), failed (the endpoint did not respond).",
);
const INVALIDATIONS: LabelledMetric<1> = LabelledMetric::new(
    "cached_s3_sidecar_invalidations_total",
    ["by"],
    "Invalidations of cached S3 objects by cause: a request through the sidecar, a command of an operator, or an event \
     (one for each record).",
);
const BYTES: LabelledMetric<1> = LabelledMetric::new(
    "cached_s3_sidecar_bytes_total",
    ["from"],
    "Bytes of bodies sent to S3 clients, by source: memory or upstream.",
);

counters! {
    /// The counters of a sidecar.
    #[derive(Debug, Default)]
    #[non_exhaustive]
    pub struct Counts {
        /// Reads served from memory: allowed by the endpoint, or here while the cached object is fresh.
        pub hits: Counter => REQUESTS.of(["hit"]),
        /// Reads served from memory after the endpoint has confirmed the cached object.
        pub revalidated: Counter => REQUESTS.of(["revalidated"]),
        /// Reads served from memory because the endpoint did not respond.
        pub stale: Counter => REQUESTS.of(["stale"]),
        /// Reads of objects that are known to be missing.
        pub absent: Counter => REQUESTS.of(["absent"]),
        /// Reads served by the endpoint, and cached.
        pub misses: Counter => REQUESTS.of(["miss"]),
        /// Requests that were only forwarded, and reads whose response is not cached.
        pub passed: Counter => REQUESTS.of(["passed"]),
        /// Requests that the sidecar refused.
        pub refused: Counter => REQUESTS.of(["refused"]),
        /// Requests to which the endpoint did not respond.
        pub failed: Counter => REQUESTS.of(["failed"]),
        /// Requests that may have changed something.
        pub changes: Counter => INVALIDATIONS.of(["request"]),
        /// Objects, prefixes and buckets that were invalidated by commands.
        pub invalidated_by_command: Counter => INVALIDATIONS.of(["command"]),
        /// Objects that were invalidated by events.
        pub invalidated_by_event: Counter => INVALIDATIONS.of(["event"]),
        /// Bytes of bodies that came from memory.
        pub bytes_from_memory: Counter => BYTES.of(["memory"]),
        /// Bytes of bodies sent from memory without a copy.
        pub bytes_lent: Counter => "cached_s3_sidecar_bytes_lent_total",
        /// Bytes of bodies that came from the endpoint.
        pub bytes_from_upstream: Counter => BYTES.of(["upstream"]),
        /// Waits for bytes that another client's request fetched.
        pub shared: Counter => "cached_s3_sidecar_shared_waits_total",
        /// Requests for the missing rest of objects that are partly in memory.
        pub rests: Counter => "cached_s3_sidecar_rests_total",
        /// Connections of S3 clients.
        pub connections: Counter => "cached_s3_sidecar_connections_total",
        /// Connections of S3 clients refused because the limit was reached.
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

/// The way in which a request was answered, under its name in metrics and the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
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

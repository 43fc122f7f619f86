//! The sidecar's counters: of all requests, and of the requests for each bucket.

use std::collections::HashMap;
use std::sync::Arc;

use cached_metrics::{Counter, Gauge, LabelledMetric, counters};
use parking_lot::RwLock;
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
const BUCKET_REQUESTS: LabelledMetric<1> = LabelledMetric::new(
    "cached_s3_sidecar_bucket_requests_total",
    ["result"],
    "Requests of S3 clients for a bucket by result: hit (the results hit, revalidated, stale and absent of all \
     requests), miss, other. The first 256 buckets for which a request succeeds are counted individually, all others \
     as /others.",
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

counters! {
    /// The counters of the requests for a bucket.
    #[derive(Debug, Default)]
    pub(crate) struct BucketCounts {
        /// Requests answered from memory.
        pub(crate) hits: Counter => BUCKET_REQUESTS.of(["hit"]),
        /// Reads served by the endpoint, and cached.
        pub(crate) misses: Counter => BUCKET_REQUESTS.of(["miss"]),
        /// All other requests.
        pub(crate) others: Counter => BUCKET_REQUESTS.of(["other"]),
    }
}

impl BucketCounts {
    fn count(&self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Hit | Outcome::Revalidated | Outcome::Stale | Outcome::Absent => &self.hits,
            Outcome::Miss => &self.misses,
            Outcome::Passed | Outcome::Refused | Outcome::Failed => &self.others,
        };
        counter.increment();
    }
}

/// The maximum number of buckets that are counted individually.
const BUCKETS_MAX: usize = 256;

/// The name under which all other buckets are counted. It contains the character that ends a
/// bucket's name in a path.
const OTHERS: &str = "/others";

/// The counters of the buckets. A bucket gets its own once a request for it has succeeded, so that
/// clients who name buckets at random do not use up the places.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    named: RwLock<HashMap<String, Arc<BucketCounts>>>,
    others: Arc<BucketCounts>,
}

/// The bucket that a request names.
#[derive(Debug, Default)]
pub(crate) enum NamedBucket {
    /// The request names none.
    #[default]
    None,
    /// A bucket whose counters are known: its own, or those of all others if no place is free.
    Counted(Arc<BucketCounts>),
    /// A bucket that gets its own counters once a request for it has succeeded.
    Uncounted(String),
}

impl Buckets {
    /// Returns the bucket with this name.
    pub(crate) fn find(&self, bucket: &str) -> NamedBucket {
        let named = self.named.read();
        match named.get(bucket) {
            Some(counts) => NamedBucket::Counted(Arc::clone(counts)),
            // Without a free place, no request has to wait for one.
            None if named.len() >= BUCKETS_MAX => NamedBucket::Counted(Arc::clone(&self.others)),
            None => NamedBucket::Uncounted(bucket.to_owned()),
        }
    }

    /// Counts a request. `has_succeeded` states whether its response shows that the bucket exists.
    pub(crate) fn count(&self, bucket: NamedBucket, outcome: Outcome, has_succeeded: bool) {
        match bucket {
            NamedBucket::None => (),
            NamedBucket::Counted(counts) => counts.count(outcome),
            NamedBucket::Uncounted(name) if has_succeeded => self.enter(name).count(outcome),
            NamedBucket::Uncounted(_) => self.others.count(outcome),
        }
    }

    /// Returns the counters of a bucket, which are its own if there is a place.
    fn enter(&self, name: String) -> Arc<BucketCounts> {
        let mut named = self.named.write();
        if named.len() >= BUCKETS_MAX && !named.contains_key(&name) {
            return Arc::clone(&self.others);
        }
        Arc::clone(named.entry(name).or_default())
    }

    /// Returns the counters of all buckets, ordered by name; those of the others are the first if
    /// they were used.
    pub(crate) fn all(&self) -> Vec<(String, Arc<BucketCounts>)> {
        let named = self.named.read();
        let own = named.iter().map(|(name, counts)| (name.clone(), Arc::clone(counts)));
        let mut all: Vec<_> = own.chain([(OTHERS.to_owned(), Arc::clone(&self.others))]).collect();
        all.retain(|(_, of)| [&of.hits, &of.misses, &of.others].iter().any(|count| count.get() > 0));
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_buckets_with_a_successful_request_have_their_own_counters_and_not_too_many() {
        let buckets = Buckets::default();
        let count = |name: &str, outcome, has_succeeded| {
            buckets.count(buckets.find(name), outcome, has_succeeded);
        };
        count("guessed", Outcome::Passed, false);
        buckets.count(NamedBucket::None, Outcome::Passed, true);
        for number in 0..BUCKETS_MAX + 3 {
            count(&format!("b{number:03}"), Outcome::Miss, true);
        }
        for outcome in [Outcome::Hit, Outcome::Revalidated, Outcome::Stale, Outcome::Absent] {
            count("b000", outcome, true);
        }
        count("b000", Outcome::Failed, false);
        assert!(matches!(buckets.find("b300"), NamedBucket::Counted(_)), "no place is free");
        let shown =
            |(name, of): (String, Arc<BucketCounts>)| (name, of.hits.get(), of.misses.get(), of.others.get());
        let all: Vec<_> = buckets.all().into_iter().map(shown).collect();
        assert_eq!(all.len(), BUCKETS_MAX + 1);
        assert_eq!(all[0], (OTHERS.to_owned(), 0, 3, 1));
        assert_eq!(all[1], ("b000".to_owned(), 4, 1, 1));
        assert_eq!(all[BUCKETS_MAX], ("b255".to_owned(), 0, 1, 0));
    }
}

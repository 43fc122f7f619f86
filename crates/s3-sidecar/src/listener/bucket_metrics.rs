//! What is counted of the buckets that have terms of their own.

use blocker::Namespace;
use cached_metrics::{Families, Value};

use crate::shared::Shared;

/// Adds the metrics.
pub(crate) fn collect(shared: &Shared, into: &mut Families) {
    let lanes = shared.lanes.all();
    if lanes.is_empty() {
        return;
    }
    let spaces = shared.pieces.by_bucket();
    for (bucket, lane) in &lanes {
        let mut sample = |name: &'static str, help: &'static str, value: Value| {
            into.sample(name, help, vec![("bucket", bucket.clone()).into()], value);
        };
        let named = |name: &Namespace| name.as_bytes() == bucket.as_bytes();
        let space = spaces.iter().find(|space| space.namespace.as_ref().is_some_and(named));
        let bytes = space.map_or(0, |space| space.cached_bytes);
        let help = "Memory of bodies of the bucket's objects.";
        sample("cached_s3_sidecar_bucket_bodies_bytes", help, Value::Gauge(bytes as f64));
        if let Some(target) = space.and_then(|space| space.memory_target_bytes) {
            let help = "The memory for bodies that is meant for the bucket, if it has a share of its own.";
            sample("cached_s3_sidecar_bucket_bodies_target_bytes", help, Value::Gauge(target as f64));
        }
        for (name, help, count) in [
            (
                "cached_s3_sidecar_bucket_endpoint_requests_total",
                "Requests to the endpoint for the bucket.",
                &lane.requests,
            ),
            (
                "cached_s3_sidecar_bucket_endpoint_bytes_total",
                "Bytes of bodies to and from the endpoint for the bucket.",
                &lane.bytes,
            ),
            (
                "cached_s3_sidecar_bucket_requests_delayed_total",
                "Requests that waited for their turn at the endpoint.",
                &lane.waited,
            ),
            (
                "cached_s3_sidecar_bucket_requests_refused_total",
                "Requests that were answered 503, as they would have waited too long for their turn.",
                &lane.refused,
            ),
        ] {
            sample(name, help, Value::Counter(count.get()));
        }
    }
}

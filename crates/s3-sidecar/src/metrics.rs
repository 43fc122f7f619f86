//! What is counted.

use cached_metrics::{Collect, Counter, Families, Gauge, Value};

use crate::auth::Refusals;

/// The counts of a sidecar.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Reads that were answered from memory, allowed by the endpoint.
    pub hits: Counter,
    /// Reads whose bytes the endpoint sent and the cache took.
    pub misses: Counter,
    /// Requests that were forwarded and not understood, and reads whose answer is not kept.
    pub passed: Counter,
    /// Requests that the proxy refused.
    pub refused: Counter,
    /// Requests that the endpoint did not answer.
    pub failed: Counter,
    /// Bytes of bodies that came from memory.
    pub bytes_from_memory: Counter,
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

impl Collect for Counts {
    fn collect(&self, into: &mut Families) {
        let help = "Requests of S3 clients by result.";
        for (result, count) in [
            ("hit", &self.hits),
            ("miss", &self.misses),
            ("passed", &self.passed),
            ("refused", &self.refused),
            ("failed", &self.failed),
        ] {
            let labels = vec![("result", result).into()];
            into.sample("cached_s3_sidecar_requests_total", help, labels, Value::Counter(count.get()));
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

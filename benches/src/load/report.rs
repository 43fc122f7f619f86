//! The results of a run as numbers, as lines, and as JSON.

use serde::Serialize;

use super::tally::Tally;
use super::worker::Outcome;
use super::{Arrival, LoadSpec};
use crate::figure::Figure;
use crate::process::Resident;

/// Percentiles of the latency, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90 % of the latencies are at or below this value.
    pub p90_us: f64,
    /// 99 % of the latencies are at or below this value.
    pub p99_us: f64,
    /// 99.9 % of the latencies are at or below this value.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// The figures of one run. A *request* is a command, and a *key* is a key that a request gets or
/// sets: a get of 16 keys counts as one request and sixteen keys.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// The seed of keys, operations and arrivals.
    pub seed: u64,
    /// Length of the counted span.
    pub seconds: f64,
    /// Requests answered in the counted span.
    pub requests: u64,
    /// Keys got or set in the counted span.
    pub keys: u64,
    /// Sets among the requests.
    pub sets: u64,
    /// Requests that the server answered with an error of its own.
    pub refused: u64,
    /// Keys found with the correct value.
    pub hits: u64,
    /// Keys not found.
    pub misses: u64,
    /// Requests due in an open loop that were not answered within five seconds after the end.
    pub unanswered: u64,
    /// The requests of an open loop that were due but not answered within five seconds after its
    /// end.
    pub requests_per_s: f64,
    /// Keys per second.
    pub keys_per_s: f64,
    /// Requests per second that were due, in an open loop.
    pub requests_per_s_offered: Option<f64>,
    /// Latency of requests.
    pub latency: Latency,
    /// CPU time of the server per request.
    pub server_cpu_ns_per_request: Option<f64>,
    /// CPU time of the server per key.
    pub server_cpu_ns_per_key: Option<f64>,
    /// CPU time of the server divided by wall time; 1 means one core.
    pub server_cpu_share: Option<f64>,
    /// CPU time of the load threads divided by wall time; 1 means that all threads are busy.
    pub client_cpu_share: f64,
    /// Resident memory of the server at the end.
    pub server_resident_bytes: Option<u64>,
    /// Peak resident memory of the server.
    pub server_resident_bytes_peak: Option<u64>,
}

impl LoadReport {
    pub(super) fn new(spec: &LoadSpec, outcomes: Vec<Outcome>, resident: Option<Resident>) -> Self {
        let window_s = |outcome: &Outcome| outcome.window_ns.max(1) as f64 / 1e9;
        let sum =
            |field: fn(&Tally) -> u64| outcomes.iter().map(|outcome| field(&outcome.tally)).sum::<u64>();
        let (requests, sets) = (sum(|tally| tally.requests), sum(|tally| tally.sets));
        let (hits, misses) = (sum(|tally| tally.hits), sum(|tally| tally.misses));
        let keys = sets + hits + misses;
        let requests_per_s: f64 =
            outcomes.iter().map(|outcome| outcome.tally.requests as f64 / window_s(outcome)).sum();
        let keys_per_request = keys as f64 / requests.max(1) as f64;
        let seconds = outcomes.iter().map(window_s).fold(0.0, f64::max);
        let server_cpu_share =
            outcomes[0].server_cpu_ns.map(|cpu_ns| cpu_ns as f64 / 1e9 / window_s(&outcomes[0]));
        // The sum of the rates is used instead of the rate of the sums, because the threads' time
        // spans start and end at different times.
        let server_cpu_ns_per_request = server_cpu_share.map(|share| share * 1e9 / requests_per_s);
        let client_cpu_ns: u64 = outcomes.iter().map(|outcome| outcome.client_cpu_ns).sum();
        Self {
            seed: spec.seed,
            seconds,
            requests,
            keys,
            sets,
            refused: sum(|tally| tally.refused),
            hits,
            misses,
            unanswered: outcomes.iter().map(|outcome| outcome.unanswered).sum(),
            requests_per_s,
            keys_per_s: requests_per_s * keys_per_request,
            requests_per_s_offered: match spec.arrival {
                Arrival::Open { requests_per_s, .. } => Some(requests_per_s),
                Arrival::Closed => None,
            },
            server_cpu_ns_per_request,
            server_cpu_ns_per_key: server_cpu_ns_per_request.map(|ns| ns / keys_per_request),
            server_cpu_share,
            client_cpu_share: client_cpu_ns as f64 / 1e9 / seconds / outcomes.len() as f64,
            server_resident_bytes: resident.map(|resident| resident.bytes),
            server_resident_bytes_peak: resident.map(|resident| resident.bytes_peak),
            latency: Latency::of(outcomes),
        }
    }

    /// Returns the share of requested keys that were found; `None` if none were requested.
    pub fn hit_ratio(&self) -> Option<f64> {
        let asked = self.hits + self.misses;
        (asked > 0).then(|| self.hits as f64 / asked as f64)
    }

    /// Returns one figure per line.
    pub fn figures(&self) -> Vec<Figure> {
        let mut figures = vec![
            Figure::new("throughput_requests", self.requests_per_s, "/s"),
            Figure::new("throughput_keys", self.keys_per_s, "/s"),
        ];
        if let Some(offered) = self.requests_per_s_offered {
            figures.push(Figure::new("offered_requests", offered, "/s"));
            figures.push(Figure::new("unanswered_requests", self.unanswered as f64, ""));
        }
        let Latency { mean_us, p50_us, p90_us, p99_us, p999_us, max_us } = self.latency;
        figures.extend([
            Figure::new("latency_mean", mean_us, "us"),
            Figure::new("latency_p50", p50_us, "us"),
            Figure::new("latency_p90", p90_us, "us"),
            Figure::new("latency_p99", p99_us, "us"),
            Figure::new("latency_p99.9", p999_us, "us"),
            Figure::new("latency_max", max_us, "us"),
        ]);
        figures.extend(self.hit_ratio().map(|ratio| Figure::new("hit_ratio", ratio, "")));
        figures.push(Figure::new("refused_requests", self.refused as f64, ""));
        figures.push(Figure::new("client_cpu_share", self.client_cpu_share, "of its cores"));
        let server = [
            ("server_cpu_share", self.server_cpu_share, "cores"),
            ("server_cpu_per_request", self.server_cpu_ns_per_request, "ns"),
            ("server_cpu_per_key", self.server_cpu_ns_per_key, "ns"),
            ("server_resident", self.server_resident_bytes.map(|bytes| bytes as f64), "bytes"),
            ("server_resident_peak", self.server_resident_bytes_peak.map(|bytes| bytes as f64), "bytes"),
        ];
        figures.extend(
            server.into_iter().filter_map(|(name, value, unit)| Some(Figure::new(name, value?, unit))),
        );
        figures
    }
}

impl Latency {
    fn of(outcomes: Vec<Outcome>) -> Self {
        let mut histograms = outcomes.into_iter().map(|outcome| outcome.tally.latency_ns);
        let Some(mut all) = histograms.next() else { return Self::default() };
        for histogram in histograms {
            // All histograms have the same bounds, so adding one cannot fail.
            let _ = all.add(histogram);
        }
        let at = |quantile| all.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            mean_us: all.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: all.max() as f64 / 1e3,
        }
    }
}

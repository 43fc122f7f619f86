//! The rate limit of a bucket's requests to the endpoint: requests and bytes per second.
//!
//! A request beyond the rate waits for its turn, and is refused if it would wait too long. Bodies
//! are paced by the rate; if too many bytes are sent, the bytes and requests after them are
//! delayed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cached_metrics::{Counter, counters};
use parking_lot::{Mutex, RwLock};
use tokio::time::{Instant, sleep};

use crate::policy::BucketTerms;

/// The time for which unused rate is saved up.
const BURST: Duration = Duration::from_millis(100);

/// The maximum time that a request waits for its turn.
const WAIT_MAX: Duration = Duration::from_secs(1);

counters! {
    /// The limiter of one bucket.
    #[derive(Debug)]
    pub(crate) struct Lane {
        rates: Mutex<Rates>,
        /// Requests to the endpoint for the bucket.
        pub(crate) requests: Counter => "cached_s3_sidecar_bucket_endpoint_requests_total",
        /// Bytes of bodies to and from the endpoint for the bucket.
        pub(crate) bytes: Counter => "cached_s3_sidecar_bucket_endpoint_bytes_total",
        /// Requests delayed by the bucket's rate limit.
        pub(crate) waited: Counter => "cached_s3_sidecar_bucket_requests_delayed_total",
        /// Requests refused with a 503, because the bucket's rate limit would have delayed them too long.
        pub(crate) refused: Counter => "cached_s3_sidecar_bucket_requests_refused_total",
    }
}

#[derive(Debug)]
struct Rates {
    requests: Rate,
    bytes: Rate,
}

/// A limit per second.
#[derive(Debug)]
struct Rate {
    /// The limit, or `None` for no limit.
    per_second: Option<u64>,
    /// The time until which the rate is used up.
    used_until: Instant,
}

impl Rate {
    fn wait(&self, now: Instant) -> Duration {
        match self.per_second {
            Some(_) => self.used_until.saturating_duration_since(now + BURST),
            None => Duration::ZERO,
        }
    }

    fn take(&mut self, count: u64, now: Instant) {
        if let Some(per_second) = self.per_second {
            // At the minimum rate, one frame of a body takes several seconds.
            let time = Duration::from_secs_f64(count as f64 / per_second as f64);
            self.used_until = self.used_until.max(now) + time;
        }
    }
}

impl Lane {
    fn new(terms: &BucketTerms) -> Self {
        let now = Instant::now();
        let rate = |per_second| Rate { per_second, used_until: now };
        let rates =
            Rates { requests: rate(terms.requests_per_second_max), bytes: rate(terms.bytes_per_second_max) };
        let [requests, bytes, waited, refused] = Default::default();
        Self { rates: Mutex::new(rates), requests, bytes, waited, refused }
    }

    fn change(&self, terms: &BucketTerms) {
        let mut rates = self.rates.lock();
        rates.requests.per_second = terms.requests_per_second_max;
        rates.bytes.per_second = terms.bytes_per_second_max;
    }

    /// Waits for a request's turn. Returns false if the wait would be too long.
    pub(crate) async fn enter(&self) -> bool {
        let wait = {
            let (mut rates, now) = (self.rates.lock(), Instant::now());
            let wait = rates.requests.wait(now).max(rates.bytes.wait(now));
            if wait > WAIT_MAX {
                self.refused.increment();
                return false;
            }
            rates.requests.take(1, now);
            wait
        };
        self.requests.increment();
        if !wait.is_zero() {
            self.waited.increment();
            sleep(wait).await;
        }
        true
    }

    /// Returns how long a body has to wait after sending this many bytes.
    pub(crate) fn pass(&self, bytes: usize) -> Duration {
        self.bytes.add(bytes as u64);
        let (mut rates, now) = (self.rates.lock(), Instant::now());
        rates.bytes.take(bytes as u64, now);
        rates.bytes.wait(now)
    }

    /// Waits until a body may continue, after sending this many bytes.
    pub(crate) async fn pace(&self, bytes: usize) {
        let wait = self.pass(bytes);
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }
}

/// The limiters of buckets with terms.
#[derive(Debug, Default)]
pub(crate) struct Lanes(RwLock<HashMap<String, Arc<Lane>>>);

impl Lanes {
    /// Returns the limiters of these buckets.
    pub(crate) fn new(all: &[BucketTerms]) -> Self {
        let lanes = Self::default();
        lanes.change(all);
        lanes
    }

    /// Replaces the terms. A bucket with terms before and after keeps its limiter, and its counts.
    pub(crate) fn change(&self, all: &[BucketTerms]) {
        let mut lanes = self.0.write();
        let mut before = std::mem::take(&mut *lanes);
        for terms in all {
            let lane = before.remove(&terms.bucket).unwrap_or_else(|| Arc::new(Lane::new(terms)));
            lane.change(terms);
            lanes.insert(terms.bucket.clone(), lane);
        }
    }

    /// Returns the limiter of a bucket.
    pub(crate) fn of(&self, bucket: &str) -> Option<Arc<Lane>> {
        let lanes = self.0.read();
        // Most sidecars have no limiters.
        if lanes.is_empty() { None } else { lanes.get(bucket).cloned() }
    }

    /// Returns all limiters, in the order of the buckets' names.
    pub(crate) fn all(&self) -> Vec<(String, Arc<Lane>)> {
        let lanes = self.0.read();
        let mut all: Vec<_> = lanes.iter().map(|(bucket, lane)| (bucket.clone(), Arc::clone(lane))).collect();
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(requests: u64, bytes: u64) -> BucketTerms {
        let (requests, bytes) = (Some(requests), Some(bytes));
        BucketTerms {
            bucket: "b".into(),
            requests_per_second_max: requests,
            bytes_per_second_max: bytes,
            ..BucketTerms::default()
        }
    }

    #[test]
    fn a_rate_lets_a_burst_pass_and_then_as_many_as_it_says() {
        let now = Instant::now();
        let mut rate = Rate { per_second: Some(10), used_until: now };
        let mut waits = Vec::new();
        for _ in 0..4 {
            waits.push(rate.wait(now).as_millis());
            rate.take(1, now);
        }
        assert_eq!(waits, [0, 0, 100, 200]);
        // Unused rate is saved up only for the burst time.
        let later = now + Duration::from_secs(3600);
        rate.take(2, later);
        assert_eq!(rate.wait(later).as_millis(), 100);
        rate.per_second = None;
        assert_eq!(rate.wait(later), Duration::ZERO);
    }

    #[test]
    fn what_would_wait_too_long_is_refused_and_takes_nothing() {
        let lane = Lane::new(&terms(1, 4096));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            assert!(lane.enter().await);
            // An hour of the rate.
            assert!(lane.pass(3600 * 4096) > WAIT_MAX);
            assert!(!lane.enter().await && !lane.enter().await);
            assert_eq!((lane.requests.get(), lane.refused.get(), lane.bytes.get()), (1, 2, 3600 * 4096));
            lane.change(&BucketTerms::default());
            assert!(lane.enter().await && lane.enter().await);
            assert_eq!(lane.waited.get(), 0);
        });
    }

    #[test]
    fn a_bucket_keeps_its_lane_through_a_change_of_its_terms() {
        let lanes = Lanes::new(&[terms(1, 4096)]);
        let lane = lanes.of("b").unwrap();
        lanes.change(&[terms(2, 4096)]);
        assert!(Arc::ptr_eq(&lane, &lanes.of("b").unwrap()));
        assert_eq!(lane.rates.lock().requests.per_second, Some(2));
        lanes.change(&[]);
        assert!(lanes.of("b").is_none() && lanes.all().is_empty());
    }
}

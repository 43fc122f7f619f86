//! What a namespace may have of the store, and the tags by which the scheduler keeps to it.

use std::time::Duration;

use blocker::Timestamp;

/// What a namespace may have of the store, and what it is sure to get. The default is no limit, no
/// reservation, and the weight 1.
///
/// The limits count what is sent to the store: loads, forwarded changes and flushes; hits are free. The
/// reservation and the weight count a request as one, and as one more for each 64 KiB that it carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreTerms {
    /// The most requests a second; 1 to [`Self::RATE_MAX`].
    pub requests_per_second_max: Option<u64>,
    /// The most bytes a second, read and written together; at least 4 096.
    pub bytes_per_second_max: Option<u64>,
    /// The requests a second that the namespace gets before any other one gets more than its own, each
    /// counted as one and one more for each 64 KiB; 1 to [`Self::RATE_MAX`].
    pub requests_per_second_min: Option<u64>,
    /// Its share of what is not reserved, beside the weights of the others; 1 to [`Self::WEIGHT_MAX`].
    pub weight: u32,
    /// For how long a namespace can save up what it has not used of its limits and of its reservation; up to
    /// [`Self::BURST_MAX`].
    pub burst: Duration,
}

impl StoreTerms {
    /// The highest number of requests a second, and the highest sum of those that are reserved.
    pub const RATE_MAX: u64 = 10_000_000;
    /// The highest weight.
    pub const WEIGHT_MAX: u32 = 10_000;
    /// The longest burst.
    pub const BURST_MAX: Duration = Duration::from_secs(60);
    /// The lowest limit of bytes a second: a bucket.
    pub const BYTES_MIN: u64 = 4096;

    /// Returns what is wrong with these terms, and what would be right.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (key, rate) in [
            ("store_requests_per_second_max", self.requests_per_second_max),
            ("store_requests_per_second_min", self.requests_per_second_min),
        ] {
            if rate.is_some_and(|rate| rate == 0 || rate > Self::RATE_MAX) {
                return Err(format!("{key} must be between 1 and {}", Self::RATE_MAX));
            }
        }
        if self.bytes_per_second_max.is_some_and(|rate| rate < Self::BYTES_MIN) {
            return Err(format!("store_bytes_per_second_max must be at least {}", Self::BYTES_MIN));
        }
        if self.weight == 0 || self.weight > Self::WEIGHT_MAX {
            return Err(format!("store_weight must be between 1 and {}", Self::WEIGHT_MAX));
        }
        if self.burst > Self::BURST_MAX {
            return Err(format!("store_burst_ms must be at most {}", Self::BURST_MAX.as_millis()));
        }
        match (self.requests_per_second_min, self.requests_per_second_max) {
            (Some(reserved), Some(limit)) if reserved > limit => {
                Err(format!("store_requests_per_second_min is {reserved}, above its limit of {limit}"))
            }
            _ => Ok(()),
        }
    }

    /// Whether requests may have to wait although the store would take them.
    pub(crate) fn is_limited(&self) -> bool {
        self.requests_per_second_max.is_some() || self.bytes_per_second_max.is_some()
    }
}

impl Default for StoreTerms {
    fn default() -> Self {
        Self {
            requests_per_second_max: None,
            bytes_per_second_max: None,
            requests_per_second_min: None,
            weight: 1,
            burst: Duration::from_millis(100),
        }
    }
}

const NANOS: f64 = 1e9;
/// The tags of one namespace: when it may have its next request, and its place among the others.
///
/// As in mClock (Gulati, Merchant, Varman: "mClock: Handling Throughput Variability for Hypervisor IO
/// Scheduling", OSDI 2010) there are three: of the reservation and of the limits in time, of the weight in a
/// virtual time of its own. They differ from the paper's in three ways. They belong to the namespace and not
/// to each request, so that a caller that gives up leaves none behind. The limits are two, of requests and of
/// bytes, and let a burst through. And what was not used can be saved up, and what was lent can be owed, for
/// the burst only: a namespace that comes back after an hour neither floods the store nor pays for an hour.
#[derive(Clone, Debug)]
pub(super) struct Tags {
    terms: StoreTerms,
    /// When the next reserved request is due.
    reservation: u64,
    /// When all that was sent would have been sent, had it been sent at the limit of requests.
    requests: u64,
    /// The same for the limit of bytes.
    bytes: u64,
    /// What it has had of the store by weight, in virtual time.
    share: f64,
}

/// What a request takes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Cost {
    pub(super) bytes: u64,
    /// One, and one more for each 64 KiB.
    pub(super) units: f64,
}

impl Cost {
    pub(super) fn of(bytes: u64) -> Self {
        Self { bytes, units: 1.0 + bytes as f64 / 65_536.0 }
    }
}

/// Why a request was the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    Reservation,
    Weight,
}

/// Returns how long `count` requests or units take at a rate, in nanoseconds.
fn nanos(count: f64, per_second: u64) -> u64 {
    (count * NANOS / per_second as f64).ceil() as u64
}

impl Tags {
    pub(super) fn new(terms: StoreTerms, now: Timestamp, virtual_time: f64) -> Self {
        Self { terms, reservation: now.0, requests: now.0, bytes: now.0, share: virtual_time }
    }

    /// Puts other terms in force. What was saved up or owed under the former ones is void.
    pub(super) fn set_terms(&mut self, terms: StoreTerms, now: Timestamp) {
        if self.terms != terms {
            *self = Self::new(terms, now, self.share);
        }
    }

    fn burst(&self) -> u64 {
        self.terms.burst.as_nanos() as u64
    }

    /// Called when the first request of an idle namespace comes: it has saved up no share.
    pub(super) fn begin(&mut self, virtual_time: f64) {
        self.share = self.share.max(virtual_time);
    }

    /// Returns when the limits let the next request through; in the past if they do now.
    pub(super) fn limited_until(&self) -> Timestamp {
        Timestamp(self.requests.max(self.bytes).saturating_sub(self.burst()))
    }

    /// Returns since when a reserved request has been due, if one is.
    pub(super) fn reserved_since(&self, now: Timestamp) -> Option<u64> {
        let is_due = self.terms.requests_per_second_min.is_some() && self.reservation <= now.0;
        is_due.then_some(self.reservation)
    }

    /// Returns its place among the others: the least is the next.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// Takes a request into account. `virtual_time` is that of the scheduler.
    pub(super) fn charge(&mut self, cost: Cost, by: By, now: Timestamp, virtual_time: f64) {
        let terms = self.terms;
        if let (By::Reservation, Some(rate)) = (by, terms.requests_per_second_min) {
            let from = self.reservation.max(now.0.saturating_sub(self.burst()));
            self.reservation = from.saturating_add(nanos(cost.units, rate));
        }
        if let Some(rate) = terms.requests_per_second_max {
            self.requests = self.requests.max(now.0).saturating_add(nanos(1.0, rate));
        }
        if let Some(rate) = terms.bytes_per_second_max {
            self.bytes = self.bytes.max(now.0).saturating_add(nanos(cost.bytes as f64, rate));
        }
        let weight = f64::from(terms.weight);
        self.share += cost.units / weight;
        if by == By::Reservation {
            // What a reservation gives counts as a share, so that both are not added up; but what the others
            // get back of it later is bounded.
            let reserved = terms.requests_per_second_min.unwrap_or(0) as f64;
            let owed_max = (reserved * terms.burst.as_secs_f64()).max(cost.units) / weight;
            self.share = self.share.min(virtual_time + owed_max);
        }
    }

    /// Takes back what was charged too much: a number of requests, and what they carry.
    pub(super) fn refund(&mut self, requests: f64, cost: Cost, by: By) {
        let terms = self.terms;
        if let (By::Reservation, Some(rate)) = (by, terms.requests_per_second_min) {
            self.reservation = self.reservation.saturating_sub(nanos(cost.units, rate));
        }
        if let Some(rate) = terms.requests_per_second_max {
            self.requests = self.requests.saturating_sub(nanos(requests, rate));
        }
        if let Some(rate) = terms.bytes_per_second_max {
            self.bytes = self.bytes.saturating_sub(nanos(cost.bytes as f64, rate));
        }
        self.share = (self.share - cost.units / f64::from(terms.weight)).max(0.0);
    }
}

//! The terms of a namespace at the store, and the tags by which the scheduler enforces them.

use std::time::Duration;

use blocker::Timestamp;

/// The limits and guarantees of a namespace at the store. The default is no limit, no reservation,
/// and a weight of 1.
///
/// The limits apply to requests to the store: loads, forwarded changes and flushes; hits are free.
/// For the reservation and the weight, a request costs one unit, plus one for each 64 KiB that it
/// carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreTerms {
    /// The maximum number of requests per second; 1 to [`Self::RATE_MAX`].
    pub requests_per_second_max: Option<u64>,
    /// The maximum number of bytes per second, read and written together; at least 4096.
    pub bytes_per_second_max: Option<u64>,
    /// The number of requests per second that the namespace gets before any other namespace gets
    /// more than its own reservation; each request counts as one, plus one for each 64 KiB; 1 to
    /// [`Self::RATE_MAX`].
    pub requests_per_second_min: Option<u64>,
    /// The weight of the namespace in sharing unreserved capacity; 1 to [`Self::WEIGHT_MAX`].
    pub weight: u32,
    /// The time for which a namespace can save up unused parts of its limits and its reservation;
    /// up to [`Self::BURST_MAX`].
    pub burst: Duration,
}

impl StoreTerms {
    /// The maximum rate in requests per second, and the maximum sum of all reservations.
    pub const RATE_MAX: u64 = 10_000_000;
    /// The maximum weight.
    pub const WEIGHT_MAX: u32 = 10_000;
    /// The maximum burst.
    pub const BURST_MAX: Duration = Duration::from_secs(60);
    /// The minimum byte limit per second: a bucket.
    pub const BYTES_MIN: u64 = 4096;

    /// Checks these terms; the error says what is wrong, and what would be valid.
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

    /// Returns whether requests may have to wait although the store would accept them.
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
/// The tags of a namespace: when its next request may be admitted, and its position among the
/// others.
///
/// As in mClock (Gulati, Merchant, Varman: "mClock: Handling Throughput Variability for Hypervisor
/// IO Scheduling", OSDI 2010) there are three tags: those of the reservation and of the limit are
/// in real time, that of the weight is in a virtual time. They differ from the paper's in three
/// ways. They belong to the namespace and not to each request, so that a caller that gives up
/// leaves none behind. There are two limits, of requests and of bytes, and they allow a burst. And
/// unused capacity can be saved up, and lent capacity owed, only for the length of a burst: a
/// namespace that returns after an hour neither floods the store nor pays for an hour.
#[derive(Clone, Debug)]
pub(super) struct Tags {
    terms: StoreTerms,
    /// The time when the next reserved request is due.
    reservation: u64,
    /// The time at which all requests sent so far would have been sent at exactly the request
    /// limit.
    requests: u64,
    /// The same for the limit of bytes.
    bytes: u64,
    /// The weighted service that the namespace has received, in virtual time: the scheduler
    /// serves the namespace with the least next.
    pub(super) share: f64,
}

/// The cost of a request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Cost {
    pub(super) bytes: u64,
    /// One unit, plus one for each 64 KiB.
    pub(super) units: f64,
}

impl Cost {
    pub(super) fn of(bytes: u64) -> Self {
        Self { bytes, units: 1.0 + bytes as f64 / 65_536.0 }
    }
}

/// The reason why a request was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    Reservation,
    Weight,
}

/// Returns the time that `count` requests or units take at a rate, in nanoseconds.
fn nanos(count: f64, per_second: u64) -> u64 {
    (count * NANOS / per_second as f64).ceil() as u64
}

impl Tags {
    pub(super) fn new(terms: StoreTerms, now: Timestamp, virtual_time: f64) -> Self {
        Self { terms, reservation: now.0, requests: now.0, bytes: now.0, share: virtual_time }
    }

    /// Applies other terms. Anything saved up or owed under the former terms is dropped.
    pub(super) fn set_terms(&mut self, terms: StoreTerms, now: Timestamp) {
        if self.terms != terms {
            *self = Self::new(terms, now, self.share);
        }
    }

    fn burst(&self) -> u64 {
        self.terms.burst.as_nanos() as u64
    }

    /// Called when the first request of an idle namespace arrives: the namespace has saved up no
    /// share.
    pub(super) fn begin(&mut self, virtual_time: f64) {
        self.share = self.share.max(virtual_time);
    }

    /// Returns the time at which the limits admit the next request; in the past if they do so now.
    pub(super) fn limited_until(&self) -> Timestamp {
        Timestamp(self.requests.max(self.bytes).saturating_sub(self.burst()))
    }

    /// Returns the time since when a reserved request has been due, if one is.
    pub(super) fn reserved_since(&self, now: Timestamp) -> Option<u64> {
        let is_due = self.terms.requests_per_second_min.is_some() && self.reservation <= now.0;
        is_due.then_some(self.reservation)
    }

    /// Charges a request. `virtual_time` is the scheduler's.
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
            // Reserved service also counts towards the share, so that the two do not add up; but
            // the amount that the others can later get back is bounded.
            let reserved = terms.requests_per_second_min.unwrap_or(0) as f64;
            let owed_max = (reserved * terms.burst.as_secs_f64()).max(cost.units) / weight;
            self.share = self.share.min(virtual_time + owed_max);
        }
    }

    /// Refunds an excess charge: a number of requests, and their cost.
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

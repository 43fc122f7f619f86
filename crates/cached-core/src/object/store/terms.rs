//! What a namespace may have of the store, as it is configured.

use std::time::Duration;

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

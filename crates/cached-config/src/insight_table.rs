//! `[insight]`: what a program learns about its requests beyond counters.

use crate::error::{ConfigError, require, within};
use cached_core::insight::{self, Sampling};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A day: beyond, a typing error is more likely.
const SLOW_MS_MAX: u32 = 24 * 60 * 60 * 1000;

/// The queues of samples of an object cache.
const SAMPLE_QUEUES: usize = 8;

/// The table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct InsightTable {
    /// Sample requests: for predicted miss ratios, reasons of misses, hot keys and hot objects.
    pub enabled: bool,
    /// The share of the names that are sampled; 0 if it adapts.
    pub sampled_share: f64,
    /// From how many milliseconds on a request is recorded as slow; 0 for none.
    pub slow_request_ms: u32,
}

impl Default for InsightTable {
    fn default() -> Self {
        InsightTable { enabled: true, sampled_share: 0.0, slow_request_ms: 100 }
    }
}

impl InsightTable {
    /// Checks the table.
    ///
    /// # Errors
    /// The key whose value cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        require((0.0..=1.0).contains(&self.sampled_share), "insight.sampled_share", || {
            format!("is {}; it must be between 0 and 1, 0 being adaptive", self.sampled_share)
        })?;
        within("insight.slow_request_ms", self.slow_request_ms, 0..=SLOW_MS_MAX)?;
        Ok(())
    }

    /// Returns which requests are sampled.
    #[must_use]
    pub fn sampling(&self) -> Sampling {
        match self.sampled_share {
            _ if !self.enabled => Sampling::Off,
            share if share > 0.0 => Sampling::Share(share),
            _ => Sampling::Adaptive,
        }
    }

    /// Returns the most memory that insight into an object cache takes, in bytes.
    #[must_use]
    pub fn objects_bytes_max(&self) -> u64 {
        match self.enabled {
            true => (insight::bytes_max(SAMPLE_QUEUES) + insight::hot_objects_bytes_max()) as u64,
            false => 0,
        }
    }

    /// Returns from how long on a request is slow; zero for none.
    #[must_use]
    pub fn slow_threshold(&self) -> Duration {
        Duration::from_millis(self.slow_request_ms.into())
    }
}

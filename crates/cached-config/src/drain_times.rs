//! `[process]`: the times of an orderly end.

use crate::error::{ConfigError, within};
use std::time::Duration;

/// How long the steps of the end may take before dirty data are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainTimes {
    /// How long the process is not ready, and still serves everything, before its listeners close: the time
    /// that load balancers need to see it. In seconds.
    pub delay_secs: u64,
    /// How long clients have to take their replies once the listeners are closed, in seconds.
    pub timeout_secs: u64,
}

impl Default for DrainTimes {
    fn default() -> Self {
        DrainTimes { delay_secs: 0, timeout_secs: 5 }
    }
}

/// One hour.
const SECS_MAX: u64 = 60 * 60;

impl DrainTimes {
    /// Returns the times that the keys of `[process]` set.
    ///
    /// # Errors
    /// The key that is out of range.
    pub fn new(delay_secs: u64, timeout_secs: u64) -> Result<DrainTimes, ConfigError> {
        within("process.drain_delay_secs", delay_secs, 0..=SECS_MAX)?;
        within("process.drain_timeout_secs", timeout_secs, 1..=SECS_MAX)?;
        Ok(DrainTimes { delay_secs, timeout_secs })
    }

    /// Returns how long the process is not ready before its listeners close.
    #[must_use]
    pub fn delay(&self) -> Duration {
        Duration::from_secs(self.delay_secs)
    }

    /// Returns how long clients have to take their replies.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_secs)
    }
}

//! A server's reports to its operator: errors in settings, and limits on the log lines that clients
//! can cause.

use std::time::Duration;

use blocker::Timestamp;
use parking_lot::Mutex;

/// An invalid setting, and its valid values.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{setting} {problem}")]
pub struct SettingError {
    /// The name of the setting, which is the field of the configuration.
    pub setting: &'static str,
    /// The valid values, for example `must be at least 1`.
    pub problem: String,
}

impl SettingError {
    /// Creates the error of a setting.
    pub fn new(setting: &'static str, problem: impl Into<String>) -> Self {
        Self { setting, problem: problem.into() }
    }

    /// Fails with `problem` if `is_wrong`.
    ///
    /// # Errors
    /// Fails if `is_wrong`.
    pub fn check(is_wrong: bool, setting: &'static str, problem: &str) -> Result<(), Self> {
        if is_wrong { Err(Self::new(setting, problem)) } else { Ok(()) }
    }
}

/// The minimum time between two lines with the same reason.
const INTERVAL: Duration = Duration::from_secs(1);

/// Decides which lines are written.
#[derive(Default, Debug)]
pub struct LogLimit {
    /// One entry per reason. Reasons are constants of the program, so their number is bounded.
    reasons: Mutex<Vec<Reason>>,
}

#[derive(Debug)]
struct Reason {
    name: &'static str,
    logged_at: Timestamp,
    suppressed: u64,
}

impl LogLimit {
    /// Returns whether a line of this reason may be written now: `Some` with the number of lines
    /// suppressed since the last one, or `None`, in which case the line counts as suppressed.
    pub fn admit(&self, name: &'static str, now: Timestamp) -> Option<u64> {
        let mut reasons = self.reasons.lock();
        let Some(reason) = reasons.iter_mut().find(|reason| reason.name == name) else {
            reasons.push(Reason { name, logged_at: now, suppressed: 0 });
            return Some(0);
        };
        if now.since(reason.logged_at) < INTERVAL {
            reason.suppressed += 1;
            return None;
        }
        reason.logged_at = now;
        Some(std::mem::take(&mut reason.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_second_and_reason_is_admitted() {
        let limit = LogLimit::default();
        let start = Timestamp(0);
        assert_eq!(limit.admit("denied", start), Some(0));
        for _ in 0..5 {
            assert_eq!(limit.admit("denied", start + Duration::from_millis(999)), None);
        }
        assert_eq!(limit.admit("too many", start + Duration::from_millis(999)), Some(0));
        assert_eq!(limit.admit("denied", start + INTERVAL), Some(5));
        assert_eq!(limit.admit("denied", start + INTERVAL * 3), Some(0));
    }
}

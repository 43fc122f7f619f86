//! A setting that cannot work.

use std::fmt;

/// A setting that cannot work, and what would be right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingError {
    setting: &'static str,
    problem: String,
}

impl SettingError {
    /// Returns the error of a setting.
    pub fn new(setting: &'static str, problem: impl Into<String>) -> Self {
        Self { setting, problem: problem.into() }
    }

    /// Fails with `problem` if `is_wrong`.
    ///
    /// # Errors
    /// Then.
    pub fn check(is_wrong: bool, setting: &'static str, problem: &str) -> Result<(), Self> {
        if is_wrong { Err(Self::new(setting, problem)) } else { Ok(()) }
    }

    /// Returns the name of the setting: the field of the configuration.
    #[must_use]
    pub fn setting(&self) -> &'static str {
        self.setting
    }

    /// Returns what would be right, for example `must be at least 1`.
    #[must_use]
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

/// Writes the setting and what would be right, in one line.
impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.setting, self.problem)
    }
}

impl std::error::Error for SettingError {}

//! What is wrong with a configuration file, in one line: where, which key, what, and what would be right.

use std::fmt;
use std::path::{Path, PathBuf};

/// A key whose value cannot work. Whoever knows the file makes a [`ConfigError`] of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// The key with its tables, parted by dots.
    pub(crate) key: String,
    /// What is wrong, and what would be right.
    pub(crate) why: String,
}

/// Says that `key` is wrong.
pub(crate) fn mistake<T>(key: impl Into<String>, why: impl Into<String>) -> Result<T, Mistake> {
    Err(Mistake { key: key.into(), why: why.into() })
}

/// Holds, or says that `key` is wrong.
pub(crate) fn require(holds: bool, key: &str, why: impl FnOnce() -> String) -> Result<(), Mistake> {
    if holds { Ok(()) } else { mistake(key, why()) }
}

/// `value`, which must be within `range`.
pub(crate) fn within<T: PartialOrd + fmt::Display>(
    key: &str,
    value: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, Mistake> {
    if range.contains(&value) {
        return Ok(value);
    }
    mistake(key, format!("is {value}; it must be between {} and {}", range.start(), range.end()))
}

/// Why a configuration file cannot be used: one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    path: PathBuf,
    line: Option<usize>,
    key: String,
    why: String,
}

impl ConfigError {
    /// About the file as a whole.
    pub(crate) fn of_file(path: &Path, why: impl Into<String>) -> ConfigError {
        ConfigError { path: path.into(), line: None, key: String::new(), why: why.into() }
    }

    /// About the place `offset` of `text`, which `key` has led to; no key at all if it cannot be read that far.
    pub(crate) fn at(path: &Path, text: &str, offset: Option<usize>, key: String, why: &str) -> ConfigError {
        let before = offset.and_then(|offset| text.as_bytes().get(..offset));
        let line = before.map(|before| 1 + before.iter().filter(|byte| **byte == b'\n').count());
        // Some messages come with an excerpt below.
        let why = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        ConfigError { path: path.into(), line, key, why }
    }

    /// About a value that could be read.
    pub(crate) fn of_key(path: &Path, mistake: Mistake) -> ConfigError {
        ConfigError { path: path.into(), line: None, key: mistake.key, why: mistake.why }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.why)
    }
}

impl std::error::Error for ConfigError {}

//! What is wrong with a configuration file, in one line: where, which key, what, and what would be right.

use std::fmt;
use std::path::{Path, PathBuf};

pub(crate) use cached_objects::{Mistake, mistake, require, within};

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

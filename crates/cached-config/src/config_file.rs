//! Reading a configuration file, with errors of one line: the place, the key, what is wrong and what would be
//! right.

use crate::error::ConfigError;
use serde::de::DeserializeOwned;
use std::fmt;
use std::path::{Path, PathBuf};

/// The largest file that is read, in bytes. Configuration is written by people.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why a configuration file cannot be used: one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFileError {
    path: PathBuf,
    line: Option<usize>,
    key: String,
    why: String,
}

impl ConfigFileError {
    /// Returns an error about the file as a whole.
    #[must_use]
    pub fn of_file(path: &Path, why: impl Into<String>) -> ConfigFileError {
        ConfigFileError { path: path.into(), line: None, key: String::new(), why: why.into() }
    }

    /// Returns an error about the byte `offset` of `text`, where the value of `key` is; `key` is empty where
    /// the text cannot be parsed that far.
    #[must_use]
    pub fn at(path: &Path, text: &str, offset: Option<usize>, key: String, why: &str) -> ConfigFileError {
        let before = offset.and_then(|offset| text.as_bytes().get(..offset));
        let line = before.map(|before| 1 + before.iter().filter(|byte| **byte == b'\n').count());
        // Some messages come with an excerpt below.
        let why = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        ConfigFileError { path: path.into(), line, key, why }
    }

    /// Returns an error about a value that was read.
    #[must_use]
    pub fn of_key(path: &Path, error: ConfigError) -> ConfigFileError {
        ConfigFileError { path: path.into(), line: None, key: error.key, why: error.why }
    }
}

impl fmt::Display for ConfigFileError {
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

impl std::error::Error for ConfigFileError {}

/// Returns the text of a file.
///
/// # Errors
/// [`ConfigFileError`] if it cannot be read, or is too large to be a configuration.
pub fn read_config(path: &Path) -> Result<String, ConfigFileError> {
    let cannot = |error: std::io::Error| ConfigFileError::of_file(path, format!("cannot be read: {error}"));
    let size = std::fs::metadata(path).map_err(cannot)?.len();
    if size > FILE_BYTES_MAX {
        let why = format!("has {size} bytes; a configuration has at most {FILE_BYTES_MAX}");
        return Err(ConfigFileError::of_file(path, why));
    }
    std::fs::read_to_string(path).map_err(cannot)
}

/// Parses a file's text; `path` is for error messages.
///
/// # Errors
/// [`ConfigFileError`] for the first error found.
pub fn parse_config<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ConfigFileError> {
    let wrong = |error: &toml::de::Error, key: String| {
        ConfigFileError::at(path, text, error.span().map(|span| span.start), key, error.message())
    };
    let reader = toml::Deserializer::parse(text).map_err(|error| wrong(&error, String::new()))?;
    serde_path_to_error::deserialize(reader).map_err(|error| {
        let key = match error.path().to_string() {
            key if key == "." => String::new(),
            key => key,
        };
        wrong(error.inner(), key)
    })
}

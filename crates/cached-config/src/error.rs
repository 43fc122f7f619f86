//! The reason why a configuration cannot be used: the file, the key, the problem and the remedy.

use cached_core::policy;
use cached_process::{Exit, Failure};
use named_file::FileError;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use synapse::Secret;

/// The reason why a configuration cannot be used, as a single line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The configuration file, if there is one.
    pub path: Option<PathBuf>,
    /// The line of the file, if the mistake has one.
    pub line: Option<usize>,
    /// The key with its tables, separated by dots; empty for an error about the whole file.
    pub key: String,
    /// The problem and the remedy.
    pub why: String,
    /// The exit status of a program that ends with this error: [`Exit::Configuration`] for a
    /// mistake, [`Exit::Trouble`] for a failure that may pass, [`Exit::Refused`] if something that
    /// the key names is in use or not there yet.
    pub exit: Exit,
}

impl ConfigError {
    /// Returns a mistake in the value of `key`.
    pub fn new(key: impl Into<String>, why: impl fmt::Display) -> ConfigError {
        let (key, why) = (key.into(), why.to_string());
        ConfigError { path: None, line: None, key, why, exit: Exit::Configuration }
    }

    /// Returns an error about a file that `key` names.
    pub fn of_file(key: impl Into<String>, error: FileError) -> ConfigError {
        let exit = if error.is_mistake() { Exit::Configuration } else { Exit::Trouble };
        ConfigError { exit, ..ConfigError::new(key, error) }
    }

    /// Returns the error with the configuration file that contains the key.
    #[must_use]
    pub fn in_file(self, path: &Path) -> ConfigError {
        ConfigError { path: Some(path.to_owned()), ..self }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}", path.display())?;
            self.line.map_or(Ok(()), |line| write!(f, ":{line}"))?;
            f.write_str(": ")?;
        }
        match self.key.as_str() {
            "" => f.write_str(&self.why),
            key => write!(f, "{key}: {}", self.why),
        }
    }
}

impl std::error::Error for ConfigError {}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::new(error.exit, error)
    }
}

/// Returns an error about `key`.
///
/// # Errors
/// Always.
pub fn invalid<T>(key: impl Into<String>, why: impl fmt::Display) -> Result<T, ConfigError> {
    Err(ConfigError::new(key, why))
}

/// Returns an error about `key` unless `holds`.
///
/// # Errors
/// [`ConfigError`] with `why`.
pub fn require(holds: bool, key: &str, why: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { invalid(key, why()) }
}

/// Returns `value`, which must be within `range`.
///
/// # Errors
/// [`ConfigError`] if it is not.
pub fn within<T: PartialOrd + fmt::Display>(
    key: &str,
    value: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, ConfigError> {
    if range.contains(&value) {
        return Ok(value);
    }
    invalid(key, format!("is {value}; it must be between {} and {}", range.start(), range.end()))
}

/// Reads the file that `key` names; `None` if `path` is empty.
///
/// # Errors
/// [`ConfigError`] if the file cannot be read.
pub(crate) fn read(key: &str, path: &Path) -> Result<Option<Vec<u8>>, ConfigError> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let bytes = named_file::read(path).map_err(|error| ConfigError::of_file(key, error.unread(path)))?;
    Ok(Some(bytes))
}

/// Returns the secret in the file `path`, or `None` if `path` is empty.
///
/// # Errors
/// [`ConfigError`] with the problem of the file.
pub fn secret(key: &str, path: &Path) -> Result<Option<Secret>, ConfigError> {
    let Some(bytes) = read(key, path)? else { return Ok(None) };
    let secret = Secret::new(&bytes);
    secret.map(Some).map_err(|error| ConfigError::new(key, format!("{}: {error}", path.display())))
}

/// Returns a warning if users other than the owner can read the file of a secret.
#[must_use]
pub fn secret_warning(path: &Path) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & 0o044 != 0).then(|| {
        let path = path.display();
        format!(
            "the secret in {path} can be read by others (mode {mode:03o}); chmod 600 {path} prevents that"
        )
    })
}

/// Returns the eviction policy called `name`.
///
/// # Errors
/// [`ConfigError`] if there is no such policy.
pub fn eviction_policy(key: &str, name: &str) -> Result<&'static str, ConfigError> {
    match policy::NAMES.iter().find(|known| **known == name) {
        Some(known) => Ok(known),
        None => invalid(key, format!("is \"{name}\"; it must be one of {}", policy::NAMES.join(", "))),
    }
}

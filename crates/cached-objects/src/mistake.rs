//! What is wrong with a value in a configuration file: which key, what, and what would be right.

use cached_core::policy;
use std::fmt;
use std::path::Path;
use synapse::Secret;

/// A key whose value cannot work. Whoever knows the file makes a line of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The key with its tables, parted by dots.
    pub key: String,
    /// What is wrong, and what would be right.
    pub why: String,
}

/// Says that `key` is wrong.
///
/// # Errors
/// That one.
pub fn mistake<T>(key: impl Into<String>, why: impl Into<String>) -> Result<T, Mistake> {
    Err(Mistake { key: key.into(), why: why.into() })
}

/// Holds, or says that `key` is wrong.
///
/// # Errors
/// That it is.
pub fn require(holds: bool, key: &str, why: impl FnOnce() -> String) -> Result<(), Mistake> {
    if holds { Ok(()) } else { mistake(key, why()) }
}

/// `value`, which must be within `range`.
///
/// # Errors
/// That it is not.
pub fn within<T: PartialOrd + fmt::Display>(
    key: &str,
    value: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, Mistake> {
    if range.contains(&value) {
        return Ok(value);
    }
    mistake(key, format!("is {value}; it must be between {} and {}", range.start(), range.end()))
}

/// The secret in a file, if one is named.
///
/// # Errors
/// What is wrong with the file.
pub fn secret(key: &str, path: &Path) -> Result<Option<Secret>, Mistake> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    Secret::from_file(path).map(Some).map_err(|why| Mistake { key: key.into(), why })
}

/// The name of an eviction policy that there is.
///
/// # Errors
/// That there is none.
pub fn eviction_policy(key: &str, name: &str) -> Result<&'static str, Mistake> {
    match policy::NAMES.iter().find(|known| **known == name) {
        Some(known) => Ok(known),
        None => mistake(key, format!("is \"{name}\"; it must be one of {}", policy::NAMES.join(", "))),
    }
}

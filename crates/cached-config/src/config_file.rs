//! Reading a configuration file and the files that it names, with errors of one line: the location,
//! the key, the problem and the remedy.

use cached_core::policy;
use cached_process::reload::without_users;
use cached_process::{Exit, Failure};
use named_file::{FileError, Kinds, NamedFile};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;
use std::fmt;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use synapse::Secret;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::nearest::with_suggestion;
use crate::quantity::TimeUnit;

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
    /// Returns a mistake in the value of `key`. If `why` quotes a URL, the user in it is left out.
    pub fn new(key: impl Into<String>, why: impl fmt::Display) -> ConfigError {
        let (key, why) = (key.into(), without_users(&why.to_string()));
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
/// Returns [`ConfigError`] with `why`.
pub fn require(holds: bool, key: &str, why: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { invalid(key, why()) }
}

/// Returns `value`, which must be within `range`.
///
/// # Errors
/// Returns [`ConfigError`] if the value is outside the range.
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
/// Returns [`ConfigError`] if the file cannot be read.
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
/// Returns [`ConfigError`] with the problem of the file.
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
/// Returns [`ConfigError`] if the policy does not exist.
pub fn eviction_policy(key: &str, name: &str) -> Result<&'static str, ConfigError> {
    match policy::NAMES.iter().find(|known| **known == name) {
        Some(known) => Ok(known),
        None => invalid(key, format!("is \"{name}\"; it must be one of {}", policy::NAMES.join(", "))),
    }
}

/// Returns the text of a configuration file, which may also be a pipe.
///
/// # Errors
/// Returns [`ConfigError`] if the file cannot be read.
pub fn read_config(path: &Path) -> Result<String, ConfigError> {
    let unread = |error: FileError| error.reworded(|why| format!("cannot be read: {why}"));
    let text = named_file::open(path, Kinds::RegularOrPipe).and_then(NamedFile::text);
    text.map_err(|error| ConfigError::of_file("", unread(error)).in_file(path))
}

/// Parses a file's text; `path` is for error messages.
///
/// # Errors
/// Returns [`ConfigError`] for the first error found.
pub fn parse_config<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ConfigError> {
    let at = |span: Option<Range<usize>>, key: String, why: &str| {
        let before = span.and_then(|span| text.as_bytes().get(..span.start));
        let line = before.map(|before| 1 + before.iter().filter(|byte| **byte == b'\n').count());
        // Some messages are followed by an excerpt from the file.
        let why = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        ConfigError { line, ..ConfigError::new(key, why).in_file(path) }
    };
    // The values are parsed from a JSON tree, because TOML's own deserializer generates three
    // copies of the code of each table.
    let mut values: Value =
        toml::from_str(text).map_err(|error| at(error.span(), String::new(), error.message()))?;
    let span = |path: &[Step<'_>]| DeTable::parse(text).ok().map(|root| span_of(&root, path));
    {
        let mut path = Vec::new();
        if let Err(why) = convert_durations(&mut values, &mut path) {
            return Err(at(span(&path), shown(&path), &why));
        }
    }
    serde_path_to_error::deserialize(values).map_err(|error| {
        let path: Vec<Step<'_>> = error.path().iter().map_while(Step::of).collect();
        let key = error.path().to_string();
        at(
            span(&path),
            if key == "." { String::new() } else { key },
            &with_suggestion(&error.inner().to_string()),
        )
    })
}

/// A step on the path from the root of a file to a value.
#[derive(Clone, Copy)]
enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

impl<'a> Step<'a> {
    fn of(segment: &'a Segment) -> Option<Self> {
        match segment {
            Segment::Map { key } => Some(Self::Key(key)),
            Segment::Seq { index } => Some(Self::Index(*index)),
            Segment::Enum { .. } | Segment::Unknown => None,
        }
    }
}

/// Formats a path like the paths of errors in values: `objects.namespaces[0].name`.
fn shown(path: &[Step<'_>]) -> String {
    path.iter().fold(String::new(), |shown, step| match step {
        Step::Index(index) => format!("{shown}[{index}]"),
        Step::Key(key) if shown.is_empty() => (*key).to_owned(),
        Step::Key(key) => format!("{shown}.{key}"),
    })
}

/// Replaces each duration that has a unit, as in `commit_timeout_secs = "2 min"`, by the number of
/// the unit with which its key ends. This is done here for all tables, so that no table needs a
/// type for durations. Other strings stay, for example `fresh_secs = "immutable"`.
///
/// # Errors
/// Returns the problem with a duration, whose location is then `path`.
fn convert_durations<'a>(value: &'a mut Value, path: &mut Vec<Step<'a>>) -> Result<(), String> {
    match value {
        // These settings are passed to librados as text.
        Value::Object(_) if matches!(path.last(), Some(Step::Key("librados"))) => {}
        Value::Object(table) => {
            for (key, value) in table {
                path.push(Step::Key(key));
                match (TimeUnit::of_key(key), &*value) {
                    (Some(unit), Value::String(text))
                        if text.starts_with(|first: char| first.is_ascii_digit()) =>
                    {
                        *value = unit.parse(text)?.into();
                    }
                    _ => convert_durations(value, path)?,
                }
                path.pop();
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter_mut().enumerate() {
                path.push(Step::Index(index));
                convert_durations(value, path)?;
                path.pop();
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns the location of the value at the end of `path`: the innermost value that exists.
fn span_of(root: &Spanned<DeTable<'_>>, path: &[Step<'_>]) -> Range<usize> {
    let (mut span, mut values) = (root.span(), Some(root.get_ref()));
    let mut array = None;
    for step in path {
        let found = match step {
            Step::Key(key) => values.and_then(|table| table.get(*key)),
            Step::Index(index) => array.and_then(|array: &DeArray<'_>| array.get(*index)),
        };
        let Some(found) = found else { break };
        span = found.span();
        (values, array) = match found.get_ref() {
            DeValue::Table(table) => (Some(table), None),
            DeValue::Array(values) => (None, Some(values)),
            _ => (None, None),
        };
    }
    span
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn durations_with_units_are_numbers_of_the_keys_units() {
        let parse = |text: &str| parse_config::<Value>("f".as_ref(), text).map_err(|error| error.to_string());
        let text = "stall_secs = \"2 min\"\nfresh_secs = \"immutable\"\nname = \"5 min\"\nidle_ms = 7\n\
                    [backend.librados]\nrados_osd_op_timeout_secs = \"5\"\n[[all]]\ndirty_age_ms_max = \"1 s\"\n";
        let right = serde_json::json!({
            "stall_secs": 120, "fresh_secs": "immutable", "name": "5 min", "idle_ms": 7,
            "backend": { "librados": { "rados_osd_op_timeout_secs": "5" } }, "all": [{ "dirty_age_ms_max": 1000 }],
        });
        assert_eq!(parse(text), Ok(right));
        let text = "[[all]]\n[[all]]\n\nflush_secs = \"1500 ms\"\n";
        let error = parse(text).unwrap_err();
        assert_eq!(error, "f:4: all[1].flush_secs: \"1500 ms\" is not a whole number of seconds");
        // A table of another type gets the same values.
        let secs: BTreeMap<String, u64> = parse_config("f".as_ref(), "a_secs = \"1 h\"").unwrap();
        assert_eq!(secs["a_secs"], 3600);
    }
}

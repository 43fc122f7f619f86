//! Reading a configuration file, with errors of one line: the location, the key, the problem and
//! the remedy.

use crate::error::{ConfigError, is_mistake, reading_trouble, unreadable_kind};
use cached_process::Exit;
use serde::de::DeserializeOwned;
use serde_json::{Number, Value};
use serde_path_to_error::Segment;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

/// The maximum size of the file, in bytes. Configuration is written by people.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The reason why a configuration file cannot be used, as a single line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFileError {
    path: PathBuf,
    line: Option<usize>,
    key: String,
    why: String,
    exit: Exit,
}

impl ConfigFileError {
    /// Returns an error about the file as a whole.
    #[must_use]
    pub fn of_file(path: &Path, why: impl Into<String>) -> ConfigFileError {
        Self::of_key(path, ConfigError { key: String::new(), why: why.into() })
    }

    /// Returns an error about the byte `offset` of `text`, at which the value of `key` is; `key` is
    /// empty if the text cannot be parsed that far.
    #[must_use]
    pub fn at(path: &Path, text: &str, offset: Option<usize>, key: String, why: &str) -> ConfigFileError {
        let before = offset.and_then(|offset| text.as_bytes().get(..offset));
        let line = before.map(|before| 1 + before.iter().filter(|byte| **byte == b'\n').count());
        // Some messages are followed by an excerpt.
        let why = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        ConfigFileError { line, ..Self::of_key(path, ConfigError { key, why }) }
    }

    /// Returns an error about a value that was read.
    #[must_use]
    pub fn of_key(path: &Path, error: ConfigError) -> ConfigFileError {
        let ConfigError { key, why } = error;
        ConfigFileError { path: path.into(), line: None, key, why, exit: Exit::Configuration }
    }

    /// Returns an error about an unreadable file: the configuration itself, or the file that `key`
    /// names.
    fn unread(path: &Path, key: &str, why: String, error: &std::io::Error) -> ConfigFileError {
        let exit = if is_mistake(error) { Exit::Configuration } else { Exit::Trouble };
        ConfigFileError { exit, ..Self::of_key(path, ConfigError { key: key.into(), why }) }
    }

    /// Returns the exit status of a program that ends with this error: that of a mistake, or that
    /// of a failure of a disk or the system.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.exit
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
/// [`ConfigFileError`] if the file cannot be read, or is too large to be a configuration.
pub fn read_config(path: &Path) -> Result<String, ConfigFileError> {
    let cannot = |error| ConfigFileError::unread(path, "", format!("cannot be read: {error}"), &error);
    let size = std::fs::metadata(path).map_err(cannot)?.len();
    if size > FILE_BYTES_MAX {
        let why = format!("has {size} bytes; a configuration has at most {FILE_BYTES_MAX}");
        return Err(ConfigFileError::of_file(path, why));
    }
    std::fs::read_to_string(path).map_err(cannot)
}

/// Parses a file's text; `path` is for error messages. The files that the configuration names are
/// also read, but their content is not checked: if a disk or the system fails to read one now, that
/// is not reported as a mistake of the configuration, as it would be by the code that reads the
/// file next.
///
/// # Errors
/// [`ConfigFileError`] for the first error found.
pub fn parse_config<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ConfigFileError> {
    let at = |span: Option<Range<usize>>, key: String, why: &str| {
        ConfigFileError::at(path, text, span.map(|span| span.start), key, why)
    };
    let root = DeTable::parse(text).map_err(|error| at(error.span(), String::new(), error.message()))?;
    // Parsed from a JSON tree, because TOML's own deserializer generates three copies of the code
    // of each table.
    let values = json_of_table(root.get_ref());
    check_named_files(path, "", &values)?;
    serde_path_to_error::deserialize(values).map_err(|error| {
        let (key, span) = (error.path().to_string(), span_of(&root, error.path()));
        at(Some(span), if key == "." { String::new() } else { key }, &error.inner().to_string())
    })
}

/// Returns whether a key names a file that is read.
fn names_a_file(key: &str) -> bool {
    let is_named = key.ends_with("_file") || key.ends_with("_file_previous");
    // This file holds memory, and may be large.
    (is_named && key != "memory_file") || ["conf", "keyring"].contains(&key)
}

/// Reads the files named by the keys within `value`, the value of `key`.
fn check_named_files(path: &Path, key: &str, value: &Value) -> Result<(), ConfigFileError> {
    let joined = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    match value {
        Value::Object(table) => {
            table.iter().try_for_each(|(name, value)| check_named_files(path, &joined(name), value))
        }
        Value::Array(values) => values.iter().try_for_each(|value| check_named_files(path, key, value)),
        Value::String(file) if names_a_file(key.rsplit('.').next().unwrap_or(key)) && !file.is_empty() => {
            if let Some(kind) = unreadable_kind(file.as_ref()) {
                let (key, why) = (key.to_owned(), format!("is {file}, {kind}"));
                return Err(ConfigFileError::of_key(path, ConfigError { key, why }));
            }
            match reading_trouble(file.as_ref()) {
                Some(error) => {
                    let why = format!("is {file}, which cannot be read at present: {error}");
                    Err(ConfigFileError::unread(path, key, why, &error))
                }
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

fn json_of_table(table: &DeTable<'_>) -> Value {
    let of = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
        (key.get_ref().to_string(), json_of(value.get_ref()))
    };
    Value::Object(table.iter().map(of).collect())
}

fn json_of(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Integer(number) => {
            let (digits, radix) = (number.as_str(), number.radix());
            let unsigned = u64::from_str_radix(digits, radix).map(Value::from);
            unsigned
                .or_else(|_| i64::from_str_radix(digits, radix).map(Value::from))
                .unwrap_or_else(|_| digits.into())
        }
        // JSON has neither infinities nor NaN: as text, they are refused wherever a number is
        // expected.
        DeValue::Float(number) => {
            let finite = number.as_str().parse().ok().and_then(Number::from_f64);
            finite.map_or_else(|| number.as_str().into(), Value::Number)
        }
        DeValue::Datetime(time) => time.to_string().into(),
        DeValue::Array(values) => values.iter().map(|value| json_of(value.get_ref())).collect(),
        DeValue::Table(table) => json_of_table(table),
    }
}

/// Returns the location of the value at the end of `path`: the innermost value that exists.
fn span_of(root: &Spanned<DeTable<'_>>, path: &serde_path_to_error::Path) -> Range<usize> {
    let (mut span, mut values) = (root.span(), Some(root.get_ref()));
    let mut array = None;
    for segment in path.iter() {
        let found = match segment {
            Segment::Map { key } => values.and_then(|table| table.get(key.as_str())),
            Segment::Seq { index } => array.and_then(|array: &DeArray<'_>| array.get(*index)),
            Segment::Enum { .. } | Segment::Unknown => None,
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

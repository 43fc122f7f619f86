//! Reading a configuration file, with errors of one line: the location, the key, the problem and
//! the remedy.

use crate::error::ConfigError;
use named_file::{FileError, Kinds, NamedFile};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// Returns the text of a configuration file, which may also be a pipe.
///
/// # Errors
/// [`ConfigError`] if the file cannot be read.
pub fn read_config(path: &Path) -> Result<String, ConfigError> {
    let unread = |error: FileError| error.reworded(|why| format!("cannot be read: {why}"));
    let text = named_file::open(path, Kinds::RegularOrPipe).and_then(NamedFile::text);
    text.map_err(|error| ConfigError::of_file("", unread(error)).in_file(path))
}

/// Parses a file's text; `path` is for error messages.
///
/// # Errors
/// [`ConfigError`] for the first error found.
pub fn parse_config<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ConfigError> {
    let at = |span: Option<Range<usize>>, key: String, why: &str| {
        let before = span.and_then(|span| text.as_bytes().get(..span.start));
        let line = before.map(|before| 1 + before.iter().filter(|byte| **byte == b'\n').count());
        // Some messages are followed by an excerpt.
        let why = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        ConfigError { line, ..ConfigError::new(key, why).in_file(path) }
    };
    // Parsed from a JSON tree, because TOML's own deserializer generates three copies of the code
    // of each table.
    let values: Value =
        toml::from_str(text).map_err(|error| at(error.span(), String::new(), error.message()))?;
    serde_path_to_error::deserialize(values).map_err(|error| {
        let span = DeTable::parse(text).ok().map(|root| span_of(&root, error.path()));
        let key = error.path().to_string();
        at(span, if key == "." { String::new() } else { key }, &error.inner().to_string())
    })
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

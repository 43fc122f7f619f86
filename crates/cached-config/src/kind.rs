//! Tables in which the key `kind` selects the other keys.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::{Map, Value};

/// The keys of a table, except `kind`.
#[derive(Debug)]
pub struct OtherKeys(Map<String, Value>);

impl OtherKeys {
    /// Parses the keys; an error names the invalid key.
    ///
    /// # Errors
    /// Returns the first invalid key, as one line.
    pub fn parse<T: for<'de> Deserialize<'de>>(self) -> Result<T, String> {
        serde_path_to_error::deserialize(Value::Object(self.0)).map_err(|error| {
            let (key, why) = (error.path().to_string(), error.inner().to_string());
            // The path refers to the table itself.
            if key == "." { why } else { format!("{key}: {why}") }
        })
    }
}

/// Reads a table of one of `kinds`; `parse` parses the other keys of a kind, and returns `None` if
/// the kind does not exist. The implementation is not derived, because a derived one loses the key
/// within the table.
///
/// # Errors
/// Returns a `kind` that is missing or unknown, and the errors of `parse`.
pub fn of_kind<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    kinds: &[&str],
    parse: impl FnOnce(&str, OtherKeys) -> Option<Result<T, String>>,
) -> Result<T, D::Error> {
    let mut table = Map::deserialize(deserializer)?;
    let kinds = || kinds.iter().map(|kind| format!("\"{kind}\"")).collect::<Vec<_>>().join(", ");
    let kind = match table.remove("kind") {
        Some(Value::String(kind)) => kind,
        Some(_) => return Err(D::Error::custom(format!("kind: must be one of {}", kinds()))),
        None => return Err(D::Error::custom(format!("kind: is missing; it must be one of {}", kinds()))),
    };
    let unknown = || Err(format!("kind: is \"{kind}\"; it must be one of {}", kinds()));
    parse(&kind, OtherKeys(table)).unwrap_or_else(unknown).map_err(D::Error::custom)
}

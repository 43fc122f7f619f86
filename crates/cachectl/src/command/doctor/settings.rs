//! The configuration that is checked: the one in force, as the server reports it, or that of a
//! file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cached_config::{Size, parse_config, read_config};
use cached_process::reload::{keys, shown};
use serde_json::{Value as Json, json};
use toml::{Table, Value};

use crate::admin::list;
use crate::output::Failure;

pub(super) struct Settings {
    /// The values of the keys, by their names with tables.
    keys: BTreeMap<String, Value>,
    /// The directory of relative paths.
    directory: PathBuf,
}

impl Settings {
    /// Returns the keys of a configuration file, without defaults. Relative paths in it begin in
    /// `directory`.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or is not TOML.
    pub(super) fn of_file(path: &Path, directory: &Path) -> Result<Self, Failure> {
        let table = read_config(path).and_then(|text| parse_config::<Table>(path, &text));
        let table = table.map_err(|error| Failure::usage(error.to_string()))?;
        Ok(Self { keys: keys(&table), directory: directory.into() })
    }

    /// Returns the keys of a response to `/config.json`. Relative paths in it begin in `directory`.
    pub(super) fn of_server(config: &Json, directory: &Path) -> Self {
        let entry = |entry: &Json| {
            // The value is written as in a file.
            let value: Value = entry["value"].as_str()?.parse().ok()?;
            Some((entry["key"].as_str()?.to_owned(), value))
        };
        let keys = list(config, "entries").iter().filter_map(entry).collect();
        Self { keys, directory: directory.into() }
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.keys.get(key)?.as_str().filter(|text| !text.is_empty())
    }

    pub(super) fn is(&self, key: &str) -> bool {
        self.keys.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Returns the path that a text denotes.
    pub(super) fn path(&self, text: &str) -> PathBuf {
        self.directory.join(text)
    }

    /// Returns a number, or a size in bytes.
    pub(super) fn number(&self, key: &str) -> Option<u64> {
        match self.keys.get(key)? {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::String(text) => text.parse().ok().map(|Size(bytes)| bytes),
            _ => None,
        }
    }

    /// Returns the files that keys with one of these ends name, with their keys.
    pub(super) fn files(&self, ends: &[&str]) -> Vec<(&str, PathBuf)> {
        let named = self.keys.keys().filter(|key| ends.iter().any(|end| key.ends_with(end)));
        named.filter_map(|key| Some((key.as_str(), self.path(self.text(key)?)))).collect()
    }

    /// Returns the keys without secrets, as JSON.
    pub(super) fn without_secrets(&self) -> Json {
        let entries = self
            .keys
            .iter()
            .map(|(key, value)| json!({ "key": key, "value": shown(key, value).to_string() }));
        json!({ "entries": entries.collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_shows_its_keys_as_they_are_written_in_a_file() {
        let settings = Settings::of_server(
            &json!({ "entries": [
            { "key": "objects.backend.path", "value": "\"/var/lib\"" },
            { "key": "memcached.memory_bytes_max", "value": "\"64 MiB\"" },
            { "key": "process.lock_memory", "value": "true" },
            { "key": "synapse.secret_file", "value": "\"\"" },
            { "key": "admin.token_file", "value": "\"/t\"" },
            { "key": "s3.keys_file", "value": "\"keys\"" },
            { "key": "broken", "value": "\"" },
        ] }),
            Path::new("/place"),
        );
        assert_eq!(settings.text("objects.backend.path"), Some("/var/lib"));
        assert_eq!(settings.number("memcached.memory_bytes_max"), Some(64 << 20));
        assert!(settings.is("process.lock_memory") && !settings.is("process.daemon"));
        let right = [("admin.token_file", "/t"), ("s3.keys_file", "/place/keys")];
        assert_eq!(settings.files(&["_file"]), right.map(|(key, path)| (key, PathBuf::from(path))));
    }

    #[test]
    fn no_secret_is_in_the_bundle() {
        let table: Table =
            "backend = \"rados:vm,librados.key=hidden\"\n[s3]\nupstream_secret_file = \"/path\"\n"
                .parse()
                .expect("TOML");
        let settings = Settings { keys: keys(&table), directory: PathBuf::new() };
        let shown = settings.without_secrets().to_string();
        assert!(shown.contains("/path") && shown.contains("rados:vm"), "{shown}");
        assert!(!shown.contains("hidden"), "{shown}");
    }
}

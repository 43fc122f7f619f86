//! The configuration that is checked: the one in force, as the server shows it, or that of a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cached_config::{Size, parse_config, read_config};
use cached_process::reload::keys;
use serde_json::{Value as Json, json};
use toml::{Table, Value};

use crate::admin::list;
use crate::output::Failure;

/// The values of the keys, by their names with tables.
pub(super) struct Settings(BTreeMap<String, Value>);

impl Settings {
    /// Returns the keys of a configuration file, without defaults.
    ///
    /// # Errors
    /// The file cannot be read, or is not TOML.
    pub(super) fn of_file(path: &Path) -> Result<Self, Failure> {
        let table = read_config(path).and_then(|text| parse_config::<Table>(path, &text));
        let table = table.map_err(|error| Failure::usage(error.to_string()))?;
        Ok(Self(keys(&table)))
    }

    /// Returns the keys of a response to `/config.json`.
    pub(super) fn of_server(config: &Json) -> Self {
        let entry = |entry: &Json| {
            // The value is written as in a file.
            let value: Value = entry["value"].as_str()?.parse().ok()?;
            Some((entry["key"].as_str()?.to_owned(), value))
        };
        Self(list(config, "entries").iter().filter_map(entry).collect())
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str().filter(|text| !text.is_empty())
    }

    pub(super) fn is(&self, key: &str) -> bool {
        self.0.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Returns a number, or a size in bytes.
    pub(super) fn number(&self, key: &str) -> Option<u64> {
        match self.0.get(key)? {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::String(text) => text.parse().ok().map(|Size(bytes)| bytes),
            _ => None,
        }
    }

    /// Returns the files that keys with one of these ends name, with their keys.
    pub(super) fn files(&self, ends: &[&str]) -> Vec<(&str, PathBuf)> {
        let named = self.0.keys().filter(|key| ends.iter().any(|end| key.ends_with(end)));
        named.filter_map(|key| Some((key.as_str(), self.text(key)?.into()))).collect()
    }

    /// Returns the keys without secrets, as JSON.
    pub(super) fn without_secrets(&self) -> Json {
        let entries = self.0.iter().map(|(key, value)| json!({ "key": key, "value": shown(key, value) }));
        json!({ "entries": entries.collect::<Vec<_>>() })
    }
}

/// Returns a value in a form that may leave the host: with the paths of secrets, without secrets.
fn shown(key: &str, value: &Value) -> String {
    let name = key.rsplit('.').next().unwrap_or(key);
    let is_path =
        ["file", "file_previous", "keyring", "directory", "path"].iter().any(|end| name.ends_with(end));
    let has_secret =
        ["secret", "password", "token", "key", "credential"].iter().any(|word| name.contains(word));
    match value {
        _ if has_secret && !is_path && value.is_str() => "(not shown)".to_owned(),
        // A setting for librados may be a secret key. A store that is named in one line contains these
        // settings as `librados.KEY=VALUE`.
        Value::String(text) if key.contains(".librados.") || text.contains(",librados.") => {
            "(not shown)".to_owned()
        }
        Value::String(text) => without_user(text),
        Value::Table(table) => {
            let inner = table
                .iter()
                .map(|(name, value)| format!("{name} = {}", shown(&format!("{key}.{name}"), value)));
            format!("{{ {} }}", inner.collect::<Vec<_>>().join(", "))
        }
        Value::Array(values) => {
            format!("[{}]", values.iter().map(|value| shown(key, value)).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// Returns a URL without user and password; other text unchanged.
fn without_user(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let host = rest.split('/').next().unwrap_or_default();
    match host.rsplit_once('@') {
        Some((user, _)) => format!("{scheme}://{}", &rest[user.len() + 1..]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_shows_its_keys_as_they_are_written_in_a_file() {
        let settings = Settings::of_server(&json!({ "entries": [
            { "key": "objects.backend.path", "value": "\"/var/lib\"" },
            { "key": "memcached.memory_bytes_max", "value": "\"64 MiB\"" },
            { "key": "process.lock_memory", "value": "true" },
            { "key": "synapse.secret_file", "value": "\"\"" },
            { "key": "admin.token_file", "value": "\"/t\"" },
            { "key": "broken", "value": "\"" },
        ] }));
        assert_eq!(settings.text("objects.backend.path"), Some("/var/lib"));
        assert_eq!(settings.number("memcached.memory_bytes_max"), Some(64 << 20));
        assert!(settings.is("process.lock_memory") && !settings.is("process.daemon"));
        assert_eq!(settings.files(&["_file"]), [("admin.token_file", PathBuf::from("/t"))]);
    }

    #[test]
    fn no_secret_is_shown() {
        let table: Table = "backend = \"rados:vm,librados.key=hidden\"\n\
            [s3]\nupstream = \"http://user:hidden@h:1/x\"\nupstream_access_key = \"hidden\"\n\
            upstream_secret_file = \"/path\"\n[objects.backend]\nkeyring = \"/ring\"\nheads_max = 7\n\
            librados = { key = \"hidden\", rados_x = \"hidden\" }\n\
            [[s3.buckets]]\nname = \"b\"\nsecret = \"hidden\"\n[memcached]\nlisten = [\"127.0.0.1:1\"]\n"
            .parse()
            .expect("TOML");
        let shown = Settings(keys(&table)).without_secrets().to_string();
        for present in ["http://h:1/x", "/path", "/ring", "127.0.0.1:1", "name = b", "\"7\""] {
            assert!(shown.contains(present), "{present} is missing in {shown}");
        }
        assert!(!shown.contains("hidden"), "{shown}");
    }
}

//! The changes made by a reload, and the differences between two configurations.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use toml::{Table, Value};

/// The outcome of a reload.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ReloadReport {
    /// The reason why the configuration was refused, in one line. Nothing has changed then.
    pub refused: Option<String>,
    /// The changes that were applied.
    pub changed: Vec<Change>,
    /// The keys that name a file whose content has changed and was applied.
    pub files: Vec<String>,
    /// The differences from the active configuration that need a restart.
    pub restart: Vec<Change>,
}

impl ReloadReport {
    pub(super) fn log(&self) {
        if let Some(why) = &self.refused {
            tracing::error!(cause = why, "the configuration is refused; the previous one stays in force");
            return;
        }
        let (changed, files) = (joined(&self.changed), self.files.join(", "));
        tracing::info!(changed, files, "the configuration was reloaded");
        if !self.restart.is_empty() {
            tracing::warn!(keys = joined(&self.restart), "these changes of the configuration need a restart");
        }
    }
}

/// Writes one line per fact, for people.
impl fmt::Display for ReloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.refused {
            return writeln!(f, "refused, nothing has changed: {why}");
        }
        for change in &self.changed {
            writeln!(f, "changed: {change}")?;
        }
        for file in &self.files {
            writeln!(f, "changed: the content of {file}")?;
        }
        for change in &self.restart {
            writeln!(f, "needs a restart: {change}")?;
        }
        if self.changed.is_empty() && self.files.is_empty() && self.restart.is_empty() {
            writeln!(f, "nothing has changed")?;
        }
        Ok(())
    }
}

/// Returns changes as one line.
fn joined(changes: &[Change]) -> String {
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The origin of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The built-in default, because neither the file nor flags have set the key.
    Default,
    /// The configuration file.
    File,
    /// The command line.
    Flag,
}

/// A key of the active configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EffectiveKey {
    /// The key, with its tables, separated by dots.
    pub key: String,
    /// The value of the key, as TOML.
    pub value: Value,
    /// The origin of the value.
    pub origin: Origin,
    /// Whether the key can change at run time.
    #[serde(rename = "live")]
    pub is_live: bool,
}

/// The active configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Effective {
    /// The configuration file, if there is one.
    pub file: Option<PathBuf>,
    /// All keys, in alphabetical order.
    pub keys: Vec<EffectiveKey>,
}

/// Writes one line per key: `key = value  # origin, live`.
impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for EffectiveKey { key, value, origin, is_live } in &self.keys {
            let origin = match origin {
                Origin::Default => "default",
                Origin::File => "file",
                Origin::Flag => "flag",
            };
            let change = if *is_live { "live" } else { "restart" };
            writeln!(f, "{key} = {value}  # {origin}, {change}")?;
        }
        Ok(())
    }
}

/// A key (with its tables, separated by dots) whose value differs, or a table that only one side
/// has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The old value, as TOML; `None` if the key had none.
    pub before: Option<Value>,
    /// The new value; `None` if the key has none.
    pub after: Option<Value>,
}

/// Formats the change as `key before -> after`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<Value>| value.as_ref().map_or_else(|| "none".into(), ToString::to_string);
        write!(f, "{} {} -> {}", self.key, text(&self.before), text(&self.after))
    }
}

impl Change {
    /// Returns whether the change concerns a value rather than a whole table.
    pub(super) fn is_value(&self) -> bool {
        !self.before.iter().chain(&self.after).any(Value::is_table)
    }

    /// Applies the change to `table`.
    pub(super) fn apply(&self, table: &mut Table) {
        match &self.after {
            Some(value) => set(table, &self.key, value.clone()),
            None => remove(table, &self.key),
        }
    }

    /// Returns the change without secret values, and without the content of whole tables.
    pub(super) fn redacted(self) -> Change {
        let shown = |value: Value| match value {
            Value::Table(_) => Value::String("a table".into()),
            value => shown(&self.key, &value),
        };
        Change { before: self.before.map(shown), after: self.after.map(shown), key: self.key }
    }
}

/// Returns the differences between `before` and `after`, in the order of the keys.
#[must_use]
pub fn difference(before: &Table, after: &Table) -> Vec<Change> {
    let mut changes = Vec::new();
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        compare(name, before.get(name), after.get(name), &mut changes);
    }
    changes
}

fn compare(key: &str, before: Option<&Value>, after: Option<&Value>, changes: &mut Vec<Change>) {
    match (before, after) {
        (Some(Value::Table(before)), Some(Value::Table(after))) => {
            let inner = difference(before, after).into_iter();
            changes.extend(inner.map(|change| Change { key: format!("{key}.{}", change.key), ..change }));
        }
        (before, after) if before != after => {
            changes.push(Change { key: key.into(), before: before.cloned(), after: after.cloned() });
        }
        _ => {}
    }
}

/// Returns every key of a configuration, with its tables, and its value.
#[must_use]
pub fn keys(table: &Table) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (name, value) in table {
        match value {
            Value::Table(inner) => {
                all.extend(keys(inner).into_iter().map(|(key, value)| (format!("{name}.{key}"), value)));
            }
            value => drop(all.insert(name.clone(), value.clone())),
        }
    }
    all
}

/// Copies the value of `key`, or removes it if it does not exist.
pub(super) fn copy(from: &Table, to: &mut Table, key: &str) {
    match get(from, key) {
        Some(value) => set(to, key, value.clone()),
        None => remove(to, key),
    }
}

fn get<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    match key.split_once('.') {
        None => table.get(key),
        Some((first, rest)) => get(table.get(first)?.as_table()?, rest),
    }
}

fn set(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => drop(table.insert(key.into(), value)),
        Some((first, rest)) => {
            let inner = table.entry(first).or_insert_with(|| Value::Table(Table::new()));
            if let Some(inner) = inner.as_table_mut() {
                set(inner, rest, value);
            }
        }
    }
}

pub(super) fn remove(table: &mut Table, key: &str) {
    match key.split_once('.') {
        None => drop(table.remove(key)),
        Some((first, rest)) => {
            if let Some(inner) = table.get_mut(first).and_then(Value::as_table_mut) {
                remove(inner, rest);
            }
        }
    }
}

/// The replacement of a secret.
const NOT_SHOWN: &str = "(not shown)";

/// Returns the value of `key`, written with its tables, without secrets: a secret that is set, a
/// setting for librados, or a user in a URL is replaced by `(not shown)`. Names of files are shown,
/// also those of files that contain secrets.
#[must_use]
pub fn shown(key: &str, value: &Value) -> Value {
    match value {
        Value::Table(table) => {
            let inner =
                table.iter().map(|(name, value)| (name.clone(), shown(&format!("{key}.{name}"), value)));
            Value::Table(inner.collect())
        }
        Value::Array(values) => Value::Array(values.iter().map(|value| shown(key, value)).collect()),
        Value::String(text) if text.is_empty() => value.clone(),
        _ if is_secret(key) => Value::String(NOT_SHOWN.into()),
        Value::String(text) => Value::String(without_secrets(text)),
        other => other.clone(),
    }
}

/// Returns whether the value of `key` may be a secret, rather than the name of a file that contains
/// it.
fn is_secret(key: &str) -> bool {
    const SECRET: [&str; 9] = [
        "secret",
        "passw",
        "passphrase",
        "token",
        "key",
        "credential",
        "authorization",
        "headers",
        "librados",
    ];
    const PUBLIC_ENDS: [&str; 7] = ["file", "file_previous", "keyring", "directory", "path", "format", "max"];
    key.to_ascii_lowercase().split('.').any(|name| {
        SECRET.iter().any(|word| name.contains(word)) && !PUBLIC_ENDS.iter().any(|end| name.ends_with(end))
    })
}

/// Returns text without the users in URLs, and without the first secret in the form `NAME=VALUE`,
/// as in a store's text form, and the characters after it: a secret may contain any character.
fn without_secrets(text: &str) -> String {
    let name = |end| text[..end].rsplit([',', ';', '&', '?', '/']).next().unwrap_or_default();
    match text.match_indices('=').find(|&(end, _)| is_secret(name(end))) {
        Some((end, _)) => without_users(&text[..=end]) + NOT_SHOWN,
        None => without_users(text),
    }
}

/// Returns text without the users and passwords in its URLs: without all characters from the first
/// URL to the last `@`, because a password may contain any character.
#[must_use]
pub fn without_users(text: &str) -> String {
    let parts = text.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1)));
    parts.map_or_else(|| text.to_owned(), |(scheme, host)| format!("{scheme}://{NOT_SHOWN}@{host}"))
}

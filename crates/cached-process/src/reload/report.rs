//! The outcome of reading a configuration again, and the configuration in force, for the log and for
//! administrators.

use super::Change;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use toml::Value;

/// The outcome of reading the configuration again.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ReloadReport {
    /// Why the configuration was refused, in one line; nothing has changed then.
    pub refused: Option<String>,
    /// What has changed.
    pub changed: Vec<Change>,
    /// The keys that name a file whose content has changed, and is in force.
    pub files: Vec<String>,
    /// What is different from what is in force, and needs a restart.
    pub restart: Vec<Change>,
}

impl ReloadReport {
    pub(super) fn log(&self) {
        if let Some(why) = &self.refused {
            tracing::error!(cause = why, "the configuration is refused; the one before stays in force");
            return;
        }
        let (changed, files) = (Changes(&self.changed).to_string(), self.files.join(", "));
        tracing::info!(changed, files, "the configuration was read again");
        if !self.restart.is_empty() {
            let keys = Changes(&self.restart).to_string();
            tracing::warn!(keys, "these changes of the configuration need a restart");
        }
    }
}

/// One line for each fact, for people.
impl fmt::Display for ReloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.refused {
            return writeln!(f, "refused, nothing has changed: {why}");
        }
        for change in &self.changed {
            writeln!(f, "changed: {}", Shown(change))?;
        }
        for file in &self.files {
            writeln!(f, "changed: the content of {file}")?;
        }
        for change in &self.restart {
            writeln!(f, "needs a restart: {}", Shown(change))?;
        }
        if self.changed.is_empty() && self.files.is_empty() && self.restart.is_empty() {
            writeln!(f, "nothing has changed")?;
        }
        Ok(())
    }
}

/// `key before -> after`.
struct Shown<'a>(&'a Change);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<Value>| value.as_ref().map_or_else(|| "none".into(), ToString::to_string);
        write!(f, "{} {} -> {}", self.0.key, text(&self.0.before), text(&self.0.after))
    }
}

struct Changes<'a>(&'a [Change]);

impl fmt::Display for Changes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, change) in self.0.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { ", " }, Shown(change))?;
        }
        Ok(())
    }
}

/// Where a value is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Neither file nor flags name it.
    Default,
    /// The configuration file.
    File,
    /// The command line.
    Flag,
}

/// A key of the configuration in force.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EffectiveKey {
    /// The key, with its tables, separated by dots.
    pub key: String,
    /// Its value, in TOML.
    pub value: Value,
    /// Where the value is from.
    pub origin: Origin,
    /// Whether it can change while the process runs.
    #[serde(rename = "live")]
    pub is_live: bool,
}

/// The configuration in force.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Effective {
    /// The configuration file, if there is one.
    pub file: Option<PathBuf>,
    /// All keys, in alphabetical order.
    pub keys: Vec<EffectiveKey>,
}

/// One line for each key: `key = value  # origin, live`.
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

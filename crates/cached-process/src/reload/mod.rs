//! Reading the configuration again while the process runs.
//!
//! A configuration is a TOML table with all keys. The one in force and the one that is read are compared key by
//! key. A key is *live* if it can change while the process runs; what has changed of the others is reported as
//! needing a restart, and keeps its value until then. A configuration is refused as a whole if one key in it is
//! wrong, or if its live keys do not fit the others that are in force; then nothing changes.
//!
//! | module | content |
//! |---|---|
//! | `live` | settings that can change, and reloads that the process does not wait for |
//! | `report` | what differs between two tables, by key, and the outcome, for the log and for administrators |

mod live;
mod report;

pub use live::{LiveSecs, Reloads};
pub use report::{Change, Effective, EffectiveKey, Origin, ReloadReport, difference, keys};

use crate::service_manager::{notify, reloading};
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use toml::Table;

/// A configuration as it was read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Source {
    /// All keys with their values: flags over the file over the defaults. A value that follows from others is
    /// absent.
    pub effective: Table,
    /// The same without the flags.
    pub without_flags: Table,
    /// The keys that the file has; empty without one.
    pub file: Table,
}

/// What reading again means for one program.
pub trait Program: Send + Sync {
    /// Reads the configuration, and checks it whole.
    ///
    /// # Errors
    /// One line: what is wrong where, and what would be right.
    fn read(&self) -> Result<Source, String>;

    /// Returns the configuration file, if there is one.
    fn file(&self) -> Option<PathBuf> {
        None
    }

    /// Returns whether `key`, with its tables, can change while the process runs.
    fn is_live(&self, key: &str) -> bool;

    /// Checks `table`, which has the live keys of the new configuration and the others that are in force, and
    /// puts its live keys in force. Reads secrets again, too. Returns the keys whose files have changed.
    ///
    /// # Errors
    /// One line, if they do not fit together; then nothing has changed.
    fn apply(&self, table: &Table) -> Result<Vec<String>, String>;

    /// Returns `table` with the values that follow from others.
    fn filled_in(&self, table: &Table) -> Table {
        table.clone()
    }
}

/// Reads the configuration of a process again, and knows which one is in force.
pub struct Reloader {
    program: Box<dyn Program>,
    /// Held while the configuration is read: one at a time.
    in_force: Mutex<Source>,
}

impl Reloader {
    /// Returns the reloader of a process that has started with the configuration `in_force`.
    pub fn new(program: impl Program + 'static, in_force: Source) -> Reloader {
        Reloader { program: Box::new(program), in_force: Mutex::new(in_force) }
    }

    /// Reads the configuration again, puts in force what can change, logs the outcome, and keeps the service
    /// manager informed. Blocks for as long as reading files takes.
    pub fn reload(&self) -> ReloadReport {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        reloading();
        let report = match self.replace(&mut in_force) {
            Ok(report) => report,
            Err(why) => ReloadReport { refused: Some(why), ..ReloadReport::default() },
        };
        report.log();
        notify("READY=1");
        report
    }

    fn replace(&self, in_force: &mut Source) -> Result<ReloadReport, String> {
        let source = self.program.read()?;
        let changes = difference(&in_force.effective, &source.effective);
        let (changed, restart): (Vec<Change>, Vec<Change>) =
            changes.into_iter().partition(|change| change.is_value() && self.program.is_live(&change.key));
        let mut table = in_force.effective.clone();
        for change in &changed {
            change.apply(&mut table);
        }
        let files = self.program.apply(&table)?;
        // Keys that need a restart keep their origin with their value.
        let known: BTreeSet<String> =
            [&in_force.file, &source.file, &in_force.without_flags, &source.without_flags]
                .into_iter()
                .flat_map(|table| keys(table).into_keys())
                .collect();
        for key in known.iter().filter(|key| self.program.is_live(key)) {
            report::copy(&source.file, &mut in_force.file, key);
            report::copy(&source.without_flags, &mut in_force.without_flags, key);
        }
        in_force.effective = table;
        let redacted = |changes: Vec<Change>| changes.into_iter().map(Change::redacted).collect();
        Ok(ReloadReport { refused: None, changed: redacted(changed), files, restart: redacted(restart) })
    }

    /// Returns the configuration in force: every key with its value, where the value is from, and whether it
    /// is live. Secrets are not in it.
    pub fn effective(&self) -> Effective {
        let in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let filled_in = self.program.filled_in(&in_force.effective);
        let (without_flags, file) = (keys(&in_force.without_flags), keys(&in_force.file));
        let effective = keys(&in_force.effective);
        let keys = keys(&filled_in).into_iter().map(|(key, value)| {
            let origin = match &effective.get(&key) {
                None => Origin::Default,
                own if without_flags.get(&key) != *own => Origin::Flag,
                _ if file.contains_key(&key) => Origin::File,
                _ => Origin::Default,
            };
            let is_live = self.program.is_live(&key);
            EffectiveKey { value: report::shown(&key, &value), key, origin, is_live }
        });
        Effective { file: self.program.file(), keys: keys.collect() }
    }
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloader").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

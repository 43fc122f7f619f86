//! Reloading the configuration at run time.
//!
//! A configuration is a TOML table with all keys. The active one and the new one are compared key
//! by key. A key is *live* if it can change at run time; a change of another key is reported as
//! needing a restart, and has no effect until then. A configuration is refused as a whole if one
//! key in it is invalid, or if its live keys are inconsistent with the other active ones; then
//! nothing changes.
//!
//! | module | content |
//! |---|---|
//! | `live` | settings that can change, and reloads in the background |
//! | `report` | the differences between two tables, by key, and the outcome, for the log and for administrators |

mod live;
mod report;

pub use live::{LiveSecs, Reloads};
pub use report::{Change, Effective, EffectiveKey, Origin, ReloadReport, difference, keys};

use crate::lifecycle::{notify, reloading};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use toml::Table;

/// A configuration as read from its sources.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Source {
    /// All keys with their values: flags override the file, and the file overrides the defaults. A
    /// value derived from others is absent.
    pub effective: Table,
    /// The same without the flags.
    pub without_flags: Table,
    /// The keys in the file; empty without a file.
    pub file: Table,
}

/// The program's part of a reload.
pub trait Program: Send + Sync {
    /// Reads and checks the whole configuration.
    ///
    /// # Errors
    /// A one-line message: the mistake, its position, and the valid values.
    fn read(&self) -> Result<Source, String>;

    /// Returns the configuration file, if there is one.
    fn file(&self) -> Option<PathBuf> {
        None
    }

    /// Returns whether `key`, written with its tables, can change at run time.
    fn is_live(&self, key: &str) -> bool;

    /// Checks `table`, which has the live keys of the new configuration and the other active ones,
    /// and applies its live keys. Also reads secrets again. Returns the keys whose files have
    /// changed.
    ///
    /// # Errors
    /// A one-line message if the keys are inconsistent; nothing has changed then.
    fn apply(&self, table: &Table) -> Result<Vec<String>, String>;

    /// Returns `table` with the values derived from others added.
    fn filled_in(&self, table: &Table) -> Table {
        table.clone()
    }
}

/// Reloads the configuration of a process, and knows the active one.
pub struct Reloader {
    program: Box<dyn Program>,
    /// Locked during a reload, so that only one runs at a time.
    in_force: Mutex<Source>,
}

impl Reloader {
    /// Returns the reloader of a process that has started with the configuration `in_force`.
    pub fn new(program: impl Program + 'static, in_force: Source) -> Reloader {
        Reloader { program: Box::new(program), in_force: Mutex::new(in_force) }
    }

    /// Reads the configuration again, applies the changes that are possible at run time, logs the
    /// outcome, and informs the service manager. Blocks while it reads files.
    pub fn reload(&self) -> ReloadReport {
        let mut in_force = self.in_force.lock();
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
        // Keys that need a restart keep their origin along with their value.
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

    /// Returns the active configuration: every key with its value, the value's origin, and whether
    /// the key is live. Secrets are left out.
    pub fn effective(&self) -> Effective {
        let in_force = self.in_force.lock();
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

//! Reloading the configuration at run time.
//!
//! A configuration is a TOML table with all keys. The active one and the new one are compared key
//! by key. A key is *live* if it can change at run time; a change of another key is reported as
//! needing a restart, and has no effect until then. A configuration is refused as a whole if one
//! key in it is invalid, or if its live keys are inconsistent with the other active ones; then
//! nothing changes.

mod report;

pub use report::{
    Change, Effective, EffectiveKey, Origin, ReloadReport, difference, keys, shown, without_users,
};

use crate::lifecycle::{notify, reloading};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use toml::Table;

/// A configuration as read from its sources.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Source {
    /// All keys with their values: flags override the file, and the file overrides the defaults. A
    /// value derived from others is absent.
    pub effective: Table,
    /// The keys with their values, without the flags.
    pub without_flags: Table,
    /// The keys in the file; empty without a file.
    pub file: Table,
}

/// The program's part of a reload.
pub trait Program: Send + Sync {
    /// Reads and checks the whole configuration.
    ///
    /// # Errors
    /// Returns a one-line message: the mistake, its position, and the valid values.
    fn read(&self) -> Result<Source, String>;

    /// Returns the configuration file, if there is one.
    fn file(&self) -> Option<PathBuf> {
        None
    }

    /// Returns whether `key`, written with its tables, can change at run time.
    fn is_live(&self, key: &str) -> bool;

    /// Checks `table`, which has the live keys of the new configuration and the other keys of the
    /// active one, and applies its live keys. Also reads secrets again. Returns the keys whose
    /// files have changed.
    ///
    /// # Errors
    /// Returns a one-line message if the keys are inconsistent. In that case nothing has changed.
    fn apply(&self, table: &Table) -> Result<Vec<String>, String>;

    /// Returns `table` with the values derived from others added.
    fn filled_in(&self, table: &Table) -> Table {
        table.clone()
    }
}

/// Reloads the configuration of a process, and knows the active one.
pub struct Reloader {
    program: Box<dyn Program>,
    /// The active configuration, locked during a reload, so that only one reload runs at a time.
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

/// A number of seconds that can change. Clones share the number.
#[derive(Clone, Debug)]
pub struct LiveSecs(Arc<AtomicU64>);

impl LiveSecs {
    /// Returns a number that starts as `secs`.
    #[must_use]
    pub fn new(secs: u64) -> LiveSecs {
        LiveSecs(Arc::new(AtomicU64::new(secs)))
    }

    /// Changes the number.
    pub fn set(&self, secs: u64) {
        self.0.store(secs, Ordering::Relaxed);
    }

    /// Returns the number.
    #[must_use]
    pub fn get(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed))
    }
}

/// Runs requested reloads one at a time, on the runtime's threads for blocking work.
#[derive(Debug)]
pub struct Reloads<'a> {
    reloader: &'a Arc<Reloader>,
    running: Option<JoinHandle<()>>,
    /// Whether another reload was requested while the current one runs: a file may have changed
    /// after it was read.
    is_due: bool,
}

impl<'a> Reloads<'a> {
    /// Returns an instance with no reload in progress.
    pub fn new(reloader: &'a Arc<Reloader>) -> Self {
        Self { reloader, running: None, is_due: false }
    }

    /// Starts a reload, or schedules one after the present reload.
    ///
    /// # Panics
    /// Panics if it is called outside of a tokio runtime.
    pub fn request(&mut self) {
        if self.running.is_some() {
            self.is_due = true;
            return;
        }
        let reloader = Arc::clone(self.reloader);
        self.running = Some(tokio::task::spawn_blocking(move || drop(reloader.reload())));
    }

    /// Runs the requested reloads. The future is never ready: poll it together with the caller's
    /// other work.
    ///
    /// # Cancel safety
    /// If the future is dropped, a reload in progress continues.
    pub async fn run(&mut self) -> ! {
        loop {
            match &mut self.running {
                None => std::future::pending::<()>().await,
                Some(running) => {
                    if running.await.is_err() {
                        tracing::error!("reloading the configuration has panicked");
                    }
                    self.running = None;
                    if std::mem::take(&mut self.is_due) {
                        self.request();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;

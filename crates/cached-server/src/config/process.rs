//! `[process]`: settings of the whole program, whichever listeners it opens.

use super::error::{ConfigError, within};
use crate::config::settings::Settings;
use cached_config::DrainTimes;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The table. An empty string means none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(crate) struct ProcessTable {
    /// `-u`.
    user: String,
    /// `-d`.
    daemon: bool,
    /// `-P`.
    pid_file: PathBuf,
    /// `-r`.
    core_dumps: bool,
    /// `-k`.
    lock_memory: bool,
    /// How long the process is not ready before its listeners close.
    drain_delay_secs: u64,
    /// How long clients have to take their replies after that.
    drain_timeout_secs: u64,
    /// How long a new process may take to start, and again to take over.
    upgrade_timeout_secs: u64,
}

impl Default for ProcessTable {
    fn default() -> Self {
        ProcessTable::from(&Settings::default())
    }
}

impl From<&Settings> for ProcessTable {
    fn from(settings: &Settings) -> Self {
        ProcessTable {
            user: settings.user.clone().unwrap_or_default(),
            daemon: settings.daemon,
            pid_file: settings.pid_file.clone().unwrap_or_default(),
            core_dumps: settings.core_dumps,
            lock_memory: settings.lock_memory,
            drain_delay_secs: settings.drain.delay_secs,
            drain_timeout_secs: settings.drain.timeout_secs,
            upgrade_timeout_secs: settings.upgrade_timeout_secs,
        }
    }
}

impl ProcessTable {
    pub(super) fn apply(self, settings: &mut Settings) -> Result<(), ConfigError> {
        settings.user = Some(self.user).filter(|user| !user.is_empty());
        settings.daemon = self.daemon;
        settings.pid_file = Some(self.pid_file).filter(|path| !path.as_os_str().is_empty());
        settings.core_dumps = self.core_dumps;
        settings.lock_memory = self.lock_memory;
        settings.drain = DrainTimes::new(self.drain_delay_secs, self.drain_timeout_secs)?;
        settings.upgrade_timeout_secs =
            within("process.upgrade_timeout_secs", self.upgrade_timeout_secs, 1..=60 * 60)?;
        Ok(())
    }
}

//! `[process]`: settings of the whole program, whichever listeners it opens.

use super::error::{ConfigError, within};
use crate::settings::Settings;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The table. An empty string means none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(crate) struct ProcessTable {
    /// `-v`, `-vv`, `-vvv`.
    verbosity: u8,
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
}

impl Default for ProcessTable {
    fn default() -> Self {
        ProcessTable::from(&Settings::default())
    }
}

impl From<&Settings> for ProcessTable {
    fn from(settings: &Settings) -> Self {
        ProcessTable {
            verbosity: settings.verbosity,
            user: settings.user.clone().unwrap_or_default(),
            daemon: settings.daemon,
            pid_file: settings.pid_file.clone().unwrap_or_default(),
            core_dumps: settings.core_dumps,
            lock_memory: settings.lock_memory,
        }
    }
}

impl ProcessTable {
    pub(super) fn apply(self, settings: &mut Settings) -> Result<(), ConfigError> {
        settings.verbosity = within("process.verbosity", self.verbosity, 0..=3)?;
        settings.user = Some(self.user).filter(|user| !user.is_empty());
        settings.daemon = self.daemon;
        settings.pid_file = Some(self.pid_file).filter(|path| !path.as_os_str().is_empty());
        settings.core_dumps = self.core_dumps;
        settings.lock_memory = self.lock_memory;
        Ok(())
    }
}

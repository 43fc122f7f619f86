//! The file as a whole: reading, checking and writing.

use super::Config;
use super::error::{ConfigError, ConfigFileError, invalid};
use super::memcached::MemcachedTable;
use super::process::ProcessTable;
use super::synapse::SynapseTable;
use crate::settings::Settings;
use cached_config::{ObjectsTable, parse_config, read_config};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The content of a configuration file; keys that it omits have their defaults.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct File {
    process: ProcessTable,
    pub(crate) memcached: MemcachedTable,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) objects: Option<ObjectsTable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) synapse: Option<SynapseTable>,
}

impl From<&Config> for File {
    fn from(config: &Config) -> File {
        File {
            process: ProcessTable::from(&config.settings),
            memcached: MemcachedTable::from(&config.settings),
            objects: config.objects.clone().map(ObjectsTable::filled_in),
            synapse: config.synapse.clone(),
        }
    }
}

impl File {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ConfigFileError`] for the first error found.
    pub(crate) fn read(path: &Path) -> Result<File, ConfigFileError> {
        File::parse(path, &read_config(path)?)
    }

    /// Reads a file's text; `path` is for error messages.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<File, ConfigFileError> {
        let file: File = parse_config(path, text)?;
        file.check().map_err(|error| ConfigFileError::of_key(path, error))?;
        Ok(file)
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.settings()?;
        if let Some(objects) = &self.objects {
            objects.check()?;
        }
        if let Some(synapse) = &self.synapse {
            synapse.check()?;
            if self.objects.is_none() {
                return invalid(
                    "synapse",
                    "serves the object cache; an [objects] table must say what that is",
                );
            }
        }
        Ok(())
    }

    /// Returns the settings of the process and of memcached's listeners, except for the addresses.
    pub(crate) fn settings(&self) -> Result<Settings, ConfigError> {
        let mut settings = Settings::default();
        self.process.clone().apply(&mut settings)?;
        self.memcached.apply(&mut settings)?;
        Ok(settings)
    }
}

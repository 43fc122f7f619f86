//! The file as a whole: reading it, checking it, and writing one down.

use super::Config;
use super::error::{ConfigError, Mistake, mistake};
use super::memcached::MemcachedTable;
use super::process::ProcessTable;
use super::synapse::SynapseTable;
use crate::settings::Settings;
use cached_objects::ObjectsTable;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The largest file that is read. Configuration is written by people.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What a configuration file says; what it leaves out is as built in.
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
    /// [`ConfigError`] for the first mistake found.
    pub(crate) fn read(path: &Path) -> Result<File, ConfigError> {
        let cannot = |error: std::io::Error| ConfigError::of_file(path, format!("cannot be read: {error}"));
        let size = std::fs::metadata(path).map_err(cannot)?.len();
        if size > FILE_BYTES_MAX {
            let why = format!("has {size} bytes; a configuration has at most {FILE_BYTES_MAX}");
            return Err(ConfigError::of_file(path, why));
        }
        let text = std::fs::read_to_string(path).map_err(cannot)?;
        File::parse(path, &text)
    }

    /// Reads a file's text; `path` is for complaints.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<File, ConfigError> {
        let wrong = |error: &toml::de::Error, key: String| {
            ConfigError::at(path, text, error.span().map(|span| span.start), key, error.message())
        };
        let reader = toml::Deserializer::parse(text).map_err(|error| wrong(&error, String::new()))?;
        let file: File = serde_path_to_error::deserialize(reader).map_err(|error| {
            let key = match error.path().to_string() {
                key if key == "." => String::new(),
                key => key,
            };
            wrong(error.inner(), key)
        })?;
        file.check().map_err(|mistake| ConfigError::of_key(path, mistake))?;
        Ok(file)
    }

    fn check(&self) -> Result<(), Mistake> {
        self.settings()?;
        if let Some(objects) = &self.objects {
            objects.check()?;
        }
        if let Some(synapse) = &self.synapse {
            synapse.check()?;
            if self.objects.is_none() {
                return mistake(
                    "synapse",
                    "serves the object cache; an [objects] table must say what that is",
                );
            }
        }
        Ok(())
    }

    /// What the file says of the process and of memcached's door, but for the addresses.
    pub(crate) fn settings(&self) -> Result<Settings, Mistake> {
        let mut settings = Settings::default();
        self.process.clone().apply(&mut settings)?;
        self.memcached.apply(&mut settings)?;
        Ok(settings)
    }
}

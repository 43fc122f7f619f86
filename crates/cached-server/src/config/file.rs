//! The file as a whole: reading, checking and writing.

use super::Config;
use super::error::{ConfigError, ConfigFileError, invalid};
use super::insight;
use super::memcached::MemcachedTable;
use super::nbd::NbdTable;
use super::process::ProcessTable;
#[cfg(feature = "sidecar")]
use super::s3::S3Table;
use super::shared_memory::{self, SharedMemoryTable};
use super::volumes::VolumesTable;
use crate::config::settings::Settings;
use cached_admin::AdminTable;
use cached_config::{BackendTable, InsightTable, ObjectsTable, Secrets, SynapseTable, parse_config};
use cached_process::log::LogTable;
use cached_tracing::TracingTable;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The content of a configuration file; keys that it omits have their defaults.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct File {
    process: ProcessTable,
    log: LogTable,
    pub(crate) memcached: MemcachedTable,
    insight: InsightTable,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) objects: Option<ObjectsTable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shared_memory: Option<SharedMemoryTable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) synapse: Option<SynapseTable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) volumes: Option<VolumesTable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nbd: Option<NbdTable>,
    #[cfg(feature = "sidecar")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) s3: Option<S3Table>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin: Option<AdminTable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tracing: Option<TracingTable>,
}

/// With the values that follow from others.
impl From<&Config> for File {
    fn from(config: &Config) -> File {
        File::with_derived_values_absent(config).filled_in()
    }
}

impl File {
    /// Returns the configuration as a file, without the values that follow from others.
    pub(crate) fn with_derived_values_absent(config: &Config) -> File {
        File {
            process: ProcessTable::from(&config.settings),
            log: config.settings.log,
            memcached: MemcachedTable::from(&config.settings),
            insight: insight::table(&config.settings),
            objects: config.objects.clone(),
            shared_memory: config.shared_memory.clone(),
            synapse: config.synapse.clone(),
            volumes: config.volumes.clone(),
            nbd: config.nbd.clone(),
            #[cfg(feature = "sidecar")]
            s3: config.s3.clone(),
            admin: config.admin.clone(),
            tracing: config.tracing.clone(),
        }
    }

    /// Returns the file with the values that follow from others.
    pub(crate) fn filled_in(self) -> File {
        let shared = self.settings().ok().zip(self.objects.as_ref()).zip(self.shared_memory.as_ref());
        let shared_memory = match shared {
            Some(((settings, objects), table)) => Some(table.filled_in(settings.memory_bytes, objects)),
            None => self.shared_memory,
        };
        let volumes = self.volumes.map(|table| table.filled_in(self.objects.as_ref()));
        File { shared_memory, volumes, objects: self.objects.map(ObjectsTable::filled_in), ..self }
    }
}

impl File {
    /// Reads and checks a file's text; `path` is for error messages.
    ///
    /// # Errors
    /// [`ConfigFileError`] for the first error found.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<File, ConfigFileError> {
        let mut file: File = parse_config(path, text)?;
        file.check().map_err(|error| ConfigFileError::of_key(path, error))?;
        // Whether memory can be shared is checked with the memory that flags set.
        let settings = file.settings().map_err(|error| ConfigFileError::of_key(path, error))?;
        shared_memory::set_range(file.shared_memory.as_ref(), &settings, file.objects.as_mut());
        Ok(file)
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.settings()?;
        if let Some(objects) = &self.objects {
            objects.check()?;
        }
        if let Some(admin) = &self.admin {
            admin.check()?;
        }
        self.tracing.as_ref().map_or(Ok(()), TracingTable::check)?;
        #[cfg(feature = "sidecar")]
        self.s3.as_ref().map_or(Ok(()), S3Table::check)?;
        if let Some(synapse) = &self.synapse {
            synapse.check()?;
            if self.objects.is_none() {
                return invalid(
                    "synapse",
                    "serves the object cache; an [objects] table must say what that is",
                );
            }
        }
        if let Some(volumes) = &self.volumes {
            volumes.check(self.objects.as_ref())?;
        }
        self.nbd.as_ref().map_or(Ok(()), |nbd| nbd.check(self.volumes.as_ref()))
    }

    /// Reads the files of the secrets.
    pub(crate) fn secrets(&self) -> Result<Secrets, ConfigError> {
        let listener = self.synapse.as_ref().map_or(Ok(Vec::new()), SynapseTable::secrets)?;
        let store = match self.objects.as_ref().and_then(|objects| objects.backend.as_ref()) {
            Some(BackendTable::Synapse(table)) => table.secret()?,
            _ => None,
        };
        Ok(Secrets { listener, store })
    }

    /// Returns the settings of the process and of memcached's listeners, except for the addresses.
    pub(crate) fn settings(&self) -> Result<Settings, ConfigError> {
        let mut settings = Settings::default();
        self.process.clone().apply(&mut settings)?;
        settings.log = self.log;
        self.memcached.apply(&mut settings)?;
        insight::apply(&self.insight, &mut settings)?;
        Ok(settings)
    }
}

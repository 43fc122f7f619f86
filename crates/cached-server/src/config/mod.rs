//! The configuration file that `--config` names: TOML, beside memcached's flags, which override it.
//!
//! Each table is a struct that serde reads and writes, so that the printed configuration can be read again;
//! its default is taken from the code that uses it. An unknown key or an invalid value stops the start with
//! one line: the file and key, what is wrong, what would be right. `deploy/cached.toml` shows every key, and
//! a test compares its values with the defaults.
//!
//! | module | content |
//! |---|---|
//! | `file` | the file as a whole |
//! | `process`, `memcached`, `synapse` | one table each |
//! | crate `cached-config` | `[objects]` and its backend, sizes with units: shared with `synapsed` and `cachectl` |
//! | `error` | the line that states what is wrong |

mod error;
mod file;
mod memcached;
mod process;
mod synapse;
#[cfg(test)]
mod tests;

pub use cached_config::{
    BackendTable, FileTable, MemoryTable, NamespaceTable, ObjectsTable, RadosTable, RemoteTable, Size, Write,
    WriterName,
};
pub use error::ConfigFileError;
pub use synapse::SynapseTable;

pub(crate) use error::ConfigError;
pub(crate) use file::File;

use crate::settings::Settings;
use ::synapse::Secret;

/// The configuration of the program, from flags and file.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// The process and the memcached listeners.
    pub settings: Settings,
    /// The object cache, if one is configured.
    pub objects: Option<ObjectsTable>,
    /// The synapse listener of the object cache, if one is configured.
    pub synapse: Option<SynapseTable>,
}

/// The secrets, which are never printed.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    /// The secret that object clients must have.
    pub listener: Option<Secret>,
    /// The secret for the server behind the cache.
    pub store: Option<Secret>,
}

impl Config {
    /// Reads the secrets of the object listener and of the store. To be called while the process may read
    /// their files.
    ///
    /// # Errors
    /// One line that states what is wrong with a file.
    pub fn secrets(&self) -> Result<Secrets, String> {
        let line = |error: ConfigError| format!("{}: {}", error.key, error.why);
        let listener = self.synapse.as_ref().map_or(Ok(None), SynapseTable::secret).map_err(line)?;
        let store = match self.objects.as_ref().and_then(|objects| objects.backend.as_ref()) {
            Some(BackendTable::Synapse(table)) => table.secret().map_err(line)?,
            _ => None,
        };
        Ok(Secrets { listener, store })
    }

    /// Returns warnings about the files of the secrets.
    pub fn secret_warnings(&self) -> Vec<String> {
        let listener = self.synapse.as_ref().map(|table| &table.secret_file);
        let store = match self.objects.as_ref().and_then(|objects| objects.backend.as_ref()) {
            Some(BackendTable::Synapse(table)) => Some(&table.secret_file),
            _ => None,
        };
        listener.into_iter().chain(store).filter_map(|path| cached_config::secret_warning(path)).collect()
    }

    /// Returns the number of descriptors that the object cache may need, beyond those of memcached's
    /// connections.
    pub fn object_descriptors(&self) -> usize {
        let listener =
            self.synapse.as_ref().map_or(0, |table| table.connections_max as usize + 3 * table.threads + 16);
        let store = self.objects.as_ref().and_then(|objects| objects.backend.as_ref());
        let store = store.map_or(0, |store| store.descriptors_max() as usize);
        listener + store
    }

    /// Returns the text of a configuration file with the same meaning, which `--print-config` prints.
    ///
    /// # Errors
    /// If TOML cannot express a value.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(&File::from(self))
    }
}

//! The configuration file that `--config` names: TOML, beside memcached's flags, which win over it.
//!
//! Each table is a struct that serde reads and writes, so that what is printed can be read again; its default is the built-in
//! one, taken from the code that uses it. A key that is unknown or cannot work stops the start with one line: which
//! file and key, what is wrong, what would be right. `deploy/cached.toml` shows every key, and a test compares what it shows
//! with what is built in.
//!
//! | module | what it owns |
//! |---|---|
//! | `file` | the file as a whole |
//! | `process`, `memcached`, `synapse` | a table each |
//! | crate `cached-config` | `[objects]` and its backend, sizes with units: what `synapsed` has as well |
//! | `error` | the one line |

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

/// All that the program was told, flags and file together.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// The process, and memcached's door.
    pub settings: Settings,
    /// The object cache, if there is to be one.
    pub objects: Option<ObjectsTable>,
    /// The object door on the network, if there is to be one.
    pub synapse: Option<SynapseTable>,
}

/// What is shared with others and shown to nobody.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    /// What clients of the object door must know.
    pub door: Option<Secret>,
    /// What the server behind the cache demands.
    pub store: Option<Secret>,
}

impl Config {
    /// The secrets of the object door and of the store. Their files are read here: do so while there are rights to.
    ///
    /// # Errors
    /// What is wrong with one, in one line.
    pub fn secrets(&self) -> Result<Secrets, String> {
        let line = |error: ConfigError| format!("{}: {}", error.key, error.why);
        let door = self.synapse.as_ref().map_or(Ok(None), SynapseTable::secret).map_err(line)?;
        let store = match self.objects.as_ref().and_then(|objects| objects.backend.as_ref()) {
            Some(BackendTable::Synapse(table)) => table.secret().map_err(line)?,
            _ => None,
        };
        Ok(Secrets { door, store })
    }

    /// What is worth a warning about the files of the secrets.
    pub fn secret_warnings(&self) -> Vec<String> {
        let door = self.synapse.as_ref().map(|door| &door.secret_file);
        let store = match self.objects.as_ref().and_then(|objects| objects.backend.as_ref()) {
            Some(BackendTable::Synapse(table)) => Some(&table.secret_file),
            _ => None,
        };
        door.into_iter().chain(store).filter_map(|path| cached_config::secret_warning(path)).collect()
    }

    /// File descriptors that the object cache may need, beyond those of memcached's door.
    pub fn object_descriptors(&self) -> usize {
        let door =
            self.synapse.as_ref().map_or(0, |door| door.connections_max as usize + 3 * door.threads + 16);
        let store = self.objects.as_ref().and_then(|objects| objects.backend.as_ref());
        let store = store.map_or(0, |store| store.descriptors_max() as usize);
        door + store
    }

    /// As a file that says the same: what `--print-config` prints.
    ///
    /// # Errors
    /// For a value that TOML has no word for.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(&File::from(self))
    }
}

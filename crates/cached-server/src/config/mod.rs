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
//! | `load` | what the configuration names: the files are read |
//! | `process`, `memcached`, `shared_memory`, `volumes`, `nbd`, `s3`, `s3_policies` | one table each |
//! | crate `cached-admin` | `[admin]`: shared with `synapsed` |
//! | crate `cached-config` | `[insight]`, `[objects]` and its backend, `[synapse]`, sizes with units: shared with `synapsed` |
//! | `error` | the line that states what is wrong |

pub mod auth;
pub(crate) mod discovery;
mod error;
mod file;
mod insight;
mod load;
pub(crate) mod logging;
mod memcached;
mod nbd;
mod process;
#[cfg(feature = "sidecar")]
mod s3;
#[cfg(feature = "sidecar")]
mod s3_policies;
pub mod s3_secrets;
pub mod settings;
mod shared_memory;
pub(crate) mod size_classes;
#[cfg(test)]
mod tests;
mod volumes;

pub use self::nbd::NbdTable;
#[cfg(feature = "sidecar")]
pub use self::s3::{AuthName, NamesName, S3Table, UpstreamAuthName};
#[cfg(feature = "sidecar")]
pub use self::s3_policies::{BucketTable, FreshSecs, FreshWord};
pub use self::volumes::{FuaName, VolumesTable};
pub use cached_admin::AdminTable;
pub use cached_config::{
    BackendTable, FileTable, MemoryTable, NamespaceTable, ObjectsTable, RadosTable, RemoteTable, Secrets,
    Size, SynapseTable, WriterName,
};
pub use cached_tracing::TracingTable;
pub use error::{ConfigError, ConfigFileError};
pub use load::Loaded;
pub use shared_memory::SharedMemoryTable;

pub(crate) use file::File;
pub(crate) use shared_memory::share;

use crate::config::settings::Settings;
use std::path::PathBuf;

/// The configuration of the program, from flags and file.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// The process and the memcached listeners.
    pub settings: Settings,
    /// The object cache, if one is configured.
    pub objects: Option<ObjectsTable>,
    /// How items and objects share their memory, if they do.
    pub shared_memory: Option<SharedMemoryTable>,
    /// The synapse listener of the object cache, if one is configured.
    pub synapse: Option<SynapseTable>,
    /// The volumes in the object cache, if there are to be any.
    pub volumes: Option<VolumesTable>,
    /// The listener that serves them, if one is configured.
    pub nbd: Option<NbdTable>,
    /// The sidecar before an S3 endpoint, if one is configured.
    #[cfg(feature = "sidecar")]
    pub s3: Option<S3Table>,
    /// The admin listener, if one is configured.
    pub admin: Option<AdminTable>,
    /// What is traced, if anything is.
    pub tracing: Option<TracingTable>,
    /// The file, if there is one; absolute.
    pub path: Option<PathBuf>,
    /// The file's text: what was read once is not read again, as it may have changed by then.
    pub text: Option<String>,
    /// The keys whose values flags have set, of those that name something.
    pub by_flag: Vec<&'static str>,
}

impl Config {
    /// Returns the number of descriptors that the sidecar may need.
    pub fn s3_descriptors(&self) -> usize {
        #[cfg(feature = "sidecar")]
        return self.s3.as_ref().map_or(0, S3Table::descriptors_max);
        #[cfg(not(feature = "sidecar"))]
        0
    }

    /// Returns warnings about the files of the secrets.
    pub fn secret_warnings(&self) -> Vec<String> {
        let listener = self.synapse.as_ref().map_or_else(Vec::new, SynapseTable::secret_warnings);
        let store = self.objects.as_ref().and_then(|objects| objects.backend.as_ref());
        let store = store.and_then(BackendTable::secret_file).and_then(cached_config::secret_warning);
        let admin = self.admin.as_ref().and_then(|table| cached_config::secret_warning(&table.token_file));
        listener.into_iter().chain(store).chain(admin).collect()
    }

    /// Returns the number of descriptors that the object cache may need, beyond those of memcached's
    /// connections.
    pub fn object_descriptors(&self) -> usize {
        let listener =
            self.synapse.as_ref().map_or(0, |table| table.connections_max as usize + 3 * table.threads + 16);
        let store = self.objects.as_ref().and_then(|objects| objects.backend.as_ref());
        let store = store.map_or(0, |store| store.descriptors_max() as usize);
        let nbd = self.nbd.as_ref().map_or(0, NbdTable::descriptors_max);
        listener + store + nbd
    }

    /// Returns the number of descriptors that the admin listener may need.
    pub fn admin_descriptors(&self) -> usize {
        self.admin.as_ref().map_or(0, |table| table.descriptors_max() as usize)
    }

    /// Returns the text of a configuration file with the same meaning, which `--print-config` prints.
    ///
    /// # Errors
    /// If TOML cannot express a value.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(&toml::Table::try_from(File::from(self))?)
    }
}

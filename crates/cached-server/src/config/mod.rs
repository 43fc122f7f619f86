//! Configuration: the file that `--config` names (TOML), the settings that result from file and flags, and the files
//! that these name. Nothing here opens a socket or a store, or starts a thread.
//!
//! Each table is a struct that serde reads and writes, so that the printed configuration can be read back; its defaults
//! come from the code that uses it. An unknown key or an invalid value stops the start with one line: the file and key,
//! what is wrong, what would be right. `deploy/cached.toml` shows every key, and a test compares its values with the
//! defaults. Tables shared with `synapsed` are in the crates `cached-config` (`[insight]`, `[objects]` and its backend,
//! `[synapse]`) and `cached-admin` (`[admin]`).
//!
//! | module | content |
//! |---|---|
//! | `file` | the file as a whole, and its small tables: `[process]`, `[insight]`, `[shared_memory]` |
//! | `memcached`, `volumes`, `s3` | `[memcached]`; `[volumes]` and `[nbd]`; `[s3]` |
//! | `settings`, `size_classes` | the settings of a server in plain types; memcached's size classes |
//! | `load`, `auth` | reads the files that the configuration names, those of passwords among them |

pub mod auth;
mod file;
mod load;
mod memcached;
#[cfg(feature = "sidecar")]
mod s3;
pub mod settings;
pub(crate) mod size_classes;
#[cfg(test)]
mod tests;
mod volumes;

pub use cached_admin::AdminTable;
pub use cached_config::{
    BackendTable, ConfigError, ConfigFileError, FileTable, MemoryTable, NamespaceTable, ObjectsTable,
    RadosTable, RemoteTable, Secrets, Size, SynapseTable, WriterName,
};
pub use cached_tracing::TracingTable;
pub use file::SharedMemoryTable;
pub(crate) use file::{File, share};
pub use load::{Loaded, SidecarSecrets};
#[cfg(feature = "sidecar")]
pub use s3::{AuthName, BucketTable, FreshSecs, FreshWord, NamesName, S3Table, UpstreamAuthName};
pub use volumes::{FuaName, NbdTable, VolumesTable};

use settings::Settings;
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
    /// Tracing, if it is configured.
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

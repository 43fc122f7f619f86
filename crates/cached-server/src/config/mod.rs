//! Configuration: the file that `--config` names (TOML), the settings that result from the file and
//! the flags, and the files that these settings name. Nothing here opens a socket or a store, or
//! starts a thread.
//!
//! Each table is a struct that serde reads and writes, so that the printed configuration can be
//! parsed again; its defaults come from the code that uses it. An unknown key or an invalid value
//! stops the startup with one line: the file and key, the mistake, the remedy. `deploy/cached.toml`
//! shows every key, and a test compares its values with the defaults. The tables shared with
//! `synapsed` are in the crates `cached-config` (`[insight]`, `[objects]` and its backend,
//! `[synapse]`), `cached-registry` (`[registry]`) and `cached-admin` (`[admin]`); `[volumes]` and
//! `[nbd]` are in `cached-objects`.
//!
//! | module | content |
//! |---|---|
//! | `file` | the file as a whole, and its small tables: `[process]`, `[insight]`, `[shared_memory]` |
//! | `memcached`, `ring`, `s3` | `[memcached]`; `[ring]` and its map; `[s3]` |
//!
//! [`Config::load`] reads every file that the configuration names, and refuses everything that the
//! startup would refuse. `--check-config` performs exactly the same checks; neither takes a lock,
//! or creates a file.

mod file;
mod memcached;
pub(crate) mod ring;
#[cfg(feature = "sidecar")]
mod s3;
#[cfg(test)]
mod tests;

pub use cached_admin::AdminTable;
pub use cached_config::{
    BackendTable, ConfigError, FileTable, HttpTable, MemoryTable, NamespaceTable, ObjectsTable, RadosTable,
    RemoteTable, Secrets, Size, SynapseTable,
};
pub use cached_objects::{FuaName, ListenerFiles, NbdTable, ServiceConfig, VolumesTable};
pub use cached_tracing::TracingTable;
pub use file::File;
pub(crate) use file::share;
#[cfg(not(feature = "sidecar"))]
pub use none::SidecarSecrets;
#[cfg(feature = "sidecar")]
pub use s3::{BucketTable, FreshSecs, FreshWord, S3Table, UpstreamAuthName};
#[cfg(feature = "sidecar")]
pub use s3_sidecar::Secrets as SidecarSecrets;

use crate::process;
use cached_admin::Tokens;
use cached_config::{Listening, check_addresses, load_tls, secret_warning};
use cached_core::arena::ArenaFile;
use cached_memcached::exit_of_memory_file;
use cached_memcached::settings::{ListenAddress, RingSettings, Settings};
use cached_objects::is_elected;
use cached_process::{Exit, Failure};
use cached_ring::Map;
use cached_tls::ServerTls;
use ring::RingTable;
use std::path::PathBuf;
use std::sync::Arc;

/// The configuration of the program, from flags and file.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// The process and the memcached listeners.
    pub settings: Settings,
    /// The tables of the configuration file that flags do not change.
    pub file: File,
    /// The absolute path of the configuration file, if there is one.
    pub path: Option<PathBuf>,
    /// The file's text, which is read only once, because the file may change later.
    pub text: Option<String>,
    /// The keys, among those that name a user, an address or a file, whose values were set by
    /// command-line flags. Errors about them do not mention the configuration file.
    pub by_flag: Vec<&'static str>,
}

impl Config {
    /// Returns warnings about files with secrets that other users can read.
    pub fn secret_warnings(&self) -> Vec<String> {
        let listener = self.file.synapse.as_ref().map_or_else(Vec::new, SynapseTable::secret_warnings);
        let store = self.store().and_then(BackendTable::secret_file).and_then(secret_warning);
        let admin = self.file.admin.as_ref().and_then(|table| secret_warning(&table.token_file));
        let passwords = self.settings.auth.warnings();
        let ring = self.file.ring.iter().flat_map(RingTable::secret_warnings);
        listener.into_iter().chain(store).chain(admin).chain(passwords).chain(ring).collect()
    }

    /// Adds what [`load`](Config::load) has read of the ring to the settings.
    pub fn join(&mut self, ring: Option<RingSettings>) {
        self.settings.notes.extend(ring.iter().flat_map(ring::warnings));
        self.settings.ring = ring.map(Arc::new);
    }

    /// Replaces the map of the ring, if the server belongs to one.
    pub fn set_ring_map(&mut self, map: Arc<Map>) {
        if let Some(ring) = &self.settings.ring {
            self.settings.ring = Some(Arc::new(RingSettings { map, ..RingSettings::clone(ring) }));
        }
    }

    /// Returns the number of descriptors that connections and the object cache may need.
    pub fn descriptors_max(&self) -> usize {
        let File { synapse, nbd, admin, .. } = &self.file;
        let objects =
            synapse.as_ref().map_or(0, |table| table.connections_max as usize + 3 * table.threads + 16);
        // An election has a connection of its own.
        let stores = 1 + usize::from(self.file.objects.as_ref().is_some_and(is_elected));
        let store = stores * self.store().map_or(0, |store| store.descriptors_max() as usize);
        let nbd = nbd.as_ref().map_or(0, NbdTable::descriptors_max);
        let admin = admin.as_ref().map_or(0, |table| table.descriptors_max() as usize);
        #[cfg(feature = "sidecar")]
        let s3 = self.file.s3.as_ref().map_or(0, S3Table::descriptors_max);
        #[cfg(not(feature = "sidecar"))]
        let s3 = 0;
        let http = self.http().map_or(0, |table| table.descriptors_max() as usize);
        let ring = self.file.ring.as_ref().zip(self.settings.ring.as_ref());
        let ring = ring.map_or(0, |(table, ring)| table.descriptors_max(&ring.map, self.settings.threads));
        self.settings.connections_max + objects + store + nbd + http + admin + s3 + ring
    }

    /// Returns the tables of the object service, if there is one.
    pub fn service(&self) -> Option<ServiceConfig> {
        let File { objects, synapse, registry, volumes, nbd, .. } = self.file.clone();
        let insight = self.settings.insight.clone();
        Some(ServiceConfig { objects: objects?, has_cache: true, synapse, registry, volumes, nbd, insight })
    }

    fn http(&self) -> Option<&HttpTable> {
        self.file.objects.as_ref()?.http.as_ref()
    }

    fn store(&self) -> Option<&BackendTable> {
        self.file.objects.as_ref().and_then(|objects| objects.backend.as_ref())
    }

    /// Returns the text of a configuration file with the same meaning, which `--print-config`
    /// prints.
    ///
    /// # Errors
    /// Fails if TOML cannot express a value.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(&toml::Table::try_from(File::from(self))?)
    }
}

/// The content of the files that a configuration names.
#[derive(Debug)]
pub struct Loaded {
    /// The secrets of the object listener and of the store.
    pub secrets: Secrets,
    /// The tokens of the admin listener.
    pub tokens: Option<Tokens>,
    /// The ring to which the server belongs, if it belongs to one.
    pub ring: Option<RingSettings>,
    /// The certificates for memcached's protocols.
    pub tls: Option<Arc<ServerTls>>,
    /// The certificates of the admin listener.
    pub admin_tls: Option<Arc<ServerTls>>,
    /// The files of the listeners for HTTP and NBD.
    pub listeners: ListenerFiles,
    /// The certificates of the S3 listener.
    pub s3_tls: Option<Arc<ServerTls>>,
    /// The keys of the S3 listener, and its own credentials.
    pub s3_secrets: SidecarSecrets,
}

impl Config {
    /// Reads the files that the configuration names, and checks users and addresses. Afterwards,
    /// the passwords are in force. Must be called while the process still has permission to read
    /// the files.
    ///
    /// # Errors
    /// Returns the first error: for the file, with its path and the key; for a flag, with
    /// memcached's message and exit status. If a disk or the system fails to read a file, the
    /// status is [`Exit::Trouble`] in both cases, because another start may succeed.
    pub fn load(&self) -> Result<Loaded, Failure> {
        let settings = &self.settings;
        if let Some(user) = settings.user.as_deref().filter(|_| process::is_root()) {
            let found = process::user(user).map(drop);
            let mistake = |error| self.mistake(ConfigError::new("process.user", error), Exit::NoUser);
            found.map_err(mistake)?;
        }
        let ring = self.file.ring.as_ref().map(|table| table.load(settings, &self.file)).transpose();
        let ring = ring.map_err(|error| self.mistake(error, Exit::Configuration))?;
        let addresses = self.addresses(ring.as_ref());
        check_addresses(&addresses).map_err(|error| self.mistake(error, Exit::Usage))?;
        settings.auth.load().map_err(|error| self.mistake(error, Exit::FlagValue))?;
        let tls = settings.load_tls().map_err(|error| self.mistake(error, Exit::Usage))?;
        if let Some(path) = &settings.memory_file {
            ArenaFile::check(path).map_err(|error| {
                let exit = exit_of_memory_file(&error);
                let error = ConfigError { exit, ..ConfigError::new("memcached.memory_file", error) };
                self.mistake(error, Exit::Usage)
            })?;
        }
        self.load_others(tls, ring).map_err(|error| self.mistake(error, Exit::Configuration))
    }

    /// Loads the other files that no flag can name.
    fn load_others(
        &self,
        tls: Option<Arc<ServerTls>>,
        ring: Option<RingSettings>,
    ) -> Result<Loaded, ConfigError> {
        let File { objects, nbd, admin, .. } = &self.file;
        objects.as_ref().map_or(Ok(()), ObjectsTable::check_files)?;
        let http = self.http();
        let listeners = ListenerFiles {
            nbd_tls: load_tls("nbd.tls", nbd.as_ref().and_then(|table| table.tls.as_ref()), &[])?,
            http_keys: http.map_or(Ok(None), HttpTable::keys)?,
            http_tls: http.map_or(Ok(None), HttpTable::load_tls)?,
        };
        let loaded = Loaded {
            listeners,
            secrets: self.file.secrets()?,
            tokens: admin.as_ref().map_or(Ok(None), AdminTable::tokens)?,
            ring,
            tls,
            admin_tls: admin.as_ref().map_or(Ok(None), AdminTable::load_tls)?,
            #[cfg(feature = "sidecar")]
            s3_tls: load_tls("s3.tls", self.file.s3.as_ref().and_then(|table| table.tls.as_ref()), &[])?,
            #[cfg(not(feature = "sidecar"))]
            s3_tls: None,
            #[cfg(feature = "sidecar")]
            s3_secrets: self.file.s3.as_ref().map_or(Ok(SidecarSecrets::default()), S3Table::load_secrets)?,
            #[cfg(not(feature = "sidecar"))]
            s3_secrets: SidecarSecrets,
        };
        #[cfg(feature = "sidecar")]
        self.file.s3.as_ref().map_or(Ok(()), |table| table.check_loaded(loaded.s3_secrets.clone()))?;
        Ok(loaded)
    }

    /// Returns the failure for an error: with the path of the file and the key or, if a flag has
    /// set the value, with the line alone and, for a mistake, the status `by_flag`.
    pub fn mistake(&self, error: ConfigError, by_flag: Exit) -> Failure {
        match &self.path {
            Some(path) if !self.by_flag.iter().any(|key| error.key.starts_with(key)) => {
                error.in_file(path).into()
            }
            _ if error.exit == Exit::Configuration => Failure::new(by_flag, error.why),
            _ => Failure::new(error.exit, error.why),
        }
    }

    /// Returns the addresses of all listeners.
    fn addresses(&self, ring: Option<&RingSettings>) -> Vec<Listening> {
        let settings = &self.settings;
        let host = |address: &ListenAddress| address.host.clone();
        let tcp = settings
            .listen
            .iter()
            .map(|address| Listening::tcp("memcached.listen", host(address).as_deref(), address.port));
        let udp = settings
            .udp_listen
            .iter()
            .map(|address| Listening::udp("memcached.udp_listen", host(address).as_deref(), address.port));
        let unix = settings.unix_path.iter().map(|path| Listening::unix("memcached.unix_path", path));
        let mut all: Vec<Listening> = tcp.chain(udp).chain(unix).collect();
        let table = self.file.ring.as_ref();
        all.extend(table.zip(ring).into_iter().flat_map(|(table, ring)| table.listening(ring)));
        let File { synapse, nbd, admin, .. } = &self.file;
        all.extend(synapse.iter().flat_map(SynapseTable::listening));
        all.extend(nbd.iter().flat_map(NbdTable::listening));
        all.extend(self.http().iter().flat_map(|table| table.listening()));
        #[cfg(feature = "sidecar")]
        all.extend(self.file.s3.iter().flat_map(|table| Listening::of("s3.listen", &table.listen)));
        all.extend(admin.iter().flat_map(|table| Listening::of("admin.listen", &table.listen)));
        all
    }
}

#[cfg(not(feature = "sidecar"))]
mod none {
    /// The secrets of a sidecar, which this build does not have.
    #[derive(Clone, Debug, Default)]
    pub struct SidecarSecrets;

    impl SidecarSecrets {
        /// Reads nothing.
        ///
        /// # Errors
        /// None.
        pub fn read_again(&self) -> Result<SidecarSecrets, String> {
            Ok(SidecarSecrets)
        }

        /// Returns nothing.
        pub fn put_in_force(self) -> Vec<&'static str> {
            Vec::new()
        }
    }
}

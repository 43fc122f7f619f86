//! `[volumes]`: disks in the object cache; `[nbd]`: the listener that serves them. Without its
//! table, each of the two is off.

use super::is_elected;
use blocker::{Durability, NAME_BYTES_MAX, WriteMode};
use cached_config::{
    ConfigError, Listening, ObjectsTable, Size, check_tls, config_keys, exposure, invalid, require,
    restrict_socket, unix_mode, with_defaults, within,
};
use cached_tls::{ClientCertificates, ServerTls, TlsSettings};
use nbd::{Address, AddressError, PORT_DEFAULT, ServerConfig, SettingError};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The maximum length of a namespace prefix or of an owner's name, in bytes.
const TEXT_BYTES_MAX: usize = 200;
const _: () = assert!(TEXT_BYTES_MAX < NAME_BYTES_MAX);

with_defaults! {
    /// The table `[volumes]`. An empty string means none.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields, expecting = "a table")]
    pub struct VolumesTable {
        /// The namespace that holds the volumes' names, and the prefix of the names of the volumes'
        /// own namespaces.
        pub prefix: String = "volumes".into(),
        /// The name of this program as the owner of the volumes that it has attached; if empty, the
        /// name of the host.
        pub owner: String = String::new(),
        /// The durability of a client's flush, and of a write that the client requires to be
        /// durable. `None`: *journaled* if there is a journal and the writer is not elected, otherwise
        /// *stored*.
        pub fua: Option<FuaName> = None,
        /// Whether a write is acknowledged only once the volume's map contains its object, so that
        /// the write survives a kill of the process as far as the cache's acknowledgements do.
        /// `None` means yes if there is a journal, or if writes are not write-back.
        pub record_at_once: Option<bool> = None,
    }
}

/// The durability of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FuaName {
    /// The data is in the journal.
    Journaled,
    /// The data is in the store.
    Stored,
}

impl From<FuaName> for Durability {
    fn from(name: FuaName) -> Durability {
        match name {
            FuaName::Journaled => Durability::Journaled,
            FuaName::Stored => Durability::Stored,
        }
    }
}

impl VolumesTable {
    /// Returns the durability of a flush over the object cache of this table.
    #[must_use]
    pub fn fua(&self, objects: &ObjectsTable) -> FuaName {
        self.fua.unwrap_or(match objects.journal {
            Some(_) if !is_elected(objects) => FuaName::Journaled,
            _ => FuaName::Stored,
        })
    }

    /// Returns whether a write is acknowledged only once the volume's map contains its object.
    #[must_use]
    pub fn record_at_once(&self, objects: &ObjectsTable) -> bool {
        self.record_at_once.unwrap_or(objects.journal.is_some() || objects.write != WriteMode::Back)
    }

    /// Returns the table, with the values filled in that follow from other keys.
    #[must_use]
    pub fn filled_in(self, objects: Option<&ObjectsTable>) -> VolumesTable {
        let Some(objects) = objects else { return self };
        let (fua, record_at_once) = (self.fua(objects), self.record_at_once(objects));
        VolumesTable { fua: Some(fua), record_at_once: Some(record_at_once), ..self }
    }

    /// Checks the table together with that of the object cache.
    ///
    /// # Errors
    /// The first key with an invalid value.
    pub fn check(&self, objects: Option<&ObjectsTable>) -> Result<(), ConfigError> {
        let Some(objects) = objects else {
            return invalid("volumes", "requires the object cache; add an [objects] table");
        };
        require((1..=TEXT_BYTES_MAX).contains(&self.prefix.len()), "volumes.prefix", || {
            format!("has {} bytes; it must have 1 to {TEXT_BYTES_MAX}", self.prefix.len())
        })?;
        require(!self.prefix.starts_with('.'), "volumes.prefix", || {
            format!("\"{}\" is reserved: names that begin with a dot are for servers' records", self.prefix)
        })?;
        require(self.owner.len() <= TEXT_BYTES_MAX, "volumes.owner", || {
            format!("has {} bytes; it must have at most {TEXT_BYTES_MAX}", self.owner.len())
        })?;
        require(!(self.fua == Some(FuaName::Journaled) && is_elected(objects)), "volumes.fua", || {
            "is \"journaled\"; with writer = \"elected\" it must be \"stored\", because the host that takes over does \
             not have a journal"
                .into()
        })?;
        let is_possible = self.fua != Some(FuaName::Journaled) || objects.journal.is_some();
        require(is_possible, "volumes.fua", || {
            "is \"journaled\" without a journal; add [objects.journal], or set \"stored\"".into()
        })
    }
}

config_keys! {
    /// The table `[nbd]`.
    #[derive(Eq)]
    pub struct NbdTable over ServerConfig = ServerConfig::default();

    /// The addresses to listen on: `host:port`, or `unix:` and a path.
    pub listen: Vec<String> = own(vec![format!("127.0.0.1:{PORT_DEFAULT}")]);
    /// Permissions of unix sockets, in octal.
    pub unix_mode: String = own("700".into());
    /// The volumes that clients may use; `None` for all volumes.
    pub exports: Option<Vec<String>> = own(None);
    /// Whether to allow addresses that other machines can reach without client certificates.
    pub allow_exposed: bool = own(false);
    /// The number of threads that serve connections.
    pub threads: usize = own(THREADS), in 1..=THREADS_MAX;
    /// The maximum number of connections.
    pub connections_max: u32 = same(connections_max);
    /// The maximum number of connections from one address; `None` means half of `connections_max`.
    pub peer_connections_max: Option<u32> = same(peer_connections_max);
    /// The maximum number of outstanding requests of each connection.
    pub connection_requests_max: u32 = same(connection_requests_max);
    /// The maximum total payload of the outstanding requests of each connection.
    pub connection_bytes_max: Size = size(connection_bytes_max);
    /// The maximum total payload of the outstanding requests of all connections.
    pub bytes_max: Size = size(bytes_max);
    /// The maximum size of buffers for large payloads that are kept for reuse.
    pub payload_pool_bytes_max: Size = size(payload_pool_bytes_max);
    /// The maximum duration of a negotiation, in milliseconds.
    pub negotiation_timeout_ms: u64 = millis(negotiation_timeout), in 1..=TIME_MS_MAX;
    /// The time, in milliseconds, after which a client is disconnected if it makes no progress with
    /// a message that it has begun.
    pub stall_timeout_ms: u64 = millis(stall_timeout), in 1..=TIME_MS_MAX;
    /// Whether clients must use TLS.
    pub tls_required: bool = same(tls_required);
    /// TLS; none without this table.
    pub tls: Option<TlsSettings> = own(None);
}

/// The default number of threads.
const THREADS: usize = 4;
const THREADS_MAX: usize = 1024;
/// The maximum number of volumes that can be listed.
const EXPORTS_MAX: usize = 4096;
/// One day.
const TIME_MS_MAX: u64 = 24 * 60 * 60 * 1000;

impl NbdTable {
    /// Returns the addresses to listen on.
    ///
    /// # Errors
    /// Returns the string that is not an address.
    pub(crate) fn addresses(&self) -> Result<Vec<Address>, ConfigError> {
        let wrong = |error: AddressError| ConfigError::new("nbd.listen", error);
        self.listen.iter().map(|text| text.parse().map_err(wrong)).collect()
    }

    /// Returns the addresses for a check of all listeners; strings that are not addresses are left
    /// out.
    #[must_use]
    pub fn listening(&self) -> Vec<Listening> {
        Listening::parsed::<Address>("nbd.listen", &self.listen)
    }

    /// Sets the permissions of a unix socket on which a server listens.
    ///
    /// # Errors
    /// Returns one line if the system refuses.
    pub(crate) fn restrict(&self, address: &Address) -> Result<(), String> {
        let Address::Unix(path) = address else { return Ok(()) };
        restrict_socket("nbd.unix_mode", &self.unix_mode, path)
    }

    /// Returns the configuration of the server, without runtimes, with certificates that were read
    /// before.
    pub(crate) fn server(&self, tls: Option<Arc<ServerTls>>) -> ServerConfig {
        let mut config = ServerConfig::default();
        self.apply(&mut config);
        config.tls = tls;
        config
    }

    /// Returns the number of file descriptors that the listener may need.
    #[must_use]
    pub fn descriptors_max(&self) -> usize {
        self.connections_max as usize + self.listen.len() + 3 * self.threads + 8
    }

    /// Checks the table together with that of the volumes, as far as this is possible without
    /// opening a socket or a file.
    ///
    /// # Errors
    /// The first key with an invalid value.
    pub fn check(&self, volumes: Option<&VolumesTable>) -> Result<(), ConfigError> {
        if volumes.is_none() {
            return invalid("nbd", "requires volumes; add a [volumes] table");
        }
        unix_mode("nbd.unix_mode", &self.unix_mode)?;
        self.check_ranges("nbd")?;
        if let Some(table) = &self.tls {
            check_tls("nbd.tls", table)?;
        }
        require(self.tls.is_some() || !self.tls_required, "nbd.tls_required", || {
            "is true without certificates; add [nbd.tls] with a chain_file".into()
        })?;
        let plain = NbdTable { tls_required: false, ..self.clone() };
        plain.server(None).check().map_err(|error| NbdTable::error(&error))?;
        if let Some(exports) = &self.exports {
            within("nbd.exports (number of volumes)", exports.len(), 1..=EXPORTS_MAX)?;
            let twice = exports.iter().enumerate().find(|(at, name)| exports[..*at].contains(name));
            if let Some((_, name)) = twice {
                return invalid("nbd.exports", format!("contains \"{name}\" twice; it must occur once"));
            }
        }
        let addresses = self.addresses()?;
        if addresses.is_empty() {
            return invalid("nbd.listen", "is empty; it must name an address to listen on");
        }
        self.check_exposure(&addresses)
    }

    /// Checks that clients on other machines must present certificates, unless `allow_exposed` is
    /// set. The protocol has no other means of identifying a client.
    fn check_exposure(&self, addresses: &[Address]) -> Result<(), ConfigError> {
        let knows_clients = self.tls_required
            && self.tls.as_ref().is_some_and(|tls| tls.client_certificates == ClientCertificates::Require);
        if knows_clients || self.allow_exposed {
            return Ok(());
        }
        let exposed = addresses.iter().find_map(|address| exposure(&address.to_string()));
        let Some(exposed) = exposed else { return Ok(()) };
        invalid(
            "nbd.listen",
            format!(
                "{exposed}, and clients need no certificate: set tls_required = true and client_certificates = \
                 \"require\" in [nbd.tls], or allow_exposed = true"
            ),
        )
    }

    /// Converts an error of the server to the corresponding key of the table, in which some
    /// settings have other names.
    pub(crate) fn error(error: &SettingError) -> ConfigError {
        let key = match error.setting {
            name @ ("negotiation_timeout" | "stall_timeout") => format!("{name}_ms"),
            name => name.to_owned(),
        };
        ConfigError::new(format!("nbd.{key}"), &*error.problem)
    }
}

//! `[synapse]`: the listener for programs that use the storage contract over the network.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use synapse::{Address, AddressError, PORT_DEFAULT, Secret, ServerConfig, SettingError};

use crate::addresses::{Listening, exposure};
use crate::error::{ConfigError, invalid, secret, secret_warning, within};
use crate::tables::Size;

/// The table. An empty string means none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct SynapseTable {
    /// The addresses to listen on: `host:port`, or `unix:` and a path.
    pub listen: Vec<String>,
    /// Permissions of unix sockets, in octal.
    pub unix_mode: String,
    /// A file with the secret that clients must have.
    pub secret_file: PathBuf,
    /// A file with a second secret that clients may have instead, while they change from one to the other.
    pub secret_file_previous: PathBuf,
    /// Allow addresses that other machines can reach without a secret.
    pub allow_exposed: bool,
    /// Let clients set, create and remove the namespaces of the object cache.
    pub allow_namespace_changes: bool,
    /// The number of threads that serve connections.
    pub threads: usize,
    /// The largest number of connections.
    pub connections_max: u32,
    /// The largest number of connections of one address; `None`: half of `connections_max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_connections_max: Option<u32>,
    /// The largest number of sessions, connected or not.
    pub sessions_max: u32,
    /// How long a session without a connection is kept, in seconds.
    pub session_linger_secs: u64,
    /// The largest number of outstanding requests of each session.
    pub session_requests_max: u32,
    /// The largest sum of their payloads for each session.
    pub session_bytes_max: Size,
    /// The largest sum of their payloads for all sessions.
    pub bytes_max: Size,
    /// The largest payload of one request.
    pub request_bytes_max: Size,
    /// The largest page of a listing.
    pub list_entries_max: u32,
    /// The buffers for large payloads that are kept for reuse.
    pub payload_pool_bytes_max: Size,
    /// After how many milliseconds without a sign of life a connection is closed.
    pub peer_timeout_ms: u64,
    /// How long a handshake may take, in milliseconds.
    pub handshake_timeout_ms: u64,
}

impl Default for SynapseTable {
    fn default() -> Self {
        let config = ServerConfig::default();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        SynapseTable {
            listen: vec![format!("127.0.0.1:{PORT_DEFAULT}")],
            unix_mode: "700".into(),
            secret_file: PathBuf::new(),
            secret_file_previous: PathBuf::new(),
            allow_exposed: config.allow_exposed,
            allow_namespace_changes: config.allow_namespace_changes,
            threads: THREADS,
            connections_max: config.connections_max,
            peer_connections_max: config.peer_connections_max,
            sessions_max: config.sessions_max,
            session_linger_secs: config.session_linger.as_secs(),
            session_requests_max: config.session_slots_max,
            session_bytes_max: Size(config.session_bytes_max),
            bytes_max: Size(config.bytes_max),
            request_bytes_max: Size(config.request_bytes_max),
            list_entries_max: config.list_entries_max,
            payload_pool_bytes_max: config.payload_pool_bytes_max.into(),
            peer_timeout_ms: millis(config.peer_timeout),
            handshake_timeout_ms: millis(config.handshake_timeout),
        }
    }
}

/// The default number of threads, that of memcached's workers.
const THREADS: usize = 4;
const THREADS_MAX: usize = 1024;

impl SynapseTable {
    /// Returns the addresses to listen on.
    ///
    /// # Errors
    /// The text that is not an address.
    pub fn addresses(&self) -> Result<Vec<Address>, ConfigError> {
        let wrong =
            |error: AddressError| ConfigError { key: "synapse.listen".into(), why: error.to_string() };
        self.listen.iter().map(|text| text.parse().map_err(wrong)).collect()
    }

    /// Returns the addresses for a [check](crate::check_addresses) of all listeners; those that are none are left out.
    #[must_use]
    pub fn listening(&self) -> Vec<Listening> {
        let addresses = self.listen.iter().filter_map(|text| text.parse::<Address>().ok());
        let texts: Vec<String> = addresses.map(|address| address.to_string()).collect();
        Listening::of("synapse.listen", &texts).collect()
    }

    /// Returns the permissions of unix sockets.
    ///
    /// # Errors
    /// If they are not in octal.
    pub fn unix_mode(&self) -> Result<u32, ConfigError> {
        unix_mode("synapse.unix_mode", &self.unix_mode)
    }

    /// Sets the permissions of a unix socket that a server listens at.
    ///
    /// # Errors
    /// One line, if the system refuses.
    pub fn restrict(&self, address: &Address) -> Result<(), String> {
        let Address::Unix(path) = address else { return Ok(()) };
        let mode = self.unix_mode().map_err(|error| error.to_string())?;
        let set = std::fs::set_permissions(path, Permissions::from_mode(mode));
        set.map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Reads the secrets from their files: the one that clients are to have, and the one that is accepted as
    /// well.
    ///
    /// # Errors
    /// What is wrong with a file.
    pub fn secrets(&self) -> Result<Vec<Secret>, ConfigError> {
        let current = secret("synapse.secret_file", &self.secret_file)?;
        let previous = secret("synapse.secret_file_previous", &self.secret_file_previous)?;
        if current.is_none() && previous.is_some() {
            return invalid("synapse.secret_file_previous", "is set without a secret_file; name both");
        }
        Ok(current.into_iter().chain(previous).collect())
    }

    /// Returns warnings about the files of the secrets.
    #[must_use]
    pub fn secret_warnings(&self) -> Vec<String> {
        [&self.secret_file, &self.secret_file_previous]
            .into_iter()
            .filter_map(|path| secret_warning(path))
            .collect()
    }

    /// Returns the configuration of the server, without the secrets.
    #[must_use]
    pub fn server(&self) -> ServerConfig {
        let mut config = ServerConfig::default();
        config.allow_exposed = self.allow_exposed;
        config.allow_namespace_changes = self.allow_namespace_changes;
        config.connections_max = self.connections_max;
        config.peer_connections_max = self.peer_connections_max;
        config.sessions_max = self.sessions_max;
        config.session_linger = Duration::from_secs(self.session_linger_secs);
        config.session_slots_max = self.session_requests_max;
        config.session_bytes_max = self.session_bytes_max.0;
        config.bytes_max = self.bytes_max.0;
        config.request_bytes_max = self.request_bytes_max.0;
        config.list_entries_max = self.list_entries_max;
        config.payload_pool_bytes_max = self.payload_pool_bytes_max.to_usize();
        config.peer_timeout = Duration::from_millis(self.peer_timeout_ms);
        config.handshake_timeout = Duration::from_millis(self.handshake_timeout_ms);
        config
    }

    /// Checks the table, as far as that is possible without opening a socket.
    ///
    /// # Errors
    /// The first key whose value cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.unix_mode()?;
        within("synapse.threads", self.threads, 1..=THREADS_MAX)?;
        within("synapse.session_linger_secs", self.session_linger_secs, 0..=24 * 60 * 60)?;
        within("synapse.peer_timeout_ms", self.peer_timeout_ms, 10..=24 * 60 * 60 * 1000)?;
        within("synapse.handshake_timeout_ms", self.handshake_timeout_ms, 1..=24 * 60 * 60 * 1000)?;
        self.server().check().map_err(|error| SynapseTable::error(&error))?;
        let secrets = self.secrets()?;
        let addresses = self.addresses()?;
        if addresses.is_empty() {
            return invalid("synapse.listen", "is empty; it must say where to listen");
        }
        let exposed = addresses.iter().find_map(|address| exposure(&address.to_string()));
        match exposed.filter(|_| secrets.is_empty() && !self.allow_exposed) {
            None => Ok(()),
            Some(exposed) => {
                let right = "name a secret_file, or set allow_exposed = true";
                invalid("synapse.listen", format!("{exposed}, and there is no secret: {right}"))
            }
        }
    }

    /// Returns the error of a server with the key of the table, which has other names for its settings.
    #[must_use]
    pub fn error(error: &SettingError) -> ConfigError {
        let key = match error.setting() {
            "session_slots_max" => "session_requests_max".into(),
            name @ ("peer_timeout" | "handshake_timeout") => format!("{name}_ms"),
            "session_linger" => "session_linger_secs".into(),
            name => name.to_owned(),
        };
        ConfigError { key: format!("synapse.{key}"), why: error.problem().into() }
    }
}

/// Reads a unix socket's permissions, in octal.
///
/// # Errors
/// If they are not.
pub fn unix_mode(key: &str, text: &str) -> Result<u32, ConfigError> {
    match u32::from_str_radix(text, 8) {
        Ok(mode @ 0..=0o777) => Ok(mode),
        _ => invalid(key, format!("is \"{text}\"; it must be permissions in octal, as in \"660\"")),
    }
}

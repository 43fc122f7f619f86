//! `[synapse]`: the listener of the object cache. Without this table there is none.

use super::error::{ConfigError, invalid, within};
use super::memcached::unix_mode;
use cached_config::{Size, check_exposure, secret};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use synapse::{Address, AddressError, PORT_DEFAULT, Secret, ServerConfig};

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
    /// Allow addresses that other machines can reach without a secret.
    pub allow_exposed: bool,
    /// The number of threads that serve connections.
    pub threads: usize,
    /// The largest number of connections.
    pub connections_max: u32,
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
            allow_exposed: config.allow_exposed,
            threads: THREADS,
            connections_max: config.connections_max,
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

impl SynapseTable {
    /// Returns the addresses to listen on.
    pub(crate) fn addresses(&self) -> Result<Vec<Address>, ConfigError> {
        let wrong =
            |error: AddressError| ConfigError { key: "synapse.listen".into(), why: error.to_string() };
        self.listen.iter().map(|text| text.parse().map_err(wrong)).collect()
    }

    /// Returns the permissions of unix sockets.
    pub(crate) fn unix_mode(&self) -> Result<u32, ConfigError> {
        unix_mode("synapse.unix_mode", &self.unix_mode)
    }

    /// Reads the secret from its file, if one is configured.
    pub(crate) fn secret(&self) -> Result<Option<Secret>, ConfigError> {
        secret("synapse.secret_file", &self.secret_file)
    }

    /// Returns the configuration of the server, without the secret.
    pub(crate) fn server(&self) -> ServerConfig {
        let mut config = ServerConfig::default();
        config.allow_exposed = self.allow_exposed;
        config.connections_max = self.connections_max;
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
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.unix_mode()?;
        within("synapse.threads", self.threads, 1..=1024)?;
        within("synapse.session_linger_secs", self.session_linger_secs, 0..=24 * 60 * 60)?;
        within("synapse.peer_timeout_ms", self.peer_timeout_ms, 10..=24 * 60 * 60 * 1000)?;
        within("synapse.handshake_timeout_ms", self.handshake_timeout_ms, 1..=24 * 60 * 60 * 1000)?;
        self.server().check().map_err(|error| {
            let key = error.setting();
            let key = if key == "session_slots_max" { "session_requests_max" } else { key };
            ConfigError { key: format!("synapse.{key}"), why: error.problem().to_owned() }
        })?;
        let secret = self.secret()?;
        let addresses = self.addresses()?;
        if addresses.is_empty() {
            return invalid("synapse.listen", "is empty; it must say where to listen");
        }
        check_exposure("synapse.listen", &addresses, secret.is_some(), self.allow_exposed)
    }
}

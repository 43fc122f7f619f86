//! `[synapse]`: the listener for programs that use the storage contract over the network.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use synapse::{Address, AddressError, PORT_DEFAULT, Secret, ServerConfig, SettingError};

use crate::addresses::{Listening, exposure};
use crate::config_keys;
use crate::error::{ConfigError, invalid, secret, secret_warning};
use crate::keys::Size;

config_keys! {
    /// The table. An empty string means none.
    pub struct SynapseTable over ServerConfig = ServerConfig::default();

    /// The addresses to listen on: `host:port`, or `unix:` and a path.
    pub listen: Vec<String> = own(vec![format!("127.0.0.1:{PORT_DEFAULT}")]);
    /// Permissions of unix sockets, in octal.
    pub unix_mode: String = own("700".into());
    /// A file with the secret that clients must have.
    pub secret_file: PathBuf = own(PathBuf::new());
    /// A file with a second secret that clients may have instead, while they change from one to the other.
    pub secret_file_previous: PathBuf = own(PathBuf::new());
    /// Allow addresses that other machines can reach without a secret.
    pub allow_exposed: bool = same(allow_exposed);
    /// Let clients set, create and remove the namespaces of the object cache.
    pub allow_namespace_changes: bool = same(allow_namespace_changes);
    /// The number of threads that serve connections.
    pub threads: usize = own(THREADS), in 1..=THREADS_MAX;
    /// The largest number of connections.
    pub connections_max: u32 = same(connections_max);
    /// The largest number of connections of one address; `None`: half of `connections_max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_connections_max: Option<u32> = same(peer_connections_max);
    /// The largest number of sessions, connected or not.
    pub sessions_max: u32 = same(sessions_max);
    /// How long a session without a connection is kept, in seconds.
    pub session_linger_secs: u64 = secs(session_linger), in 0..=24 * 60 * 60;
    /// The largest number of outstanding requests of each session.
    pub session_requests_max: u32 = same(session_slots_max);
    /// The largest sum of their payloads for each session.
    pub session_bytes_max: Size = size(session_bytes_max);
    /// The largest sum of their payloads for all sessions.
    pub bytes_max: Size = size(bytes_max);
    /// The largest payload of one request.
    pub request_bytes_max: Size = size(request_bytes_max);
    /// The largest page of a listing.
    pub list_entries_max: u32 = same(list_entries_max);
    /// The buffers for large payloads that are kept for reuse.
    pub payload_pool_bytes_max: Size = size(payload_pool_bytes_max);
    /// After how many milliseconds without a sign of life a connection is closed.
    pub peer_timeout_ms: u64 = millis(peer_timeout), in 10..=24 * 60 * 60 * 1000;
    /// How long a handshake may take, in milliseconds.
    pub handshake_timeout_ms: u64 = millis(handshake_timeout), in 1..=24 * 60 * 60 * 1000;
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

    /// Sets the permissions of a unix socket that a server listens at.
    ///
    /// # Errors
    /// One line, if the system refuses.
    pub fn restrict(&self, address: &Address) -> Result<(), String> {
        let Address::Unix(path) = address else { return Ok(()) };
        restrict_socket("synapse.unix_mode", &self.unix_mode, path)
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
        self.apply(&mut config);
        config
    }

    /// Checks the table, as far as that is possible without opening a socket.
    ///
    /// # Errors
    /// The first key whose value cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        unix_mode("synapse.unix_mode", &self.unix_mode)?;
        self.check_ranges("synapse")?;
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

/// Sets the permissions of a unix socket: those of the key `key`, in octal.
///
/// # Errors
/// One line, if they are not in octal, or the system refuses.
pub fn restrict_socket(key: &str, mode: &str, path: &Path) -> Result<(), String> {
    let mode = unix_mode(key, mode).map_err(|error| error.to_string())?;
    let set = std::fs::set_permissions(path, Permissions::from_mode(mode));
    set.map_err(|error| format!("{}: {error}", path.display()))
}

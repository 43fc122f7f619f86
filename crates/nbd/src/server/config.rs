//! The settings of a server: where it listens, limits, timeouts, TLS.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use cached_tls::ServerTls;
use connection::{Budget, Limits, SettingError};
use tokio::runtime::Handle;

use super::input::{BUFFER_BYTES, PIECE_BYTES_MIN};
use crate::protocol::TlsMode;
use crate::protocol::wire::PAYLOAD_BYTES_MAX;

/// The settings of a [`Server`](crate::Server). Everything has a limit; [`Self::memory_bytes_max`] is the
/// memory that they allow together.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The most connections at a time. Each has a floor of `bytes_max` of its own. 256 unless set.
    pub connections_max: u32,
    /// The most connections of one address, without those over unix sockets. Half of `connections_max` unless set.
    pub peer_connections_max: Option<u32>,
    /// The most requests of one connection that are being executed, 1 to 65 536. 256 unless set.
    pub connection_requests_max: u32,
    /// The most bytes of payloads and extents of one connection, of requests that are being executed and of replies that
    /// the client has not taken; at least [`PAYLOAD_BYTES_MAX`]. A single request may always have its
    /// payload. 64 MiB unless set.
    pub connection_bytes_max: u64,
    /// The most bytes of payloads and extents of all connections; at least twice `connection_bytes_max`, and 128 KiB
    /// for each of `connections_max`. Half of what is beyond that is divided into floors, of which no connection can
    /// take another's; the rest is for those that need more. 1 GiB unless set.
    pub bytes_max: u64,
    /// The bytes of buffers for large payloads that are kept for reuse. 64 MiB unless set.
    pub payload_pool_bytes_max: usize,
    /// The most time for a negotiation, TLS and the opening of the export included. 10 s unless set.
    pub negotiation_timeout: Duration,
    /// The time after which a connection is closed whose client has sent a part of a request, or has replies
    /// to take, and does neither. A client that has nothing outstanding may be silent forever. 60 s unless
    /// set.
    pub stall_timeout: Duration,
    /// TLS by X.509 certificates. `None`: there is none.
    pub tls: Option<Arc<ServerTls>>,
    /// Whether clients must use TLS.
    pub tls_required: bool,
    /// The runtimes that connections are assigned to, round robin. Empty: the runtime that listens.
    pub workers: Vec<Handle>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            connections_max: 256,
            peer_connections_max: None,
            connection_requests_max: 256,
            connection_bytes_max: 64 << 20,
            bytes_max: 1 << 30,
            payload_pool_bytes_max: 64 << 20,
            negotiation_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            tls: None,
            tls_required: false,
            workers: Vec::new(),
        }
    }
}

impl ServerConfig {
    /// Checks that the settings are within their ranges and fit together.
    ///
    /// # Errors
    /// The first setting that does not, and what would be right.
    pub fn check(&self) -> Result<(), SettingError> {
        let check = SettingError::check;
        check(self.connections_max == 0, "connections_max", "must be at least 1")?;
        let requests = 1..=65_536;
        check(
            !requests.contains(&self.connection_requests_max),
            "connection_requests_max",
            "must be 1 to 65536",
        )?;
        check(
            self.connection_bytes_max < u64::from(PAYLOAD_BYTES_MAX),
            "connection_bytes_max",
            "must be at least 32 MiB, the longest payload",
        )?;
        check(self.peer_connections_max == Some(0), "peer_connections_max", "must be at least 1")?;
        check(self.bytes_max > 1 << 40, "bytes_max", "must be at most 1 TiB")?;
        self.budget()?;
        check(self.negotiation_timeout.is_zero(), "negotiation_timeout", "must be above 0")?;
        check(self.stall_timeout.is_zero(), "stall_timeout", "must be above 0")?;
        check(self.tls_required && self.tls.is_none(), "tls_required", "needs a certificate")
    }

    /// Returns the most memory that a server with these settings takes beside its exports, in bytes.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        let requests = u64::from(self.connection_requests_max) * REQUEST_BYTES;
        let connections = u64::from(self.connections_max) * (FIXED_BYTES + requests);
        connections + self.bytes_max + self.payload_pool_bytes_max as u64
    }

    pub(super) fn budget(&self) -> Result<Arc<Budget>, SettingError> {
        let request_bytes = self.connection_bytes_max;
        let budget =
            Budget::new(self.bytes_max, PIECE_BYTES_MIN, request_bytes, request_bytes, self.connections_max);
        budget.map_err(|needed| {
            let problem = format!(
                "must be at least {needed}: twice connection_bytes_max, and a floor for each of {} connections",
                self.connections_max
            );
            SettingError::new("bytes_max", problem)
        })
    }

    pub(super) fn limits(&self) -> Limits {
        let peer_connections_max = self.peer_connections_max.unwrap_or(self.connections_max.div_ceil(2));
        Limits { connections_max: self.connections_max, peer_connections_max }
    }

    pub(crate) fn tls_mode(&self) -> TlsMode {
        match (&self.tls, self.tls_required) {
            (None, _) => TlsMode::Off,
            (Some(_), false) => TlsMode::Optional,
            (Some(_), true) => TlsMode::Required,
        }
    }
}

/// The memory of a connection beside its requests, in bytes: buffers, and TLS.
const FIXED_BYTES: u64 = BUFFER_BYTES as u64 + 192 * 1024;
/// The memory of a request that is being executed, beside its payload, in bytes.
const REQUEST_BYTES: u64 = 1024;

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig")
            .field("connections_max", &self.connections_max)
            .field("connection_requests_max", &self.connection_requests_max)
            .field("connection_bytes_max", &self.connection_bytes_max)
            .field("bytes_max", &self.bytes_max)
            .field("tls", &self.tls)
            .field("tls_required", &self.tls_required)
            .finish_non_exhaustive()
    }
}

/// The TCP port of NBD.
pub const PORT_DEFAULT: u16 = 10809;

/// The address of a listener.
///
/// ```
/// use nbd::Address;
///
/// assert_eq!("127.0.0.1".parse(), Ok(Address::Tcp("127.0.0.1:10809".into())));
/// assert_eq!("[::1]:7000".parse(), Ok(Address::Tcp("[::1]:7000".into())));
/// assert_eq!("unix:/run/nbd.sock".parse(), Ok(Address::Unix("/run/nbd.sock".into())));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// `HOST:PORT`.
    Tcp(String),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// Why a text is not an [`Address`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not an address; write HOST, HOST:PORT, [V6]:PORT or unix:PATH")]
pub struct AddressError {
    text: String,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError { text: text.into() };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Self::Unix(path.into())) };
        }
        let (host, port) = match text.rsplit_once(':') {
            // A bare address of IPv6 has colons of its own.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        if host.is_empty() {
            return Err(wrong());
        }
        let port = port.map_or(Ok(PORT_DEFAULT), |port| port.parse().map_err(|_| wrong()))?;
        let is_bare = host.contains(':') && !host.starts_with('[');
        Ok(Self::Tcp(if is_bare { format!("[{host}]:{port}") } else { format!("{host}:{port}") }))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_with_ports_or_paths() {
        let tcp = |text: &str| Ok(Address::Tcp(text.into()));
        assert_eq!("node1:7000".parse(), tcp("node1:7000"));
        assert_eq!("::1".parse(), tcp("[::1]:10809"));
        assert_eq!("[::1]".parse(), tcp("[::1]:10809"));
        for wrong in ["", ":7", "unix:", "a:b", "a:70000"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}

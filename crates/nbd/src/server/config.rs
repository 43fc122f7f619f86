//! The settings of a server: where it listens, limits, timeouts, TLS.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cached_tls::ServerTls;
use connection::{Budget, Limits, SettingError};
use tokio::runtime::Handle;

use super::input::{BUFFER_BYTES, PIECE_BYTES_MIN};
use crate::protocol::TlsMode;
use crate::protocol::wire::PAYLOAD_BYTES_MAX;

/// The settings of a [`Server`](crate::Server). Everything has a limit; [`Self::memory_bytes_max`]
/// returns the resulting memory.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The maximum number of open connections. Each has a guaranteed minimum of `bytes_max`.
    /// Default: 256.
    pub connections_max: u32,
    /// The maximum number of connections per address, except unix sockets. Default: half of
    /// `connections_max`.
    pub peer_connections_max: Option<u32>,
    /// The maximum number of requests in flight on one connection, from 1 to 65 536. Default: 256.
    pub connection_requests_max: u32,
    /// The maximum number of bytes of payloads and extents on one connection, in requests in flight
    /// and in replies that the client has not received; at least [`PAYLOAD_BYTES_MAX`]. A single
    /// request may always have its payload. Default: 64 MiB.
    pub connection_bytes_max: u64,
    /// The maximum number of bytes of payloads and extents on all connections: at least twice
    /// `connection_bytes_max`, plus 128 KiB for each of `connections_max`. Half of the excess over
    /// that minimum is divided into guaranteed minimums of the connections; the rest goes to
    /// connections that need more. Default: 1 GiB.
    pub bytes_max: u64,
    /// The bytes of buffers for large payloads that are kept for reuse. Default: 64 MiB.
    pub payload_pool_bytes_max: usize,
    /// The longest time for a negotiation, including TLS and opening the export. Default: 10 s.
    pub negotiation_timeout: Duration,
    /// The time without progress after which a connection is closed if its client has sent part of
    /// a request or has replies to receive. A client with nothing outstanding may stay silent
    /// forever. Default: 60 s.
    pub stall_timeout: Duration,
    /// TLS with X.509 certificates; `None` turns TLS off.
    pub tls: Option<Arc<ServerTls>>,
    /// Whether clients must use TLS.
    pub tls_required: bool,
    /// The runtimes to which connections are assigned in turn. If empty, connections run on the
    /// runtime that listens.
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
    /// Checks that the settings are within their ranges and consistent with each other.
    ///
    /// # Errors
    /// The first invalid setting, and its valid values.
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

    /// Returns the maximum memory, in bytes, that a server with these settings uses apart from its
    /// exports.
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
        Limits::new(self.connections_max, self.peer_connections_max)
    }

    pub(crate) fn tls_mode(&self) -> TlsMode {
        match (&self.tls, self.tls_required) {
            (None, _) => TlsMode::Off,
            (Some(_), false) => TlsMode::Optional,
            (Some(_), true) => TlsMode::Required,
        }
    }
}

/// The memory use of a connection apart from its requests, in bytes: buffers and TLS.
const FIXED_BYTES: u64 = BUFFER_BYTES as u64 + 192 * 1024;
/// The memory use of a request in flight apart from its payload, in bytes.
const REQUEST_BYTES: u64 = 1024;

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig").field("tls", &self.tls).finish_non_exhaustive()
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
pub type Address = connection::Address<PORT_DEFAULT>;

/// The error of a server that cannot listen on an address.
pub type ListenError = connection::ListenError<PORT_DEFAULT>;

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

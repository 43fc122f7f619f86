//! The settings of a server: limits, timeouts, keys, TLS.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cached_tls::ServerTls;
use connection::{Budget, Limits, SettingError};
use tokio::runtime::Handle;

use crate::keys::Keys;

/// The settings of a [`Server`](crate::Server). Everything has a limit; [`Self::memory_bytes_max`]
/// returns the resulting memory.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The clients' keys. If `None`, every client may do everything.
    pub keys: Option<Keys>,
    /// The TLS settings of the TCP addresses. If `None`, they are served without TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// The maximum number of open connections. Further connections are closed immediately. Default:
    /// 256.
    pub connections_max: u32,
    /// The maximum number of connections per address, except unix sockets. Default: half of
    /// `connections_max`.
    pub peer_connections_max: Option<u32>,
    /// The maximum size of the head of a request, in bytes, from 8 KiB to 1 MiB. Also the buffer size
    /// of each direction of a connection. Default: 16 KiB.
    pub head_bytes_max: usize,
    /// The maximum number of bytes of bodies on all connections, in both directions, until they are
    /// stored or sent: at least two of the largest objects, plus 64 KiB for each of
    /// `connections_max`. Default: 64 MiB.
    pub bytes_max: u64,
    /// The maximum time for a request, apart from the transfer of bodies. Default: 30 s.
    pub request_timeout: Duration,
    /// The maximum time for receiving the head of a request, between two requests, and without
    /// progress in the transfer of a body. Default: 60 s.
    pub stall_timeout: Duration,
    /// The runtimes to which connections are assigned in turn. If empty, connections run on the
    /// runtime that listens.
    pub workers: Vec<Handle>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            keys: None,
            tls: None,
            connections_max: 256,
            peer_connections_max: None,
            head_bytes_max: 16 << 10,
            bytes_max: 64 << 20,
            request_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            workers: Vec::new(),
        }
    }
}

/// The part of the budget that each connection has for itself, in bytes. Objects up to this size
/// never wait for memory.
const SHARE_BYTES_MIN: u64 = 64 << 10;

/// The minimum memory of the largest request, in bytes: enough for a page of a listing.
const REQUEST_BYTES_MIN: u64 = 2 << 20;

/// The memory use of a connection apart from bodies and heads, in bytes: its state, and TLS.
const CONNECTION_BYTES: u64 = 80 << 10;

impl ServerConfig {
    /// Checks that the settings are within their ranges and consistent with each other and with the
    /// size of the largest object, `object_bytes_max`.
    ///
    /// # Errors
    /// Returns the first invalid setting, and its valid values.
    pub fn check(&self, object_bytes_max: u64) -> Result<(), SettingError> {
        let check = SettingError::check;
        check(self.connections_max == 0, "connections_max", "must be at least 1")?;
        check(self.peer_connections_max == Some(0), "peer_connections_max", "must be at least 1")?;
        let heads = 8 << 10..=1 << 20;
        check(
            !heads.contains(&self.head_bytes_max),
            "head_bytes_max",
            "must be between \"8 KiB\" and \"1 MiB\"",
        )?;
        check(self.bytes_max > 1 << 40, "bytes_max", "must be at most \"1 TiB\"")?;
        self.budget(object_bytes_max).map(drop)?;
        check(self.request_timeout.is_zero(), "request_timeout", "must be above 0")?;
        check(self.stall_timeout.is_zero(), "stall_timeout", "must be above 0")
    }

    /// Returns the maximum memory, in bytes, that a server with these settings uses apart from its
    /// blocker.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        let connection_bytes = CONNECTION_BYTES + 4 * self.head_bytes_max as u64;
        u64::from(self.connections_max) * connection_bytes + self.bytes_max
    }

    pub(crate) fn budget(&self, object_bytes_max: u64) -> Result<Arc<Budget>, SettingError> {
        let request_bytes = object_bytes_max.max(REQUEST_BYTES_MIN);
        let budget =
            Budget::new(self.bytes_max, SHARE_BYTES_MIN, request_bytes, request_bytes, self.connections_max);
        budget.map_err(|needed| {
            let problem = format!(
                "must be at least {needed}: twice the largest object (object_bytes_max), and 64 KiB for each of \
                 connections_max ({})",
                self.connections_max
            );
            SettingError::new("bytes_max", problem)
        })
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits::new(self.connections_max, self.peer_connections_max)
    }
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig")
            .field("keys", &self.keys)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

/// The default TCP port.
pub const PORT_DEFAULT: u16 = 11380;

/// The address of a listener: `HOST`, `HOST:PORT`, `[V6]:PORT`, or `unix:PATH`.
pub type Address = connection::Address<PORT_DEFAULT>;

/// The error of a server that cannot listen on an address.
pub type ListenError = connection::ListenError<PORT_DEFAULT>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_are_named() {
        let wrong = |change: fn(&mut ServerConfig)| {
            let mut config = ServerConfig::default();
            change(&mut config);
            config.check(4 << 20).unwrap_err().to_string()
        };
        assert_eq!(ServerConfig::default().check(4 << 20), Ok(()));
        assert!(wrong(|config| config.connections_max = 0).starts_with("connections_max must"));
        assert!(wrong(|config| config.head_bytes_max = 4096).starts_with("head_bytes_max must"));
        let small = wrong(|config| config.bytes_max = 8 << 20);
        assert_eq!(
            small,
            "bytes_max must be at least 25165824: twice the largest object (object_bytes_max), and 64 KiB for \
             each of connections_max (256)"
        );
        assert!(ServerConfig::default().check(64 << 20).is_err());
    }
}

//! The settings of a client.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use blocker::trace::Tracer;
use blocker::{Clock, SystemClock};

use super::addresses::Addresses;
use crate::Address;
use crate::codec::{HANDSHAKE_NAME_BYTES_MAX, KEY_BYTES_MAX};
use connection::Secret;
use connection::{Duplex, SettingError};

/// A stream that is being opened.
pub type Opening = Pin<Box<dyn Future<Output = io::Result<Box<dyn Duplex>>> + Send>>;

/// Opens streams to servers whose [`Address`] is only a name.
pub type Connector = Arc<dyn Fn(&Address) -> Opening + Send + Sync>;

/// The settings of a [`SynapseBlocker`](crate::SynapseBlocker).
///
/// ```
/// use std::time::Duration;
/// use synapse::{Address, ClientConfig, Secret};
///
/// let mut config = ClientConfig::new("storage-7.example.com:11311".parse::<Address>()?);
/// config.secret = Some(Secret::new(b"0d9f1c2a7b3e4f56")?);
/// config.name = "front-1".into();
/// config.call_timeout = Some(Duration::from_secs(10));
/// config.check()?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct ClientConfig {
    /// The server's address, or the addresses of several servers of the same store, of which the
    /// client uses [one at a time](crate::SynapseBlocker#several-servers).
    pub addresses: Addresses,
    /// Opens the streams to the servers. If set, the addresses are only names.
    pub connector: Option<Connector>,
    /// The secret that server and client share. If set, a server that cannot prove its knowledge of
    /// the secret is refused.
    pub secret: Option<Secret>,
    /// The number of connections, 1 to 64. Default: 2.
    pub connections: u16,
    /// The maximum number of outstanding requests per connection, if the server grants as many; 1
    /// to 65 536. Default: 64.
    pub slots: u32,
    /// The maximum number of outstanding bytes of requests and replies per connection, if the
    /// server grants as many. Default: 32 MiB.
    pub bytes: u64,
    /// The maximum number of calls per connection that wait for a slot; further calls fail with
    /// `Retryable`. Default: 65 536.
    pub waiting_max: usize,
    /// Whether a CRC-32 protects payloads, in both directions.
    pub payload_crc: bool,
    /// The time limit for connecting to one server, including the handshake. Default: 5 s.
    pub connect_timeout: Duration,
    /// The silence of the server after which a ping is sent. Default: 5 s.
    pub keep_alive: Duration,
    /// The duration of silence after which the client considers the server dead, and connects
    /// again. Default: 15 s.
    pub peer_timeout: Duration,
    /// The first pause between two attempts to connect, each of which tries every server. The pause
    /// is doubled after each attempt. Default: 10 ms.
    pub backoff_min: Duration,
    /// The longest pause between two attempts to connect. Default: 2 s.
    pub backoff_max: Duration,
    /// The maximum time that requests wait for a connection before they fail. Default: 30 s.
    pub reconnect_timeout: Duration,
    /// The time limit of a call without a deadline of its own. If `None`, such a call has no limit.
    pub call_timeout: Option<Duration>,
    /// The name of this client in the server's log.
    pub name: String,
    /// The name of the secret, for a server that has several; empty for a server that has one.
    pub key: String,
    /// Whether this client belongs to a server, which keeps [its record](crate::NodeRecord) in the
    /// store that it connects to. Only such clients may use [reserved
    /// namespaces](blocker::Namespace::is_reserved).
    pub is_server: bool,
    /// The bytes of buffers for large payloads that are kept for reuse. Default: 32 MiB.
    pub payload_pool_bytes_max: usize,
    /// Records a span for each call that is [traced](blocker::Call::trace), from the call to its
    /// reply.
    pub tracer: Option<Tracer>,
    /// The clock of deadlines and timeouts.
    pub clock: Arc<dyn Clock>,
    /// The seed of the session's ID and of the pauses' random part, for repeatable tests. If
    /// `None`, random bytes of the operating system are used. Two clients with the same seed take
    /// each other's sessions.
    #[doc(hidden)]
    pub seed: Option<u64>,
    /// Resends changes even if the server has forgotten whether they were executed, so that tests
    /// can show that their checks detect that. It has no effect in a release build.
    #[doc(hidden)]
    pub guesses_outcomes: bool,
}

impl ClientConfig {
    /// Returns the default settings for the server at an [`Address`], or for several servers.
    #[must_use]
    pub fn new(addresses: impl Into<Addresses>) -> Self {
        Self {
            addresses: addresses.into(),
            connector: None,
            secret: None,
            connections: 2,
            slots: 64,
            bytes: 32 << 20,
            waiting_max: 65_536,
            payload_crc: false,
            is_server: false,
            connect_timeout: Duration::from_secs(5),
            keep_alive: Duration::from_secs(5),
            peer_timeout: Duration::from_secs(15),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_secs(2),
            reconnect_timeout: Duration::from_secs(30),
            call_timeout: None,
            name: String::new(),
            key: String::new(),
            payload_pool_bytes_max: 32 << 20,
            tracer: None,
            clock: Arc::new(SystemClock),
            seed: None,
            guesses_outcomes: false,
        }
    }

    /// Checks that the settings are within their ranges and consistent.
    ///
    /// # Errors
    /// Returns the first invalid setting, and its valid values.
    pub fn check(&self) -> Result<(), SettingError> {
        let check = SettingError::check;
        check(!(1..=64).contains(&self.connections), "connections", "must be 1 to 64")?;
        check(!(1..=65_536).contains(&self.slots), "slots", "must be 1 to 65536")?;
        check(self.keep_alive.is_zero(), "keep_alive", "must be above 0")?;
        check(self.peer_timeout <= self.keep_alive, "peer_timeout", "must be above keep_alive")?;
        check(self.backoff_min.is_zero(), "backoff_min", "must be above 0")?;
        check(self.backoff_max < self.backoff_min, "backoff_max", "must be at least backoff_min")?;
        check(self.key.len() > KEY_BYTES_MAX, "key", "must be at most 64 bytes long")?;
        check(self.name.len() > HANDSHAKE_NAME_BYTES_MAX, "name", "must be at most 255 bytes long")?;
        check(self.call_timeout.is_some_and(|timeout| timeout.is_zero()), "call_timeout", "must be above 0")?;
        check(self.connect_timeout.is_zero(), "connect_timeout", "must be above 0")
    }

    pub(super) fn guesses(&self) -> bool {
        cfg!(debug_assertions) && self.guesses_outcomes
    }
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

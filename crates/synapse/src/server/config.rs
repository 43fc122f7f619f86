//! What a server is told at its start: limits, times, secret.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use blocker::{Clock, SystemClock};
use tokio::runtime::Handle;

use crate::auth::Secret;
use crate::codec::{InstanceId, StoreId};
use crate::receive::ReceiveBuffers;

/// The settings of a [`super::Server`]. Everything has a limit; the memory they allow together is
/// [`Self::memory_bytes_max`].
#[derive(Clone)]
#[non_exhaustive]
pub struct ServerConfig {
    /// What clients must know. Without it anyone who can connect is let in.
    pub secret: Option<Secret>,
    /// Listen beyond loopback even without a secret.
    pub allow_exposed: bool,
    /// The most connections at a time. Each has a share of `bytes_max` of its own. 1 024.
    pub connections_max: u32,
    /// The most sessions remembered, connected or not; at least `connections_max`. 4 096.
    pub sessions_max: u32,
    /// The most requests under way per session. 256, up to 65 536.
    pub session_slots_max: u32,
    /// The most bytes of requests and answers under way per session. Less where many share `bytes_max`. 64 MiB.
    pub session_bytes_max: u64,
    /// The most bytes of requests and answers under way, in all. 1 GiB.
    pub bytes_max: u64,
    /// The largest payload of a request or an answer; the backend's own limit counts as well. 8 MiB.
    pub request_bytes_max: u64,
    /// The largest page of a listing. 1 000.
    pub list_entries_max: u32,
    /// A client that has been silent, or has taken nothing of what waits for it, for so long is dead. 30 s.
    pub peer_timeout: Duration,
    /// How long the greeting may take. 5 s.
    pub handshake_timeout: Duration,
    /// How long the outcomes of a session are remembered after its connection has gone. 5 min.
    pub session_linger: Duration,
    /// How many bytes of buffers for large payloads are kept to be used again. 64 MiB.
    pub payload_pool_bytes_max: usize,
    /// Where deadlines and timeouts are taken from.
    pub clock: Arc<dyn Clock>,
    /// Where large payloads land; a pool of buffers unless the backend has something better.
    pub receive_buffers: Option<Arc<dyn ReceiveBuffers>>,
    /// The runtimes that connections are dealt to in turn; the one that listens if there are none.
    pub workers: Vec<Handle>,
    /// What this server is called, for its clients' logs and figures.
    pub name: String,
    /// Which store the backend is, see [`super::NodeRecord`]. A client that has seen one refuses a server with
    /// another. `None`: it cannot be known.
    pub store: Option<StoreId>,
    /// Earlier instances that ended with everything stored that they had acknowledged, the last one first.
    pub closed: Vec<InstanceId>,
    /// More secrets, each by its key's name, which a client may name in its greeting.
    pub keys: Vec<(String, Secret)>,
    /// Forgets the outcomes of requests, so that one that is sent again is done again.
    #[cfg(feature = "sabotage")]
    pub forgets_outcomes: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            secret: None,
            allow_exposed: false,
            connections_max: 1024,
            sessions_max: 4096,
            session_slots_max: 256,
            session_bytes_max: 64 << 20,
            bytes_max: 1 << 30,
            request_bytes_max: 8 << 20,
            list_entries_max: 1000,
            peer_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(5),
            session_linger: Duration::from_secs(300),
            payload_pool_bytes_max: 64 << 20,
            clock: Arc::new(SystemClock),
            receive_buffers: None,
            workers: Vec::new(),
            name: String::new(),
            store: None,
            closed: Vec::new(),
            keys: Vec::new(),
            #[cfg(feature = "sabotage")]
            forgets_outcomes: false,
        }
    }
}

impl ServerConfig {
    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// One line that says what to mend.
    pub fn check(&self) -> Result<(), String> {
        let wrong = |is_wrong: bool, text: &str| if is_wrong { Err(text.to_owned()) } else { Ok(()) };
        wrong(self.connections_max == 0, "connections_max must be at least 1")?;
        wrong(
            self.sessions_max < self.connections_max,
            "sessions_max must be at least connections_max, or clients push each other's outcomes out",
        )?;
        wrong(!(1..=65_536).contains(&self.session_slots_max), "session_slots_max must be 1 to 65536")?;
        wrong(self.request_bytes_max < 4096, "request_bytes_max must be at least 4096")?;
        wrong(self.request_bytes_max > 1 << 30, "request_bytes_max must be at most 1 GiB")?;
        wrong(!(1..=100_000).contains(&self.list_entries_max), "list_entries_max must be 1 to 100000")?;
        let least = "session_bytes_max must be at least twice request_bytes_max plus 1 MiB";
        wrong(self.session_bytes_max < 2 * self.request_bytes_max + (1 << 20), least)?;
        wrong(self.bytes_max < self.session_bytes_max, "bytes_max must be at least session_bytes_max")?;
        wrong(self.peer_timeout < Duration::from_millis(10), "peer_timeout must be at least 10 ms")?;
        wrong(self.handshake_timeout.is_zero(), "handshake_timeout must be above 0")
    }

    /// The most memory that a server with these settings takes beside its backend's.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        let connections = u64::from(self.connections_max) * super::connection::FIXED_BYTES;
        let slots =
            u64::from(self.sessions_max) * u64::from(self.session_slots_max) * super::slots::SLOT_BYTES;
        connections + slots + self.bytes_max + self.payload_pool_bytes_max as u64
    }

    /// The secret that a client proves to know which names `key`.
    pub(crate) fn secret_of(&self, key: &[u8]) -> Option<&Secret> {
        let named = self.keys.iter().find(|(name, _)| !key.is_empty() && name.as_bytes() == key);
        named.map(|(_, secret)| secret).or(self.secret.as_ref())
    }

    pub(crate) fn remembers_outcomes(&self) -> bool {
        #[cfg(feature = "sabotage")]
        return !self.forgets_outcomes;
        #[cfg(not(feature = "sabotage"))]
        true
    }
}

/// Returns the name of this machine, for [`ServerConfig::name`]; empty if it has none.
#[must_use]
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig")
            .field("secret", &self.secret)
            .field("allow_exposed", &self.allow_exposed)
            .field("connections_max", &self.connections_max)
            .field("sessions_max", &self.sessions_max)
            .field("session_slots_max", &self.session_slots_max)
            .field("session_bytes_max", &self.session_bytes_max)
            .field("bytes_max", &self.bytes_max)
            .field("request_bytes_max", &self.request_bytes_max)
            .field("peer_timeout", &self.peer_timeout)
            .finish_non_exhaustive()
    }
}

//! A server's settings: limits, which can partly change while it serves, timeouts, secrets, receive
//! buffers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use blocker::trace::Tracer;
use blocker::{Clock, ReceiveBuffers, SystemClock};
use connection::{Limits, SettingError};
use tokio::runtime::Handle;

use super::Server;
use crate::codec::{InstanceId, StoreId};
use connection::Secret;

/// The settings of a [`Server`](crate::Server). Everything has a limit; [`Self::memory_bytes_max`]
/// is the total memory that the limits allow.
///
/// ```
/// use synapse::{Secret, ServerConfig};
///
/// let mut config = ServerConfig::default();
/// config.secret = Some(Secret::new(b"0d9f1c2a7b3e4f56")?);
/// config.connections_max = 256;
/// config.check()?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The secret that clients must know. If `None`, every client that can connect is accepted.
    pub secret: Option<Secret>,
    /// A second secret that clients may use during the change from one secret to the other.
    pub secret_previous: Option<Secret>,
    /// Listens beyond loopback even without a secret.
    pub allow_exposed: bool,
    /// Lets clients set, create and remove the namespaces of the backend's cache. Otherwise such
    /// requests are refused with [`Error::Denied`](blocker::Error::Denied), but clients may query
    /// their state.
    pub allow_namespace_changes: bool,
    /// The maximum number of concurrent connections. Each is guaranteed a share of `bytes_max`.
    /// Default: 1 024.
    pub connections_max: u32,
    /// The maximum number of connections from one address, except unix sockets. Default: half of
    /// `connections_max`.
    pub peer_connections_max: Option<u32>,
    /// The maximum number of sessions that are remembered, connected or not; at least
    /// `connections_max`. Default: 4 096.
    pub sessions_max: u32,
    /// The maximum number of outstanding requests per session, 1 to 65 536. Default: 256.
    pub session_slots_max: u32,
    /// The maximum number of outstanding bytes of requests and answers per session; fewer where
    /// many sessions share `bytes_max`. Default: 64 MiB.
    pub session_bytes_max: u64,
    /// The maximum number of outstanding bytes of requests and answers of all sessions. Default: 1
    /// GiB.
    pub bytes_max: u64,
    /// The maximum payload of a request or an answer in bytes, 4 096 to 1 GiB; the backend's own
    /// limit also applies. Default: 8 MiB.
    pub request_bytes_max: u64,
    /// The maximum number of entries of a page of a listing, 1 to 100 000. Default: 1 000.
    pub list_entries_max: u32,
    /// The time after which a client that neither sends nor receives is considered dead. Default:
    /// 30 s.
    pub peer_timeout: Duration,
    /// The time limit of a handshake. Default: 5 s.
    pub handshake_timeout: Duration,
    /// The minimum time for which a session is remembered after its connection has ended, unless
    /// there are too many sessions. Default: 5 min.
    pub session_linger: Duration,
    /// The bytes of buffers for large payloads that are kept for reuse. Default: 64 MiB.
    pub payload_pool_bytes_max: usize,
    /// Records a span for each request that its client traces, or that is sampled here. If
    /// `None`, no spans are recorded.
    pub tracer: Option<Tracer>,
    /// The clock of deadlines and timeouts.
    pub clock: Arc<dyn Clock>,
    /// The backend's receive buffers for large payloads. If `None`, a pool of buffers is used; fresh
    /// memory would cost a page fault per 4 KiB, which is more than the saved copy.
    pub receive_buffers: Option<ReceiveBuffers>,
    /// The runtimes to which connections are assigned in turn. If empty, connections run on the
    /// runtime that listens.
    pub workers: Vec<Handle>,
    /// The name of this server in its clients' logs.
    pub name: String,
    /// The identity of the served store, see [`NodeRecord`](crate::NodeRecord). A client refuses a
    /// server whose identity differs from that of its first connection. `None` if unknown.
    pub store: Option<StoreId>,
    /// Earlier instances that had stored everything they acknowledged before they ended, the latest
    /// one first.
    pub closed: Vec<InstanceId>,
    /// The instance that this server continues: an earlier server over the same, unchanged backend,
    /// with everything that the earlier server had acknowledged. `None` for a new instance.
    pub continues: Option<InstanceId>,
    /// Further secrets, each with the name by which a client selects it.
    pub keys: Vec<(String, Secret)>,
    /// Forgets the outcomes of requests, so that a repeated request is executed again and tests can
    /// show that their checks detect that. It has no effect in a release build.
    #[doc(hidden)]
    pub forgets_outcomes: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            secret: None,
            secret_previous: None,
            allow_exposed: false,
            allow_namespace_changes: false,
            connections_max: 1024,
            peer_connections_max: None,
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
            tracer: None,
            clock: Arc::new(SystemClock),
            receive_buffers: None,
            workers: Vec::new(),
            name: String::new(),
            store: None,
            closed: Vec::new(),
            continues: None,
            keys: Vec::new(),
            forgets_outcomes: false,
        }
    }
}

impl ServerConfig {
    /// Checks that the settings are within their ranges and consistent.
    ///
    /// # Errors
    /// Returns the first invalid setting, and its valid values.
    pub fn check(&self) -> Result<(), SettingError> {
        let check = SettingError::check;
        let is_alone = self.secret.is_none() && self.secret_previous.is_some();
        check(is_alone, "secret_previous", "needs a secret beside it")?;
        check(self.connections_max == 0, "connections_max", "must be at least 1")?;
        check(self.peer_connections_max == Some(0), "peer_connections_max", "must be at least 1")?;
        check(
            self.sessions_max < self.connections_max,
            "sessions_max",
            "must be at least connections_max; otherwise clients' remembered outcomes displace each other",
        )?;
        check(!(1..=65_536).contains(&self.session_slots_max), "session_slots_max", "must be 1 to 65536")?;
        check(self.request_bytes_max < 4096, "request_bytes_max", "must be at least 4096")?;
        check(self.request_bytes_max > 1 << 30, "request_bytes_max", "must be at most 1 GiB")?;
        check(!(1..=100_000).contains(&self.list_entries_max), "list_entries_max", "must be 1 to 100000")?;
        let least = "must be at least twice request_bytes_max plus 1 MiB";
        check(self.session_bytes_max < 2 * self.request_bytes_max + (1 << 20), "session_bytes_max", least)?;
        check(self.bytes_max < self.session_bytes_max, "bytes_max", "must be at least session_bytes_max")?;
        check(self.peer_timeout < Duration::from_millis(10), "peer_timeout", "must be at least 10 ms")?;
        check(self.handshake_timeout.is_zero(), "handshake_timeout", "must be above 0")
    }

    /// Returns the maximum memory that a server with these settings uses besides its backend, in
    /// bytes.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        let connections = u64::from(self.connections_max) * super::connection::FIXED_BYTES;
        let slots =
            u64::from(self.sessions_max) * u64::from(self.session_slots_max) * super::slots::SLOT_BYTES;
        connections + slots + self.bytes_max + self.payload_pool_bytes_max as u64
    }

    pub(crate) fn remembers_outcomes(&self) -> bool {
        !(cfg!(debug_assertions) && self.forgets_outcomes)
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
        f.debug_struct("ServerConfig").field("name", &self.name).finish_non_exhaustive()
    }
}

// ---- The limits of a server that can change while it serves.

impl ServerConfig {
    pub(super) fn connections(&self) -> Limits {
        Limits::new(self.connections_max, self.peer_connections_max)
    }
}

impl Server {
    /// Returns the settings with the limits that are in force.
    #[must_use]
    pub fn limits(&self) -> ServerConfig {
        self.shared.limits.read().clone()
    }

    /// Changes the limits on connections, sessions, bytes and times to those of `new`, whose other
    /// settings have no effect. No client is disconnected: connections and sessions above a lowered
    /// limit end by themselves. Timeouts apply to new connections, and `session_slots_max` applies
    /// to new sessions. The bytes are redistributed immediately, but count until clients have
    /// accepted their smaller grants.
    ///
    /// # Errors
    /// Returns the limit that contradicts the other settings, and the valid values. In that case
    /// nothing has changed.
    pub fn set_limits(&self, new: &ServerConfig) -> Result<(), SettingError> {
        let shared = &*self.shared;
        let limits = ServerConfig {
            connections_max: new.connections_max,
            peer_connections_max: new.peer_connections_max,
            sessions_max: new.sessions_max,
            session_slots_max: new.session_slots_max,
            session_bytes_max: new.session_bytes_max,
            bytes_max: new.bytes_max,
            peer_timeout: new.peer_timeout,
            handshake_timeout: new.handshake_timeout,
            session_linger: new.session_linger,
            ..shared.config.clone()
        };
        limits.check()?;
        super::check_session_bytes(limits.session_bytes_max, shared.least_bytes)?;
        let mut in_force = shared.limits.write();
        // The limit is set first, so that no more connections than these are accepted in the
        // meantime.
        let before = std::mem::replace(&mut in_force.connections_max, limits.connections_max);
        let connections = limits.connections_max.max(shared.connections.count());
        if let Err(needed) = shared.budget.change(limits.bytes_max, limits.session_bytes_max, connections) {
            in_force.connections_max = before;
            return Err(too_few_bytes(needed, connections));
        }
        shared.sessions.set_limits(limits.sessions_max, limits.session_linger);
        *in_force = limits;
        Ok(())
    }
}

/// Returns the error for a budget that needs at least `needed` bytes.
pub(super) fn too_few_bytes(needed: u64, connections: u32) -> SettingError {
    let problem = format!(
        "must be at least {needed}: two of the largest requests, and a share for each of {connections} connections"
    );
    SettingError::new("bytes_max", problem)
}

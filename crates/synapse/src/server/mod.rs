//! The server: any backend, served to any number of clients. `codec` has the frames as bytes; this
//! module has sockets, sessions, memory and time.
//!
//! ```text
//! listen ──► connection ──► slots: seen before? ──► backend ──► ready: answered in the same write
//!                 ▲                                    └──────► pending: a task, then the session's completions
//!                 └── session: outlives the connection
//! ```

mod config;
mod connection;
mod execute;
mod handshake;
mod record;
mod session;
mod slots;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::connection::{
    Accepted, Budget, Connections, Duplex, LogLimit, PayloadPool, Peer, Place, Refusal, Service,
    SettingError, serve_all,
};
use blocker::metrics::{Collect, Counter, Families, Number, counters};
use blocker::{Blocker, Capabilities, Error, ReceiveBuffer, Reply, metrics_above};
use parking_lot::RwLock;
use tokio::runtime::Handle;

use crate::auth::random;
use crate::codec::{
    CONTROL_BYTES_MAX, HEAD_BYTES_MAX, Head, InstanceId, LIST_ENTRY_BYTES_MAX, Names, Op, Outcome, RUN_BYTES,
    RUNS_MAX,
};
use crate::{Address, ListeningSocket, PORT_DEFAULT};

use self::connection::{Connection, End};
pub use config::{ServerConfig, host_name};
use handshake::Secrets;
pub use record::NodeRecord;
use session::Sessions;

/// Serves a backend.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use blocker::Memory;
/// use synapse::{Server, ServerConfig};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let server = Server::new(Arc::new(Memory::default()), ServerConfig::default())?;
/// let address = server.listen(&"127.0.0.1:0".parse()?).await?;
/// println!("listening on {address}");
/// // Until the process is to end:
/// assert!(server.shutdown(Duration::from_secs(10)).await, "every request was answered");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// The server accepts connections on the tokio runtime in which [`Self::listen`] is called;
/// connections run there, or on the runtimes of [`ServerConfig::workers`]. If the server is
/// dropped, it stops listening and its connections are aborted; [`Self::shutdown`] ends them after
/// their requests.
pub struct Server {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    backend: Arc<dyn Blocker>,
    /// The settings at the start. Settings that can change are read from `limits` and `secrets`.
    config: ServerConfig,
    /// The settings with the limits that are in force: see [`Server::set_limits`].
    limits: RwLock<ServerConfig>,
    /// The backend's capabilities, limited by the wire format.
    capabilities: Capabilities,
    payload_bytes_max: u32,
    /// The cost of the largest request or answer.
    least_bytes: u64,
    instance: InstanceId,
    sessions: Sessions,
    budget: Arc<Budget>,
    pool: Arc<PayloadPool>,
    counters: Counts<Counter>,
    log_limit: LogLimit,
    secrets: Secrets,
    /// Whether other machines can reach one of the server's addresses.
    is_exposed: AtomicBool,
    connections: Arc<Connections>,
}

impl Server {
    /// Returns a server for `backend` and its control plane, which does not listen yet.
    ///
    /// # Errors
    /// Returns the invalid setting, and its valid values.
    pub fn new(backend: Arc<dyn Blocker>, config: ServerConfig) -> Result<Self, SettingError> {
        config.check()?;
        let mut wire = Capabilities::full(u64::MAX);
        (wire.request_bytes_max, wire.compare_bytes_max) =
            (config.request_bytes_max, config.request_bytes_max);
        (wire.list_entries_max, wire.runs_max) = (config.list_entries_max, RUNS_MAX);
        let capabilities = limited(backend.capabilities(), &wire);
        let beside = capabilities.compare_bytes_max.max(u64::from(capabilities.runs_max) * RUN_BYTES as u64);
        let payload_bytes_max = capabilities.request_bytes_max + beside;
        let list_bytes = u64::from(capabilities.list_entries_max) * LIST_ENTRY_BYTES_MAX;
        let least_bytes =
            payload_bytes_max.max(list_bytes).max(CONTROL_BYTES_MAX) + 2 * HEAD_BYTES_MAX as u64;
        check_session_bytes(config.session_bytes_max, least_bytes)?;
        let (most_bytes, count) = (config.session_bytes_max, config.connections_max);
        let budget =
            Budget::new(config.bytes_max, connection::SHARE_BYTES_MIN, least_bytes, most_bytes, count);
        let budget = budget.map_err(|needed| config::too_few_bytes(needed, config.connections_max))?;
        let shared = Shared {
            capabilities,
            // The check limits each of the two to 1 GiB.
            payload_bytes_max: payload_bytes_max as u32,
            least_bytes,
            limits: RwLock::new(config.clone()),
            instance: config.continues.unwrap_or_else(random),
            sessions: Sessions::new(config.sessions_max, config.session_linger),
            budget,
            pool: PayloadPool::new(config.payload_pool_bytes_max),
            counters: Counts::default(),
            log_limit: LogLimit::default(),
            secrets: Secrets::new(&config),
            is_exposed: AtomicBool::new(false),
            connections: Arc::default(),
            backend,
            config,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns the ID of this instance, drawn at random when the server was created. Another
    /// instance does not know this instance's sessions.
    #[must_use]
    pub fn instance(&self) -> InstanceId {
        self.shared.instance
    }

    /// Returns the value of the server's own metric `name`, or 0. [`Collect`] collects all of them.
    #[must_use]
    pub fn metric(&self, name: &str) -> u64 {
        self.families().number(name).map_or(0, Number::to_u64)
    }

    /// Stops listening, so that the address is free; completes the requests in progress, and sends
    /// a goodbye to every client. Waits at most for `timeout`, then aborts the remaining
    /// connections. Returns whether every connection ended by itself.
    pub async fn shutdown(&self, timeout: Duration) -> bool {
        // This is called first, so that clients that reconnect wait in the accept queue, perhaps
        // for another server, and are not refused.
        let unbound = self.shared.connections.stop_listening();
        self.shared.sessions.end();
        let clock = Arc::clone(&self.shared.config.clock);
        let all_ended = async {
            unbound.await;
            self.shared.connections.wait_for_end().await;
        };
        let in_order = tokio::select! {
            () = all_ended => true,
            () = clock.sleep(timeout) => false,
        };
        self.abort_connections();
        in_order
    }

    /// Aborts all connections, as a crash would, and continues to listen. For tests.
    pub fn abort_connections(&self) {
        self.shared.connections.abort();
    }
}

impl Collect for Server {
    fn collect(&self, into: &mut Families) {
        self.shared.collect(into);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.connections.abort_all();
    }
}

/// Checks that a session may have the largest request, of `least_bytes`, outstanding.
fn check_session_bytes(session_bytes_max: u64, least_bytes: u64) -> Result<(), SettingError> {
    let problem = format!("must be at least {least_bytes} for this backend");
    SettingError::check(session_bytes_max < least_bytes, "session_bytes_max", &problem)
}

impl Shared {
    /// Returns the backend's receive buffer for a large payload, if it has one.
    fn reserve_buffer(&self, head: &Head<'_>, names: &mut Names) -> Option<Box<dyn ReceiveBuffer>> {
        let buffers = self.config.receive_buffers.as_ref()?;
        if !matches!(head.header.op, Op::Write | Op::WriteFull) {
            return None;
        }
        let namespace = names.namespace(head.namespace).ok()?;
        let object = blocker::ObjectId::new(namespace, names.name(head.name).ok()?);
        buffers(&object, head.header.offset, head.payload_bytes)
    }

    /// Returns the metrics of the backend and of the server itself.
    fn metrics(&self) -> Reply<Families> {
        let mut own = Families::new();
        self.collect(&mut own);
        metrics_above(own, self.backend.control())
    }

    fn collect(&self, into: &mut Families) {
        self.counters.collect(into);
        let connections = self.connections.count().into();
        into.gauge("synapse_connections_open", "Connections that are open.", connections);
        into.gauge("synapse_sessions", "Sessions that are remembered.", self.sessions.count() as u64);
    }

    /// Returns whether a log line of this reason may be written now, see [`LogLimit::admit`].
    fn admit_log(&self, reason: &'static str) -> Option<u64> {
        self.log_limit.admit(reason, self.config.clock.now())
    }

    /// Logs a request that the backend has failed for a reason that an operator can remove: no
    /// space, no descriptors or damaged data.
    #[inline]
    fn log_failure(&self, peer: Peer, op: Op, outcome: &Outcome) {
        if let Outcome::Failed(error) = outcome {
            self.log_error(peer, op, error);
        }
    }

    #[cold]
    fn log_error(&self, peer: Peer, op: Op, error: &Error) {
        let reason = match error {
            Error::Retryable(_) => "backend: retryable",
            Error::OutOfSpace(_) => "backend: out of space",
            Error::Corrupt(_) => "backend: corrupt",
            Error::WritesLost(_) => "backend: writes lost",
            _ => return,
        };
        if let Some(suppressed) = self.admit_log(reason) {
            tracing::warn!(%peer, ?op, cause = %error, suppressed, "request failed");
        }
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        let mut counts = Counts::default();
        count(&mut counts);
        self.counters.zip(&mut counts, Counter::take);
    }
}

/// Returns `capabilities` with sizes and numbers limited to those of `limits`.
fn limited(mut capabilities: Capabilities, limits: &Capabilities) -> Capabilities {
    capabilities.request_bytes_max = capabilities.request_bytes_max.min(limits.request_bytes_max);
    capabilities.compare_bytes_max = capabilities.compare_bytes_max.min(limits.compare_bytes_max);
    capabilities.list_entries_max = capabilities.list_entries_max.min(limits.list_entries_max);
    capabilities.runs_max = capabilities.runs_max.min(limits.runs_max);
    capabilities
}

counters! {
    /// Counters of connections. Each connection has its own counts and adds them up from time to
    /// time, so that requests of different threads do not write the same cache line.
    #[derive(Default)]
    pub(super) struct Counts<C = u64> {
        /// Connections accepted.
        connections => "synapse_connections_total",
        /// Connections refused, for any reason.
        refused => "synapse_connections_refused_total",
        /// Connections closed because their client broke the protocol.
        broken => "synapse_connections_broken_total",
        /// Connections closed because their client was silent.
        silent => "synapse_connections_silent_total",
        /// Requests that arrived.
        requests => "synapse_requests_total",
        /// Requests answered with a remembered outcome.
        replays => "synapse_replays_total",
        /// Requests executed by a task because their reply was not ready immediately.
        waits => "synapse_waits_total",
        /// Changes of grants that were announced to clients.
        grants => "synapse_grants_changed_total",
        /// Cancellations that arrived.
        cancels => "synapse_cancels_total",
        /// Bytes of large payloads that were copied, because they arrived with their head.
        copied_bytes => "synapse_copied_bytes_total",
    }
}

// ---- Listening: which addresses may be served without a secret, and the limits on connections.

impl Server {
    /// Serves one connection from another source than [`Self::listen`], until the connection ends.
    /// Runs on the runtime that polls it. If the future is dropped, the connection is aborted.
    ///
    /// # Panics
    /// Panics if it is called outside of a tokio runtime.
    pub fn serve_stream(&self, stream: Box<dyn Duplex>) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (shared, accepted) = (Arc::clone(&self.shared), Accepted::Other(stream));
        async move {
            if let Ok(_place) = shared.take_place(&Peer::Other) {
                shared.serve(Peer::Other, accepted).await;
            }
        }
    }

    /// Listens on `address`, and returns the bound address, which for TCP port 0 has the port that
    /// the system has chosen. If the path of a unix socket has no listener, it is taken over.
    ///
    /// # Errors
    /// Returns [`ListenError::Exposed`] for an address beyond loopback without a secret, and
    /// [`ListenError::Bind`] if the address cannot be bound.
    ///
    /// # Panics
    /// Panics if it is called outside of a tokio runtime.
    pub async fn listen(&self, address: &Address) -> Result<Address, ListenError> {
        let failed = |cause| ::connection::ListenError { address: address.clone(), cause };
        let resolved = address.resolve().await.map_err(failed)?;
        // The addresses are checked before the socket exists.
        resolved.iter().try_for_each(|one| self.check_exposure(one))?;
        let socket = ListeningSocket::bind_resolved(address, &resolved)?;
        self.accept_from(&socket, address.path().map(Into::into))
    }

    /// Listens on an open socket, and returns its address. The caller owns the socket, which stays
    /// open when the server ends.
    ///
    /// # Errors
    /// Returns [`ListenError::Exposed`] for an address beyond loopback without a secret, and
    /// [`ListenError::Bind`] if the system has no descriptor.
    ///
    /// # Panics
    /// Panics if it is called outside of a tokio runtime.
    pub fn listen_on(&self, socket: &ListeningSocket) -> Result<Address, ListenError> {
        if let Address::Tcp(text) = socket.address()
            && let Ok(address) = text.parse()
        {
            self.check_exposure(&address)?;
        }
        self.accept_from(socket, None)
    }

    fn accept_from(&self, socket: &ListeningSocket, file: Option<PathBuf>) -> Result<Address, ListenError> {
        serve_all(&self.shared, socket, file)?;
        tracing::info!(address = %socket.address(), "listening");
        Ok(socket.address().clone())
    }

    fn check_exposure(&self, address: &SocketAddr) -> Result<(), ListenError> {
        let config = &self.shared.config;
        if address.ip().is_loopback() {
            return Ok(());
        }
        // The flag is set before the check of the secrets, which another thread may be about to
        // remove.
        self.shared.is_exposed.store(true, Ordering::SeqCst);
        if self.shared.secrets.are_required() || config.allow_exposed {
            return Ok(());
        }
        Err(ListenError::Exposed(*address))
    }
}

impl Service for Shared {
    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn take_place(&self, peer: &Peer) -> Result<Place, Refusal> {
        let place = {
            // The lock is held in the meantime, so that a change of the limit counts every admitted
            // connection.
            let limits = self.limits.read();
            self.connections.take(peer, limits.connections())
        };
        match &place {
            Ok(_) => self.count(|counts| counts.connections += 1),
            Err(refusal) => {
                self.count(|counts| counts.refused += 1);
                if let Some(suppressed) = self.admit_log(refusal.limit()) {
                    tracing::warn!(%peer, cause = %refusal, suppressed, "connection refused");
                }
            }
        }
        place
    }

    fn workers(&self) -> &[Handle] {
        &self.config.workers
    }

    fn log_accept_error(&self, error: &io::Error) {
        if let Some(suppressed) = self.admit_log("accept") {
            tracing::warn!(cause = %error, suppressed, "cannot accept a connection");
        }
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send {
        self.config.clock.sleep(time)
    }

    async fn serve(self: Arc<Self>, peer: Peer, accepted: Accepted) {
        let end = match accepted.into_stream() {
            Ok(stream) => Connection::new(Arc::clone(&self), stream, peer).run().await,
            Err(error) => End::Failed(error),
        };
        let reason = match &end {
            End::Broken(_) => "broken",
            End::Refused(Error::Denied(_)) => "denied",
            End::Refused(Error::Unsupported(_)) => "unsupported",
            End::Refused(Error::Invalid(_)) => "invalid",
            End::Refused(_) => "refused",
            End::Silent => "silent",
            End::Slowest => "slowest",
            End::Failed(_) | End::Closed | End::Goodbye | End::Replaced | End::Ending => {
                return tracing::debug!(%peer, cause = %end, "connection ended");
            }
        };
        let is_slow = matches!(end, End::Silent | End::Slowest);
        self.count(|counts| {
            counts.broken += u64::from(matches!(end, End::Broken(_)));
            counts.refused += u64::from(matches!(end, End::Refused(_)));
            counts.silent += u64::from(is_slow);
        });
        match self.admit_log(reason) {
            Some(suppressed) if is_slow => {
                tracing::info!(%peer, cause = %end, suppressed, "connection closed");
            }
            Some(suppressed) => tracing::warn!(%peer, cause = %end, suppressed, "connection closed"),
            None => {}
        }
    }
}

/// The error of a server that cannot listen on an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Other machines can reach this address, there is no secret, and
    /// [`ServerConfig::allow_exposed`](crate::ServerConfig::allow_exposed) is not set.
    #[error(
        "{0} can be reached from other machines, and no secret is configured: configure one, or set \
         allow_exposed"
    )]
    Exposed(SocketAddr),
    /// The system does not bind the address.
    #[error(transparent)]
    Bind(#[from] ::connection::ListenError<PORT_DEFAULT>),
}

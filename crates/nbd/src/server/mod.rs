//! The server of exports for any number of clients. The protocol is in `protocol`; this module
//! handles sockets, memory and time.
//!
//! ```text
//! listen ──► negotiate ──► connection: request ──► execute: export ──► ready: answered in the same write
//!                              ▲                              └──────► pending: in flight, answered when it is ready
//!                              └── a part of the budget: the bytes of payloads of all connections
//! ```

mod config;
mod connection;
mod execute;
mod input;
mod negotiate;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::connection::{
    Accepted, Budget, Connections, ListeningSocket, LogLimit, PayloadPool, Peer, Place, Refusal, Service,
    SettingError, serve_all,
};
use blocker::{Error, Timestamp};
use cached_metrics::{Collect, Counter, Families, Number, counters};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::export::Exports;
use crate::protocol::{NoExport, Request, Violation};

pub use ::connection::AddressError;
pub use config::{Address, ListenError, PORT_DEFAULT, ServerConfig};

/// Serves exports.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use nbd::{MemoryExport, NamedExports, Server, ServerConfig};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let exports = NamedExports::one("disk", Arc::new(MemoryExport::new(1 << 30)));
/// let server = Server::new(Arc::new(exports), ServerConfig::default())?;
/// let address = server.listen(&"127.0.0.1:0".parse()?).await?;
/// println!("nbd://{address}/disk");
/// // Until the process is to end:
/// assert!(server.shutdown(Duration::from_secs(10)).await, "every request was answered");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// Accepting runs on the tokio runtime in which [`Self::listen`] is called; connections run there, or on
/// those of [`ServerConfig::workers`]. Dropping the server stops listening and aborts its connections;
/// [`Self::shutdown`] ends them in order.
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    exports: Arc<dyn Exports>,
    config: ServerConfig,
    budget: Arc<Budget>,
    pool: Arc<PayloadPool>,
    counters: Counts<Counter>,
    log_limit: LogLimit,
    connections: Arc<Connections>,
    /// When the server was created.
    begun_at: Instant,
    /// Whether the server is shutting down.
    ending: watch::Sender<bool>,
}

impl Server {
    /// Creates a server for `exports` that does not listen yet.
    ///
    /// # Errors
    /// The invalid setting, and its valid values.
    pub fn new(exports: Arc<dyn Exports>, config: ServerConfig) -> Result<Self, SettingError> {
        config.check()?;
        let shared = Shared {
            budget: config.budget()?,
            pool: PayloadPool::new(config.payload_pool_bytes_max),
            counters: Counts::default(),
            log_limit: LogLimit::default(),
            connections: Arc::default(),
            begun_at: Instant::now(),
            ending: watch::Sender::new(false),
            exports,
            config,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Listens on `address`, and returns the bound address: for TCP port 0, it has the port that
    /// the system has chosen. A unix socket file without a listener is replaced.
    ///
    /// # Errors
    /// [`ListenError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn listen(&self, address: &Address) -> Result<Address, ListenError> {
        let socket = ListeningSocket::bind(address).await?;
        self.accept_from(&socket)
    }

    /// Serves clients of an open socket. Not an async function, whose callers would each compile the
    /// whole server at the level of their crate.
    fn accept_from(&self, socket: &ListeningSocket<PORT_DEFAULT>) -> Result<Address, ListenError> {
        serve_all(&self.shared, socket, socket.address().path().map(Into::into))?;
        tracing::info!(address = %socket.address(), "listening for NBD");
        Ok(socket.address().clone())
    }

    /// Returns the value of the server's own metric `name`, or 0. [`Collect`] collects all metrics.
    #[must_use]
    pub fn metric(&self, name: &str) -> u64 {
        self.families().number(name).map_or(0, Number::to_u64)
    }

    /// Stops listening, answers the requests in progress, and closes every connection; clients that
    /// reconnect send unanswered requests again. Waits at most `timeout` for that, then aborts the
    /// rest. Returns whether every connection ended properly.
    pub async fn shutdown(&self, timeout: Duration) -> bool {
        self.shared.connections.stop_listening().await;
        self.shared.ending.send_replace(true);
        let in_order = tokio::time::timeout(timeout, self.shared.connections.wait_for_end()).await.is_ok();
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
        self.shared.counters.collect(into);
        let connections = self.shared.connections.count().into();
        into.gauge("nbd_connections_open", "Connections that are open.", connections);
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.connections.abort_all();
    }
}

impl Shared {
    /// Returns whether a log line of this reason may be written now, see [`LogLimit::admit`].
    fn admit_log(&self, reason: &'static str) -> Option<u64> {
        self.log_limit.admit(reason, self.at(Instant::now()))
    }

    /// Returns a point in time by the server's own clock.
    fn at(&self, time: Instant) -> Timestamp {
        Timestamp::default() + time.saturating_duration_since(self.begun_at)
    }

    /// Logs a request that the export has failed for a reason that an operator can fix.
    #[cold]
    fn log_failure(&self, peer: Peer, request: &Request, error: &Error) {
        // A client may ask for zeros only if that is fast, so this is not a failure.
        if !matches!(error, Error::Unsupported(_))
            && let Some(suppressed) = self.admit_log(error.kind())
        {
            let Request { command, offset, len_bytes, .. } = *request;
            tracing::warn!(
                %peer, command, offset, len_bytes, cause = %error, suppressed,
                "NBD request failed",
            );
        }
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        let mut counts = Counts::default();
        count(&mut counts);
        self.counters.zip(&mut counts, Counter::take);
    }
}

counters! {
    /// The counters. Each connection counts for itself and adds its counts from time to time, so
    /// that requests on different threads do not write the same cache line.
    #[derive(Default)]
    pub(super) struct Counts<C = u64> {
        /// Connections accepted.
        connections => "nbd_connections_total",
        /// Connections refused because too many were open.
        refused => "nbd_connections_refused_total",
        /// Connections closed because their client broke the protocol.
        broken => "nbd_connections_broken_total",
        /// Connections closed because their client made no progress.
        stalled => "nbd_connections_stalled_total",
        /// Requests that arrived.
        requests => "nbd_requests_total",
        /// Requests answered by an error.
        failures => "nbd_requests_failed_total",
        /// Requests whose answer was not ready at once.
        waits => "nbd_requests_waited_total",
        /// Flushes that arrived.
        flushes => "nbd_flushes_total",
        /// Bytes returned to clients by reads.
        read_bytes => "nbd_read_bytes_total",
        /// Bytes that arrived in writes.
        written_bytes => "nbd_written_bytes_total",
    }
}

impl Service for Shared {
    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn take_place(&self, peer: &Peer) -> Result<Place, Refusal> {
        let place = self.connections.take(peer, self.config.limits());
        match &place {
            Ok(_) => self.count(|counts| counts.connections += 1),
            Err(refusal) => {
                self.count(|counts| counts.refused += 1);
                if let Some(suppressed) = self.admit_log(refusal.limit()) {
                    tracing::warn!(%peer, cause = %refusal, suppressed, "NBD connection refused");
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
            tracing::warn!(cause = %error, suppressed, "cannot accept an NBD connection");
        }
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }

    async fn serve(self: Arc<Self>, peer: Peer, accepted: Accepted) {
        let end = match accepted.into_stream() {
            Ok(stream) => connection::run(&self, stream, peer).await,
            Err(error) => End::Failed(error),
        };
        let reason = match end {
            End::Broken(_) => "broken",
            End::NoExport(..) => "no export",
            End::Tls(_) => "tls",
            End::Slow | End::Stalled => "stalled",
            End::Slowest => "slowest",
            End::Failed(_) | End::Closed | End::Ended | End::ShuttingDown => {
                return tracing::debug!(%peer, cause = %end, "NBD connection ended");
            }
        };
        let is_slow = matches!(end, End::Slow | End::Stalled | End::Slowest);
        self.count(|counts| {
            counts.broken += u64::from(matches!(end, End::Broken(_)));
            counts.stalled += u64::from(is_slow);
        });
        match self.admit_log(reason) {
            Some(suppressed) if is_slow => {
                tracing::info!(%peer, cause = %end, suppressed, "NBD connection closed");
            }
            Some(suppressed) => tracing::warn!(%peer, cause = %end, suppressed, "NBD connection closed"),
            None => {}
        }
    }
}

/// The reason why a connection ends.
#[derive(Debug, thiserror::Error)]
enum End {
    /// The connection has failed.
    #[error("{0}")]
    Failed(#[from] io::Error),
    /// The client has closed the connection without a request to do so.
    #[error("the client closed the connection")]
    Closed,
    /// The client has asked to end the connection.
    #[error("the client ended the connection")]
    Ended,
    #[error("the client broke the protocol: {0}")]
    Broken(#[from] Violation),
    /// The client asked for an export that it cannot have, with an option whose reply cannot carry
    /// an error.
    #[error("the client cannot have the export {0:?}: {1}")]
    NoExport(String, NoExport),
    #[error("TLS could not be established: {0}")]
    Tls(io::Error),
    #[error("the client did not finish its negotiation in time")]
    Slow,
    #[error("the client made no progress")]
    Stalled,
    #[error("others need the connection's memory, and its client is the slowest")]
    Slowest,
    #[error("the server is shutting down")]
    ShuttingDown,
}

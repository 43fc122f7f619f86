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
mod listen;
mod negotiate;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use ::connection::{Budget, Connections, LogLimit, PayloadPool, Peer, SettingError};
use blocker::{Error, Timestamp};
use cached_metrics::{Collect, Counter, Families, Number, counters};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::export::Exports;
use crate::protocol::Request;

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

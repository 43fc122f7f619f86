//! Listening, serving the accepted connections, and the reasons why they end.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::connection::{Accepted, Connections, ListeningSocket, Peer, Place, Refusal, Service, serve_all};
use tokio::runtime::Handle;

use super::config::{Address, ListenError};
use super::{Server, Shared, connection};
use crate::protocol::{NoExport, Violation};

impl Server {
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
        serve_all(&self.shared, &socket, address.path().map(Into::into))?;
        tracing::info!(address = %socket.address(), "listening for NBD");
        Ok(socket.address().clone())
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
pub(super) enum End {
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

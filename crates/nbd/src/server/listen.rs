//! Listening, serving the accepted connections, and the reasons why they end.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::connection::{Accepted, Connections, ListeningSocket, Peer, Place, Refusal, Service, serve_all};
use tokio::net::lookup_host;
use tokio::runtime::Handle;

use super::config::Address;
use super::{Server, Shared, connection};
use crate::protocol::{NoExport, Violation};

/// The reason why a server cannot listen: the system does not bind the address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {cause}")]
pub struct ListenError {
    /// The address.
    pub address: Address,
    /// The system's error.
    pub cause: io::Error,
}

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
        let failed = |cause: io::Error| ListenError { address: address.clone(), cause };
        let (socket, file) = match address {
            Address::Tcp(text) => {
                let addresses: Vec<_> = lookup_host(text.as_str()).await.map_err(failed)?.collect();
                (ListeningSocket::bind_tcp(&addresses).map_err(failed)?, None)
            }
            Address::Unix(path) => (ListeningSocket::bind_unix(path).map_err(failed)?, Some(path.clone())),
        };
        let bound = socket.address().map_err(failed)?;
        let bound = bound.map_or_else(|| address.clone(), |bound| Address::Tcp(bound.to_string()));
        let accepting = serve_all(Arc::clone(&self.shared), &socket, file).map_err(failed)?;
        self.listeners.lock().push(tokio::spawn(accepting));
        tracing::info!(address = %bound, "listening for NBD");
        Ok(bound)
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

    async fn serve(self: Arc<Self>, place: Place, peer: Peer, accepted: Accepted) {
        serve(&self, peer, accepted).await;
        drop(place);
    }
}

async fn serve(shared: &Arc<Shared>, peer: Peer, accepted: Accepted) {
    let end = match accepted.into_stream() {
        Ok(stream) => connection::run(shared, stream, peer).await,
        Err(error) => End::Closed(Err(error)),
    };
    match &end {
        End::Broken(violation) => {
            shared.count(|counts| counts.broken += 1);
            if let Some(suppressed) = shared.admit_log("broken") {
                tracing::warn!(
                    %peer, cause = %violation, suppressed,
                    "NBD connection closed: the client broke the protocol",
                );
            }
        }
        End::NoExport(name, error) => {
            if let Some(suppressed) = shared.admit_log("no export") {
                tracing::warn!(%peer, export = name, cause = %error, suppressed, "NBD connection closed");
            }
        }
        End::Tls(error) => {
            if let Some(suppressed) = shared.admit_log("tls") {
                tracing::warn!(%peer, cause = %error, suppressed, "NBD connection closed: no TLS");
            }
        }
        End::Slow | End::Stalled => {
            shared.count(|counts| counts.stalled += 1);
            if let Some(suppressed) = shared.admit_log("stalled") {
                tracing::info!(
                    %peer, ?end, suppressed,
                    "NBD connection closed: the client makes no progress",
                );
            }
        }
        End::Slowest => {
            shared.count(|counts| counts.stalled += 1);
            if let Some(suppressed) = shared.admit_log("slowest") {
                tracing::info!(
                    %peer, suppressed,
                    "NBD connection closed: others need its memory, and its client is the slowest",
                );
            }
        }
        End::Closed(Err(error)) => tracing::debug!(%peer, cause = %error, "NBD connection broken"),
        End::Closed(Ok(())) | End::Ended | End::ShuttingDown => {
            tracing::debug!(%peer, ?end, "NBD connection ended");
        }
    }
}

/// The reason why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// The client closed it, or it failed.
    Closed(io::Result<()>),
    /// The client ended it properly.
    Ended,
    /// The client broke the protocol.
    Broken(Violation),
    /// The client asked for an export that it cannot have, with an option whose reply cannot carry
    /// an error.
    NoExport(String, NoExport),
    /// TLS could not be established.
    Tls(io::Error),
    /// The client did not finish its negotiation in time.
    Slow,
    /// The client makes no progress.
    Stalled,
    /// Others need the memory that the connection holds, and its client is the slowest.
    Slowest,
    /// The server shuts down.
    ShuttingDown,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Closed(Err(error))
    }
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        Self::Broken(violation)
    }
}

//! Listening: which addresses may be served without a secret, and the limits on connections.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::connection::{Accepted, Connections, Duplex, Peer, Place, Refusal, Service, serve_all};
use blocker::Error;
use tokio::runtime::Handle;

use super::connection::{Connection, End};
use super::{Server, Shared};
use crate::address::{Address, ListeningSocket, PORT_DEFAULT};

impl Server {
    /// Serves one connection from another source than [`Self::listen`], until it ends. Runs on the
    /// runtime that polls it; dropping the future aborts the connection.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn serve_stream(&self, stream: Box<dyn Duplex>) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (shared, accepted) = (Arc::clone(&self.shared), Accepted::Other(stream));
        async move {
            if let Ok(_place) = shared.take_place(&Peer::Other) {
                shared.serve(Peer::Other, accepted).await;
            }
        }
    }

    /// Listens on `address`, and returns the bound address: for TCP port 0, with the port that the
    /// system has chosen. The path of a unix socket without a listener is taken over.
    ///
    /// # Errors
    /// [`ListenError::Exposed`] beyond loopback without a secret; [`ListenError::Bind`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn listen(&self, address: &Address) -> Result<Address, ListenError> {
        let failed = |cause| ::connection::ListenError { address: address.clone(), cause };
        let resolved = address.resolve().await.map_err(failed)?;
        // Checked before the socket exists.
        resolved.iter().try_for_each(|one| self.check_exposure(one))?;
        let socket = ListeningSocket::bind_resolved(address, &resolved)?;
        self.accept_from(&socket, address.path().map(Into::into))
    }

    /// Listens on an open socket, and returns its address. The caller owns the socket, which stays
    /// open when the server ends.
    ///
    /// # Errors
    /// [`ListenError::Exposed`] beyond loopback without a secret; [`ListenError::Bind`] if the
    /// system has no descriptor.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
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
        // Set before the check of the secrets, which another thread may be about to remove.
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
            // Held meanwhile, so that a change of the limit counts every admitted connection.
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

//! Listening: which addresses may be served without a secret, and the limits on connections.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::connection::{Accepted, Connections, Duplex, Peer, Place, Refusal, Service, serve_all};
use blocker::Error;
use tokio::net::lookup_host;
use tokio::runtime::Handle;

use super::connection::{Connection, End};
use super::{Server, Shared};
use crate::address::Address;

impl Server {
    /// Serves one connection from another source than [`Self::listen`], until it ends. Runs on the
    /// runtime that polls it; dropping the future aborts the connection.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn serve_stream(&self, stream: Box<dyn Duplex>) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (shared, accepted) = (Arc::clone(&self.shared), Accepted::Other(stream));
        async move {
            if let Ok(place) = shared.take_place(&Peer::Other) {
                shared.serve(place, Peer::Other, accepted).await;
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
        let failed = |cause: io::Error| ListenError::Bind { address: address.clone(), cause };
        let (socket, file) = match address {
            Address::Tcp(text) => {
                let addresses: Vec<_> = lookup_host(text.as_str()).await.map_err(failed)?.collect();
                // Checked before the socket exists.
                addresses.iter().try_for_each(|one| self.check_exposure(one))?;
                (::connection::ListeningSocket::bind_tcp(&addresses), None)
            }
            Address::Unix(path) => (::connection::ListeningSocket::bind_unix(path), Some(path.clone())),
        };
        let socket = socket.and_then(|socket| ListeningSocket::new(address, socket));
        self.accept_from(&socket.map_err(failed)?, file)
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
        let bound = socket.address().clone();
        let accepting = serve_all(Arc::clone(&self.shared), &socket.socket, file);
        let accepting = accepting.map_err(|cause| ListenError::Bind { address: bound.clone(), cause })?;
        self.listeners.lock().push(tokio::spawn(accepting));
        tracing::info!(address = %bound, "listening");
        Ok(bound)
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
        Err(ListenError::Exposed { address: *address })
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

    async fn serve(self: Arc<Self>, place: Place, peer: Peer, accepted: Accepted) {
        serve(&self, peer, accepted).await;
        drop(place);
    }
}

async fn serve(shared: &Arc<Shared>, peer: Peer, accepted: Accepted) {
    let end = match accepted.into_stream() {
        Ok(stream) => Connection::new(Arc::clone(shared), stream, peer).run().await,
        Err(error) => End::Closed(Err(error)),
    };
    match &end {
        End::Broken(why) => {
            shared.count(|counts| counts.broken += 1);
            if let Some(suppressed) = shared.admit_log("broken") {
                tracing::warn!(%peer, why, suppressed, "connection closed: the client broke the protocol");
            }
        }
        End::Refused(error) => {
            shared.count(|counts| counts.refused += 1);
            if let Some(suppressed) = shared.admit_log(refusal(error)) {
                tracing::warn!(%peer, cause = %error, suppressed, "connection refused");
            }
        }
        End::Silent => {
            shared.count(|counts| counts.silent += 1);
            if let Some(suppressed) = shared.admit_log("silent") {
                tracing::info!(%peer, suppressed, "connection closed: the client was silent");
            }
        }
        End::Slowest => {
            shared.count(|counts| counts.silent += 1);
            if let Some(suppressed) = shared.admit_log("slowest") {
                tracing::info!(
                    %peer, suppressed,
                    "connection closed: others need its memory, and its client is the slowest"
                );
            }
        }
        End::Closed(Err(error)) => tracing::debug!(%peer, cause = %error, "connection broken"),
        End::Closed(Ok(())) | End::Goodbye | End::Replaced | End::Ending => {
            tracing::debug!(%peer, ?end, "connection ended");
        }
    }
}

/// Returns the reason by which log lines of refusals are rate-limited.
fn refusal(error: &Error) -> &'static str {
    match error {
        Error::Denied(_) => "denied",
        Error::Unsupported(_) => "unsupported",
        Error::Invalid(_) => "invalid",
        _ => "refused",
    }
}

// ---- A listening socket, separate from the server that accepts from it. It can outlive that
// server and be handed to another process: clients that connect while no server accepts wait in its
// queue instead of being refused.

/// Why a server cannot listen on an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Other machines can reach the address, there is no secret, and
    /// [`ServerConfig::allow_exposed`](crate::ServerConfig::allow_exposed) is not set.
    #[error(
        "{address} can be reached from other machines, and no secret is configured: configure one, or set \
         allow_exposed"
    )]
    Exposed {
        /// The address.
        address: SocketAddr,
    },
    /// The system does not bind the address.
    #[error("cannot listen on {address}: {cause}")]
    Bind {
        /// The address.
        address: Address,
        /// The system's error.
        cause: io::Error,
    },
}

/// A socket that listens. [`Server::listen_on`](crate::Server::listen_on) accepts from it.
///
/// The caller removes the file of a unix socket.
#[derive(Debug)]
pub struct ListeningSocket {
    address: Address,
    pub(super) socket: connection::ListeningSocket,
}

impl ListeningSocket {
    /// Binds `address`, and listens. The path of a unix socket without a listener is taken over.
    ///
    /// # Errors
    /// [`ListenError::Bind`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn bind(address: &Address) -> Result<Self, ListenError> {
        let bound = match address {
            Address::Tcp(text) => match lookup_host(text.as_str()).await {
                Ok(addresses) => connection::ListeningSocket::bind_tcp(&addresses.collect::<Vec<_>>()),
                Err(cause) => Err(cause),
            },
            Address::Unix(path) => connection::ListeningSocket::bind_unix(path),
        };
        let bound = bound.and_then(|socket| Self::new(address, socket));
        bound.map_err(|cause| ListenError::Bind { address: address.clone(), cause })
    }

    /// Takes over a listening socket that another process has handed over.
    ///
    /// # Errors
    /// If it is not a listening socket of the kind of `address`.
    pub fn adopt(address: &Address, socket: OwnedFd) -> io::Result<Self> {
        let socket = match address {
            Address::Tcp(_) => connection::ListeningSocket::adopt_tcp(socket),
            Address::Unix(_) => connection::ListeningSocket::adopt_unix(socket),
        };
        Self::new(address, socket?)
    }

    /// Returns the bound address: for TCP port 0, with the port that the system has chosen.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn new(address: &Address, socket: connection::ListeningSocket) -> io::Result<Self> {
        let bound = socket.address()?;
        let address = bound.map_or_else(|| address.clone(), |bound| Address::Tcp(bound.to_string()));
        Ok(Self { address, socket })
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

//! A listening socket apart from the server that accepts from it. It can outlive that server and be handed to another
//! process: clients that connect while no server accepts wait in its queue, and are not refused.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tokio::net::lookup_host;

use crate::address::Address;

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
/// The file of a unix socket is the caller's to remove.
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

    /// Takes a socket that listens already: one that another process has handed over.
    ///
    /// # Errors
    /// If it is no listening socket of the kind that `address` is of.
    pub fn adopt(address: &Address, socket: OwnedFd) -> io::Result<Self> {
        let socket = match address {
            Address::Tcp(_) => connection::ListeningSocket::adopt_tcp(socket),
            Address::Unix(_) => connection::ListeningSocket::adopt_unix(socket),
        };
        Self::new(address, socket?)
    }

    /// Returns the address that it is bound to: for the TCP port 0, with the port that the system has chosen.
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

//! A listening socket apart from the server that accepts from it. It can outlive that server and be handed to another
//! process: clients that connect while no server accepts wait in its queue, and are not refused.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use tokio::net::{TcpListener, UnixListener, lookup_host};

use crate::stream::Address;

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
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
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
                Ok(addresses) => Self::bind_tcp(&addresses.collect::<Vec<_>>()).await,
                Err(cause) => Err(cause),
            },
            Address::Unix(path) => Self::bind_unix(path),
        };
        bound.map_err(|cause| ListenError::Bind { address: address.clone(), cause })
    }

    /// Takes a socket that listens already: one that another process has handed over.
    ///
    /// # Errors
    /// If it is no listening socket of the kind that `address` is of.
    pub fn adopt(address: &Address, socket: OwnedFd) -> io::Result<Self> {
        let socket = match address {
            Address::Tcp(_) => Socket::Tcp(socket.into()),
            Address::Unix(_) => Socket::Unix(socket.into()),
        };
        let address = match &socket {
            Socket::Tcp(tcp) => {
                tcp.set_nonblocking(true)?;
                Address::Tcp(tcp.local_addr()?.to_string())
            }
            Socket::Unix(unix) => {
                unix.set_nonblocking(true)?;
                unix.local_addr()?;
                address.clone()
            }
        };
        Ok(Self { address, socket })
    }

    /// Returns the address that it is bound to: for the TCP port 0, with the port that the system has chosen.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    pub(super) async fn bind_tcp(addresses: &[SocketAddr]) -> io::Result<Self> {
        let listener = TcpListener::bind(addresses).await?;
        let bound = listener.local_addr()?;
        Ok(Self { address: Address::Tcp(bound.to_string()), socket: Socket::Tcp(listener.into_std()?) })
    }

    /// Binds a unix socket. A socket file that a dead process has left is removed; one that accepts connections
    /// is in use.
    pub(super) fn bind_unix(path: &Path) -> io::Result<Self> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                match std::os::unix::net::UnixStream::connect(path) {
                    Err(answer) if answer.kind() == io::ErrorKind::ConnectionRefused => {
                        std::fs::remove_file(path)?;
                        UnixListener::bind(path)
                    }
                    _ => Err(error),
                }
            }
            done => done,
        }?;
        Ok(Self { address: Address::Unix(path.into()), socket: Socket::Unix(listener.into_std()?) })
    }

    /// Returns a listener of the runtime that is entered, on a descriptor of its own.
    pub(super) fn accepting(&self) -> io::Result<Accepting> {
        Ok(match &self.socket {
            Socket::Tcp(tcp) => Accepting::Tcp(TcpListener::from_std(tcp.try_clone()?)?),
            Socket::Unix(unix) => Accepting::Unix(UnixListener::from_std(unix.try_clone()?)?),
        })
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(tcp) => tcp.as_fd(),
            Socket::Unix(unix) => unix.as_fd(),
        }
    }
}

/// A socket from which a runtime accepts.
pub(super) enum Accepting {
    Tcp(TcpListener),
    Unix(UnixListener),
}

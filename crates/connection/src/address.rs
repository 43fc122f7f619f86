//! Addresses of listeners as text, and the sockets bound to them.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::lookup_host;

/// The length of the accept queue, which is Linux's own default for `net.core.somaxconn`. After a
/// restart of the server, all clients reconnect simultaneously.
const ACCEPT_QUEUE: i32 = 4096;

/// The address of a server whose protocol has the default port `PORT`: `HOST`, `HOST:PORT`,
/// `[V6]:PORT`, or `unix:PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address<const PORT: u16> {
    /// `HOST:PORT`. The host is resolved at each use.
    Tcp(String),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// The error for a string that is not an [`Address`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not an address; write HOST, HOST:PORT, [V6]:PORT or unix:PATH")]
pub struct AddressError {
    text: String,
}

impl<const PORT: u16> Address<PORT> {
    /// Returns the path of a unix socket; `None` for TCP.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(path) => Some(path),
        }
    }

    /// Returns the host's addresses; no addresses for a unix socket.
    ///
    /// # Errors
    /// Returns the resolver's error.
    pub async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::Tcp(address) => Ok(lookup_host(address.as_str()).await?.collect()),
            Self::Unix(_) => Ok(Vec::new()),
        }
    }
}

impl<const PORT: u16> FromStr for Address<PORT> {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError { text: text.into() };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Self::Unix(path.into())) };
        }
        let (host, port) = match text.rsplit_once(':') {
            // An IPv6 address without a port contains colons too.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        if host.is_empty() {
            return Err(wrong());
        }
        let port: u16 = port.map_or(Ok(PORT), |port| port.parse().map_err(|_| wrong()))?;
        let is_bare = host.contains(':') && !host.starts_with('[');
        Ok(Self::Tcp(if is_bare { format!("[{host}]:{port}") } else { format!("{host}:{port}") }))
    }
}

impl<const PORT: u16> fmt::Display for Address<PORT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The error of a server that cannot listen on an address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {cause}")]
pub struct ListenError<const PORT: u16> {
    /// The address.
    pub address: Address<PORT>,
    /// The system's error.
    pub cause: io::Error,
}

/// A listening socket. It can outlive the server that accepts from it, and can be handed to another
/// process. Clients that connect while no server accepts wait in the socket's queue, and are not
/// refused.
///
/// The caller removes the file of a unix socket.
#[derive(Debug)]
pub struct ListeningSocket<const PORT: u16> {
    address: Address<PORT>,
    pub(crate) bound: Bound,
}

#[derive(Debug)]
pub(crate) enum Bound {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

impl<const PORT: u16> ListeningSocket<PORT> {
    /// Binds `address`, and listens. The path of a unix socket without a listener is taken over.
    ///
    /// # Errors
    /// Returns [`ListenError`].
    ///
    /// # Panics
    /// Panics if it is called outside of a tokio runtime.
    pub async fn bind(address: &Address<PORT>) -> Result<Self, ListenError<PORT>> {
        match address.resolve().await {
            Ok(resolved) => Self::bind_resolved(address, &resolved),
            Err(cause) => Err(ListenError { address: address.clone(), cause }),
        }
    }

    /// Binds as [`Self::bind`] does, but without resolving the host: to the first of its addresses,
    /// `resolved`, that the system allows.
    ///
    /// # Errors
    /// Returns [`ListenError`].
    pub fn bind_resolved(
        address: &Address<PORT>,
        resolved: &[SocketAddr],
    ) -> Result<Self, ListenError<PORT>> {
        let bound = match address {
            Address::Tcp(_) => bind_tcp(resolved),
            Address::Unix(path) => bind_unix(path),
        };
        let bound = bound.and_then(|bound| Self::new(address, bound));
        bound.map_err(|cause| ListenError { address: address.clone(), cause })
    }

    /// Uses a listening socket that another process has handed over.
    ///
    /// # Errors
    /// Fails if `socket` is not a listening socket of the kind of `address`.
    pub fn adopt(address: &Address<PORT>, socket: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(socket);
        socket.set_nonblocking(true)?;
        match address {
            Address::Tcp(_) => Self::new(address, Bound::Tcp(socket.into())),
            Address::Unix(_) => Self::new(address, Bound::Unix(socket.into())),
        }
    }

    fn new(address: &Address<PORT>, bound: Bound) -> io::Result<Self> {
        let address = match &bound {
            Bound::Tcp(tcp) => Address::Tcp(tcp.local_addr()?.to_string()),
            Bound::Unix(unix) => unix.local_addr().map(|_| address.clone())?,
        };
        Ok(Self { address, bound })
    }

    /// Returns the bound address: for TCP port 0, with the port that the system has chosen.
    #[must_use]
    pub fn address(&self) -> &Address<PORT> {
        &self.address
    }
}

impl<const PORT: u16> AsFd for ListeningSocket<PORT> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.bound {
            Bound::Tcp(tcp) => tcp.as_fd(),
            Bound::Unix(unix) => unix.as_fd(),
        }
    }
}

/// Binds the first of `addresses` that the system allows. If it allows none of them, returns the
/// error for the last one.
fn bind_tcp(addresses: &[SocketAddr]) -> io::Result<Bound> {
    let mut failure = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
    for address in addresses {
        match listening(Domain::for_address(*address), &(*address).into()) {
            Ok(socket) => return Ok(Bound::Tcp(socket.into())),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Binds a unix socket. The socket file of a dead process is removed; a file that accepts
/// connections is in use.
fn bind_unix(path: &Path) -> io::Result<Bound> {
    let address = SockAddr::unix(path)?;
    let socket = match listening(Domain::UNIX, &address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            match std::os::unix::net::UnixStream::connect(path) {
                Err(answer) if answer.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                    listening(Domain::UNIX, &address)
                }
                _ => Err(error),
            }
        }
        done => done,
    }?;
    Ok(Bound::Unix(socket.into()))
}

fn listening(domain: Domain, address: &SockAddr) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::STREAM, None)?;
    if domain != Domain::UNIX {
        // A restarted server can bind the address although old connections are still in
        // `TIME_WAIT`.
        socket.set_reuse_address(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(address)?;
    socket.listen(ACCEPT_QUEUE)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_with_ports_or_paths() {
        let parse = |text: &str| text.parse::<Address<11311>>();
        let tcp = |text: &str| Ok(Address::Tcp(text.into()));
        assert_eq!(parse("node1:7000"), tcp("node1:7000"));
        assert_eq!(parse("node1"), tcp("node1:11311"));
        assert_eq!(parse("[::1]:7"), tcp("[::1]:7"));
        assert_eq!(parse("::1"), tcp("[::1]:11311"));
        assert_eq!(parse("[::1]"), tcp("[::1]:11311"));
        assert_eq!(parse("unix:/run/x"), Ok(Address::Unix("/run/x".into())));
        for wrong in ["", ":7", "unix:", "a:b", "a:70000"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    /// After a server's restart, all clients connect simultaneously. None may be refused, or have
    /// to wait for a second attempt.
    #[test]
    fn clients_that_come_at_once_wait_to_be_accepted() {
        let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
        let count = allowed.trim().parse().unwrap_or(128_usize).min(600);
        let folder = std::env::temp_dir().join(format!("connection-{}", std::process::id()));
        let _socket = bind_unix(&folder).unwrap();
        // A nonblocking connect fails if the queue is full.
        let clients: Result<Vec<_>, _> = (0..count)
            .map(|_| {
                let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
                socket.set_nonblocking(true)?;
                socket.connect(&SockAddr::unix(&folder)?).map(|()| socket)
            })
            .collect();
        std::fs::remove_file(&folder).unwrap();
        assert_eq!(clients.unwrap().len(), count);
    }
}

//! Listening sockets, and the loop that accepts from them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;

use crate::places::{Connections, Peer, Place, Refusal};
use crate::stream::{Duplex, Stream};

/// The length of the accept queue: Linux's own default for `net.core.somaxconn`. After a restart of
/// the server, all clients reconnect at once.
const ACCEPT_QUEUE: i32 = 4096;
/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket. It can outlive the server that accepts from it, and can be handed to another
/// process. Clients that connect while no server accepts wait in its queue and are not refused.
#[derive(Debug)]
pub enum ListeningSocket {
    /// A TCP socket.
    Tcp(std::net::TcpListener),
    /// A unix socket. Removing its file is up to the caller.
    Unix(std::os::unix::net::UnixListener),
}

impl ListeningSocket {
    /// Binds the first of `addresses` that the system allows, and listens.
    ///
    /// # Errors
    /// The system's error for the last address.
    pub fn bind_tcp(addresses: &[SocketAddr]) -> io::Result<Self> {
        let mut failure = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
        for address in addresses {
            match listening(Domain::for_address(*address), &(*address).into()) {
                Ok(socket) => return Ok(Self::Tcp(socket.into())),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Binds a unix socket, and listens. The socket file of a dead process is removed; one that
    /// accepts connections is in use.
    ///
    /// # Errors
    /// The system's error.
    pub fn bind_unix(path: &Path) -> io::Result<Self> {
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
        Ok(Self::Unix(socket.into()))
    }

    /// Uses a listening TCP socket that another process has handed over.
    ///
    /// # Errors
    /// If `socket` is not a TCP socket that listens.
    pub fn adopt_tcp(socket: OwnedFd) -> io::Result<Self> {
        let socket = std::net::TcpListener::from(socket);
        socket.set_nonblocking(true)?;
        socket.local_addr()?;
        Ok(Self::Tcp(socket))
    }

    /// Uses a listening unix socket that another process has handed over.
    ///
    /// # Errors
    /// If `socket` is not a unix socket that listens.
    pub fn adopt_unix(socket: OwnedFd) -> io::Result<Self> {
        let socket = std::os::unix::net::UnixListener::from(socket);
        socket.set_nonblocking(true)?;
        socket.local_addr()?;
        Ok(Self::Unix(socket))
    }

    /// Returns the address to which the socket is bound; `None` for a unix socket.
    ///
    /// # Errors
    /// The system's error.
    pub fn address(&self) -> io::Result<Option<SocketAddr>> {
        match self {
            Self::Tcp(tcp) => tcp.local_addr().map(Some),
            Self::Unix(_) => Ok(None),
        }
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(tcp) => tcp.as_fd(),
            Self::Unix(unix) => unix.as_fd(),
        }
    }
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

/// A server's handling of the connections that are accepted for it.
pub trait Service: Send + Sync + 'static {
    /// Returns the server's connections.
    fn connections(&self) -> &Connections;

    /// Takes a place for a connection.
    ///
    /// # Errors
    /// The limit that is reached. The service has counted and logged the refusal. The connection is
    /// closed at once, and the client tries again later.
    fn take_place(&self, peer: &Peer) -> Result<Place, Refusal>;

    /// Returns the runtimes to which connections are assigned in turn. Empty: the accepting
    /// runtime.
    fn workers(&self) -> &[Handle];

    /// Logs a failed accept.
    fn log_accept_error(&self, error: &io::Error);

    /// Waits for `time`.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// Serves a connection until its end, on the runtime to which it was assigned.
    fn serve(
        self: Arc<Self>,
        place: Place,
        peer: Peer,
        accepted: Accepted,
    ) -> impl Future<Output = ()> + Send;
}

/// An accepted connection, not yet registered with the runtime that will serve it.
pub enum Accepted {
    /// Over TCP.
    Tcp(std::net::TcpStream),
    /// Over a unix socket.
    Unix(std::os::unix::net::UnixStream),
    /// Over something else.
    Other(Box<dyn Duplex>),
}

impl Accepted {
    /// Returns its stream, registered with the current runtime.
    ///
    /// # Errors
    /// The system's error.
    pub fn into_stream(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(stream) => TcpStream::from_std(stream).and_then(Stream::tcp),
            Self::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
            Self::Other(stream) => Ok(Stream::Other(stream)),
        }
    }
}

impl std::fmt::Debug for Accepted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(stream) => stream.fmt(f),
            Self::Unix(stream) => stream.fmt(f),
            Self::Other(_) => f.write_str("Other"),
        }
    }
}

/// A socket registered with the accepting runtime, and the file to remove when accepting ends.
struct Listener {
    socket: AsyncSocket,
    file: Option<PathBuf>,
}

enum AsyncSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.file {
            // The file may be gone already, and nothing depends on it.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Listener {
    async fn accept(&self) -> io::Result<(Peer, Accepted)> {
        match &self.socket {
            AsyncSocket::Tcp(tcp) => {
                let (stream, address) = tcp.accept().await?;
                Ok((Peer::Tcp(address), Accepted::Tcp(stream.into_std()?)))
            }
            AsyncSocket::Unix(unix) => {
                let (stream, _) = unix.accept().await?;
                let credentials = stream.peer_cred().ok();
                let (pid, uid) = (credentials.and_then(|of| of.pid()), credentials.map(|of| of.uid()));
                Ok((Peer::Unix { pid, uid }, Accepted::Unix(stream.into_std()?)))
            }
        }
    }
}

/// Returns a future that accepts from `socket` until it is dropped, and has `service` serve the
/// connections. When it is dropped, it removes `file`. The caller keeps the socket open.
///
/// # Errors
/// If the system has no free file descriptor.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn serve_all<S: Service>(
    service: Arc<S>,
    socket: &ListeningSocket,
    file: Option<PathBuf>,
) -> io::Result<impl Future<Output = ()> + Send + 'static + use<S>> {
    let socket = match socket {
        ListeningSocket::Tcp(tcp) => AsyncSocket::Tcp(TcpListener::from_std(tcp.try_clone()?)?),
        ListeningSocket::Unix(unix) => AsyncSocket::Unix(UnixListener::from_std(unix.try_clone()?)?),
    };
    Ok(accept(service, Listener { socket, file }))
}

async fn accept<S: Service>(service: Arc<S>, listener: Listener) {
    let mut next_worker = 0_usize;
    loop {
        let (peer, accepted) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Either no file descriptor is free, or the client has already closed the
                // connection. Without a pause, the first case would spin.
                service.log_accept_error(&error);
                service.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = service.take_place(&peer) else { continue };
        let serving = {
            let service = Arc::clone(&service);
            async move { service.serve(place, peer, accepted).await }
        };
        let workers = service.workers();
        let task = match workers.get(next_worker % workers.len().max(1)) {
            Some(worker) => worker.spawn(serving),
            None => tokio::spawn(serving),
        };
        next_worker = next_worker.wrapping_add(1);
        service.connections().add_task(task.abort_handle());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a server's restart, all clients connect at once. None may be refused or have to wait
    /// for a second attempt.
    #[test]
    fn clients_that_come_at_once_wait_to_be_accepted() {
        let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
        let count = allowed.trim().parse().unwrap_or(128_usize).min(600);
        let folder = std::env::temp_dir().join(format!("connection-{}", std::process::id()));
        let _socket = ListeningSocket::bind_unix(&folder).unwrap();
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

//! Listening: sockets, and how many connections there may be.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, lookup_host};

use super::connection;
use super::end::End;
use super::peer::Peer;
use super::stream::Stream;
use super::{Server, Shared};
use crate::address::Address;

/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// After this time without a byte the system asks whether the other host is still there, and then at this
/// interval.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Why a server cannot listen: the system does not bind the address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {cause}")]
pub struct ListenError {
    /// The address.
    pub address: Address,
    /// The system's error.
    pub cause: io::Error,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A connection on its way to the runtime that serves it.
enum Accepted {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Server {
    /// Listens on `address`, and returns the address that it is bound to: for the TCP port 0, with the port
    /// that the system has chosen. The path of a unix socket without a listener is taken over.
    ///
    /// # Errors
    /// [`ListenError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn listen(&self, address: &Address) -> Result<Address, ListenError> {
        let failed = |cause: io::Error| ListenError { address: address.clone(), cause };
        let (listener, bound) = match address {
            Address::Tcp(text) => {
                let addresses: Vec<_> = lookup_host(text.as_str()).await.map_err(failed)?.collect();
                let listener = TcpListener::bind(&*addresses).await.map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                (Listener::Tcp(listener), Address::Tcp(bound.to_string()))
            }
            Address::Unix(path) => {
                let listener = bind_unix(path).map_err(failed)?;
                (Listener::Unix(listener, path.clone()), address.clone())
            }
        };
        let accepting = tokio::spawn(accept(Arc::clone(&self.shared), listener));
        self.listeners.lock().push(accepting);
        tracing::info!(address = %bound, "listening for NBD");
        Ok(bound)
    }
}

/// Binds a unix socket. A socket file that a dead process has left is removed; one that accepts connections
/// is in use.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
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
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // It may be gone already; nothing depends on it.
            let _ = std::fs::remove_file(path);
        }
    }
}

async fn accept(shared: Arc<Shared>, listener: Listener) {
    let mut next_worker = 0_usize;
    loop {
        let (peer, accepted) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or a client that has closed at once. Without a pause the former would
                // spin.
                if let Some(suppressed) = shared.admit_log("accept") {
                    tracing::warn!(cause = %error, suppressed, "cannot accept an NBD connection");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Without a place the connection is closed at once, and the client tries again later.
        let Some(place) = Place::take(&shared, peer) else { continue };
        let serving = async move { serve(&place, peer, accepted).await };
        let workers = &shared.config.workers;
        let task = match workers.get(next_worker % workers.len().max(1)) {
            Some(worker) => worker.spawn(serving),
            None => tokio::spawn(serving),
        };
        next_worker = next_worker.wrapping_add(1);
        let mut tasks = shared.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task.abort_handle());
    }
}

impl Listener {
    async fn accept(&self) -> io::Result<(Peer, Accepted)> {
        match self {
            Self::Tcp(tcp) => {
                let (stream, address) = tcp.accept().await?;
                Ok((Peer::Tcp(address), Accepted::Tcp(stream.into_std()?)))
            }
            Self::Unix(unix, _) => {
                let (stream, _) = unix.accept().await?;
                let credentials = stream.peer_cred().ok();
                let (pid, uid) = (credentials.and_then(|of| of.pid()), credentials.map(|of| of.uid()));
                Ok((Peer::Unix { pid, uid }, Accepted::Unix(stream.into_std()?)))
            }
        }
    }
}

/// A connection's place among `connections_max`. Free again when it is dropped.
struct Place(Arc<Shared>);

impl Place {
    /// Takes a place, unless all are taken.
    fn take(shared: &Arc<Shared>, peer: Peer) -> Option<Self> {
        let connections_max = shared.config.connections_max;
        let before = shared.connection_count.fetch_add(1, Ordering::AcqRel);
        let place = Self(Arc::clone(shared));
        if before >= connections_max as usize {
            shared.count(|counts| counts.refused += 1);
            if let Some(suppressed) = shared.admit_log("connections_max") {
                tracing::warn!(
                    %peer, connections_max, suppressed,
                    "NBD connection refused: too many are open",
                );
            }
            return None;
        }
        shared.count(|counts| counts.connections += 1);
        Some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connection_count.fetch_sub(1, Ordering::AcqRel);
        self.0.connection_ended.notify_waiters();
    }
}

impl Accepted {
    fn into_stream(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(stream) => {
                let stream = TcpStream::from_std(stream)?;
                // Replies are put together before the write; the kernel must not wait for more.
                stream.set_nodelay(true)?;
                // A client may be silent for as long as it likes, a host that is gone may not.
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
        }
    }
}

async fn serve(place: &Place, peer: Peer, accepted: Accepted) {
    let shared = &place.0;
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
        End::Closed(Err(error)) => tracing::debug!(%peer, cause = %error, "NBD connection broken"),
        End::Closed(Ok(())) | End::Ended | End::ShuttingDown => {
            tracing::debug!(%peer, ?end, "NBD connection ended");
        }
    }
}

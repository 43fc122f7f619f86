//! Listening: which addresses may be served without a secret, and how many connections there may be.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use blocker::Error;
use tokio::net::{TcpStream, UnixStream, lookup_host};

use super::connection::{Connection, End};
use super::peer::Peer;
use super::socket::{Accepting, ListenError, ListeningSocket};
use super::{Server, Shared};
use crate::stream::{Address, Duplex, Stream};

/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket that is accepted from, and the file that is removed at the end of that.
struct Listener {
    socket: Accepting,
    file: Option<PathBuf>,
}

/// A connection on its way to the runtime that serves it.
enum Accepted {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
    Other(Box<dyn Duplex>),
}

impl Server {
    /// Serves one connection that does not come from [`Self::listen`], to its end. Runs on the runtime that
    /// polls it; dropping the future aborts the connection.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn serve_stream(&self, stream: Box<dyn Duplex>) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (shared, accepted) = (Arc::clone(&self.shared), Accepted::Other(stream));
        async move {
            if let Some(place) = Place::take(&shared, &Peer::Other) {
                serve(&place, Peer::Other, accepted).await;
            }
        }
    }

    /// Listens on `address`, and returns the address that it is bound to: for the TCP port 0, with the port
    /// that the system has chosen. The path of a unix socket without a listener is taken over.
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
                // Before the socket is there.
                addresses.iter().try_for_each(|one| self.check_exposure(one))?;
                (ListeningSocket::bind_tcp(&addresses).await, None)
            }
            Address::Unix(path) => (ListeningSocket::bind_unix(path), Some(path.clone())),
        };
        self.accept_from(&socket.map_err(failed)?, file)
    }

    /// Listens on a socket that is open already, and returns its address. The socket is the caller's, and stays open
    /// when the server ends.
    ///
    /// # Errors
    /// [`ListenError::Exposed`] beyond loopback without a secret; [`ListenError::Bind`] if the system has no
    /// descriptor.
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
        let accepting = socket.accepting();
        let accepting = accepting.map_err(|cause| ListenError::Bind { address: bound.clone(), cause })?;
        let listener = Listener { socket: accepting, file };
        let task = tokio::spawn(accept(Arc::clone(&self.shared), listener));
        self.listeners.lock().push(task);
        tracing::info!(address = %bound, "listening");
        Ok(bound)
    }

    fn check_exposure(&self, address: &SocketAddr) -> Result<(), ListenError> {
        let config = &self.shared.config;
        if address.ip().is_loopback() {
            return Ok(());
        }
        // Before the look at the secrets, which another thread may be about to take away.
        self.shared.is_exposed.store(true, Ordering::SeqCst);
        if self.shared.secrets.are_required() || config.allow_exposed {
            return Ok(());
        }
        Err(ListenError::Exposed { address: *address })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.file {
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
                    tracing::warn!(cause = %error, suppressed, "cannot accept a connection");
                }
                shared.config.clock.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Without a place the connection is closed at once, and the client tries again later.
        let Some(place) = Place::take(&shared, &peer) else { continue };
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
        match &self.socket {
            Accepting::Tcp(tcp) => {
                let (stream, address) = tcp.accept().await?;
                Ok((Peer::Tcp(address), Accepted::Tcp(stream.into_std()?)))
            }
            Accepting::Unix(unix) => {
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
    fn take(shared: &Arc<Shared>, peer: &Peer) -> Option<Self> {
        let is_full = {
            // Held meanwhile: a change of the limit counts every connection that has a place.
            let limits = shared.limits.read();
            let before = shared.connection_count.fetch_add(1, Ordering::AcqRel);
            (before >= limits.connections_max as usize).then_some(limits.connections_max)
        };
        if let Some(connections_max) = is_full {
            shared.connection_count.fetch_sub(1, Ordering::AcqRel);
            shared.count(|counts| counts.refused += 1);
            if let Some(suppressed) = shared.admit_log("connections_max") {
                tracing::warn!(%peer, connections_max, suppressed, "connection refused: too many are open");
            }
            return None;
        }
        shared.count(|counts| counts.connections += 1);
        Some(Self(Arc::clone(shared)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connection_count.fetch_sub(1, Ordering::AcqRel);
        self.0.connection_ended.notify_waiters();
    }
}

async fn serve(place: &Place, peer: Peer, accepted: Accepted) {
    let shared = &place.0;
    let stream = match accepted {
        Accepted::Tcp(stream) => TcpStream::from_std(stream).and_then(Stream::tcp),
        Accepted::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
        Accepted::Other(stream) => Ok(Stream::Other(stream)),
    };
    let end = match stream {
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
        End::Closed(Err(error)) => tracing::debug!(%peer, cause = %error, "connection broken"),
        End::Closed(Ok(())) | End::Goodbye | End::Replaced | End::Ending => {
            tracing::debug!(%peer, ?end, "connection ended");
        }
    }
}

/// Returns the reason by which log lines of a refusal are limited.
fn refusal(error: &Error) -> &'static str {
    match error {
        Error::Denied(_) => "denied",
        Error::Unsupported(_) => "unsupported",
        Error::Invalid(_) => "invalid",
        _ => "refused",
    }
}

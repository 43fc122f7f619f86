//! Listening: who may connect from where, and how many.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, lookup_host};

use super::connection::{Connection, End};
use super::{Server, Shared};
use crate::stream::{Address, Duplex, Stream};

/// How long to wait when the system has no descriptor for another connection.
const PAUSE: Duration = Duration::from_millis(100);

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A connection on its way to the runtime that serves it.
enum Accepted {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
    Other(Box<dyn Duplex>),
}

impl Server {
    /// Serves one connection that was made in another way than by [`Self::listen`], to its end. Runs on
    /// whichever runtime polls it; dropping it breaks the connection off.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn serve_stream(&self, stream: Box<dyn Duplex>) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (shared, accepted) = (Arc::clone(&self.shared), Accepted::Other(stream));
        async move {
            if let Some(open) = Open::new(&shared) {
                serve(&open, accepted).await;
            }
        }
    }

    /// Listens to `address`, and says which one it has become: of a TCP port 0, the port chosen. The path
    /// of a unix socket that nobody listens to any more is taken over.
    ///
    /// # Errors
    /// One line that says what to mend. Beyond loopback it listens only with a secret, or with
    /// `allow_exposed`.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn listen(&self, address: &Address) -> Result<Address, String> {
        let failed = |error: io::Error| format!("cannot listen to {address}: {error}");
        let (listener, bound) = match address {
            Address::Tcp(text) => {
                let addresses: Vec<_> = lookup_host(text.as_str()).await.map_err(failed)?.collect();
                addresses.iter().try_for_each(|one| self.check_exposure(one))?;
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
        self.listeners.lock().push(accepting.abort_handle());
        tracing::info!(address = %bound, "listening");
        Ok(bound)
    }

    fn check_exposure(&self, address: &SocketAddr) -> Result<(), String> {
        let config = &self.shared.config;
        if address.ip().is_loopback() || config.secret.is_some() || config.allow_exposed {
            return Ok(());
        }
        Err(format!(
            "{address} can be reached from other machines, and no secret is configured: configure one, or \
             allow it explicitly"
        ))
    }
}

/// A socket file is left behind by a process that died; one that answers is in use.
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
            // Gone already, or not ours to remove: nothing depends on it.
            let _ = std::fs::remove_file(path);
        }
    }
}

async fn accept(shared: Arc<Shared>, listener: Listener) {
    let mut turn = 0;
    loop {
        let accepted = match &listener {
            Listener::Tcp(tcp) => {
                tcp.accept().await.and_then(|(stream, _)| stream.into_std()).map(Accepted::Tcp)
            }
            Listener::Unix(unix, _) => {
                unix.accept().await.and_then(|(stream, _)| stream.into_std()).map(Accepted::Unix)
            }
        };
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or a client that went at once; the former would spin.
                tracing::warn!(cause = %error, "cannot accept");
                shared.config.clock.sleep(PAUSE).await;
                continue;
            }
        };
        // Closed at once if there are too many: the client tries again later.
        let Some(open) = Open::new(&shared) else { continue };
        let serving = async move { serve(&open, accepted).await };
        let workers = &shared.config.workers;
        let task = match workers.get(turn % workers.len().max(1)) {
            Some(worker) => worker.spawn(serving),
            None => tokio::spawn(serving),
        };
        turn = turn.wrapping_add(1);
        let mut tasks = shared.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task.abort_handle());
    }
}

/// Counts a connection as long as it lives.
struct Open(Arc<Shared>);

impl Open {
    /// One connection more, unless there are too many.
    fn new(shared: &Arc<Shared>) -> Option<Self> {
        if shared.connection_count.fetch_add(1, Ordering::AcqRel) >= shared.config.connections_max as usize {
            shared.connection_count.fetch_sub(1, Ordering::AcqRel);
            shared.count(|counts| counts.refused += 1);
            tracing::warn!("a connection is refused: there are connections_max already");
            return None;
        }
        shared.count(|counts| counts.connections += 1);
        Some(Self(Arc::clone(shared)))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connection_count.fetch_sub(1, Ordering::AcqRel);
        self.0.connection_ended.notify_waiters();
    }
}

async fn serve(open: &Open, accepted: Accepted) {
    let shared = &open.0;
    let stream = match accepted {
        Accepted::Tcp(stream) => TcpStream::from_std(stream).and_then(Stream::tcp),
        Accepted::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
        Accepted::Other(stream) => Ok(Stream::Other(stream)),
    };
    let end = match stream {
        Ok(stream) => Connection::new(Arc::clone(shared), stream).run().await,
        Err(error) => End::Closed(Err(error)),
    };
    match &end {
        End::Broken(why) => {
            shared.count(|counts| counts.broken += 1);
            tracing::warn!(why, "a client breaks the rules");
        }
        End::Refused(error) => {
            shared.count(|counts| counts.refused += 1);
            tracing::warn!(cause = %error, "a client is not let in");
        }
        End::Silent => {
            shared.count(|counts| counts.silent += 1);
            tracing::info!("a client is silent");
        }
        End::Closed(Err(error)) => tracing::debug!(cause = %error, "a connection broke"),
        End::Closed(Ok(())) | End::Goodbye | End::Replaced | End::Ending => {
            tracing::debug!(?end, "a connection ended");
        }
    }
}

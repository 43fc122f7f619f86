//! The loop that accepts connections, and the threads and tasks that serve them.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::address::{Bound, ListenError, ListeningSocket};
use crate::places::{Connections, Peer, Place, Refusal};
use crate::stream::{Duplex, Stream};

/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A server's handling of the connections that are accepted for it.
pub trait Service: Send + Sync + 'static {
    /// Returns the server's connections.
    fn connections(&self) -> &Connections;

    /// Takes a place for a connection.
    ///
    /// # Errors
    /// Returns the limit that is reached. The service has counted and logged the refusal. The
    /// connection is closed immediately, and the client may retry later.
    fn take_place(&self, peer: &Peer) -> Result<Place, Refusal>;

    /// Returns the runtimes to which connections are assigned in turn. An empty list means the
    /// accepting runtime.
    fn workers(&self) -> &[Handle];

    /// Logs a failed accept.
    fn log_accept_error(&self, error: &io::Error);

    /// Waits for `time`.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// Serves a connection until its end, on the runtime to which it was assigned.
    fn serve(self: Arc<Self>, peer: Peer, accepted: Accepted) -> impl Future<Output = ()> + Send;
}

/// An accepted connection, not yet registered with the runtime that will serve it.
pub enum Accepted {
    /// Over TCP.
    Tcp(std::net::TcpStream),
    /// A connection over a unix socket.
    Unix(std::os::unix::net::UnixStream),
    /// A connection over another kind of stream.
    Other(Box<dyn Duplex>),
}

impl Accepted {
    /// Returns the connection's stream, registered with the current runtime.
    ///
    /// # Errors
    /// Returns the system's error.
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
        f.debug_struct("Accepted").finish_non_exhaustive()
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
            // The file may have been removed already, and nothing depends on it.
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

/// Accepts connections from `socket` in the current runtime, and lets `service` serve them, until
/// [`Connections::stop_listening`]. Then removes `file`. The caller keeps the socket open.
///
/// # Errors
/// Fails if the system has no free file descriptor.
///
/// # Panics
/// Panics if it is called outside of a tokio runtime.
pub fn serve_all<S: Service, const PORT: u16>(
    service: &Arc<S>,
    socket: &ListeningSocket<PORT>,
    file: Option<PathBuf>,
) -> Result<(), ListenError<PORT>> {
    let registered = || match &socket.bound {
        Bound::Tcp(tcp) => TcpListener::from_std(tcp.try_clone()?).map(AsyncSocket::Tcp),
        Bound::Unix(unix) => UnixListener::from_std(unix.try_clone()?).map(AsyncSocket::Unix),
    };
    let failed = |cause| ListenError { address: socket.address().clone(), cause };
    let listener = Listener { socket: registered().map_err(failed)?, file };
    let accepting = spawn(accept(Arc::clone(service), listener));
    service.connections().add_listener(accepting);
    Ok(())
}

async fn accept<S: Service>(service: Arc<S>, listener: Listener) {
    let mut next_worker = 0_usize;
    loop {
        let (peer, accepted) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Either no file descriptor is free, or the client has already closed the
                // connection. Without a pause, the loop would spin in the first case.
                service.log_accept_error(&error);
                service.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = service.take_place(&peer) else { continue };
        let serving = {
            let service = Arc::clone(&service);
            async move {
                service.serve(peer, accepted).await;
                drop(place);
            }
        };
        let workers = service.workers();
        let task = {
            let _worker = workers.get(next_worker % workers.len().max(1)).map(Handle::enter);
            spawn(serving)
        };
        next_worker = next_worker.wrapping_add(1);
        service.connections().add_task(task.abort_handle());
    }
}

/// Runs a task in the current runtime. tokio's code is compiled for each type of future that it runs as a
/// task; all tasks from here are of one type.
///
/// # Panics
/// Panics if it is called outside of a tokio runtime.
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    spawn_boxed(Box::pin(task))
}

fn spawn_boxed(task: Pin<Box<dyn Future<Output = ()> + Send>>) -> JoinHandle<()> {
    tokio::spawn(task)
}

/// The threads of a listener, which serve its connections until this value is dropped.
#[derive(Debug)]
pub struct ListenerThreads {
    /// The runtime of each thread.
    pub runtimes: Vec<Handle>,
    /// The threads end when these senders are dropped.
    _ends: Vec<oneshot::Sender<()>>,
}

impl ListenerThreads {
    /// Starts `count` threads, whose names begin with `name`.
    ///
    /// # Errors
    /// Fails if the system refuses a thread or its runtime.
    pub fn start(name: &str, count: usize) -> io::Result<ListenerThreads> {
        let (mut runtimes, mut ends) = (Vec::new(), Vec::new());
        for index in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtimes.push(runtime.handle().clone());
            let (sender, end) = oneshot::channel::<()>();
            ends.push(sender);
            // The wait ends with an error when the sender is dropped.
            let body = move || drop(runtime.block_on(end));
            std::thread::Builder::new().name(format!("{name}-{index}")).spawn(body)?;
        }
        Ok(ListenerThreads { runtimes, _ends: ends })
    }
}

//! The listener: its sockets, its thread, and the limit on connections.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cached_metrics::{Registration, Registry};
use cached_tls::ServerTls;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::config::AdminConfig;
use crate::connection::Service;
use crate::counts::Counts;
use crate::health::Health;
use crate::routes::Routes;
use crate::status::Status;
use crate::tokens::Tokens;

/// Why the listener cannot be opened: one line each.
#[derive(Debug)]
#[non_exhaustive]
pub enum AdminError {
    /// An address cannot be listened on.
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        cause: io::Error,
    },
    /// An address can be reached from other machines, and there is no token.
    Exposed {
        /// The address.
        address: SocketAddr,
    },
    /// A thread or its runtime cannot be created.
    Thread(io::Error),
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminError::Listen { address, cause } => {
                write!(f, "admin.listen: cannot listen on {address}: {cause}")
            }
            AdminError::Exposed { address } => write!(
                f,
                "admin.listen: {address} can be reached from other machines, and there is no token: name a \
                 token_file, or listen on 127.0.0.1"
            ),
            AdminError::Thread(cause) => write!(f, "cannot start the thread of the admin listener: {cause}"),
        }
    }
}

impl std::error::Error for AdminError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            AdminError::Listen { cause, .. } | AdminError::Thread(cause) => Some(cause),
            AdminError::Exposed { .. } => None,
        }
    }
}

/// The running listener, with what it shows. It ends when this is dropped.
pub struct AdminServer {
    routes: Routes,
    registry: Registry,
    health: Health,
    status: Status,
    tokens: Option<Tokens>,
    addresses: Vec<SocketAddr>,
    has_tls: bool,
    /// Its sockets, each with its configured address.
    copies: Vec<(String, OwnedFd)>,
    begin: Mutex<Option<oneshot::Sender<()>>>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _registration: Registration,
}

impl AdminServer {
    /// Opens the sockets and serves `/metrics`, `/livez`, `/readyz`, `/startupz`, `/status.json` and the console at `/`, on a thread of its own.
    ///
    /// `program` is the name that the metrics and the status show; `version` its version.
    ///
    /// # Errors
    /// [`AdminError`].
    pub fn start(
        config: AdminConfig,
        program: &'static str,
        version: &'static str,
    ) -> Result<AdminServer, AdminError> {
        let (mut sockets, mut copies) = (Vec::new(), Vec::new());
        for address in &config.listen {
            let more = match adopt(address, &config)? {
                adopted if adopted.is_empty() => open(address, config.tokens.is_some())?,
                adopted => adopted,
            };
            for (socket, bound) in more {
                let copy = socket.try_clone().map_err(AdminError::Thread)?;
                copies.push((address.clone(), OwnedFd::from(copy)));
                sockets.push((socket, bound));
            }
        }
        let addresses = sockets.iter().map(|(_, address)| *address).collect();
        let (routes, registry, health) = (Routes::new(), Registry::new(), Health::new());
        let status = Status::new(program, version, health.clone());
        let counts = Arc::new(Counts::default());
        let registration = crate::builtin::register(&registry, &counts, program, version, &health);
        crate::builtin::add_routes(&routes, &registry, &health, &status);
        crate::console::add_routes(&routes);
        let service = Arc::new(Service::new(&config, routes.clone(), health.clone(), counts));
        let tokens = config.tokens.clone();
        let (end, ended) = oneshot::channel();
        let (begin, begun) = oneshot::channel();
        let begin = config.is_held.then_some(begin);
        let runtime = Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(AdminError::Thread)?;
        let mut listeners = Vec::new();
        {
            let _inside = runtime.enter();
            for (socket, address) in sockets {
                let listener = TcpListener::from_std(socket).map_err(AdminError::Thread)?;
                listeners.push((listener, address.ip().is_loopback()));
            }
        }
        let permits = Arc::new(Semaphore::new(config.connections_max));
        let tls = config.tls.clone();
        let has_tls = tls.is_some();
        let history = status.clone();
        let body = move || {
            runtime.block_on(async move {
                let mut ended = ended;
                // Ends at once where nothing is held.
                tokio::select! {
                    _ = begun => {}
                    _ = &mut ended => return,
                }
                for (listener, is_loopback) in listeners {
                    // Probes and tools on this host go without.
                    let tls = tls.clone().filter(|_| !is_loopback);
                    let origin = Origin { is_loopback, tls };
                    tokio::spawn(accept(listener, origin, Arc::clone(&service), Arc::clone(&permits)));
                }
                if let Some(tls) = tls {
                    tokio::spawn(cached_tls::renew(tls, "admin.tls"));
                }
                tokio::spawn(history.record_history());
                // Ends with an error, when the other half is dropped.
                let _ = ended.await;
            });
        };
        let thread = thread::Builder::new().name("cached-admin".into()).spawn(body);
        Ok(AdminServer {
            routes,
            registry,
            health,
            status,
            tokens,
            addresses,
            has_tls,
            copies,
            begin: Mutex::new(begin),
            end: Some(end),
            thread: Some(thread.map_err(AdminError::Thread)?),
            _registration: registration,
        })
    }

    /// Returns the table of routes, to which any part may add.
    #[must_use]
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Returns the registry that `/metrics` shows.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns what the probes depend on.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Returns what `/status.json` shows.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Returns the tokens, if any are configured.
    #[must_use]
    pub fn tokens(&self) -> Option<&Tokens> {
        self.tokens.as_ref()
    }

    /// Accepts connections, if it was [held](AdminConfig::is_held).
    pub fn accept(&self) {
        // What is dropped lets the thread begin.
        drop(self.begin.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Removes and returns copies of its sockets for another process, each with its configured address.
    pub fn take_sockets(&mut self) -> Vec<(String, OwnedFd)> {
        std::mem::take(&mut self.copies)
    }

    /// Returns the addresses it listens on.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the addresses it listens on as URLs; `https` is required where TLS is used.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        let url = |address: &SocketAddr| {
            let scheme = if self.has_tls && !address.ip().is_loopback() { "https" } else { "http" };
            format!("{scheme}://{address}")
        };
        self.addresses.iter().map(url).collect()
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        drop(self.end.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the admin listener's thread has panicked");
        }
    }
}

impl fmt::Debug for AdminServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminServer").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Returns the sockets of one address that another process has opened.
fn adopt(address: &str, config: &AdminConfig) -> Result<Vec<(StdListener, SocketAddr)>, AdminError> {
    let failed = |cause| AdminError::Listen { address: address.to_owned(), cause };
    let mut sockets = Vec::new();
    for (_, socket) in config.inherited.iter().filter(|(name, _)| name == address) {
        let socket = socket.try_clone().map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let bound = socket.local_addr().map_err(failed)?;
        if config.tokens.is_none() && !bound.ip().is_loopback() {
            return Err(AdminError::Exposed { address: bound });
        }
        sockets.push((socket, bound));
    }
    Ok(sockets)
}

/// Opens the sockets of one address, which may be a name of several.
fn open(address: &str, has_tokens: bool) -> Result<Vec<(StdListener, SocketAddr)>, AdminError> {
    let failed = |cause| AdminError::Listen { address: address.to_owned(), cause };
    let candidates: Vec<SocketAddr> =
        std::net::ToSocketAddrs::to_socket_addrs(address).map_err(failed)?.collect();
    let mut sockets = Vec::new();
    for candidate in candidates {
        if !has_tokens && !candidate.ip().is_loopback() {
            return Err(AdminError::Exposed { address: candidate });
        }
        let socket = StdListener::bind(candidate).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let bound = socket.local_addr().map_err(failed)?;
        sockets.push((socket, bound));
    }
    if sockets.is_empty() {
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
    }
    Ok(sockets)
}

/// How long accepting pauses when the system has no descriptor or memory for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// What a listener's connections have in common.
#[derive(Clone)]
struct Origin {
    is_loopback: bool,
    tls: Option<Arc<ServerTls>>,
}

async fn accept(listener: TcpListener, origin: Origin, service: Arc<Service>, permits: Arc<Semaphore>) {
    loop {
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(cause = %error, "the admin listener cannot accept");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        match Arc::clone(&permits).try_acquire_owned() {
            Ok(permit) => {
                service.counts.connections.increment();
                tokio::spawn(serve(socket, peer, origin.clone(), Arc::clone(&service), permit));
            }
            Err(_) => {
                service.counts.refused.increment();
                refuse(socket, origin.tls.is_some());
            }
        }
    }
}

async fn serve(
    socket: TcpStream,
    peer: SocketAddr,
    origin: Origin,
    service: Arc<Service>,
    _permit: OwnedSemaphorePermit,
) {
    let served = match &origin.tls {
        None => service.serve(socket, peer, origin.is_loopback).await,
        Some(tls) => match cached_tls::accept(tls, socket).await {
            Ok(socket) => service.serve(socket, peer, origin.is_loopback).await,
            Err(error) => Err(error),
        },
    };
    if let Err(error) = served {
        tracing::debug!(%peer, cause = error, "a connection of the admin listener has ended");
    }
}

/// Answers a connection beyond the limit, as far as that takes no waiting.
fn refuse(mut socket: TcpStream, has_tls: bool) {
    const BUSY: &[u8] =
        b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: text/plain\r\n\
        content-length: 38\r\n\r\nthe admin listener has no place free.\n";
    let words = if has_tls { cached_tls::BUSY } else { BUSY };
    let mut attempt = Box::pin(async move { socket.write_all(words).await });
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    // A small answer fits into the socket's buffer; a client that has gone already does not miss it.
    let _ = attempt.as_mut().poll(&mut context);
}

//! The listener: its sockets, its thread, and the limit on connections.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use cached_http::{Answer, Data, ResponseBody, ServerLimits, Socket};
use cached_metrics::{Counter, Registration, Registry, counters};
use cached_tls::ServerTls;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::health::Health;
use crate::routes::{Found, Gate, Request, Response, Routes, absent};
use crate::status::Status;
use crate::table::{AdminConfig, AdminError};

/// The running listener and what it serves. Dropping this value ends the listener.
#[derive(Debug)]
pub struct AdminServer {
    routes: Routes,
    registry: Registry,
    health: Health,
    pub(crate) status: Status,
    addresses: Vec<SocketAddr>,
    memory_bytes_max: u64,
    has_tls: bool,
    /// The listener's sockets, each with its configured address.
    copies: Vec<(String, OwnedFd)>,
    begin: Mutex<Option<oneshot::Sender<()>>>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _registration: Registration,
}

impl AdminServer {
    /// Opens the sockets and serves `/metrics`, `/livez`, `/readyz`, `/startupz`, `/status.json`
    /// and the console at `/`, on a separate thread.
    ///
    /// `program` is the name that the metrics and the status show; `version` is its version.
    ///
    /// # Errors
    /// Returns [`AdminError`].
    pub fn start(
        config: AdminConfig,
        program: &'static str,
        version: &'static str,
    ) -> Result<AdminServer, AdminError> {
        let (mut sockets, mut copies) = (Vec::new(), Vec::new());
        for address in &config.listen {
            for (socket, bound) in open(address, &config)? {
                let copy = socket.try_clone().map_err(AdminError::Thread)?;
                copies.push((address.clone(), OwnedFd::from(copy)));
                sockets.push((socket, bound));
            }
        }
        let addresses = sockets.iter().map(|(_, address)| *address).collect();
        let (routes, registry, health) = (Routes::new(), Registry::new(), Health::new());
        let status = Status::new(program, version, health.clone());
        let counts = Arc::new(Counts::default());
        let registration = crate::control::register(&registry, &counts, program, version, &health);
        crate::control::add_common_routes(&routes, &registry, &health, &status);
        crate::control::add_console_routes(&routes);
        let memory_bytes_max = config.memory_bytes_max();
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
        let config = AdminConfig { inherited: Vec::new(), ..config };
        let service = Arc::new(Service::new(config, routes.clone(), health.clone(), counts));
        let history = status.clone();
        let body = move || {
            runtime.block_on(async move {
                let mut ended = ended;
                // The wait ends immediately if nothing is held.
                tokio::select! {
                    _ = begun => {}
                    _ = &mut ended => return,
                }
                for (listener, is_loopback) in listeners {
                    // Probes and tools on this host do not use TLS.
                    let tls = tls.clone().filter(|_| !is_loopback);
                    let (service, permits) = (Arc::clone(&service), Arc::clone(&permits));
                    let listening = Listening { is_loopback, tls, service, permits };
                    tokio::spawn(cached_http::accept(listening, listener, std::future::pending()));
                }
                if let Some(tls) = tls {
                    tokio::spawn(cached_tls::renew(tls, "admin.tls"));
                }
                tokio::spawn(history.record_history());
                // The wait ends with an error when the sender is dropped.
                let _ = ended.await;
            });
        };
        let thread = thread::Builder::new().name("cached-admin".into()).spawn(body);
        Ok(AdminServer {
            routes,
            registry,
            health,
            status,
            addresses,
            memory_bytes_max,
            has_tls,
            copies,
            begin: Mutex::new(begin),
            end: Some(end),
            thread: Some(thread.map_err(AdminError::Thread)?),
            _registration: registration,
        })
    }

    /// Returns the table of routes, to which any part of the program may add.
    #[must_use]
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Returns the registry that `/metrics` shows.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the state that the probes report.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Starts to accept connections, if accepting was [held](AdminConfig::is_held).
    pub fn accept(&self) {
        // Dropping this lets the thread begin.
        drop(self.begin.lock().take());
    }

    /// Removes and returns copies of the listener's sockets for another process, each with its
    /// configured address.
    pub fn take_sockets(&mut self) -> Vec<(String, OwnedFd)> {
        std::mem::take(&mut self.copies)
    }

    /// Returns the addresses on which the listener listens.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the maximum memory use of the listener, in bytes.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    /// Returns the addresses of the listener as URLs, with `https` where TLS is used.
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

/// Returns the sockets of one address, which may be a name that resolves to several addresses. The
/// sockets are those that another process has opened, or else new ones.
fn open(address: &str, config: &AdminConfig) -> Result<Vec<(StdListener, SocketAddr)>, AdminError> {
    let failed = |cause| AdminError::Listen { address: address.to_owned(), cause };
    let check = |address: SocketAddr| match config.tokens {
        None if !address.ip().is_loopback() => Err(AdminError::Exposed { address }),
        _ => Ok(()),
    };
    let inherited = config.inherited.iter().filter(|(name, _)| name == address);
    let inherited = inherited.map(|(_, socket)| socket.try_clone()).collect::<io::Result<Vec<_>>>();
    let mut sockets = inherited.map_err(failed)?;
    if sockets.is_empty() {
        let candidates: Vec<_> = address.to_socket_addrs().map_err(failed)?.collect();
        // The addresses are checked before a socket exists.
        candidates.iter().copied().try_for_each(check)?;
        sockets = cached_http::bind(&*candidates).map_err(failed)?;
    }
    let mut bound = Vec::new();
    for socket in sockets {
        socket.set_nonblocking(true).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        check(address)?;
        bound.push((socket, address));
    }
    Ok(bound)
}

/// One socket of the listener.
#[derive(Clone)]
struct Listening {
    is_loopback: bool,
    tls: Option<Arc<ServerTls>>,
    service: Arc<Service>,
    permits: Arc<Semaphore>,
}

impl cached_http::Server for Listening {
    const NAME: &str = "the admin listener";

    fn permits(&self) -> &Arc<Semaphore> {
        &self.permits
    }

    fn refuse(&self) -> &'static [u8] {
        const BUSY: &[u8] =
            b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: text/plain\r\n\
            content-length: 38\r\n\r\nthe admin listener has no place free.\n";
        self.service.counts.refused.increment();
        if self.tls.is_some() { cached_tls::BUSY } else { BUSY }
    }

    async fn serve(self, socket: TcpStream, peer: SocketAddr) -> Result<(), String> {
        self.service.counts.connections.increment();
        match &self.tls {
            None => self.service.serve(Box::new(socket), peer, self.is_loopback).await,
            Some(tls) => {
                let socket = cached_tls::accept(tls, socket).await?;
                self.service.serve(Box::new(socket), peer, self.is_loopback).await
            }
        }
    }
}

/// The maximum size of the head of a request, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 16 << 10;
/// The maximum number of headers in a request.
const HEADERS_MAX: usize = 64;
/// The size of a response, in bytes, that every connection may have, regardless of the other
/// connections.
pub(crate) const SMALL_RESPONSE_BYTES: usize = 32 << 10;
/// The maximum total size of all larger responses that wait for their clients, in bytes. A single
/// response may be larger.
pub(crate) const RESPONSES_BYTES_MAX: usize = 4 << 20;

/// The state for answering requests, shared by all connections.
pub(crate) struct Service {
    config: AdminConfig,
    routes: Routes,
    health: Health,
    /// The unused part of [`RESPONSES_BYTES_MAX`].
    responses: Arc<Semaphore>,
    counts: Arc<Counts>,
}

impl Service {
    fn new(config: AdminConfig, routes: Routes, health: Health, counts: Arc<Counts>) -> Service {
        Service { config, routes, health, responses: Arc::new(Semaphore::new(RESPONSES_BYTES_MAX)), counts }
    }

    /// Serves a connection until it ends.
    ///
    /// # Errors
    /// Returns one line: the client's mistake, or the failure of its connection.
    async fn serve(
        self: Arc<Self>,
        socket: Box<dyn Socket>,
        peer: SocketAddr,
        is_loopback: bool,
    ) -> Result<(), String> {
        let AdminConfig { request_timeout, connection_time_max, .. } = self.config;
        let limits = ServerLimits {
            headers_max: HEADERS_MAX,
            head_bytes_max: HEAD_BYTES_MAX,
            head_time_max: request_timeout,
            keeps_case: false,
        };
        let answer = Box::new(move |request| -> Answer {
            let service = Arc::clone(&self);
            Box::pin(async move { finished(service.answer(request, peer, is_loopback).await) })
        });
        let served =
            cached_http::serve(socket, limits, answer, Box::pin(tokio::time::sleep(connection_time_max)));
        // A client that does not read its response cannot keep the connection.
        match tokio::time::timeout(connection_time_max + 2 * request_timeout, served).await {
            Ok(ended) => ended.map_err(|error| error.to_string()),
            Err(_) => Err("the client did not read its response in time".into()),
        }
    }

    async fn answer(
        &self,
        request: hyper::Request<Incoming>,
        peer: SocketAddr,
        is_loopback: bool,
    ) -> Response {
        self.counts.requests.increment();
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        let route = match self.routes.find(&head.method, path) {
            Found::Route(route) => route,
            Found::Nothing => return absent(path, self.health.not_started()),
            Found::OtherMethods(methods) => {
                let names: Vec<&str> = methods.iter().map(hyper::Method::as_str).collect();
                let names = names.join(", ");
                let mut response = Response::failure(405, format_args!("the method must be {names}"));
                if let Ok(allow) = HeaderValue::from_str(&names) {
                    response.headers.insert(ALLOW, allow);
                }
                return response;
            }
        };
        let gate = Gate { is_loopback, tokens: self.config.tokens.as_ref() };
        let has_token = match gate.admit(route.access, &head.uri, &head.headers) {
            Ok(has_token) => has_token,
            Err(response) => {
                self.counts.unauthorized.increment();
                return *response;
            }
        };
        let answer = async {
            let body = match Limited::new(body, self.config.body_bytes_max).collect().await {
                Ok(body) => body.to_bytes(),
                Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                    let most = self.config.body_bytes_max;
                    return Response::failure(413, format_args!("the body is larger than {most} bytes"));
                }
                Err(error) => return Response::failure(400, error),
            };
            let request = Request {
                path: path.to_owned(),
                query: head.uri.query().unwrap_or_default().to_owned(),
                headers: head.headers.clone(),
                body,
                peer,
                has_token,
            };
            let response = (route.handler)(request).await;
            self.count_bytes(response).await
        };
        match tokio::time::timeout(self.config.request_timeout, answer).await {
            Ok(response) => response,
            Err(_) => Response::failure(503, "the response takes too long"),
        }
    }

    /// Waits until there is memory for a response that is not small. The response counts until its
    /// client has received it.
    async fn count_bytes(&self, mut response: Response) -> Response {
        let bytes = response.body.len().min(RESPONSES_BYTES_MAX);
        if bytes > SMALL_RESPONSE_BYTES
            && let Ok(count) = u32::try_from(bytes)
            && let Ok(permit) = Arc::clone(&self.responses).acquire_many_owned(count).await
        {
            response.body = Bytes::from_owner(Counted { body: response.body, _permit: permit });
        }
        response
    }
}

/// The body of a response, and its share of the total bytes of responses.
struct Counted {
    body: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// Adds the headers that every response has.
fn finished(response: Response) -> hyper::Response<ResponseBody> {
    let body = Full::new(Box::new(response.body) as Data).map_err(|never| match never {});
    let mut out = hyper::Response::new(body.boxed_unsync());
    *out.status_mut() = response.status;
    *out.headers_mut() = response.headers;
    for (name, value) in [
        ("cache-control", "no-store"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        out.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    out
}

counters! {
    /// The counts of the listener.
    #[derive(Default)]
    pub(crate) struct Counts {
        /// Connections that the admin listener accepted.
        pub(crate) connections: Counter => "cached_admin_connections_total",
        /// Connections that the admin listener refused because it had as many as allowed.
        pub(crate) refused: Counter => "cached_admin_connections_refused_total",
        /// Requests that the admin listener received.
        pub(crate) requests: Counter => "cached_admin_requests_total",
        /// Requests that the admin listener refused: without a valid token or Host, or from a page of another site.
        pub(crate) unauthorized: Counter => "cached_admin_requests_unauthorized_total",
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn a_large_response_waits_for_memory_and_a_small_one_does_not() {
        let service = Service::new(AdminConfig::default(), Routes::new(), Health::new(), Arc::default());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let large = || Response::text(vec![b'x'; RESPONSES_BYTES_MAX + 1]);
            let first = service.count_bytes(large()).await;
            let mut second = pin!(service.count_bytes(large()));
            let mut context = Context::from_waker(Waker::noop());
            assert!(second.as_mut().poll(&mut context).is_pending());
            let small = service.count_bytes(Response::text(vec![b'x'; SMALL_RESPONSE_BYTES])).await;
            assert_eq!(small.body.len(), SMALL_RESPONSE_BYTES);
            drop(first);
            assert_eq!(second.await.body, large().body);
        });
    }
}

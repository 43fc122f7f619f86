//! Sockets, connections and counters of a server.

use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use blocker::{Blocker, Clock, Error, Namespace, SystemClock};
use cached_http::framing::{expects_continue, host, refusal};
use cached_http::values::is_local_host;
use cached_http::{ResponseBody, ServerLimits, Socket};
use cached_metrics::{Collect, Counter, Families, LabelledMetric, Number, counters};
use connection::{
    Accepted, Budget, Connections, ListeningSocket, LogLimit, Peer, Place, Refusal, Service, SettingError,
    Stream, serve_all,
};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::config::{Address, ListenError, PORT_DEFAULT, ServerConfig};
use crate::keys::Client;
use crate::memory::{Memory, Watch};
use crate::request::{Change, Operation, is_essential, understand};
use crate::response::Failure;
use crate::socket::metered;

/// Serves the objects of a blocker.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use blocker::Memory;
/// use object_http::{Server, ServerConfig};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let server = Server::new(Arc::new(Memory::default()), ServerConfig::default())?;
/// server.bind(&"127.0.0.1:0".parse()?).await?;
/// server.serve()?;
/// println!("curl -T file {}/namespace/name", server.urls()[0]);
/// // Until the process is to end:
/// assert!(server.shutdown(Duration::from_secs(10)).await, "every request was answered");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// The server accepts connections on the tokio runtime in which [`Self::serve`] is called;
/// connections run there, or on the runtimes of [`ServerConfig::workers`]. If the server is
/// dropped, it stops listening and its connections are aborted; [`Self::shutdown`] ends them in
/// order.
pub struct Server {
    shared: Arc<Shared>,
    /// The bound sockets that are not served yet.
    sockets: Mutex<Vec<ListeningSocket<PORT_DEFAULT>>>,
    bound: Mutex<Vec<Address>>,
}

/// The state that all connections share.
pub(crate) struct Shared {
    pub(crate) blocker: Arc<dyn Blocker>,
    pub(crate) config: ServerConfig,
    pub(crate) budget: Arc<Budget>,
    /// The size of the largest object that a PUT can make or a GET can return as a whole, in bytes.
    pub(crate) limit_bytes: u64,
    /// The size of the largest read of the blocker, in bytes.
    pub(crate) request_bytes_max: u64,
    /// Whether the blocker checks conditions.
    pub(crate) has_conditions: bool,
    pub(crate) counts: Counts,
    pub(crate) sent_bytes: Arc<Counter>,
    log_limit: LogLimit,
    connections: Arc<Connections>,
    /// Whether the server is shutting down.
    ending: watch::Sender<bool>,
}

impl Server {
    /// Creates a server for the objects of `blocker`.
    ///
    /// # Errors
    /// Returns the invalid setting, and its valid values.
    pub fn new(blocker: Arc<dyn Blocker>, config: ServerConfig) -> Result<Self, SettingError> {
        let can = blocker.capabilities();
        config.check(can.object_bytes_max)?;
        let shared = Shared {
            budget: config.budget(can.object_bytes_max)?,
            limit_bytes: can.object_bytes_max.min(can.request_bytes_max),
            request_bytes_max: can.request_bytes_max,
            has_conditions: can.conditions,
            counts: Counts::default(),
            sent_bytes: Arc::default(),
            log_limit: LogLimit::default(),
            connections: Arc::default(),
            ending: watch::Sender::new(false),
            blocker,
            config,
        };
        Ok(Self { shared: Arc::new(shared), sockets: Mutex::default(), bound: Mutex::default() })
    }

    /// Binds `address`: for TCP port 0, to a port that the system chooses. Clients wait until
    /// [`Self::serve`] is called. A unix socket file without a listener is replaced.
    ///
    /// # Errors
    /// Returns [`ListenError`].
    ///
    /// # Panics
    /// Panics if it is called outside of a tokio runtime.
    pub async fn bind(&self, address: &Address) -> Result<(), ListenError> {
        let socket = ListeningSocket::bind(address).await?;
        self.bound.lock().push(socket.address().clone());
        self.sockets.lock().push(socket);
        Ok(())
    }

    /// Returns the bound addresses as URLs, and as `unix:PATH`.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        let scheme = if self.shared.config.tls.is_some() { "https" } else { "http" };
        let url = |address: &Address| match address {
            Address::Tcp(address) => format!("{scheme}://{address}"),
            Address::Unix(_) => address.to_string(),
        };
        self.bound.lock().iter().map(url).collect()
    }

    /// Returns the maximum memory, in bytes, that the server uses apart from its blocker.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        self.shared.config.memory_bytes_max()
    }

    /// Serves clients of the bound addresses from now on.
    ///
    /// # Errors
    /// Returns [`ListenError`].
    ///
    /// # Panics
    /// Panics if it is called outside of a tokio runtime.
    pub fn serve(&self) -> Result<(), ListenError> {
        for socket in self.sockets.lock().drain(..) {
            let address = socket.address();
            serve_all(&self.shared, &socket, address.path().map(Into::into))?;
            tracing::info!(%address, "listening for HTTP requests for objects");
        }
        Ok(())
    }

    /// Returns a future that puts keys and certificates in force whenever their files change, until
    /// it is dropped. The future does not keep the server alive.
    pub fn renew(&self) -> impl Future<Output = ()> + Send + use<> {
        let ServerConfig { keys, tls, .. } = self.shared.config.clone();
        let keys = async move {
            if let Some(keys) = keys {
                let file = keys.file();
                let reload = move || Arc::clone(&file).reload_if_changed();
                cached_tls::renew_files("objects.http.keys_file", reload).await;
            }
        };
        let tls = async move {
            if let Some(tls) = tls {
                cached_tls::renew(tls, "objects.http.tls").await;
            }
        };
        async move {
            tokio::join!(keys, tls);
        }
    }

    /// Returns the value of the server's own metric `name`, or 0. [`Collect`] collects all metrics.
    #[must_use]
    pub fn metric(&self, name: &str) -> u64 {
        self.families().number(name).map_or(0, Number::to_u64)
    }

    /// Stops listening, completes the requests in progress, and closes every connection. Waits at
    /// most `timeout` for that, then aborts the remaining connections. Returns whether every
    /// connection ended properly.
    pub async fn shutdown(&self, timeout: Duration) -> bool {
        self.shared.connections.stop_listening().await;
        self.shared.ending.send_replace(true);
        let in_order = tokio::time::timeout(timeout, self.shared.connections.wait_for_end()).await.is_ok();
        self.shared.connections.abort();
        in_order
    }
}

impl Collect for Server {
    fn collect(&self, into: &mut Families) {
        let Shared { counts, sent_bytes, connections, .. } = &*self.shared;
        counts.collect(into);
        for (method, classes) in METHODS.into_iter().zip(&counts.requests) {
            for (class, count) in CLASSES.into_iter().zip(classes) {
                into.measure(REQUESTS.of([method, class]), "", count);
            }
        }
        into.measure(BYTES.of(["sent"]), "", &**sent_bytes);
        let help = "HTTP connections for objects that are open.";
        into.gauge("object_http_connections_open", help, connections.count().into());
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.connections.abort_all();
    }
}

const METHODS: [&str; 7] = ["get", "head", "put", "delete", "copy", "list", "other"];
const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

const REQUESTS: LabelledMetric<2> = LabelledMetric::new(
    "object_http_requests_total",
    ["method", "status"],
    "HTTP requests for objects by method (get, head, put, delete, copy; list is the GET of a listing; other is everything \
     that is not understood) and by the class of the status.",
);
const BYTES: LabelledMetric<1> = LabelledMetric::new(
    "object_http_bytes_total",
    ["direction"],
    "Bytes of bodies received from HTTP clients, and sent to them, listings included.",
);

counters! {
    /// The counters of a server.
    #[derive(Debug, Default)]
    pub(crate) struct Counts {
        /// HTTP connections for objects that were accepted.
        connections: Counter => "object_http_connections_total",
        /// HTTP connections for objects that were closed immediately because too many were open.
        refused: Counter => "object_http_connections_refused_total",
        /// HTTP connections for objects that were closed because others needed the memory that they held for a slow client.
        stalled: Counter => "object_http_connections_stalled_total",
        /// HTTP requests for objects that were denied because they had no valid key or lacked a
        /// right.
        denied: Counter => "object_http_requests_denied_total",
        /// Bytes of bodies received from clients.
        pub(crate) received_bytes: Counter => BYTES.of(["received"]),
        /// Requests, by [`METHODS`] and [`CLASSES`].
        requests: [[Counter; CLASSES.len()]; METHODS.len()],
    }
}

impl Shared {
    /// Returns whether a log line of this reason may be written now, see [`LogLimit::admit`].
    fn admit_log(&self, reason: &'static str) -> Option<u64> {
        self.log_limit.admit(reason, SystemClock.now())
    }
}

impl Service for Shared {
    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn take_place(&self, peer: &Peer) -> Result<Place, Refusal> {
        let place = self.connections.take(peer, self.config.limits());
        match &place {
            Ok(_) => self.counts.connections.increment(),
            Err(refusal) => {
                self.counts.refused.increment();
                if let Some(suppressed) = self.admit_log(refusal.limit()) {
                    tracing::warn!(%peer, cause = %refusal, suppressed, "HTTP connection for objects refused");
                }
            }
        }
        place
    }

    fn workers(&self) -> &[Handle] {
        &self.config.workers
    }

    fn log_accept_error(&self, error: &io::Error) {
        if let Some(suppressed) = self.admit_log("accept") {
            tracing::warn!(cause = %error, suppressed, "cannot accept an HTTP connection for objects");
        }
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }

    async fn serve(self: Arc<Self>, peer: Peer, accepted: Accepted) {
        let moved_bytes = Arc::<AtomicU64>::default();
        let stall = self.config.stall_timeout;
        let opened = match (accepted.into_stream(), &self.config.tls) {
            (Err(error), _) => Err(error.to_string()),
            (Ok(Stream::Tcp(socket)), tls) => {
                let is_loopback = socket.local_addr().is_ok_and(|own| own.ip().to_canonical().is_loopback());
                let socket = match tls {
                    None => Ok(metered(socket, stall, &moved_bytes)),
                    Some(tls) => cached_tls::accept(tls, socket)
                        .await
                        .map(|socket| metered(socket, stall, &moved_bytes)),
                };
                socket.map(|socket| (socket, is_loopback))
            }
            (Ok(Stream::Unix(socket)), _) => Ok((metered(socket, stall, &moved_bytes), false)),
            (Ok(Stream::Other(_)), _) => Err("it is not a socket".into()),
        };
        let ended = match opened {
            Ok((socket, is_loopback)) => run(self, socket, moved_bytes, is_loopback).await,
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, cause = error, "an HTTP connection for objects has ended");
        }
    }
}

/// Serves a connection until its end.
async fn run(
    shared: Arc<Shared>,
    socket: Box<dyn Socket>,
    moved_bytes: Arc<AtomicU64>,
    is_loopback: bool,
) -> Result<(), String> {
    // A connection demands more than its share only when a body needs it.
    let grant = shared.budget.join(0, false).map_err(|error| error.to_string())?;
    let memory = Memory::new(grant);
    let connection = Arc::new(Connection {
        memory: Arc::clone(&memory),
        is_loopback,
        change: Mutex::default(),
        shared: Arc::clone(&shared),
    });
    let limits = ServerLimits {
        headers_max: HEADERS_MAX,
        head_bytes_max: shared.config.head_bytes_max,
        head_time_max: shared.config.stall_timeout,
        keeps_case: false,
    };
    let own = Arc::clone(&connection);
    let answer = Box::new(move |request| -> cached_http::Answer {
        let connection = Arc::clone(&own);
        Box::pin(async move { connection.answer(request).await })
    });
    let mut ending = shared.ending.subscribe();
    let end = Box::pin(async move { drop(ending.wait_for(|is_ending| *is_ending).await) });
    let mut serving = cached_http::serve(socket, limits, answer, end);
    let mut watch = Watch::new(Arc::clone(&memory), moved_bytes);
    let mut is_registered = false;
    let ended = poll_fn(|cx| {
        if !std::mem::replace(&mut is_registered, true) {
            memory.register(cx.waker());
        }
        let served = serving.as_mut().poll(cx).map_err(|error| error.to_string());
        memory.follow(cx.waker());
        if served.is_ready() {
            return served;
        }
        watch.poll(cx).map(|()| {
            shared.counts.stalled.increment();
            Err("others need the connection's memory, and its client is the slowest".into())
        })
    })
    .await;
    drop(serving);
    memory.retire();
    // A change that has begun keeps its payload until it ends.
    let change = connection.change.lock().take();
    if let Some(change) = change {
        // A panic of the task has been reported.
        let _ = change.await;
    }
    ended
}

/// The maximum number of headers in a request.
const HEADERS_MAX: usize = 64;

/// The maximum number of bytes of a refused body that the server reads so that the client receives
/// the response.
const DRAIN_BYTES_MAX: usize = 16 << 20;

/// One client's connection.
pub(crate) struct Connection {
    pub(crate) shared: Arc<Shared>,
    pub(crate) memory: Arc<Memory>,
    /// Whether only this host can have opened the connection.
    is_loopback: bool,
    /// The change in progress.
    change: Mutex<Option<JoinHandle<()>>>,
}

impl Connection {
    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let (head, body) = request.into_parts();
        let (method, answered) = Box::pin(self.decide(&head, body)).await;
        let Shared { counts, .. } = &*self.shared;
        let response = match answered {
            Ok(response) => response,
            Err(failure) => {
                if failure.is_denial() {
                    counts.denied.increment();
                }
                self.log(&head, &failure);
                failure.response()
            }
        };
        let class = usize::from(response.status().as_u16() / 100).clamp(2, 5) - 2;
        counts.requests[method][class].increment();
        response
    }

    /// Returns the index of the request's method in [`METHODS`], and the outcome.
    async fn decide(&self, head: &Parts, body: Incoming) -> (usize, Result<Response<ResponseBody>, Failure>) {
        // Only one request at a time holds memory.
        self.memory.until_sent().await;
        if let Some((status, line)) = refusal(head, is_essential) {
            return (OTHER, Err(Failure::Unintelligible(status, line)));
        }
        let client_waits = expects_continue(&head.headers);
        let (method, operation) = match understand(head) {
            Ok(operation) => (index(&operation), self.admit(head, &operation).map(|()| operation)),
            Err(mistake) => (OTHER, Err(mistake.into())),
        };
        let done = match operation {
            Ok(Operation::Put(change)) => self.put(change, body, client_waits).await,
            Ok(Operation::Read(read)) => self.read(read).await,
            Ok(Operation::Delete(change)) => self.delete(change).await,
            Ok(Operation::Copy { from, from_condition, to }) => self.copy(from, from_condition, to).await,
            Ok(Operation::List(list)) => self.list(list).await,
            Err(failure) => {
                if !client_waits {
                    self.drain(body).await;
                }
                Err(failure)
            }
        };
        (method, done)
    }

    /// Reads the rest of a refused body, within limits: the client could miss the response
    /// otherwise.
    pub(crate) async fn drain(&self, body: Incoming) {
        cached_http::drain(body, DRAIN_BYTES_MAX, self.shared.config.stall_timeout).await;
    }

    /// Checks that the client may do this.
    fn admit(&self, head: &Parts, operation: &Operation) -> Result<(), Failure> {
        let client = match &self.shared.config.keys {
            Some(keys) => keys.identify(&head.headers).map_err(Failure::Unauthorized)?,
            None => {
                if self.is_loopback && !host(&head.headers).is_ok_and(is_local_host) {
                    return Err(Failure::Forbidden(
                        "without a keys_file, the Host must be an IP address or localhost".into(),
                    ));
                }
                Client::unlimited()
            }
        };
        let check = |namespace: &Namespace, name: &[u8], writes: bool| {
            namespace.check_unreserved()?;
            let may =
                if writes { client.may_write(namespace, name) } else { client.may_read(namespace, name) };
            match may {
                true => Ok(()),
                false if client.has_key => {
                    let right = if writes { "write" } else { "read" };
                    Err(Failure::Forbidden(format!(
                        "the key has no right to {right} this; the keys_file gives rights"
                    )))
                }
                false => Err(Failure::Unauthorized("a key is needed: NAME:SECRET by Basic authentication")),
            }
        };
        let change = |change: &Change| check(&change.object.namespace, change.object.name.as_bytes(), true);
        match operation {
            Operation::Read(read) => check(&read.object.namespace, read.object.name.as_bytes(), false),
            Operation::Put(own) | Operation::Delete(own) => change(own),
            Operation::Copy { from, to, .. } => {
                check(&from.namespace, from.name.as_bytes(), false)?;
                change(to)
            }
            Operation::List(list) => check(&list.namespace, &list.prefix, false),
        }
    }

    /// Runs a change to its end, even if the connection ends earlier.
    pub(crate) async fn to_its_end<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, done) = oneshot::channel();
        let task = connection::spawn(async move {
            // This fails if the connection has ended.
            let _ = sender.send(change.await);
        });
        *self.change.lock() = Some(task);
        done.await.unwrap_or_else(|_| Err(Error::OutcomeUnknown("the change was aborted".into())))
    }

    /// Logs a request that has failed for a reason that an operator can fix.
    fn log(&self, head: &Parts, failure: &Failure) {
        let Failure::Store(error) = failure else { return };
        if error.is_answer()
            || matches!(error, Error::TooLarge { .. } | Error::Unsupported(_) | Error::Denied(_))
        {
            return;
        }
        if let Some(suppressed) = self.shared.admit_log(error.kind()) {
            let path = head.uri.path();
            // The admin listener shows this field completely only to holders of its token.
            tracing::warn!(method = %head.method, object = path, cause = %error, suppressed, "HTTP request for an object failed");
        }
    }
}

const OTHER: usize = METHODS.len() - 1;

/// Returns the index of an operation in [`METHODS`].
fn index(operation: &Operation) -> usize {
    match operation {
        Operation::Read(read) if !read.is_head => 0,
        Operation::Read(_) => 1,
        Operation::Put(_) => 2,
        Operation::Delete(_) => 3,
        Operation::Copy { .. } => 4,
        Operation::List(_) => 5,
    }
}

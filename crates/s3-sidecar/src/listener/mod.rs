//! The running sidecar: sockets, connections, routing of requests, and operators' commands.
//! Decisions about single reads and changes do not belong here. Each thread has a runtime, a share of
//! the client connections, and its own connections to the endpoint.

pub(crate) mod control;
pub(crate) mod service;
pub(crate) mod socket;

use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::{fmt, io};

use blocker::Namespace;
use cached_http::{ServerLimits, Socket, Stall};
use cached_metrics::{Collect, Families};
use connection::unreceived_bytes;
use parking_lot::{Mutex, RwLock};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};

use crate::Shared;
use crate::access_log::AccessLog;
use crate::auth::{Access, Secrets};
use crate::config::SidecarConfig;
use crate::endpoint::lane::Lanes;
use crate::endpoint::{Breaker, Upstream};
use crate::http::target::Addressing;
use crate::listener::control::SidecarControl;
use crate::listener::socket::{Pipes, Splicing};
use crate::memory::Knowledge;
use crate::memory::pieces::Pieces;
use crate::memory::tables::{ABSENT_BYTES_EACH, Table};
use crate::metrics::{Buckets, Counts};

/// The reason why a sidecar cannot start, as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SidecarError {
    /// A value in the configuration is invalid.
    #[error("s3.{key}: {why}")]
    Config {
        /// The key.
        key: &'static str,
        /// The mistake in its value.
        why: String,
    },
    /// An address cannot be listened on.
    #[error("s3.listen: cannot listen on {address}: {cause}")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        cause: io::Error,
    },
    /// A thread or its runtime cannot be created.
    #[error("cannot start a thread of the S3 sidecar: {0}")]
    Thread(io::Error),
}

/// A running sidecar. Dropping it ends the sidecar.
pub struct Sidecar {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    end: Mutex<Option<watch::Sender<()>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Sidecar {
    /// Opens the sockets and serves clients.
    ///
    /// # Errors
    /// [`SidecarError`].
    pub fn start(config: SidecarConfig) -> Result<Sidecar, SidecarError> {
        let wrong = |(key, why)| SidecarError::Config { key, why };
        config.check().map_err(wrong)?;
        let upstream_tls = config.upstream_tls().map_err(|(key, error)| wrong((key, error.into())))?;
        let mut sockets = Vec::new();
        for address in &config.listen {
            let failed = |cause| SidecarError::Listen { address: address.clone(), cause };
            sockets.extend(cached_http::bind(address.as_str()).map_err(failed)?);
        }
        let local = |socket: &StdListener| socket.local_addr().map_err(SidecarError::Thread);
        let addresses = sockets.iter().map(local).collect::<Result<_, _>>()?;
        let pieces = Pieces::new(config.memory_bytes, config.heads_max, &config.terms, config.tls.is_none())
            .map_err(|error| SidecarError::Config { key: "memory_bytes", why: error.to_string() })?;
        let heads = Table::new(config.heads_max, config.heads_bytes_max);
        let absent_bytes_max = config.absent_max.saturating_mul(ABSENT_BYTES_EACH);
        let absents = Table::new(config.absent_max, absent_bytes_max);
        // The endpoint completes a change before it responds.
        let knowledge = Knowledge::new(heads, absents, config.response_timeout, config.names);
        let opened = config.access_log.as_ref().map(AccessLog::start).transpose();
        let access_log = opened.map_err(|error| SidecarError::Config {
            key: "access_log",
            why: format!("cannot be opened: {error}"),
        })?;
        let policies = config.policies().map_err(wrong)?;
        let shared = Arc::new(Shared {
            addressing: Addressing::new(&config.domains),
            knowledge: Arc::new(knowledge),
            policies: RwLock::new(policies),
            lanes: Arc::new(Lanes::new(&config.terms)),
            access: Access {
                auth: config.auth,
                keys: config.secrets.keys.clone(),
                region: config.region.clone(),
            },
            pieces: Arc::new(pieces),
            fills: Arc::default(),
            asking: Arc::default(),
            counts: Arc::default(),
            buckets: Buckets::default(),
            breaker: Arc::default(),
            slow: Breaker::default(),
            held: Arc::default(),
            access_log: access_log.map(Arc::new),
            config,
        });
        let (end, ended) = watch::channel(());
        let permits = Arc::new(Semaphore::new(shared.config.connections_max));
        let mut sidecar = Sidecar { shared, addresses, end: Mutex::new(Some(end)), threads: Vec::new() };
        for number in 0..sidecar.shared.config.threads {
            let runtime = Builder::new_current_thread().enable_all().build().map_err(SidecarError::Thread)?;
            let copies = sockets.iter().map(StdListener::try_clone).collect::<Result<Vec<_>, _>>();
            let listeners = listeners(&runtime, copies.map_err(SidecarError::Thread)?)?;
            let worker = Worker {
                shared: Arc::clone(&sidecar.shared),
                upstream: Upstream::new(
                    &sidecar.shared.config,
                    upstream_tls.clone(),
                    &sidecar.shared.breaker,
                    &sidecar.shared.lanes,
                ),
                pipes: Arc::new(Pipes::new(sidecar.shared.pieces.lends())),
                permits: Arc::clone(&permits),
                end: ended.clone(),
            };
            let body = move || runtime.block_on(worker.run(listeners, number == 0));
            let thread = thread::Builder::new().name(format!("cached-s3-{number}")).spawn(body);
            sidecar.threads.push(thread.map_err(SidecarError::Thread)?);
        }
        Ok(sidecar)
    }

    /// Returns the addresses on which the sidecar listens.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> &Arc<Counts> {
        &self.shared.counts
    }

    /// Returns the secrets, which can be read again.
    #[must_use]
    pub fn secrets(&self) -> Secrets {
        self.shared.config.secrets.clone()
    }

    /// Returns the collector of counters and sizes as metrics.
    #[must_use]
    pub fn metrics(&self) -> Arc<dyn Collect> {
        Arc::clone(&self.shared) as _
    }

    /// Returns a handle for commands.
    #[must_use]
    pub fn control(&self) -> SidecarControl {
        SidecarControl::new(&self.shared)
    }

    /// Closes the listeners. Requests in progress continue until they are answered, or until the
    /// configured time has passed.
    pub fn request_end(&self) {
        drop(self.end.lock().take());
    }
}

impl Collect for Shared {
    fn collect(&self, into: &mut Families) {
        self.counts.collect(into);
        self.counts.refusals.collect(into);
        let (count, bytes) = self.knowledge.heads.sizes();
        into.gauge("cached_s3_sidecar_heads", "S3 objects whose headers are cached.", count as u64);
        into.gauge("cached_s3_sidecar_heads_bytes", "Memory for the cached headers.", bytes as u64);
        let (count, _) = self.knowledge.absents.sizes();
        let help = "S3 objects that are known to be missing.";
        into.gauge("cached_s3_sidecar_absent_objects", help, count as u64);
        let help =
            "S3 objects with a request or a change in progress, or with a change whose outcome is unknown.";
        into.gauge("cached_s3_sidecar_objects_under_way", help, self.knowledge.changes.under_way() as u64);
        let help = "Whether the S3 endpoint is unreachable, and therefore retried once a second.";
        into.gauge("cached_s3_sidecar_endpoint_is_away", help, u64::from(self.breaker.is_open()));
        let dropped = self.access_log.as_ref().map_or(0, |log| log.dropped.get());
        let help = "Dropped lines of the access log.";
        into.counter("cached_s3_sidecar_access_log_dropped_total", help, dropped);
        collect_of_buckets(self, into);
        let bytes = self.pieces.used_bytes();
        into.gauge("cached_s3_sidecar_bodies_bytes", "Memory in use for the bodies of S3 objects.", bytes);
        let help = "Maximum memory for the bodies of S3 objects.";
        into.gauge("cached_s3_sidecar_bodies_bytes_max", help, self.config.memory_bytes);
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.request_end();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the S3 sidecar has panicked");
            }
        }
        if self.shared.access_log.as_ref().is_some_and(|log| !log.finish()) {
            tracing::warn!(
                "the last lines of the S3 sidecar's access log are lost: its destination accepts nothing"
            );
        }
    }
}

impl fmt::Debug for Sidecar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sidecar").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

fn listeners(runtime: &Runtime, sockets: Vec<StdListener>) -> Result<Vec<TcpListener>, SidecarError> {
    let _inside = runtime.enter();
    sockets.into_iter().map(TcpListener::from_std).collect::<Result<_, _>>().map_err(SidecarError::Thread)
}

/// State shared by the connections of a thread.
#[derive(Clone)]
struct Worker {
    shared: Arc<Shared>,
    upstream: Arc<Upstream>,
    pipes: Arc<Pipes>,
    permits: Arc<Semaphore>,
    end: watch::Receiver<()>,
}

impl Worker {
    /// Accepts connections until the sidecar ends, then waits for the remaining connections. The
    /// worker that `renews` reads changed certificates and secrets.
    async fn run(self, listeners: Vec<TcpListener>, renews: bool) {
        let config = &self.shared.config;
        // These tasks end with the thread's runtime.
        if renews {
            for (key, file) in config.secrets.files() {
                connection::spawn(cached_tls::renew_files(key, move || {
                    Arc::clone(&file).reload_if_changed()
                }));
            }
            if let Some(tls) = config.tls.clone() {
                connection::spawn(cached_tls::renew(tls, "s3.tls"));
            }
        }
        let accept = |listener| cached_http::accept(self.clone(), listener, self.ended());
        let accepting = listeners.into_iter().map(accept);
        let left = futures_util::future::join_all(accepting).await;
        let waiting = async {
            for mut connections in left {
                while connections.join_next().await.is_some() {}
            }
        };
        if tokio::time::timeout(config.drain_timeout, waiting).await.is_err() {
            tracing::warn!("connections of S3 clients were aborted at the end");
        }
    }

    async fn serve_on(&self, socket: Box<dyn Socket>, peer: SocketAddr) -> Result<(), String> {
        let config = &self.shared.config;
        let limits = ServerLimits {
            headers_max: config.headers_max,
            head_bytes_max: config.head_bytes_max,
            head_time_max: config.client_idle_max,
            // Requests that the sidecar signs are its own.
            keeps_case: !config.auth.is_here(),
        };
        let (shared, upstream) = (Arc::clone(&self.shared), Arc::clone(&self.upstream));
        let answer = Box::new(move |request| -> cached_http::Answer {
            Box::pin(service::answer(Arc::clone(&shared), Arc::clone(&upstream), peer, request))
        });
        let served = cached_http::serve(socket, limits, answer, Box::pin(self.ended())).await;
        served.map_err(|error| match error.is_parse_too_large() {
            true => format!("the head of a request is beyond {}", config.head_limits()),
            false => error.to_string(),
        })
    }

    /// Waits until the sidecar ends.
    fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut end = self.end.clone();
        async move { drop(end.changed().await) }
    }
}

impl cached_http::Server for Worker {
    const NAME: &str = "the S3 sidecar";

    fn permits(&self) -> &Arc<Semaphore> {
        &self.permits
    }

    fn refuse(&self) -> &'static [u8] {
        const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: application/xml\r\n\
            content-length: 86\r\n\r\n<Error><Code>SlowDown</Code><Message>cached has no connection free.</Message></Error>\n";
        self.shared.counts.connections.increment();
        self.shared.counts.connections_refused.increment();
        if self.shared.config.tls.is_some() { cached_tls::BUSY } else { BUSY }
    }

    async fn serve(self, socket: TcpStream, peer: SocketAddr) -> Result<(), String> {
        self.shared.counts.connections.increment();
        let now = &self.shared.counts.connections_now;
        now.add(1.0);
        // A failure only affects speed.
        let _ = socket.set_nodelay(true);
        let stall_max = self.shared.config.stall_max;
        let served = match &self.shared.config.tls {
            None => {
                let socket = Splicing::new(socket, Arc::clone(&self.shared), Arc::clone(&self.pipes));
                let socket = Stall::new(socket, stall_max, Splicing::progress);
                self.serve_on(Box::new(socket), peer).await
            }
            Some(tls) => match cached_tls::accept(tls, socket).await {
                Ok(socket) => {
                    let socket =
                        Stall::new(socket, stall_max, |socket| unreceived_bytes(socket).unwrap_or_default());
                    self.serve_on(Box::new(socket), peer).await
                }
                Err(error) => Err(error),
            },
        };
        now.add(-1.0);
        served
    }
}

/// Adds the metrics of buckets.
pub(crate) fn collect_of_buckets(shared: &Shared, into: &mut Families) {
    for (bucket, counts) in shared.buckets.all() {
        into.append_labelled(&[("bucket", bucket).into()], counts.families());
    }
    let lanes = shared.lanes.all();
    if lanes.is_empty() {
        return;
    }
    let spaces = shared.pieces.by_bucket();
    for (bucket, lane) in lanes {
        let named = |name: &Namespace| name.as_bytes() == bucket.as_bytes();
        let space = spaces.iter().find(|space| space.namespace.as_ref().is_some_and(named));
        let mut own = lane.families();
        let help = "Memory in use for the bodies of the bucket's objects.";
        let bytes = space.map_or(0, |space| space.cached_bytes);
        own.measure("cached_s3_sidecar_bucket_bodies_bytes", help, &bytes);
        let help = "Memory share of the bucket's bodies, if the bucket has its own share.";
        let target = space.and_then(|space| space.memory_target_bytes);
        own.measure("cached_s3_sidecar_bucket_bodies_target_bytes", help, &target);
        into.append_labelled(&[("bucket", bucket).into()], own);
    }
}

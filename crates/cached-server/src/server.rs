//! The server as a whole: opening sockets, starting threads, stopping in order.

use crate::clock::ServerClock;
use crate::connections::{Command, CommandQueue};
use crate::heartbeat::Activity;
use crate::limits::Limits;
use crate::listen::{ListenError, Listeners, acceptor};
use crate::logging::Logging;
use crate::objects::ObjectStatistics;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::watch::{Evictions, Watch};
use crate::worker::{self, DRAIN_TIME, Watchdog, Worker};
use cached_core::kv::{ITEM_BYTES_MIN, Kv, KvConfig, KvConfigError, policy};
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, LocalSet};

/// Why the server cannot start: one line each.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The memory settings cannot work.
    #[error("cannot set up the store: {0}")]
    Store(#[from] KvConfigError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// The address.
        address: String,
        /// The error of the system.
        cause: io::Error,
    },
    /// A thread, its runtime or a descriptor for it cannot be created.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Why the server cannot run, or did not end in order: one line each.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A thread, its runtime or a descriptor for it cannot be created.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// A thread has panicked, or cannot continue its work. The server has ended: it does not continue without
    /// the thread.
    #[error("{0}")]
    Defect(String),
    /// These workers did not end in time.
    #[error("these workers do not end: {0}")]
    Stuck(String),
}

/// How long workers may take to end beyond [`DRAIN_TIME`].
const END_MARGIN: Duration = Duration::from_secs(5);

/// A server whose sockets are open. Clients can connect, and are served once [`run`](Server::run) is called.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Listeners,
}

/// Stops a server from any thread.
#[derive(Clone)]
pub struct Stopper {
    shared: Arc<Shared>,
}

impl Stopper {
    /// Requests that the server answers what it has received, and ends.
    pub fn stop(&self) {
        self.shared.stop.request();
    }
}

impl From<ListenError> for StartError {
    fn from(error: ListenError) -> StartError {
        StartError::Listen { address: error.address, cause: error.cause }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("listeners", &self.listeners).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Stopper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stopper")
    }
}

impl Server {
    /// Creates the store and opens the sockets.
    ///
    /// # Errors
    /// [`StartError`] if the store cannot be created or a socket not be opened.
    pub fn open(settings: Settings, logging: Logging) -> Result<Server, StartError> {
        Server::open_with(settings, logging, Vec::new())
    }

    /// Does the same with sockets that are open already. If there are any, the addresses in the settings are
    /// ignored.
    ///
    /// # Errors
    /// [`StartError`] if the store cannot be created or a socket not be opened.
    pub fn open_with(
        settings: Settings,
        logging: Logging,
        inherited: Vec<OwnedFd>,
    ) -> Result<Server, StartError> {
        let clock = ServerClock::new();
        let pending_bytes = settings.worker_buffer_bytes.saturating_mul(settings.threads);
        let watch = Watch::new(pending_bytes, settings.watcher_buffer_bytes).map_err(StartError::Thread)?;
        let watch = Arc::new(watch);
        let kv = Kv::new(KvConfig {
            arena_bytes: settings.memory_bytes,
            item_bytes_max: settings.joined_bytes_max().max(ITEM_BYTES_MIN),
            lanes: settings.threads,
            cas: settings.cas,
            evict: settings.evict,
            policy: policy::by_name(settings.eviction_policy).unwrap_or_else(|| KvConfig::default().policy),
            huge_pages: settings.huge_pages,
            clock: clock.ticks(),
            eviction_hook: Some(Arc::new(Evictions::new(watch.clone(), &settings))),
            ..KvConfig::default()
        })?;
        let listeners = Listeners::open(&settings, inherited)?;
        let queues: Result<Box<[_]>, _> = (0..settings.threads).map(|_| CommandQueue::new()).collect();
        let queues = queues.map_err(StartError::Thread)?;
        let shared = Arc::new(Shared::new(kv, clock, settings, logging, watch, queues));
        // Set once, here.
        let _ = shared.listeners.set(listeners.infos());
        Ok(Server { shared, listeners })
    }

    /// Returns the TCP addresses it listens on.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.tcp_addresses()
    }

    /// Returns the path of the unix socket it listens on.
    pub fn unix_path(&self) -> Option<PathBuf> {
        self.listeners.unix_path().map(PathBuf::from)
    }

    /// Returns the most memory that it takes.
    pub fn limits(&self) -> Limits {
        Limits::new(&self.shared.settings, &self.shared.kv.limits())
    }

    /// Shows an object cache's statistics in `stats objects` and `stats objects_lost`. Calls after the first
    /// have no effect.
    pub fn report_objects(&self, statistics: ObjectStatistics) {
        // Fails after the first call.
        let _ = self.shared.objects.set(statistics);
    }

    /// Returns a handle that stops it.
    pub fn stopper(&self) -> Stopper {
        Stopper { shared: self.shared.clone() }
    }

    /// Serves until it is stopped: by a [`Stopper`], by a client's `shutdown`, or when `end` is ready. It
    /// ends within seconds then, whatever clients do.
    ///
    /// # Errors
    /// [`ServeError`] if a thread cannot be created, has panicked, or does not end.
    pub fn run(self, end: impl Future<Output = ()>) -> Result<(), ServeError> {
        let runtime = runtime()?;
        let Server { shared, listeners } = self;
        let ended = start_workers(&shared)?;
        let watchdog = Watchdog::start(shared.clone()).map_err(ServeError::Thread)?;
        let tasks = LocalSet::new();
        let next_worker = acceptor::RoundRobin::default();
        let watched = |task: JoinHandle<()>| {
            let shared = shared.clone();
            // A task that panics does not end the others by itself.
            tasks.spawn_local(async move {
                if let Err(error) = task.await
                    && let Ok(payload) = error.try_into_panic()
                {
                    shared.fail_by_panic("the acceptor's thread", &*payload);
                }
            });
        };
        for listener in listeners.sockets {
            watched(tasks.spawn_local(acceptor::accept(listener, shared.clone(), next_worker.clone())));
        }
        watched(tasks.spawn_local(tick(shared.clone())));
        tasks.block_on(&runtime, async {
            tokio::select! {
                () = end => {}
                () = shared.stop.requested() => {}
            }
        });
        tracing::info!("stopping");
        // Before the listeners: while the socket is open, no other file can be mistaken for its file.
        drop(listeners.unix_file);
        // Closes the listeners: from now on the system refuses clients.
        drop(tasks);
        let failed = shared.defect.first().is_some();
        for queue in shared.connections.queues() {
            queue.send(if failed { Command::Abort } else { Command::Drain });
        }
        let stuck = wait_for_workers(&ended, &shared);
        drop(watchdog);
        match shared.defect.first() {
            Some(text) => Err(ServeError::Defect(text.to_owned())),
            None if stuck.is_empty() => Ok(()),
            None => {
                let stuck: Vec<String> = stuck.iter().map(ToString::to_string).collect();
                Err(ServeError::Stuck(stuck.join(", ")))
            }
        }
    }
}

/// Starts the worker threads. Returns a channel that receives the index of each worker that ends.
fn start_workers(shared: &Arc<Shared>) -> Result<mpsc::Receiver<usize>, ServeError> {
    let (sender, ended) = mpsc::channel();
    for index in 0..shared.settings.threads {
        let worker = Worker::new(index, shared.clone()).map_err(ServeError::Thread)?;
        let (shared, sender) = (shared.clone(), sender.clone());
        let body = move || {
            if shared.settings.pin_workers {
                worker::pin(index, shared.settings.threads);
            }
            run_worker(index, worker, &shared);
            // Fails if the server has stopped waiting.
            let _ = sender.send(index);
        };
        let thread = thread::Builder::new().name(format!("cached-{index}"));
        thread.spawn(body).map_err(ServeError::Thread)?;
    }
    Ok(ended)
}

/// The body of a worker's thread: runs the worker and records a panic.
fn run_worker(index: usize, worker: Worker, shared: &Shared) {
    // After a panic nothing of the worker is used again, not even to drop it.
    let mut worker = ManuallyDrop::new(worker);
    match panic::catch_unwind(AssertUnwindSafe(|| worker.run())) {
        Ok(()) => drop(ManuallyDrop::into_inner(worker)),
        Err(payload) => {
            shared.fail_by_panic(&format!("worker {index}"), &*payload);
            worker.shut_down_sockets();
        }
    }
}

/// Waits until all workers have ended, for a bounded time; returns those that have not.
fn wait_for_workers(ended: &mpsc::Receiver<usize>, shared: &Shared) -> Vec<usize> {
    let end = Instant::now() + DRAIN_TIME + END_MARGIN;
    let mut running: Vec<usize> = (0..shared.settings.threads).collect();
    while !running.is_empty() {
        let Ok(index) = ended.recv_timeout(end.saturating_duration_since(Instant::now())) else { break };
        running.retain(|running| *running != index);
    }
    for index in &running {
        let state = shared.counters(*index).heartbeat.read();
        tracing::error!("worker {index} does not end: it is in {}", state.activity());
    }
    running
}

fn runtime() -> Result<Runtime, ServeError> {
    Builder::new_current_thread().enable_io().enable_time().build().map_err(ServeError::Thread)
}

/// Advances the clock once a second, closes idle connections, and runs the store's upkeep.
async fn tick(shared: Arc<Shared>) {
    /// The number of upkeep steps per second; bounded, so that it never delays the acceptor for long.
    const UPKEEP_STEPS: usize = 16;
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    for second in 1.. {
        seconds.tick().await;
        shared.acceptor_heartbeat.begin(second, -1, Activity::Upkeep);
        shared.faults.check_acceptor();
        shared.clock.tick();
        shared.close_idle();
        for _ in 0..UPKEEP_STEPS {
            if !shared.kv.maintain() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
}

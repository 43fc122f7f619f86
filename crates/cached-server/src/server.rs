//! The server as a whole: opening sockets, starting threads, stopping in order.

use crate::clock::ServerClock;
use crate::conn::info::Ends;
use crate::limits::Limits;
use crate::listen::{self, At, BoundUnix, Listener, acceptor};
use crate::logging::Logging;
use crate::objects::Figures;
use crate::settings::Settings;
use crate::shared::{ListenerInfo, Shared};
use crate::watch::{Evictions, Watch};
use crate::worker::{self, DRAIN_TIME, Doing, Mail, Mailbox, Watchdog, Worker};
use cached_core::kv::{ITEM_BYTES_MIN, Kv, KvConfig, KvConfigError, policy};
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::rc::Rc;
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
        /// What the system said.
        cause: io::Error,
    },
    /// A thread or its runtime cannot be had.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Why the server does not serve, or has ended otherwise than it should: one line each.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A thread or its runtime cannot be had.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// A thread has panicked, or can do its work no more. The server has ended, for with half of its threads it would be none.
    #[error("{0}")]
    Defect(String),
    /// These workers did not end in time.
    #[error("these workers do not end: {0}")]
    Stuck(String),
}

/// How long workers may take to end beyond what their clients are given.
const END_MARGIN: Duration = Duration::from_secs(5);

/// A server whose sockets are open. Clients can connect, and are served once it runs.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<Listener>,
    /// Removes the unix socket's file at the end.
    unix: Option<BoundUnix>,
}

/// Stops a server from anywhere.
#[derive(Clone)]
pub struct Stopper {
    shared: Arc<Shared>,
}

impl Stopper {
    /// Asks the server to finish what it has received and end.
    pub fn stop(&self) {
        self.shared.stop.request();
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
    /// Makes the store and opens the sockets, or takes those that were inherited instead.
    ///
    /// # Errors
    /// [`StartError`] when the store or a socket cannot be had.
    pub fn open(settings: Settings, logging: Logging) -> Result<Server, StartError> {
        Server::open_with(settings, logging, Vec::new())
    }

    /// The same, with sockets that are open already; if there are any, what the settings say of listening is
    /// left aside.
    ///
    /// # Errors
    /// [`StartError`] when the store or a socket cannot be had.
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
        let (listeners, unix) = if inherited.is_empty() {
            open_listeners(&settings)?
        } else {
            (adopt(&settings, inherited)?, None)
        };
        let shared = Arc::new(Shared::new(kv, clock, settings, logging, watch));
        let infos = listeners.iter().map(|listener| ListenerInfo {
            fd: listener.socket.as_raw_fd(),
            ends: match &listener.at {
                At::Tcp(address) => Ends::Tcp { peer: *address, local: None },
                At::Unix(path) => Ends::Unix { path: path.clone() },
            },
        });
        // Set once, here.
        let _ = shared.listeners.set(infos.collect());
        Ok(Server { shared, listeners, unix })
    }

    /// The TCP addresses it listens on.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        tcp_addresses(&self.listeners)
    }

    /// The unix socket it listens on.
    pub fn unix_path(&self) -> Option<PathBuf> {
        self.listeners.iter().find_map(|listener| match &listener.at {
            At::Unix(path) => Some(path.clone()),
            At::Tcp(_) => None,
        })
    }

    /// What it may take at most.
    pub fn limits(&self) -> Limits {
        Limits::new(&self.shared.settings, &self.shared.kv.limits())
    }

    /// Shows an object cache's figures in `stats objects`. The first call counts.
    pub fn report_objects(&self, figures: Figures) {
        // Set already: the first call counts.
        let _ = self.shared.objects.set(figures);
    }

    /// A handle that stops it.
    pub fn stopper(&self) -> Stopper {
        Stopper { shared: self.shared.clone() }
    }

    /// Serves until stopped: by a [`Stopper`], by a client's `shutdown`, or when `end` is ready. Ends within seconds then, whatever
    /// clients do.
    ///
    /// # Errors
    /// [`ServeError`] when a thread cannot be had, has panicked, or does not end.
    pub fn run(self, end: impl Future<Output = ()>) -> Result<(), ServeError> {
        let runtime = runtime()?;
        let (ended, ends) = mpsc::channel();
        let mut workers = Vec::new();
        let shared = self.shared;
        for index in 0..shared.settings.threads {
            let mailbox = Arc::new(Mailbox::new().map_err(ServeError::Thread)?);
            let worker = Worker::new(index, shared.clone(), mailbox.clone()).map_err(ServeError::Thread)?;
            let (shared, ended) = (shared.clone(), ended.clone());
            let body = move || {
                if shared.settings.pin_workers {
                    worker::pin(index, shared.settings.threads);
                }
                serve(index, worker, &shared);
                // The server has stopped waiting if nobody takes it.
                let _ = ended.send(index);
            };
            let thread = thread::Builder::new().name(format!("cached-{index}"));
            thread.spawn(body).map_err(ServeError::Thread)?;
            workers.push(mailbox);
        }
        let watchdog = Watchdog::start(shared.clone()).map_err(ServeError::Thread)?;
        let workers: Rc<[_]> = workers.into();
        let tasks = LocalSet::new();
        let turn = acceptor::Turn::default();
        let watched = |task: JoinHandle<()>| {
            let shared = shared.clone();
            // A task that panics takes nothing else with it by itself.
            tasks.spawn_local(async move {
                if let Err(error) = task.await
                    && let Ok(payload) = error.try_into_panic()
                {
                    shared.fail_by_panic("the acceptor's thread", &*payload);
                }
            });
        };
        for listener in self.listeners {
            let accept = acceptor::accept(listener, shared.clone(), workers.clone(), turn.clone());
            watched(tasks.spawn_local(accept));
        }
        watched(tasks.spawn_local(tick(shared.clone())));
        tasks.block_on(&runtime, async {
            tokio::select! {
                () = end => {}
                () = shared.stop.requested() => {}
            }
        });
        tracing::info!("stopping");
        // While its socket is open no other file can be mistaken for it.
        drop(self.unix);
        // Closes the listeners: from now on clients are refused by the system.
        drop(tasks);
        let failed = shared.defect.first().is_some();
        workers.iter().for_each(|worker| worker.send(if failed { Mail::Abandon } else { Mail::Shutdown }));
        let stuck = wait_for_workers(workers.len(), &ends, &shared);
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

/// A worker's thread: serves, and notes a panic.
fn serve(index: usize, worker: Worker, shared: &Shared) {
    // After a panic nothing of it is to be looked at again, not even to give it back.
    let mut worker = ManuallyDrop::new(worker);
    match panic::catch_unwind(AssertUnwindSafe(|| worker.run())) {
        Ok(()) => drop(ManuallyDrop::into_inner(worker)),
        Err(payload) => {
            shared.fail_by_panic(&format!("worker {index}"), &*payload);
            worker.hang_up();
        }
    }
}

/// Waits until all workers have ended, but not for ever; those that have not.
fn wait_for_workers(count: usize, ends: &mpsc::Receiver<usize>, shared: &Shared) -> Vec<usize> {
    let end = Instant::now() + DRAIN_TIME + END_MARGIN;
    let mut running: Vec<usize> = (0..count).collect();
    while !running.is_empty() {
        let Ok(index) = ends.recv_timeout(end.saturating_duration_since(Instant::now())) else { break };
        running.retain(|running| *running != index);
    }
    for index in &running {
        let beat = shared.counters(*index).pulse.look();
        tracing::error!("worker {index} does not end: it is within {}", beat.doing());
    }
    running
}

fn tcp_addresses(listeners: &[Listener]) -> Vec<SocketAddr> {
    let tcp = listeners.iter().filter_map(|listener| match &listener.at {
        At::Tcp(address) => Some(*address),
        At::Unix(_) => None,
    });
    tcp.collect()
}

fn open_listeners(settings: &Settings) -> Result<(Vec<Listener>, Option<BoundUnix>), StartError> {
    let mut listeners = Vec::new();
    for address in &settings.listen {
        let opened = listen::bind_tcp(address, settings.backlog).map_err(|cause| {
            let host = address.host.as_deref().unwrap_or("all interfaces");
            StartError::Listen { address: format!("{host}, port {}", address.port), cause }
        })?;
        listeners.extend(opened);
    }
    let Some(path) = &settings.unix_path else {
        if let Err(error) = listen::write_port_file(&tcp_addresses(&listeners)) {
            tracing::warn!(cause = %error, "cannot write the file that MEMCACHED_PORT_FILENAME names");
        }
        return Ok((listeners, None));
    };
    let (listener, bound) = listen::bind_unix(path, settings.unix_mask, settings.protocol, settings.backlog)
        .map_err(|cause| StartError::Listen { address: path.display().to_string(), cause })?;
    listeners.push(listener);
    Ok((listeners, Some(bound)))
}

/// Makes listeners of sockets that are open already.
fn adopt(settings: &Settings, sockets: Vec<OwnedFd>) -> Result<Vec<Listener>, StartError> {
    let adopted = sockets.into_iter().map(|socket| {
        listen::adopt(socket, settings.protocol, settings.backlog)
            .map_err(|cause| StartError::Listen { address: "a socket of LISTEN_FDS".into(), cause })
    });
    adopted.collect()
}

fn runtime() -> Result<Runtime, ServeError> {
    Builder::new_current_thread().enable_io().enable_time().build().map_err(ServeError::Thread)
}

/// Steps the clock once a second, and lets the store do what it has put off.
async fn tick(shared: Arc<Shared>) {
    /// Steps of the store's upkeep per second, so that it never keeps connections from being accepted for long.
    const UPKEEP_STEPS: usize = 16;
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    for second in 1.. {
        seconds.tick().await;
        shared.acceptor_pulse.begin(second, -1, Doing::Upkeep);
        shared.trials.acceptor();
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

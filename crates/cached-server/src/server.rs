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
use crate::worker::{Mail, Mailbox, Worker};
use cached_core::kv::{Kv, KvConfig, KvConfigError, policy};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

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
            item_bytes_max: settings.item_bytes_max,
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

    /// Serves until stopped: by a [`Stopper`], by a client's `shutdown`, or when `end` is ready.
    ///
    /// # Errors
    /// [`StartError::Thread`] when a thread or its runtime cannot be had.
    pub fn run(self, end: impl Future<Output = ()>) -> Result<(), StartError> {
        let runtime = runtime()?;
        let mut threads = Vec::new();
        let mut workers = Vec::new();
        for index in 0..self.shared.settings.threads {
            let mailbox = Arc::new(Mailbox::new().map_err(StartError::Thread)?);
            let worker =
                Worker::new(index, self.shared.clone(), mailbox.clone()).map_err(StartError::Thread)?;
            let body = move || {
                pin_to_core(index);
                worker.run();
            };
            let thread = thread::Builder::new().name(format!("cached-{index}"));
            threads.push(thread.spawn(body).map_err(StartError::Thread)?);
            workers.push(mailbox);
        }
        let workers: Rc<[_]> = workers.into();
        let shared = self.shared;
        let tasks = LocalSet::new();
        let turn = acceptor::Turn::default();
        for listener in self.listeners {
            tasks.spawn_local(acceptor::accept(listener, shared.clone(), workers.clone(), turn.clone()));
        }
        tasks.spawn_local(tick(shared.clone()));
        tasks.block_on(&runtime, async {
            tokio::select! {
                () = end => {}
                () = shared.stop.requested() => {}
            }
        });
        tracing::info!("stopping");
        // Closes the listeners: from now on clients are refused by the system.
        drop(tasks);
        drop(self.unix);
        workers.iter().for_each(|worker| worker.send(Mail::Shutdown));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a worker has panicked");
            }
        }
        Ok(())
    }
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

fn runtime() -> Result<Runtime, StartError> {
    Builder::new_current_thread().enable_io().enable_time().build().map_err(StartError::Thread)
}

/// Steps the clock once a second, and lets the store do what it has put off.
async fn tick(shared: Arc<Shared>) {
    /// Steps of the store's upkeep per second, so that it never keeps connections from being accepted for long.
    const UPKEEP_STEPS: usize = 16;
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    loop {
        seconds.tick().await;
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

/// Ties the thread to one of the cores it may run on, if there are enough for all. Best effort.
fn pin_to_core(index: usize) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let cores: Vec<usize> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    if cores.len() < 2 || index >= cores.len() {
        // More threads than cores: the scheduler knows better.
        return;
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(cores[index]);
    // Not allowed in some sandboxes; then it runs where it likes.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

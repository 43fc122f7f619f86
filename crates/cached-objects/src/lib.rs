//! The object service of `cached` and `synapsed`: the configured store, the cache over it, the
//! listeners, the election of the one host that serves, and a shutdown that loses nothing. It has
//! threads of its own; the rest of a program never waits for it.
//!
//! ```text
//! synapse clients ──► listener (threads of its own) ──► ObjectCache ──► store (memory, file, …)
//! HTTP clients ──► listener (threads of its own) ──────────┤
//! NBD clients ──► volumes (threads of their own) ──────────┘
//!                                                           ▲
//!                                    control thread: flushing by age, accepting, the end
//! ```
//!
//! | module | content |
//! |---|---|
//! | `config` | the tables that configure all of this |
//! | `open` | opens a cache, at the start, again after a failed upgrade, and for each leadership; changes its settings while it runs; the sockets of its listener, which stay unless the writer is elected, and the server that accepts from them, which ends with its cache |
//! | `http` | the listener for HTTP requests |
//! | `thread` | the control thread, which also releases the store for another process, and the requests to it |
//! | `volumes` | volumes in the cache, served over NBD |
//! | `election` | the election of the writer among several hosts |
//! | `lead` | the control thread's course in an election: a cache only while this host leads |
//! | `wanted` | the state that the control thread is asked to reach |

mod config;
mod election;
mod http;
mod lead;
mod open;
mod thread;
mod volumes;
mod wanted;

pub use config::{FuaName, ListenerFiles, NbdTable, ServiceConfig, VolumesTable, check_election, is_elected};
pub use open::{ObjectSockets, ReloadObjects};
pub use thread::{ObjectsControl, ShutdownError};

use blocker::trace::Tracer;
use cached_admin::AdminServer;
use cached_admin::insight::ObjectStatistics;
use cached_admin::insight::slow::SlowLog;
use cached_admin::sources::Shown;
use cached_config::StartError;
use cached_process::reload::LiveSecs;
use cached_process::{Exit, Failure};
use config::{BackendTable, ConfigError, Secrets};
use election::{Candidacy, Reported, Standing};
use open::{OpenObjects, Opening};
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thread::{Election, ObjectThread};
use tokio::sync::oneshot;
use volumes::{VolumeService, VolumesOpening};

/// The maximum time for closing a store, and for each other step of an end that nothing else limits.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits until work on other threads is done, for at most [`STEP_TIMEOUT`]. Returns whether it is.
fn is_done_in_time(is_done: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + STEP_TIMEOUT;
    while !is_done() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// The reason why the object cache cannot start, as a single line.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// The configuration is invalid in a way that only opening reveals, or something that it names
    /// cannot be used.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The store cannot be opened.
    #[error("cannot open the object store: {0}")]
    Store(#[from] blocker::Error),
    /// The listener cannot be opened.
    #[error("the object listener: {0}")]
    Listener(String),
    /// The volumes, or their listener, cannot be opened.
    #[error("volumes: {0}")]
    Volumes(String),
    /// This host cannot take part in the election of the writer.
    #[error("the election: {0}")]
    Election(String),
    /// A thread or its runtime cannot be created.
    #[error("cannot start a thread of the object cache: {0}")]
    Thread(#[from] io::Error),
    /// The end was requested before the store responded.
    #[error("shutdown was requested while the object store was unavailable")]
    Ended,
}

impl From<StartError> for ObjectsError {
    fn from(error: StartError) -> ObjectsError {
        match error {
            StartError::Config(error) | StartError::Locked(error) => ObjectsError::Config(error),
            StartError::Store(error) => ObjectsError::Store(error),
        }
    }
}

impl ObjectsError {
    /// Returns the exit status for this error, and the message line, which names the configuration
    /// file `path` if one of its keys is wrong.
    #[must_use]
    pub fn failure(self, path: Option<&Path>) -> Failure {
        match self {
            ObjectsError::Config(error) => match path {
                Some(path) => error.in_file(path).into(),
                None => error.into(),
            },
            error @ (ObjectsError::Store(_)
            | ObjectsError::Listener(_)
            | ObjectsError::Volumes(_)
            | ObjectsError::Election(_)) => Failure::new(Exit::Refused, error),
            error @ (ObjectsError::Thread(_) | ObjectsError::Ended) => Failure::new(Exit::Trouble, error),
        }
    }
}

/// An open object cache, or an open store that is served without one. Clients can connect, and are
/// served once [`serve`](Objects::serve) and then [`ObjectsControl::serve`] have been called.
pub struct Objects {
    open: Open,
    memory_bytes_max: u64,
    thread: ObjectThread,
}

/// What is open before the threads run.
#[expect(clippy::large_enum_variant, reason = "a process has one")]
enum Open {
    Cache(OpenObjects),
    /// A cache is opened when this host leads.
    Candidacy(Candidacy, Option<Shown>),
}

impl Objects {
    /// Opens the journal and the store, creates the cache, begins its recovery, and opens the
    /// sockets, unless `sockets` are already open. While the store is unavailable, retries until
    /// `end` is ready. The files and secrets are read separately, because reading them may need
    /// privileges that the process drops earlier. With an `admin` listener, requests to the store
    /// are measured, and the listener shows what the startup waits for; with a `tracer`, requests
    /// are traced.
    ///
    /// # Errors
    /// [`ObjectsError`] for the first failure.
    pub fn open(
        config: ServiceConfig,
        files: ListenerFiles,
        secrets: Secrets,
        sockets: Option<ObjectSockets>,
        end: Pin<&mut dyn Future<Output = ()>>,
        admin: Option<&Arc<AdminServer>>,
        tracer: Option<&Tracer>,
    ) -> Result<Objects, ObjectsError> {
        let standing = Standing::of(&config, admin)?;
        let ServiceConfig { objects, has_cache, synapse, volumes, nbd, insight, .. } = config;
        let slow = Arc::new(SlowLog::new(insight.slow_threshold()));
        let nbd_tls = files.nbd_tls.clone();
        let volumes = volumes.map(|volumes| VolumesOpening { volumes, nbd, nbd_tls });
        let opening = Opening {
            objects: objects.clone(),
            has_cache,
            synapse: synapse.clone(),
            volumes,
            files,
            secrets,
            sampling: insight.sampling(),
            tracer: tracer.cloned(),
            slow: slow.clone(),
            health: admin.map(|admin| admin.health().clone()),
            leads: None,
            without_journal: false,
        };
        let statistics = ObjectStatistics::new(slow);
        let (open, election) = match standing {
            None => {
                let open = opening.open(end)?;
                open.parts.show_in(&statistics);
                (Open::Cache(open), None)
            }
            Some(standing) => {
                let (reported, shown) = Reported::new(&standing, admin);
                let candidacy = standing.open(&reported, opening.secrets.store.clone(), end)?;
                (Open::Candidacy(candidacy, shown), Some(Election { standing: Arc::new(standing), reported }))
            }
        };
        let is_in_memory = matches!(objects.backend, Some(BackendTable::Memory(_)));
        let obstacle =
            is_in_memory.then_some("the object store is in memory and would be lost; restart instead");
        let sockets = match sockets {
            _ if election.is_some() => ObjectSockets::default(),
            Some(sockets) => sockets,
            // Opened last, so that clients are refused until the store is available.
            None => ObjectSockets::open(synapse.as_ref(), Vec::new())?,
        };
        let control = ObjectsControl::new(sockets, obstacle, election.is_some());
        if let Some(admin) = admin {
            let control = control.clone();
            admin.health().check_readiness(move || {
                control.is_released().then(|| "another process is taking over the object cache".into())
            });
        }
        let store_bytes_max = match &open {
            Open::Cache(open) => open.parts.store.memory_bytes_max(),
            // A connection of the cache as well.
            Open::Candidacy(candidacy, _) => 2 * candidacy.store_bytes_max(),
        };
        let cache_bytes_max = if has_cache { objects.cache_bytes_max() } else { 0 };
        let flush_max_secs = if has_cache { objects.shutdown_flush_secs } else { 0 };
        let memory_bytes_max = cache_bytes_max + store_bytes_max;
        let reload = ReloadObjects::new(opening);
        if let Open::Candidacy(candidacy, _) = &open {
            reload.set_election(candidacy.secret());
        }
        let thread = ObjectThread {
            control,
            reload,
            statistics,
            admin: admin.map(Arc::downgrade),
            flush_max: LiveSecs::new(flush_max_secs),
            // Replaced by `serve`.
            drain_timeout: LiveSecs::new(0),
            election,
        };
        Ok(Objects { open, memory_bytes_max, thread })
    }

    /// Returns the maximum memory use of cache and store, in bytes.
    pub fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    /// Returns the maximum memory use of the listeners, including that of volumes, in bytes.
    pub fn listener_bytes_max(&self) -> u64 {
        self.thread.reload.opening().listener_bytes_max()
    }

    /// Returns the addresses at which volumes are served.
    pub fn volume_addresses(&self) -> &[String] {
        match &self.open {
            Open::Cache(open) => open.parts.volumes.as_ref().map_or(&[], VolumeService::addresses),
            Open::Candidacy(..) => &[],
        }
    }

    /// Returns the addresses of the HTTP listener.
    pub fn http_addresses(&self) -> Vec<String> {
        match &self.open {
            Open::Cache(open) => open.parts.http.as_ref().map_or_else(Vec::new, |http| http.server.urls()),
            Open::Candidacy(..) => Vec::new(),
        }
    }

    /// Returns this host's name and address in the election of the writer, if it is elected: then
    /// the listeners are open only while this host leads.
    pub fn candidate(&self) -> Option<(&str, &str)> {
        let Standing { node, address, .. } = &*self.thread.election.as_ref()?.standing;
        Some((node, address))
    }

    /// Returns the addresses of the synapse listener.
    pub fn addresses(&self) -> Vec<String> {
        self.thread.control.listening().addresses()
    }

    /// Returns the statistics of cache, store and listener.
    pub fn statistics(&self) -> ObjectStatistics {
        self.thread.statistics.clone()
    }

    /// Returns a handle that changes the settings of cache, listener and store at run time.
    pub fn live(&self) -> ReloadObjects {
        self.thread.reload.clone()
    }

    /// Returns the handle that makes the cache serve, end, or release its store for another
    /// process.
    pub fn control(&self) -> ObjectsControl {
        self.thread.control.clone()
    }

    /// Starts the threads. From [`ObjectsControl::serve`] on, they serve until the end is requested;
    /// clients then have `drain_timeout` to read their replies.
    ///
    /// # Errors
    /// If a thread cannot be created.
    pub fn serve(self, drain_timeout: LiveSecs) -> Result<RunningObjects, ObjectsError> {
        let Objects { open, thread, .. } = self;
        let thread = ObjectThread { drain_timeout, ..thread };
        let (sender, ended) = oneshot::channel();
        let running = RunningObjects { thread: thread.clone(), ended };
        let run: Box<dyn FnOnce() -> Result<(), ShutdownError> + Send> = match open {
            Open::Cache(open) => {
                thread.listen(&open)?;
                let shown = thread.show(&open.parts);
                Box::new(move || thread.run(open, shown))
            }
            Open::Candidacy(candidacy, shown) => Box::new(move || {
                let _shown = shown;
                thread.run_elected(candidacy)
            }),
        };
        std::thread::Builder::new().name("object-cache".into()).spawn(move || {
            // Fails if the end was forced, in which case the receiver no longer waits.
            let _ = sender.send(run());
        })?;
        Ok(running)
    }
}

/// An object cache whose threads run.
pub struct RunningObjects {
    thread: ObjectThread,
    ended: oneshot::Receiver<Result<(), ShutdownError>>,
}

impl RunningObjects {
    /// Returns the handle that makes the cache serve, end, or release its store for another
    /// process.
    pub fn control(&self) -> ObjectsControl {
        self.thread.control.clone()
    }

    /// Returns the usual upper limit on the duration of the shutdown.
    pub fn shutdown_time_max(&self) -> Duration {
        let ObjectThread { drain_timeout, flush_max, .. } = &self.thread;
        2 * STEP_TIMEOUT + drain_timeout.get() + flush_max.get()
    }

    /// Requests the end, and waits until it is complete or `forced` is ready.
    ///
    /// # Errors
    /// [`ShutdownError`] states which acknowledged data is not stored.
    pub async fn shut_down(self, forced: impl Future<Output = ()>) -> Result<(), ShutdownError> {
        self.thread.control.end();
        let unfinished = |why: &str| match self.thread.statistics.cache() {
            Some(cache) => ShutdownError::of_cache(&cache, why),
            None => ShutdownError { dirty_bytes: 0, why: why.into() },
        };
        tokio::select! {
            ended = self.ended => match ended {
                Ok(result) => result,
                Err(_) => Err(unfinished("its thread has panicked")),
            },
            () = forced => Err(unfinished("a second signal forced the end")),
        }
    }
}

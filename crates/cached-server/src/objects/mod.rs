//! The object cache as a part of the server: the configured store, the cache over it, the synapse listener,
//! and an end that loses nothing.
//!
//! ```text
//! synapse clients ──► listener (threads of its own) ──► ObjectCache ──► store (memory, file, …)
//! NBD clients ──► volumes (threads of their own) ──────────┘
//!                                                           ▲
//!                                    control thread: flushing by age, accepting, the end
//! ```
//!
//! memcached's workers never wait for any of it; they only read its metrics, for `stats objects`.
//!
//! | module | content |
//! |---|---|
//! | `open` | opening a cache: at the start, and again if another process has failed to take over |
//! | `thread`, `control` | the control thread, and what it is asked for |
//! | `release` | letting the store go for another process |
//! | `sockets`, `listener` | the sockets, which stay; the server that accepts from them, which ends with its cache |
//! | `statistics`, `live` | what is shown of the cache that is open, and what can be changed of it |
//! | `volumes` | volumes in the cache, served over NBD |
//! | `shutdown` | the end |

mod control;
mod listener;
mod live;
mod open;
mod release;
mod shutdown;
mod sockets;
mod statistics;
mod thread;
mod volumes;

pub use self::volumes::VolumesOpening;
pub use control::ObjectsControl;
pub use live::ReloadObjects;
pub use shutdown::ShutdownError;
pub use sockets::ObjectSockets;
pub use statistics::ObjectStatistics;

use self::volumes::VolumeService;
use crate::config::settings::Settings;
use crate::config::{BackendTable, ConfigError, ObjectsTable, Secrets, SynapseTable};
use blocker::trace::Tracer;
use cached_admin::AdminServer;
use cached_admin::insight::slow::SlowLog;
use cached_config::{ConfigFileError, StartError};
use cached_process::reload::LiveSecs;
use cached_process::{Exit, Failure};
use listener::ObjectListener;
use open::{OpenObjects, Opening, Parts};
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use thread::ObjectThread;
use tokio::sync::oneshot;

/// Why the object cache cannot start: one line each.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// The configuration is invalid, which only opening has shown, or what it names must be mended first.
    #[error("{0}")]
    Config(ConfigError),
    /// Another process has what the key names.
    #[error("{0}")]
    InUse(ConfigError),
    /// The store cannot be opened.
    #[error("cannot open the store of objects: {0}")]
    Store(#[from] blocker::Error),
    /// The listener cannot be opened.
    #[error("the object listener: {0}")]
    Listener(String),
    /// The volumes, or their listener, cannot be opened.
    #[error("volumes: {0}")]
    Volumes(String),
    /// A thread or its runtime cannot be created.
    #[error("cannot start a thread of the object cache: {0}")]
    Thread(#[from] io::Error),
    /// The end was requested before the store answered.
    #[error("the end was requested while the store of objects was away")]
    Ended,
}

impl From<ConfigError> for ObjectsError {
    fn from(error: ConfigError) -> ObjectsError {
        ObjectsError::Config(error)
    }
}

impl From<StartError> for ObjectsError {
    fn from(error: StartError) -> ObjectsError {
        match error {
            StartError::Config(error) => ObjectsError::Config(error),
            StartError::Refused(error) => ObjectsError::InUse(error),
            StartError::Store(error) => ObjectsError::Store(error),
        }
    }
}

impl ObjectsError {
    /// Returns the exit status of a start that ends so, and the line, which names the file `path` where a key of it is wrong.
    #[must_use]
    pub fn failure(self, path: Option<&Path>) -> Failure {
        let exit = match &self {
            ObjectsError::Config(_) => Exit::Configuration,
            ObjectsError::InUse(_)
            | ObjectsError::Store(_)
            | ObjectsError::Listener(_)
            | ObjectsError::Volumes(_) => Exit::Refused,
            ObjectsError::Thread(_) | ObjectsError::Ended => Exit::Trouble,
        };
        match (self, path) {
            (ObjectsError::Config(error) | ObjectsError::InUse(error), Some(path)) => {
                Failure::new(exit, ConfigFileError::of_key(path, error))
            }
            (error, _) => Failure::new(exit, error),
        }
    }
}

/// An object cache that is open. Clients connect, and are served once [`serve`](Objects::serve) is called and
/// [`ObjectsControl::serve`] after it.
pub struct Objects {
    open: OpenObjects,
    memory_bytes_max: u64,
    control: ObjectsControl,
    reload: ReloadObjects,
    statistics: ObjectStatistics,
    admin: Option<Weak<AdminServer>>,
    flush_max: LiveSecs,
}

impl Objects {
    /// Opens the journal and the store, creates the cache, begins its recovery, and opens the sockets, unless `sockets`
    /// are open already. While the store is away, this waits for it until `end` is ready. The secrets are read separately, because that may need
    /// rights which the process gives up before. With an `admin` listener the store is measured, and what the
    /// start waits for is shown; with a `tracer` requests are traced.
    ///
    /// # Errors
    /// [`ObjectsError`] for the first failure.
    #[allow(clippy::too_many_arguments, reason = "each is another part of the program")]
    pub fn open(
        objects: &ObjectsTable,
        synapse: Option<&SynapseTable>,
        volumes: Option<VolumesOpening>,
        settings: &Settings,
        secrets: Secrets,
        sockets: Option<ObjectSockets>,
        end: impl Future<Output = ()>,
        admin: Option<&Arc<AdminServer>>,
        tracer: Option<&Tracer>,
    ) -> Result<Objects, ObjectsError> {
        let slow = Arc::new(SlowLog::new(Duration::from_millis(settings.slow_request_ms.into())));
        let opening = Opening {
            objects: objects.clone(),
            synapse: synapse.cloned(),
            volumes,
            secrets,
            sampling: settings.sampling(),
            tracer: tracer.cloned(),
            slow: slow.clone(),
            health: admin.map(|admin| admin.health().clone()),
        };
        let open = opening.open(end)?;
        let memory_bytes_max = objects.cache_bytes_max() + open.parts.store.memory_bytes_max();
        let is_in_memory = matches!(objects.backend, Some(BackendTable::Memory(_)));
        let obstacle =
            is_in_memory.then_some("the store of objects is in memory, and would be lost; restart instead");
        let sockets = match sockets {
            Some(sockets) => sockets,
            // Last: clients are refused until the store is there.
            None => ObjectSockets::open(synapse, Vec::new())?,
        };
        let control = ObjectsControl::new(sockets, obstacle);
        if let Some(admin) = admin {
            let control = control.clone();
            admin.health().check_readiness(move || {
                control.is_released().then(|| "another process takes the object cache over".into())
            });
        }
        let statistics = ObjectStatistics::new(slow);
        statistics.set(&open.parts.cache, open.parts.listener.as_ref());
        Ok(Objects {
            open,
            memory_bytes_max,
            control,
            reload: ReloadObjects::new(opening),
            statistics,
            admin: admin.map(Arc::downgrade),
            flush_max: LiveSecs::new(objects.shutdown_flush_secs),
        })
    }

    /// Returns the most memory that cache and store take, in bytes.
    pub fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    /// Returns the most memory that the listeners take, that of volumes among them, in bytes.
    pub fn listener_bytes_max(&self) -> u64 {
        let Parts { listener, volumes, .. } = &self.open.parts;
        let volumes = volumes.as_ref().map_or(0, VolumeService::memory_bytes_max);
        listener.as_ref().map_or(0, ObjectListener::memory_bytes_max) + volumes
    }

    /// Returns the addresses at which volumes are served.
    pub fn volume_addresses(&self) -> &[String] {
        self.open.parts.volumes.as_ref().map_or(&[], VolumeService::addresses)
    }

    /// Returns the addresses it listens on.
    pub fn addresses(&self) -> Vec<String> {
        self.control.listening().addresses()
    }

    /// Returns the statistics of cache, store and listener.
    pub fn statistics(&self) -> ObjectStatistics {
        self.statistics.clone()
    }

    /// Returns the means of changing the settings of cache, listener and store while they run.
    pub fn live(&self) -> ReloadObjects {
        self.reload.clone()
    }

    /// Returns what asks it to serve, and lets another process take over.
    pub fn control(&self) -> ObjectsControl {
        self.control.clone()
    }

    /// Starts its threads. They serve from [`ObjectsControl::serve`] on until the end is requested. At the end clients
    /// have `drain_timeout` to take their replies.
    ///
    /// # Errors
    /// If a thread cannot be created.
    pub fn serve(self, drain_timeout: LiveSecs) -> Result<RunningObjects, ObjectsError> {
        let Objects { open, control, reload, statistics, admin, flush_max, .. } = self;
        let (sender, ended) = oneshot::channel();
        let running = RunningObjects {
            control: control.clone(),
            ended,
            statistics: statistics.clone(),
            flush_max: flush_max.clone(),
            drain_timeout: drain_timeout.clone(),
        };
        let thread = ObjectThread { control, reload, statistics, admin, flush_max, drain_timeout };
        thread.listen(&open)?;
        let shown = thread.show(&open.parts);
        spawn("object-cache", move || {
            // Fails if the end was forced, when the receiver no longer waits.
            let _ = sender.send(thread.run(open, shown));
        })?;
        Ok(running)
    }
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

/// An object cache that serves.
pub struct RunningObjects {
    control: ObjectsControl,
    ended: oneshot::Receiver<Result<(), ShutdownError>>,
    statistics: ObjectStatistics,
    flush_max: LiveSecs,
    drain_timeout: LiveSecs,
}

/// Requests the end of an object cache, from any thread.
#[derive(Clone, Debug)]
pub struct ShutdownHandle(ObjectsControl);

impl ShutdownHandle {
    /// Requests the end: the cache stops listening, answers what it has received, and stores dirty data.
    /// Calls after the first have no effect.
    pub fn request(&self) {
        self.0.end();
    }
}

impl RunningObjects {
    /// Returns what asks it to serve, and lets another process take over.
    pub fn control(&self) -> ObjectsControl {
        self.control.clone()
    }

    /// Returns a handle that requests the end.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        ShutdownHandle(self.control.clone())
    }

    /// Returns the usual upper limit of the time that the end takes.
    pub fn shutdown_time_max(&self) -> Duration {
        2 * shutdown::STEP_TIMEOUT + self.drain_timeout.get() + self.flush_max.get()
    }

    /// Requests the end, and waits until it is complete, or until `forced` is ready.
    ///
    /// # Errors
    /// [`ShutdownError`] states what was acknowledged and is not stored.
    pub async fn shut_down(self, forced: impl Future<Output = ()>) -> Result<(), ShutdownError> {
        self.control.end();
        let unfinished = |why: &str| match self.statistics.cache() {
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

impl std::fmt::Debug for RunningObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningObjects").field("flush_max", &self.flush_max).finish_non_exhaustive()
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, io::Error> {
    std::thread::Builder::new().name(name.into()).spawn(body)
}

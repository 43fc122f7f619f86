//! The object cache as a part of the server: the configured store, the cache over it, the synapse listener,
//! and an end that loses nothing.
//!
//! ```text
//! synapse clients ──► listener (threads of its own) ──► ObjectCache ──► store (memory, file, …)
//!                                                           ▲
//!                                    control thread: flushing by age, accepting, the end
//! ```
//!
//! memcached's workers never wait for any of it; they only read its metrics, for `stats objects`.

mod listener;
mod shutdown;
mod store;

pub use shutdown::ShutdownError;

use crate::config::{ConfigError, ObjectsTable, Secrets, SynapseTable};
use blocker::SystemClock;
use blocker::metrics::{Collect, render};
use cached_config::{Store, log_events};
use cached_core::object::{Background, ObjectCache};
use listener::ObjectListener;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use synapse::NodeRecord;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, oneshot};

/// Why the object cache cannot start: one line each.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// The configuration is invalid, which only opening has shown.
    #[error("{0}")]
    Config(String),
    /// The store cannot be opened.
    #[error("cannot open the store of objects: {0}")]
    Store(#[from] blocker::Error),
    /// The listener cannot be opened.
    #[error("the object listener: {0}")]
    Listener(String),
    /// A thread or its runtime cannot be created.
    #[error("cannot start a thread of the object cache: {0}")]
    Thread(#[from] io::Error),
    /// The end was requested before the store could be opened.
    #[error("the end was requested while the store of objects was away")]
    Ended,
}

impl From<ConfigError> for ObjectsError {
    fn from(error: ConfigError) -> ObjectsError {
        ObjectsError::Config(format!("{}: {}", error.key, error.why))
    }
}

/// How long the store may take to return its record of servers.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);

/// An object cache whose sockets are open. Clients are served once [`serve`](Objects::serve) is called.
pub struct Objects {
    cache: ObjectCache,
    background: Background,
    store: Store,
    /// The store's name, for the log.
    name: String,
    listener: Option<ObjectListener>,
    control: Runtime,
    flush_max: Duration,
    memory_bytes_max: u64,
}

impl Objects {
    /// Opens the store, creates the cache, and listens. While the store is away, this waits for it until
    /// `end` is ready. The secrets are read separately, because that may need rights which the process gives
    /// up before.
    ///
    /// # Errors
    /// [`ObjectsError`] for the first failure.
    pub fn open(
        objects: &ObjectsTable,
        synapse: Option<&SynapseTable>,
        secrets: Secrets,
        end: impl Future<Output = ()>,
    ) -> Result<Objects, ObjectsError> {
        let control = Builder::new_current_thread().enable_all().build()?;
        let store = control.block_on(store::open(objects, secrets.store, end));
        if matches!(store, Err(ObjectsError::Ended)) {
            // An attempt to open the store may hang; the process ends without waiting for it.
            control.shutdown_background();
            return Err(ObjectsError::Ended);
        }
        let store = store?;
        let (cache, background) = objects.open_cache(store.backend())?;
        let listener = match synapse {
            Some(table) => {
                let backend = store.backend();
                let opening = NodeRecord::open(&*backend, &SystemClock, RECORD_TIMEOUT);
                let record = control.block_on(opening)?;
                Some(ObjectListener::open(table, secrets.listener, &record, &cache, &control)?)
            }
            None => None,
        };
        let memory_bytes_max = objects.cache_bytes_max() + store.memory_bytes_max();
        let name = objects.backend.as_ref().map_or_else(String::new, ToString::to_string);
        Ok(Objects {
            cache,
            background,
            store,
            name,
            listener,
            control,
            flush_max: objects.shutdown_flush(),
            memory_bytes_max,
        })
    }

    /// Returns the most memory that cache and store take, in bytes.
    pub fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    /// Returns the most memory that the listener takes, in bytes.
    pub fn listener_bytes_max(&self) -> u64 {
        self.listener.as_ref().map_or(0, ObjectListener::memory_bytes_max)
    }

    /// Returns the addresses it listens on.
    pub fn addresses(&self) -> Vec<String> {
        self.listener.as_ref().map_or_else(Vec::new, ObjectListener::addresses)
    }

    /// Returns the statistics of cache, store and listener.
    pub fn statistics(&self) -> ObjectStatistics {
        let server = self.listener.as_ref().map(ObjectListener::server);
        ObjectStatistics { cache: self.cache.clone(), server }
    }

    /// Serves, on threads of its own, until its end is requested.
    ///
    /// # Errors
    /// If a thread cannot be created.
    pub fn serve(self) -> Result<RunningObjects, ObjectsError> {
        let end = Arc::new(Notify::new());
        let (sender, ended) = oneshot::channel();
        let running =
            RunningObjects { end: end.clone(), ended, cache: self.cache.clone(), flush_max: self.flush_max };
        let Objects { cache, background, store, name, listener, control, flush_max, .. } = self;
        let body = move || {
            let result = control.block_on(async {
                let background = tokio::spawn(background);
                let event_log = tokio::spawn(log_events(store.backend().subscribe(), name));
                end.notified().await;
                let result = shutdown::shut_down(&cache, &store, listener, flush_max).await;
                background.abort();
                event_log.abort();
                result
            });
            drop(cache);
            // Fails if the end was forced, when the receiver no longer waits.
            let _ = sender.send(shutdown::close(result, store));
        };
        spawn("object-cache", body)?;
        Ok(running)
    }
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

/// The statistics of an object cache, its store and its listener.
#[derive(Clone)]
pub struct ObjectStatistics {
    cache: ObjectCache,
    server: Option<Arc<synapse::Server>>,
}

impl ObjectStatistics {
    /// Returns all metrics as names and values.
    pub fn metrics(&self) -> Vec<render::Pair> {
        let mut families = self.cache.families();
        self.server.iter().for_each(|server| server.collect(&mut families));
        render::pairs(&families)
    }

    /// Returns the objects with acknowledged changes that are lost and not repaired: the name of each, and
    /// how much is lost for what reason. If there are more than the cache lists, the last entry has their
    /// number.
    pub fn lost(&self) -> Vec<(String, String)> {
        let lost = self.cache.lost();
        let listed = lost.objects.iter().map(|object| {
            let text = format!("{} bytes in {} changes: {}", object.bytes, object.changes, object.why);
            (object.object.to_string(), text)
        });
        let unlisted = (lost.unlisted_objects > 0).then(|| {
            (
                "others".to_owned(),
                format!("{} bytes in {} objects", lost.unlisted_bytes, lost.unlisted_objects),
            )
        });
        listed.chain(unlisted).collect()
    }
}

/// An object cache that serves.
pub struct RunningObjects {
    end: Arc<Notify>,
    ended: oneshot::Receiver<Result<(), ShutdownError>>,
    cache: ObjectCache,
    flush_max: Duration,
}

/// Requests the end of an object cache, from any thread.
#[derive(Clone, Debug)]
pub struct ShutdownHandle(Arc<Notify>);

impl ShutdownHandle {
    /// Requests the end: the cache stops listening, answers what it has received, and stores dirty data.
    /// Calls after the first have no effect.
    pub fn request(&self) {
        self.0.notify_one();
    }
}

impl RunningObjects {
    /// Returns a handle that requests the end.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        ShutdownHandle(self.end.clone())
    }

    /// Returns the usual upper limit of the time that the end takes.
    pub fn shutdown_time_max(&self) -> Duration {
        2 * shutdown::STEP_TIMEOUT + self.flush_max
    }

    /// Requests the end, and waits until it is complete, or until `forced` is ready.
    ///
    /// # Errors
    /// [`ShutdownError`] states what was acknowledged and is not stored.
    pub async fn shut_down(self, forced: impl Future<Output = ()>) -> Result<(), ShutdownError> {
        self.end.notify_one();
        tokio::select! {
            ended = self.ended => match ended {
                Ok(result) => result,
                Err(_) => Err(ShutdownError::of_cache(&self.cache, "its thread has panicked")),
            },
            () = forced => Err(ShutdownError::of_cache(&self.cache, "a second signal forced the end")),
        }
    }
}

impl std::fmt::Debug for RunningObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningObjects").field("flush_max", &self.flush_max).finish_non_exhaustive()
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, io::Error> {
    thread::Builder::new().name(name.into()).spawn(body)
}

//! The object cache as a part of the server: the store that is configured, the cache before it, the door to it, and an
//! end that loses nothing.
//!
//! ```text
//! synapse clients ──► door (threads of its own) ──► ObjectCache ──► store (memory, file, …)
//!                                                      ▲
//!                               control thread: flushing by age, listening, the end
//! ```
//!
//! Memcached's workers never wait for any of it; they only read its figures, for `stats objects`.

mod door;
mod end;
mod store;

pub use end::ShutdownError;

use crate::config::{ConfigError, ObjectsTable, Secrets, SynapseTable};
use blocker::SystemClock;
use blocker::metrics::{Collect, render};
use cached_config::{Store, log_events};
use cached_core::object::{Background, ObjectCache};
use door::Door;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use synapse::NodeRecord;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, oneshot};

/// Why there is no object cache: one line.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    /// The configuration cannot work, as it turned out only now.
    #[error("{0}")]
    Config(String),
    /// The store cannot be opened.
    #[error("cannot open the store of objects: {0}")]
    Store(#[from] blocker::Error),
    /// The door cannot be opened.
    #[error("the object door: {0}")]
    Door(String),
    /// A thread or its runtime cannot be had.
    #[error("cannot start a thread of the object cache: {0}")]
    Thread(#[from] io::Error),
}

impl From<ConfigError> for ObjectsError {
    fn from(error: ConfigError) -> ObjectsError {
        ObjectsError::Config(format!("{}: {}", error.key, error.why))
    }
}

/// How long the store may take to answer what its record of servers is.
const RECORD_PATIENCE: Duration = Duration::from_secs(10);

/// Where figures come from: name and value.
pub type Figures = Arc<dyn Fn() -> Vec<render::Pair> + Send + Sync>;

/// An object cache whose sockets are open, and which nobody serves yet.
pub struct Objects {
    cache: ObjectCache,
    background: Background,
    store: Store,
    /// Which store, for the log.
    name: String,
    door: Option<Door>,
    control: Runtime,
    flush_max: Duration,
    memory_bytes_max: u64,
}

impl Objects {
    /// Opens the store, makes the cache, and listens. The secrets are read apart, while there are still rights to.
    ///
    /// # Errors
    /// [`ObjectsError`] for the first that cannot be had.
    pub fn open(
        objects: &ObjectsTable,
        synapse: Option<&SynapseTable>,
        secrets: Secrets,
    ) -> Result<Objects, ObjectsError> {
        let store = store::open(objects, secrets.store)?;
        let (cache, background) = objects.open_cache(store.backend())?;
        let control = Builder::new_current_thread().enable_all().build()?;
        let door = match synapse {
            Some(table) => {
                let backend = store.backend();
                let opening = NodeRecord::open(&*backend, &SystemClock, RECORD_PATIENCE);
                let record = control.block_on(opening)?;
                Some(Door::open(table, secrets.door, &record, &cache, &control)?)
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
            door,
            control,
            flush_max: objects.shutdown_flush(),
            memory_bytes_max,
        })
    }

    /// The most memory that cache and store take.
    pub fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    /// The most memory that the door takes.
    pub fn door_bytes_max(&self) -> u64 {
        self.door.as_ref().map_or(0, Door::memory_bytes_max)
    }

    /// Where it listens.
    pub fn places(&self) -> Vec<String> {
        self.door.as_ref().map_or_else(Vec::new, Door::places)
    }

    /// What the cache, the store and the door count.
    pub fn figures(&self) -> Figures {
        let cache = self.cache.clone();
        let door = self.door.as_ref().map(Door::server);
        Arc::new(move || {
            let mut families = cache.families();
            door.iter().for_each(|door| door.collect(&mut families));
            render::pairs(&families)
        })
    }

    /// Serves, on threads of its own, until it is asked to end.
    ///
    /// # Errors
    /// When a thread cannot be had.
    pub fn serve(self) -> Result<Serving, ObjectsError> {
        let asked = Arc::new(Notify::new());
        let (tell, ended) = oneshot::channel();
        let serving =
            Serving { asked: asked.clone(), ended, cache: self.cache.clone(), flush_max: self.flush_max };
        let Objects { cache, background, store, name, door, control, flush_max, .. } = self;
        let body = move || {
            let result = control.block_on(async {
                let background = tokio::spawn(background);
                let news = tokio::spawn(log_events(store.backend().subscribe(), name));
                asked.notified().await;
                let result = end::finish(&cache, &store, door, flush_max).await;
                background.abort();
                news.abort();
                result
            });
            drop(cache);
            // Nobody waits any more if the end was forced.
            let _ = tell.send(end::closed(result, store));
        };
        spawn("cached-objects", body)?;
        Ok(serving)
    }
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects").field("places", &self.places()).finish_non_exhaustive()
    }
}

/// An object cache at work.
pub struct Serving {
    asked: Arc<Notify>,
    ended: oneshot::Receiver<Result<(), ShutdownError>>,
    cache: ObjectCache,
    flush_max: Duration,
}

/// Asks an object cache to end, from anywhere.
#[derive(Clone, Debug)]
pub struct EndObjects(Arc<Notify>);

impl EndObjects {
    /// Asks: it stops listening, answers what it has received, stores what is dirty. The first ask counts.
    pub fn ask(&self) {
        self.0.notify_one();
    }
}

impl Serving {
    /// A handle that asks it to end.
    pub fn ender(&self) -> EndObjects {
        EndObjects(self.asked.clone())
    }

    /// How long the end may take, as a rule.
    pub fn end_max(&self) -> Duration {
        2 * end::DOOR_PATIENCE + self.flush_max
    }

    /// Asks it to end, and waits until it has, or until `forced` is ready.
    ///
    /// # Errors
    /// [`ShutdownError`] says what was acknowledged and is not stored.
    pub async fn end(self, forced: impl Future<Output = ()>) -> Result<(), ShutdownError> {
        self.asked.notify_one();
        tokio::select! {
            ended = self.ended => match ended {
                Ok(result) => result,
                Err(_) => Err(ShutdownError::of_cache(&self.cache, "its thread has panicked")),
            },
            () = forced => Err(ShutdownError::of_cache(&self.cache, "a second signal forced the end")),
        }
    }
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serving").field("flush_max", &self.flush_max).finish_non_exhaustive()
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, io::Error> {
    thread::Builder::new().name(name.into()).spawn(body)
}

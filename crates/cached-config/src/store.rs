//! Opening the store that a configuration names, and closing it in order.

use std::fmt;
use std::fs::DirBuilder;
use std::sync::{Arc, Weak};
use std::time::Duration;

use blocker::file::{Access, FileConfig};
use blocker::memory::MemoryConfig;
use blocker::metrics::Collect;
use blocker::trace::Tracer;
use blocker::{Blocker, Error, FileStore, Memory, OBJECT_BYTES_MAX_DEFAULT, Reply, SystemClock, Traced};
use cached_core::object::ObjectCache;
use serde::Serialize;
use synapse::codec::InstanceId;
use synapse::{NodeRecord, Secret, SecretHandle, SynapseBlocker};

use crate::backend::{BackendTable, FileTable, MemoryTable, RadosTable, RemoteTable};
use crate::config_file::ConfigError;
#[cfg(not(all(feature = "rados", feature = "s3")))]
use crate::config_file::invalid;
use crate::lifecycle::{StartError, Waiting, may_pass};
use crate::s3_table::S3Table;
use crate::with_defaults;

with_defaults! {
    /// The options for opening a store, in addition to its table.
    #[derive(Clone, Debug)]
    pub struct OpenOptions {
        /// The maximum size of an object, in bytes, if the table does not set it.
        pub object_bytes_max: u64 = OBJECT_BYTES_MAX_DEFAULT,
        /// The secret that a synapse server demands.
        pub secret: Option<Secret> = None,
        /// The maximum time for connecting or for a single request, if it is shorter than the one
        /// in the table. `None` means the one in the table.
        pub timeout: Option<Duration> = None,
        /// The name under which a synapse server logs this client; an empty string means no name.
        pub client_name: String = String::new(),
        /// The tracer that creates spans of the store's traced operations.
        pub tracer: Option<Tracer> = None,
        /// Whether the store is only read: a file store then changes nothing in its directory.
        /// Other stores ignore this.
        pub only_reads: bool = false,
        /// Whether a server opens the store and keeps its record there: a synapse server does not
        /// let other clients use [reserved namespaces](blocker::Namespace::is_reserved).
        pub is_server: bool = false,
    }
}

/// An open store.
pub struct Store {
    backend: Arc<dyn Blocker>,
    memory_bytes_max: u64,
    secret: Option<SecretHandle>,
    /// The store's own metrics. They do not keep the store open.
    metrics: Weak<dyn Collect>,
    close: Close,
}

/// The work of closing, in addition to dropping the handles.
enum Close {
    Nothing,
    File(Arc<FileStore>),
    #[cfg(feature = "rados")]
    Rados(Arc<blocker_rados::RadosStore>),
    #[cfg(feature = "s3")]
    S3(Arc<blocker_s3::S3Store>),
}

impl Store {
    /// Opens the store. Blocks until it is open.
    ///
    /// # Errors
    /// Returns [`StartError`].
    pub fn open(table: &BackendTable, options: &OpenOptions) -> Result<Store, StartError> {
        let store = match table {
            BackendTable::Memory(table) => Ok(memory(table, options)),
            BackendTable::File(table) => file(table, options),
            BackendTable::Rados(table) => rados(table, options),
            BackendTable::S3(table) => s3(table, options),
            BackendTable::Synapse(table) => remote(table, options),
        };
        match &options.tracer {
            None => store,
            Some(tracer) => {
                let traced = |below| Arc::new(Traced::store(below, tracer.clone(), table.kind())) as _;
                store.map(|store| store.with_layer(traced))
            }
        }
    }

    /// Returns a store that is already open.
    fn of<S: Blocker + Collect + 'static>(store: Arc<S>, memory_bytes_max: u64, close: Close) -> Store {
        let metrics: Weak<S> = Arc::downgrade(&store);
        Store { backend: store, memory_bytes_max, secret: None, metrics, close }
    }

    /// Returns the store with `layer` over it; closing the store drops the layer first.
    #[must_use]
    pub fn with_layer(self, layer: impl FnOnce(Arc<dyn Blocker>) -> Arc<dyn Blocker>) -> Store {
        Store { backend: layer(self.backend), ..self }
    }

    /// Returns the store as a blocker.
    #[must_use]
    pub fn backend(&self) -> Arc<dyn Blocker> {
        Arc::clone(&self.backend)
    }

    /// Returns a handle that changes the secret, if the store is another server.
    #[must_use]
    pub fn secret(&self) -> Option<SecretHandle> {
        self.secret.clone()
    }

    /// Returns the maximum memory of this process that the store's content or buffers use, in
    /// bytes.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    /// Returns the store's own metrics, without those of its layers, which are available as long as
    /// the store is open.
    #[must_use]
    pub fn metrics(&self) -> Weak<dyn Collect> {
        Weak::clone(&self.metrics)
    }

    /// The minimum age of a leftover that a sweep may remove while programs change the store: no
    /// writer waits longer between the bytes of a change and the record that names them.
    pub const SWEEP_AGE_MIN: Duration = Duration::from_secs(15 * 60);

    /// Removes the leftovers of unfinished changes and of deleted objects that are older than
    /// `age`, by the clock of the store's server; a `dry_run` only counts them. `watch` is called
    /// with the progress at intervals, on the thread that polls the reply. Returns `None` for a
    /// store without a sweep: only the kind `s3` has one.
    #[must_use]
    pub fn sweep(
        &self,
        age: Duration,
        dry_run: bool,
        watch: impl Fn(SweepCounts) + Send + Sync + 'static,
    ) -> Option<Reply<SweepCounts>> {
        #[cfg(feature = "s3")]
        if let Close::S3(s3) = &self.close {
            let swept = s3.sweep_with(age, dry_run, move |swept| watch(counts(swept)));
            return Some(swept.then(|swept| swept.map(|swept| counts(&swept))));
        }
        let _ = (age, dry_run, watch);
        None
    }

    /// Closes the store in order, once all other handles have been dropped. Blocks. A connection
    /// that is still in use after `timeout`, or does not close within it, is abandoned until the
    /// process ends.
    ///
    /// # Errors
    /// Returns the error of the store itself: some data may not be stored.
    pub fn close(self, timeout: Duration) -> blocker::Result<()> {
        drop(self.backend);
        #[cfg(not(any(feature = "rados", feature = "s3")))]
        let _ = timeout;
        match self.close {
            Close::Nothing => Ok(()),
            Close::File(file) => file.close(),
            #[cfg(feature = "s3")]
            Close::S3(s3) => {
                s3.close(timeout);
                Ok(())
            }
            #[cfg(feature = "rados")]
            Close::Rados(rados) => {
                match alone(rados, timeout) {
                    // All acknowledged data are stored, so a connection that does not close in time
                    // loses nothing.
                    Ok(rados) => drop(rados.close(timeout)),
                    Err(rados) => {
                        tracing::warn!("the connection to the cluster is still used, and is not closed");
                        // Otherwise the last handle, wherever it is, would close the connection
                        // while the process exits, which crashes librados.
                        std::mem::forget(rados);
                    }
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("memory_bytes_max", &self.memory_bytes_max).finish_non_exhaustive()
    }
}

/// Returns the value once all other handles of it have been dropped. A thread that is about to end
/// may hold one.
///
/// # Errors
/// Returns the handle, if other handles remain after `timeout`.
#[cfg(feature = "rados")]
fn alone<T>(mut shared: Arc<T>, timeout: Duration) -> Result<T, Arc<T>> {
    let deadline = std::time::Instant::now() + timeout;
    loop {
        shared = match Arc::try_unwrap(shared) {
            Ok(value) => return Ok(value),
            Err(shared) if std::time::Instant::now() >= deadline => return Err(shared),
            Err(shared) => shared,
        };
        // Dropping a handle sends no notification, so the count is polled.
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn memory(table: &MemoryTable, options: &OpenOptions) -> Store {
    let mut config = MemoryConfig { object_bytes_max: options.object_bytes_max, ..MemoryConfig::default() };
    table.apply(&mut config);
    let memory = Arc::new(Memory::new(config, Arc::new(SystemClock)));
    Store::of(memory, table.bytes_max.0, Close::Nothing)
}

fn file(table: &FileTable, options: &OpenOptions) -> Result<Store, StartError> {
    let mut config = FileConfig {
        object_bytes_max: options.object_bytes_max,
        access: match (options.only_reads, table.create) {
            (true, _) => Access::Read,
            (false, true) => Access::Create,
            (false, false) => Access::Write,
        },
        ..FileConfig::default()
    };
    table.apply(&mut config);
    if config.access == Access::Create {
        // An error here concerns the path, not the content of the directory.
        DirBuilder::new().recursive(true).create(&table.path).map_err(|error| {
            let why = format!("{} does not exist and cannot be created: {error}", table.path.display());
            match named_file::is_mistake(&error) {
                true => ConfigError::new("objects.backend.path", why).into(),
                false => StartError::Store(Error::Retryable(why.into())),
            }
        })?;
    }
    let file = Arc::new(FileStore::open_with(&table.path, config, Arc::new(SystemClock))?);
    Ok(Store::of(Arc::clone(&file), 0, Close::File(file)))
}

#[cfg(feature = "rados")]
fn rados(table: &RadosTable, options: &OpenOptions) -> Result<Store, StartError> {
    /// The memory use of a cached head, as documented by `blocker-rados`.
    const HEAD_BYTES: u64 = 150;
    let mut config = table.store(options.object_bytes_max);
    if let Some(timeout) = options.timeout {
        config.op_timeout = match config.op_timeout {
            // 0 means no limit.
            Duration::ZERO => timeout,
            own => own.min(timeout),
        };
        config.connect_timeout = config.connect_timeout.min(timeout);
    }
    let memory_bytes_max = config.bytes_in_flight_max + config.heads_remembered_max as u64 * HEAD_BYTES;
    let rados = Arc::new(blocker_rados::RadosStore::open(config)?);
    Ok(Store::of(Arc::clone(&rados), memory_bytes_max, Close::Rados(rados)))
}

#[cfg(not(feature = "rados"))]
fn rados(_: &RadosTable, _: &OpenOptions) -> Result<Store, StartError> {
    Ok(invalid("objects.backend.kind", "is \"rados\", which this program was built without")?)
}

#[cfg(feature = "s3")]
fn s3(table: &S3Table, options: &OpenOptions) -> Result<Store, StartError> {
    let mut config = table.store(options.object_bytes_max);
    if let Some(timeout) = options.timeout {
        // The minimum that the store accepts for one attempt.
        let timeout = timeout.max(Duration::from_secs(1));
        config.request_timeout = config.request_timeout.min(timeout);
        config.connect_timeout = config.connect_timeout.min(timeout);
        config.call_timeout = config.call_timeout.min(timeout);
    }
    let memory_bytes_max = config.memory_bytes_max();
    let s3 = Arc::new(blocker_s3::S3Store::open(&config)?);
    Ok(Store::of(Arc::clone(&s3), memory_bytes_max, Close::S3(s3)))
}

#[cfg(not(feature = "s3"))]
fn s3(_: &S3Table, _: &OpenOptions) -> Result<Store, StartError> {
    Ok(invalid("objects.backend.kind", "is \"s3\", which this program was built without")?)
}

fn remote(table: &RemoteTable, options: &OpenOptions) -> Result<Store, StartError> {
    let mut config = table.client()?;
    config.secret.clone_from(&options.secret);
    config.tracer.clone_from(&options.tracer);
    config.is_server = options.is_server;
    if !options.client_name.is_empty() {
        config.name.clone_from(&options.client_name);
    }
    if let Some(timeout) = options.timeout {
        config.call_timeout = Some(timeout);
        config.reconnect_timeout = config.reconnect_timeout.min(timeout);
        config.connect_timeout = config.connect_timeout.min(timeout);
    }
    let in_flight = u64::from(config.connections) * config.bytes;
    let memory_bytes_max = in_flight + config.payload_pool_bytes_max as u64;
    let backend = Arc::new(SynapseBlocker::connect_on_thread(config)?);
    let secret = Some(backend.secret());
    Ok(Store { secret, ..Store::of(backend, memory_bytes_max, Close::Nothing) })
}

/// The progress of a sweep: what it has removed or, in a dry run, would have removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct SweepCounts {
    /// The number of blobs encountered.
    pub blobs: u64,
    /// The number of blobs removed because no head refers to them.
    pub orphans: u64,
    /// The bytes of the blobs removed.
    pub orphans_bytes: u64,
    /// The number of heads encountered; 0 if the server does not support conditional removal.
    pub heads: u64,
    /// The number of heads of deleted objects removed.
    pub ghosts: u64,
    /// The number of heads of deleted objects that are old enough, but are kept because other data
    /// depends on them.
    pub ghosts_kept: u64,
    /// Whether heads of deleted objects can be removed, because the server honours conditions of
    /// removals.
    pub ghosts_can_go: bool,
    /// The number of leftovers of probes removed.
    pub probes: u64,
}

#[cfg(feature = "s3")]
fn counts(swept: &blocker_s3::Swept) -> SweepCounts {
    SweepCounts {
        blobs: swept.blobs,
        orphans: swept.removed,
        orphans_bytes: swept.removed_bytes,
        heads: swept.heads,
        ghosts: swept.forgotten,
        ghosts_kept: swept.kept,
        ghosts_can_go: swept.can_forget,
        probes: swept.probes,
    }
}

/// The maximum time for the store to return its record of servers.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum time for recording a shutdown in the store, and the maximum time if nothing has
/// changed.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_END_TIMEOUT: Duration = Duration::from_secs(1);

impl Store {
    /// Opens the store on a separate thread, because opening blocks. While the store is
    /// unavailable, retries every second.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempts. An attempt in progress continues on its thread;
    /// dropping the runtime waits for it,
    /// [`shutdown_background`](tokio::runtime::Runtime::shutdown_background) does not.
    ///
    /// # Errors
    /// Returns errors that do not pass with time.
    pub async fn open_when_available(
        table: &BackendTable,
        options: &OpenOptions,
        waiting: &mut Waiting<'_>,
    ) -> Result<Store, StartError> {
        let what = format!("the store {table}");
        waiting.step(format_args!("opening {what}"));
        loop {
            let (attempt, options) = (table.clone(), options.clone());
            let opened = waiting.blocking(&what, move || Store::open(&attempt, &options)).await;
            let panicked = || Err(StartError::Store(Error::Corrupt("opening the store has panicked".into())));
            match opened.unwrap_or_else(panicked) {
                Err(StartError::Store(error)) if may_pass(&error) => waiting.pause(&what, error).await,
                opened => return opened,
            }
        }
    }

    /// Reads the store's record of servers, which is created if it does not exist. While the store
    /// is unavailable, retries every second.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempts.
    ///
    /// # Errors
    /// Returns errors that do not pass with time.
    pub async fn node_record(&self, waiting: &mut Waiting<'_>) -> Result<NodeRecord, StartError> {
        loop {
            match NodeRecord::open(&*self.backend(), &SystemClock, RECORD_TIMEOUT).await {
                Err(error) if may_pass(&error) => {
                    waiting.pause("the store before its record of servers is read", error).await;
                }
                record => return record.map_err(StartError::Store),
            }
        }
    }

    /// Records that a listener's `instance` has ended with everything stored. The store may be
    /// unavailable, so the time limit is short if `cache`, through which all changes went, has
    /// changed nothing.
    pub async fn record_end(&self, instance: InstanceId, cache: Option<&ObjectCache>) {
        let counters = cache.map(ObjectCache::counters);
        let is_unchanged =
            counters.is_some_and(|counters| counters.writes_back + counters.writes_through == 0);
        let timeout = if is_unchanged { IDLE_END_TIMEOUT } else { END_TIMEOUT };
        if let Err(error) = NodeRecord::close(&*self.backend(), instance, &SystemClock, timeout).await {
            tracing::warn!(
                cause = %error,
                "cannot record in the store that everything is stored: clients will count their unflushed writes as lost"
            );
        }
    }
}

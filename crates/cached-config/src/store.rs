//! Opening the store that a configuration names, and closing it in order.

use crate::backend::{BackendTable, FileTable, MemoryTable, RadosTable, RemoteTable};
use crate::error::{ConfigError, is_mistake};
use crate::s3_table::S3Table;
use crate::sweep::{SweepCounts, SweepOptions};
use blocker::file::{Access, FileConfig};
use blocker::memory::MemoryConfig;
use blocker::metrics::Collect;
use blocker::trace::Tracer;
use blocker::{Blocker, Error, FileStore, Memory, OBJECT_BYTES_MAX_DEFAULT, Reply, SystemClock, Traced};
use std::fmt;
use std::fs::DirBuilder;
use std::sync::{Arc, Weak};
use std::time::Duration;
use synapse::{Secret, SecretHandle, SynapseBlocker};

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration cannot work, which only opening shows.
    #[error("{0}")]
    Config(ConfigError),
    /// The store's own error.
    #[error("{0}")]
    Store(#[from] blocker::Error),
}

/// What opening a store needs beside its table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The largest object, in bytes, where the table does not set it.
    pub object_bytes_max: u64,
    /// The secret that a synapse server demands.
    pub secret: Option<Secret>,
    /// The longest time that connecting or one request may take, if it is shorter than what the table sets.
    /// `None`: as the table has it.
    pub timeout: Option<Duration>,
    /// The name under which a synapse server logs this client; empty for none.
    pub client_name: String,
    /// Makes spans of the store's operations that are traced.
    pub tracer: Option<Tracer>,
    /// Whether the store is only to be read: a file store then changes nothing in its directory. Other stores take no notice.
    pub only_reads: bool,
    /// Whether a server opens the store, which keeps its record there: a synapse server lets no other client use
    /// [reserved namespaces](blocker::Namespace::is_reserved).
    pub is_server: bool,
}

impl Default for OpenOptions {
    /// Objects of up to 4 MiB, no secret, the table's own timeouts, no name, reads and changes, not for a server.
    fn default() -> Self {
        Self {
            object_bytes_max: OBJECT_BYTES_MAX_DEFAULT,
            secret: None,
            timeout: None,
            client_name: String::new(),
            tracer: None,
            only_reads: false,
            is_server: false,
        }
    }
}

impl OpenOptions {
    /// Sets the largest object, in bytes, where the table does not set it.
    #[must_use]
    pub fn object_bytes_max(mut self, bytes: u64) -> Self {
        self.object_bytes_max = bytes;
        self
    }

    /// Sets the secret that a synapse server demands.
    #[must_use]
    pub fn secret(mut self, secret: Option<Secret>) -> Self {
        self.secret = secret;
        self
    }

    /// Sets the longest time that connecting or one request may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the name under which a synapse server logs this client.
    #[must_use]
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = name.into();
        self
    }

    /// Sets whether the store is only to be read.
    #[must_use]
    pub fn only_reads(mut self, only_reads: bool) -> Self {
        self.only_reads = only_reads;
        self
    }

    /// Opens the store for a server, which keeps its record there.
    #[must_use]
    pub fn server(mut self) -> Self {
        self.is_server = true;
        self
    }

    /// Sets what makes spans of the store's operations that are traced.
    #[must_use]
    pub fn tracer(mut self, tracer: Option<Tracer>) -> Self {
        self.tracer = tracer;
        self
    }
}

/// An open store.
pub struct Store {
    backend: Arc<dyn Blocker>,
    memory_bytes_max: u64,
    secret: Option<SecretHandle>,
    /// The store's own metrics; does not keep it open.
    metrics: Weak<dyn Collect>,
    close: Close,
}

/// What closing has to do beside dropping the handles.
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
    /// [`OpenError`].
    pub fn open(table: &BackendTable, options: &OpenOptions) -> Result<Store, OpenError> {
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

    /// Returns the store with `layer` over it, which closing drops first.
    #[must_use]
    pub fn with_layer(self, layer: impl FnOnce(Arc<dyn Blocker>) -> Arc<dyn Blocker>) -> Store {
        Store { backend: layer(self.backend), ..self }
    }

    /// Returns the store as a blocker.
    #[must_use]
    pub fn backend(&self) -> Arc<dyn Blocker> {
        Arc::clone(&self.backend)
    }

    /// Returns the means of changing the secret, of a store that is another server.
    #[must_use]
    pub fn secret(&self) -> Option<SecretHandle> {
        self.secret.clone()
    }

    /// Returns the most memory of this process that the store's content or buffers take, in bytes.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    /// Returns what the store itself counts, without its layers, for as long as it is open.
    #[must_use]
    pub fn metrics(&self) -> Weak<dyn Collect> {
        Weak::clone(&self.metrics)
    }

    /// Removes what unfinished changes and deleted objects have left in the store. `watch` is called from time to time
    /// with what was done so far, on the thread that polls the reply. Returns `None` for a store that has no sweep: of all
    /// kinds, only `s3` has one.
    #[must_use]
    pub fn sweep(
        &self,
        options: &SweepOptions,
        watch: impl Fn(SweepCounts) + Send + Sync + 'static,
    ) -> Option<Reply<SweepCounts>> {
        #[cfg(feature = "s3")]
        if let Close::S3(s3) = &self.close {
            return Some(crate::sweep::sweep(s3, options, watch));
        }
        let _ = (options, watch);
        None
    }

    /// Closes the store in order, once all other handles have been dropped. Blocks. A connection that is still used
    /// after `timeout`, or does not close within it, is left to the end of the process.
    ///
    /// # Errors
    /// The store's own error: something may not be stored.
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
                    // Everything acknowledged is stored: a connection that does not close in time loses
                    // nothing.
                    Ok(rados) => drop(rados.close(timeout)),
                    Err(rados) => {
                        tracing::warn!("the connection to the cluster is still used, and is not closed");
                        // Its last handle, wherever that is, would close it while the process ends, and librados does
                        // not survive that.
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

/// Returns the value once all other handles of it have been dropped; a thread that is about to end may have one.
///
/// # Errors
/// The handle, after `timeout`.
#[cfg(feature = "rados")]
fn alone<T>(mut shared: Arc<T>, timeout: Duration) -> Result<T, Arc<T>> {
    let deadline = std::time::Instant::now() + timeout;
    loop {
        shared = match Arc::try_unwrap(shared) {
            Ok(value) => return Ok(value),
            Err(shared) if std::time::Instant::now() >= deadline => return Err(shared),
            Err(shared) => shared,
        };
        // A handle reports nothing when it is dropped.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the store as a blocker, and its metrics.
fn handles<S: Blocker + Collect + 'static>(store: &Arc<S>) -> (Arc<dyn Blocker>, Weak<dyn Collect>) {
    let metrics: Weak<S> = Arc::downgrade(store);
    (Arc::clone(store) as _, metrics)
}

fn memory(table: &MemoryTable, options: &OpenOptions) -> Store {
    let config = MemoryConfig { object_bytes_max: options.object_bytes_max, bytes_max: table.bytes_max.0 };
    let memory = Arc::new(Memory::new(config, Arc::new(SystemClock)));
    let (backend, metrics) = handles(&memory);
    let memory_bytes_max = table.bytes_max.0;
    Store { backend, memory_bytes_max, secret: None, metrics, close: Close::Nothing }
}

fn file(table: &FileTable, options: &OpenOptions) -> Result<Store, OpenError> {
    let config = FileConfig {
        object_bytes_max: options.object_bytes_max,
        direct: table.direct,
        threads: table.threads,
        open_files_max: table.open_files_max,
        access: match (options.only_reads, table.create) {
            (true, _) => Access::Read,
            (false, true) => Access::Create,
            (false, false) => Access::Write,
        },
        ..FileConfig::default()
    };
    if config.access == Access::Create {
        // An error here is about the path, not about what the directory contains.
        DirBuilder::new().recursive(true).create(&table.path).map_err(|error| {
            let why = format!("{} is not there, and cannot be made: {error}", table.path.display());
            match is_mistake(&error) {
                true => OpenError::Config(ConfigError { key: "objects.backend.path".into(), why }),
                false => OpenError::Store(Error::Retryable(why.into())),
            }
        })?;
    }
    let file = Arc::new(FileStore::open_with(&table.path, config, Arc::new(SystemClock))?);
    let (backend, metrics) = handles(&file);
    Ok(Store { backend, memory_bytes_max: 0, secret: None, metrics, close: Close::File(file) })
}

#[cfg(feature = "rados")]
fn rados(table: &RadosTable, options: &OpenOptions) -> Result<Store, OpenError> {
    /// The memory that `blocker-rados` states for a remembered head.
    const HEAD_BYTES: u64 = 150;
    let mut config = table.store(options.object_bytes_max);
    if let Some(timeout) = options.timeout {
        config.op_timeout = match config.op_timeout {
            // Never.
            Duration::ZERO => timeout,
            own => own.min(timeout),
        };
        config.connect_timeout = config.connect_timeout.min(timeout);
    }
    let memory_bytes_max = config.bytes_in_flight_max + config.heads_remembered_max as u64 * HEAD_BYTES;
    let rados = Arc::new(blocker_rados::RadosStore::open(config)?);
    let (backend, metrics) = handles(&rados);
    Ok(Store { backend, memory_bytes_max, secret: None, metrics, close: Close::Rados(rados) })
}

#[cfg(not(feature = "rados"))]
fn rados(_: &RadosTable, _: &OpenOptions) -> Result<Store, OpenError> {
    let why = "is \"rados\", which this program was built without".into();
    Err(OpenError::Config(ConfigError { key: "objects.backend.kind".into(), why }))
}

#[cfg(feature = "s3")]
fn s3(table: &S3Table, options: &OpenOptions) -> Result<Store, OpenError> {
    let mut config = table.store(options.object_bytes_max);
    if let Some(timeout) = options.timeout {
        // What the store takes for one attempt, at least.
        let timeout = timeout.max(Duration::from_secs(1));
        config.request_timeout = config.request_timeout.min(timeout);
        config.connect_timeout = config.connect_timeout.min(timeout);
        config.call_timeout = config.call_timeout.min(timeout);
    }
    let memory_bytes_max = config.memory_bytes_max();
    let s3 = Arc::new(blocker_s3::S3Store::open(&config)?);
    let (backend, metrics) = handles(&s3);
    Ok(Store { backend, memory_bytes_max, secret: None, metrics, close: Close::S3(s3) })
}

#[cfg(not(feature = "s3"))]
fn s3(_: &S3Table, _: &OpenOptions) -> Result<Store, OpenError> {
    let why = "is \"s3\", which this program was built without".into();
    Err(OpenError::Config(ConfigError { key: "objects.backend.kind".into(), why }))
}

fn remote(table: &RemoteTable, options: &OpenOptions) -> Result<Store, OpenError> {
    let mut config = table.client().map_err(OpenError::Config)?;
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
    let (backend, metrics) = handles(&backend);
    Ok(Store { backend, memory_bytes_max, secret, metrics, close: Close::Nothing })
}

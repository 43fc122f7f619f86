//! Building a cache step by step.

use std::sync::Arc;

use blocker::executor::block_on;
use blocker::{Blocker, Clock, Namespace, SystemClock, WriteMode};

use super::background::Background;
use super::cache::ObjectCache;
use super::config::{ConfigError, NamespaceConfig, ObjectCacheConfig, Writer};
use super::journal::{JournalOptions, OpenJournal};
use crate::arena::MemoryRange;
use crate::insight::Sampling;

/// Builds an [`ObjectCache`]; created by [`ObjectCache::builder`].
///
/// [`Self::start`] runs the background of the cache on a thread; [`Self::build`] returns the
/// background. [`Self::config`] sets all other options.
///
/// ```
/// use std::sync::Arc;
/// use blocker::{Memory, Namespace, WriteMode};
/// use cached_core::object::ObjectCache;
///
/// let cache = ObjectCache::builder(Arc::new(Memory::default()))
///     .memory_bytes(64 << 20)
///     .write_mode(WriteMode::Through)
///     .namespace_write_mode(Namespace::new("scratch")?, WriteMode::Back)
///     .start()?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder creates no cache until `build` or `start` is called"]
pub struct ObjectCacheBuilder {
    store: Arc<dyn Blocker>,
    config: ObjectCacheConfig,
    has_dirty_bytes_max: bool,
    clock: Arc<dyn Clock>,
    journal: Option<(OpenJournal, JournalOptions)>,
}

impl ObjectCache {
    /// Returns a builder of a cache over `store`, with the values of [`ObjectCacheConfig::default`] and the
    /// system's clock.
    pub fn builder(store: Arc<dyn Blocker>) -> ObjectCacheBuilder {
        ObjectCacheBuilder {
            store,
            config: ObjectCacheConfig::default(),
            has_dirty_bytes_max: false,
            clock: Arc::new(SystemClock),
            journal: None,
        }
    }
}

impl ObjectCacheBuilder {
    /// Takes all values of the configuration from `config`.
    pub fn config(mut self, config: ObjectCacheConfig) -> Self {
        (self.config, self.has_dirty_bytes_max) = (config, true);
        self
    }

    /// Sets the memory for data, in bytes. Default: 256 MiB. The dirty-data limit is half of the
    /// memory, unless [`Self::config`] has set another.
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.config.memory_bytes_max = bytes;
        if !self.has_dirty_bytes_max {
            self.config.dirty_bytes_max = bytes / 2;
        }
        self
    }

    /// Sets the range in which an [`arbiter`](crate::arbiter) can change the memory, see
    /// [`ObjectCacheConfig::memory_range`]. The dirty-data limit is half of the range's minimum,
    /// unless [`Self::config`] has set another.
    pub fn memory_range(mut self, range: MemoryRange) -> Self {
        self.config.memory_range = Some(range);
        if !self.has_dirty_bytes_max {
            self.config.dirty_bytes_max = range.bytes_min / 2;
        }
        self
    }

    /// Sets the write mode of namespaces that have none of their own. Default: write-through.
    pub fn write_mode(mut self, mode: WriteMode) -> Self {
        self.config.write = mode;
        self
    }

    /// Sets the write mode of a namespace.
    pub fn namespace_write_mode(mut self, namespace: Namespace, mode: WriteMode) -> Self {
        self.config.namespaces.retain(|each| each.namespace != namespace);
        self.config.namespaces.push(NamespaceConfig::new(namespace, mode));
        self
    }

    /// Sets the sample used to simulate other memory sizes, see [`ObjectCacheConfig::insight`].
    pub fn insight(mut self, insight: Sampling) -> Self {
        self.config.insight = insight;
        self
    }

    /// Sets the party that claims epochs and stamps changes.
    pub fn writer(mut self, writer: Writer) -> Self {
        self.config.writer = writer;
        self
    }

    /// Sets the clock by which deadlines, ages and delays are measured: the callers' clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Logs the changes of namespaces in write-back mode in `journal`; the configuration can change
    /// the choice of namespaces. Requires [`Writer::Cache`] or [`Writer::Elected`], and therefore a
    /// store with fencing.
    ///
    /// Records that an earlier process left in the journal are replayed once
    /// [`begin_recovery`](ObjectCache::begin_recovery) has succeeded; until then operations wait.
    /// An elected cache replays nothing: before it is created, another cache, with
    /// [`Writer::Cache`], must have stored what the journal has. It acknowledges nothing as
    /// *journaled*, but as *stored*, because the next leader does not have the journal.
    pub fn journal(mut self, journal: OpenJournal, options: JournalOptions) -> Self {
        self.journal = Some((journal, options));
        self
    }

    /// Returns the cache and its background, which must run for as long as the cache is used.
    ///
    /// # Errors
    /// The first invalid value, or `memory_bytes_max` if the memory cannot be mapped.
    pub fn build(self) -> Result<(ObjectCache, Background), ConfigError> {
        ObjectCache::make(self.store, self.config, self.clock, self.journal)
    }

    /// Returns the cache, with its background on a separate thread, which ends after the last
    /// handle of the cache is dropped.
    ///
    /// # Errors
    /// The same as for [`Self::build`], or `background` if the thread cannot be started.
    pub fn start(self) -> Result<ObjectCache, ConfigError> {
        let (cache, background) = self.build()?;
        let thread = std::thread::Builder::new().name("object-cache".into());
        let spawned = thread.spawn(move || block_on(background));
        let why = |error: std::io::Error| format!("the thread cannot be started: {error}");
        spawned.map_err(|error| ConfigError { key: "background", why: why(error) })?;
        Ok(cache)
    }
}

impl std::fmt::Debug for ObjectCacheBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectCacheBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}

//! The cache before the backend, as `[cache]` has it: its background, and its end.

use std::sync::Arc;
use std::time::Duration;

use blocker::{Blocker, SystemClock};
use cached_config::{CacheReceiveBuffers, ConfigError, ObjectsTable, ShutdownError, store_all};
use cached_core::object::ObjectCache;
use tokio::task::JoinHandle;

use crate::config::here;

/// A cache at work.
pub(crate) struct Cache {
    cache: ObjectCache,
    background: JoinHandle<()>,
    flush_max: Duration,
    memory_bytes_max: u64,
}

impl Cache {
    /// Puts a cache before `below`. Its background runs on the current runtime.
    ///
    /// # Errors
    /// What is wrong with its settings.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub(crate) fn before(below: Arc<dyn Blocker>, table: &ObjectsTable) -> Result<Self, ConfigError> {
        let config = table.cache().map_err(here)?;
        let made = ObjectCache::new(below, config, Arc::new(SystemClock));
        let (cache, background) = made.map_err(|error| here((&error).into()))?;
        Ok(Self {
            background: tokio::spawn(background),
            flush_max: table.shutdown_flush(),
            memory_bytes_max: table.cache_bytes_max(),
            cache,
        })
    }

    /// Returns the cache as the backend to serve.
    pub(crate) fn backend(&self) -> Arc<dyn Blocker> {
        Arc::new(self.cache.clone())
    }

    /// Returns the cache's buckets as receive buffers for large payloads.
    pub(crate) fn receive_buffers(&self) -> Arc<dyn synapse::ReceiveBuffers> {
        Arc::new(CacheReceiveBuffers::new(self.cache.clone()))
    }

    /// The cache itself, to look at while it ends.
    pub(crate) fn cache(&self) -> ObjectCache {
        self.cache.clone()
    }

    /// How long its end may take.
    pub(crate) fn flush_max(&self) -> Duration {
        self.flush_max
    }

    /// The most memory it takes.
    pub(crate) fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    /// Stores what is dirty, once nobody uses it any more.
    ///
    /// # Errors
    /// What was acknowledged and is not stored.
    pub(crate) async fn end(self) -> Result<(), ShutdownError> {
        let stored = store_all(&self.cache, self.flush_max).await;
        self.background.abort();
        // Lets go of the store with it.
        let _ = self.background.await;
        stored
    }
}

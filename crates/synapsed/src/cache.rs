//! The cache in front of the backend, as configured by `[objects]`: its background task, and its
//! shutdown.

use cached_core::insight::Sampling;
use std::sync::Arc;

use blocker::Blocker;
use cached_config::{CacheReceiveBuffers, ConfigError, ObjectsTable, ShutdownError, store_all};
use cached_core::object::{ObjectCache, OpenJournal};
use cached_process::reload::LiveSecs;
use tokio::task::JoinHandle;

use crate::config::in_this_file;

/// A running cache.
pub(crate) struct Cache {
    pub(crate) cache: ObjectCache,
    background: JoinHandle<()>,
    /// The time limit for storing the cache's dirty data, which can change at run time.
    pub(crate) flush_max: LiveSecs,
    pub(crate) memory_bytes_max: u64,
}

impl Cache {
    /// Starts a cache over `below`, with requests sampled according to `insight`. Its background
    /// task runs on the current runtime.
    ///
    /// # Errors
    /// The invalid setting.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub(crate) fn over(
        below: Arc<dyn Blocker>,
        table: &ObjectsTable,
        insight: Sampling,
        journal: Option<OpenJournal>,
    ) -> Result<Self, ConfigError> {
        let (cache, background) = table.open_cache(below, journal, insight).map_err(in_this_file)?;
        Ok(Self {
            background: tokio::spawn(background),
            flush_max: LiveSecs::new(table.shutdown_flush_secs),
            memory_bytes_max: table.cache_bytes_max(),
            cache,
        })
    }

    /// Returns the cache's buckets, for use as receive buffers for large payloads.
    pub(crate) fn receive_buffers(&self) -> Arc<dyn synapse::ReceiveBuffers> {
        Arc::new(CacheReceiveBuffers::new(self.cache.clone()))
    }

    /// Stores its dirty data, and stops the background task. Nothing may change the cache any more.
    ///
    /// # Errors
    /// The acknowledged data that could not be stored.
    pub(crate) async fn shut_down(self) -> Result<(), ShutdownError> {
        let stored = store_all(&self.cache, self.flush_max.get()).await;
        self.background.abort();
        // When the task ends, it releases the store.
        let _ = self.background.await;
        stored
    }
}

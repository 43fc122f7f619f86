//! Opening a store that may be away at first, and reading its record of servers.

use crate::backend::BackendTable;
use crate::store::{OpenError, OpenOptions, Store};
use crate::waiting::{StartError, Waiting, may_pass};
use blocker::{Error, SystemClock};
use cached_core::object::ObjectCache;
use std::time::Duration;
use synapse::NodeRecord;
use synapse::codec::InstanceId;

/// How long the store may take to return its record of servers.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take to note an end there, and how long where nothing has changed.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_END_TIMEOUT: Duration = Duration::from_secs(1);

impl Store {
    /// Opens the store, on a thread of its own because opening blocks. While the store is away, tries again every
    /// second.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempts. One that is under way continues on its thread; dropping the
    /// runtime waits for it, [`shutdown_background`](tokio::runtime::Runtime::shutdown_background) does not.
    ///
    /// # Errors
    /// Errors that waiting does not resolve.
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
            let panicked = || Err(OpenError::Store(Error::Corrupt("opening the store has panicked".into())));
            match opened.unwrap_or_else(panicked) {
                Err(OpenError::Store(error)) if may_pass(&error) => waiting.pause(&what, error).await,
                opened => return Ok(opened?),
            }
        }
    }

    /// Reads the store's record of servers, which is made if there is none. While the store is away, tries again every
    /// second.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempts.
    ///
    /// # Errors
    /// Errors that waiting does not resolve.
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

    /// Records that a listener's `instance` has ended with everything stored. The store may be away: it has
    /// little time if `cache`, through which all changes went, has changed nothing.
    pub async fn record_end(&self, instance: InstanceId, cache: Option<&ObjectCache>) {
        let counters = cache.map(ObjectCache::counters);
        let is_unchanged =
            counters.is_some_and(|counters| counters.writes_back + counters.writes_through == 0);
        let timeout = if is_unchanged { IDLE_END_TIMEOUT } else { END_TIMEOUT };
        if let Err(error) = NodeRecord::close(&*self.backend(), instance, &SystemClock, timeout).await {
            tracing::warn!(
                cause = %error,
                "cannot record in the store that everything is stored: clients count as lost what they have not flushed"
            );
        }
    }
}

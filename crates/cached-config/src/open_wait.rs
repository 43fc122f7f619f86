//! Opening a store that may be unavailable at first.

use crate::backend::BackendTable;
use crate::store::{OpenError, OpenOptions, Store};
use blocker::Error;
use cached_process::notify;
use std::time::Duration;

/// The time between two attempts to open a store that is unavailable.
const OPEN_DELAY: Duration = Duration::from_secs(1);

impl Store {
    /// Opens the store, on a thread of its own because opening blocks. While the store is unavailable, tries
    /// again every second, reports to the service manager that the start takes longer, and calls `waiting`
    /// with the reason of every failed attempt. Needs a tokio runtime with time.
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
        mut waiting: impl FnMut(&Error),
    ) -> Result<Store, OpenError> {
        loop {
            let (attempt, options) = (table.clone(), options.clone());
            let opened = tokio::task::spawn_blocking(move || Store::open(&attempt, &options)).await;
            let panicked = |_| Err(OpenError::Store(Error::Corrupt("opening the store has panicked".into())));
            match opened.unwrap_or_else(panicked) {
                Err(OpenError::Store(error)) if error.is_retryable() => {
                    notify(&format!("STATUS=Waiting for {table}\nEXTEND_TIMEOUT_USEC=60000000"));
                    waiting(&error);
                }
                opened => return opened,
            }
            tokio::time::sleep(OPEN_DELAY).await;
        }
    }
}

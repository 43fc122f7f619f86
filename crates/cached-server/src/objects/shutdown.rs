//! The end of the object cache: no more requests, everything stored, the store closed; or an error that
//! states what is lost.

use super::listener::ObjectListener;
use blocker::SystemClock;
use cached_config::{Store, store_all};
use cached_core::object::ObjectCache;
use std::time::Duration;
use synapse::NodeRecord;

pub use cached_config::ShutdownError;

/// How long clients have to take their replies, and how long the store has to write its record and to close.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// Ends the listener, then stores dirty data for at most `flush_max`.
pub(super) async fn shut_down(
    cache: &ObjectCache,
    store: &Store,
    listener: Option<ObjectListener>,
    flush_max: Duration,
) -> Result<(), ShutdownError> {
    let instance = listener.as_ref().map(|listener| listener.server().instance());
    if let Some(listener) = listener
        && !listener.shut_down(STEP_TIMEOUT).await
    {
        tracing::warn!("connections of object clients that did not take their replies are closed");
    }
    store_all(cache, flush_max).await?;
    if let Some(instance) = instance
        && let Err(error) = NodeRecord::close(&*store.backend(), instance, &SystemClock, STEP_TIMEOUT).await
    {
        tracing::warn!(
            cause = %error,
            "cannot record in the store that everything is stored: clients will treat unflushed writes as lost"
        );
    }
    Ok(())
}

/// Closes the store, whatever the result of the shutdown.
pub(super) fn close(result: Result<(), ShutdownError>, store: Store) -> Result<(), ShutdownError> {
    let closed = store.close(STEP_TIMEOUT);
    result?;
    closed.map_err(|error| ShutdownError { dirty_bytes: 0, why: format!("closing the store: {error}") })
}

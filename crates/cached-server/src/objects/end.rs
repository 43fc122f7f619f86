//! The end: no more requests, everything stored, the store closed; or a word about what is lost.

use super::door::Door;
use blocker::SystemClock;
use cached_config::{Store, store_all};
use cached_core::object::ObjectCache;
use std::time::Duration;
use synapse::NodeRecord;

pub use cached_config::ShutdownError;

/// How long clients get to take their answers.
pub(super) const DOOR_PATIENCE: Duration = Duration::from_secs(5);

/// Ends the door, then stores what is dirty, for as long as `flush_max`.
pub(super) async fn finish(
    cache: &ObjectCache,
    store: &Store,
    door: Option<Door>,
    flush_max: Duration,
) -> Result<(), ShutdownError> {
    let instance = door.as_ref().map(|door| door.server().instance());
    if let Some(door) = door
        && !door.shutdown(DOOR_PATIENCE).await
    {
        tracing::warn!("clients of the object door were cut off: they did not take their answers");
    }
    store_all(cache, flush_max).await?;
    if let Some(instance) = instance
        && let Err(error) = NodeRecord::close(&*store.backend(), instance, &SystemClock, DOOR_PATIENCE).await
    {
        tracing::warn!(
            cause = %error,
            "that all is stored cannot be written down: clients take for lost what they have not flushed"
        );
    }
    Ok(())
}

/// Closes the store, whatever the cache has come to.
pub(super) fn closed(result: Result<(), ShutdownError>, store: Store) -> Result<(), ShutdownError> {
    let closed = store.close(DOOR_PATIENCE);
    result?;
    closed.map_err(|error| ShutdownError { dirty_bytes: 0, why: format!("closing the store: {error}") })
}

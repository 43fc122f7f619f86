//! The end: no more requests, everything stored, the store closed; or a word about what is lost.

use super::door::Door;
use blocker::{Blocker, SystemClock};
use cached_core::object::ObjectCache;
use cached_objects::{Store, store_all};
use std::time::Duration;
use synapse::NodeRecord;

pub use cached_objects::Unfinished;

/// How long clients get to take their answers.
pub(super) const DOOR_PATIENCE: Duration = Duration::from_secs(5);

/// How long writing down an orderly end may take.
pub(super) const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// Ends the door, then stores what is dirty, for as long as `flush_max`, and writes down in the store that it did.
pub(super) async fn finish(
    cache: &ObjectCache,
    door: Option<Door>,
    store: &dyn Blocker,
    flush_max: Duration,
) -> Result<(), Unfinished> {
    let instance = door.as_ref().map(|door| door.server().instance());
    if let Some(door) = door
        && !door.shutdown(DOOR_PATIENCE).await
    {
        tracing::warn!("clients of the object door were cut off: they did not take their answers");
    }
    store_all(cache, flush_max).await?;
    if let Some(instance) = instance
        && let Err(error) = NodeRecord::close(store, instance, &SystemClock, CLOSE_PATIENCE).await
    {
        tracing::warn!(cause = %error, "clients of the object door will take this end for a crash");
    }
    Ok(())
}

/// Closes the store, whatever the cache has come to.
pub(super) fn closed(result: Result<(), Unfinished>, store: Store) -> Result<(), Unfinished> {
    let closed = store.close(DOOR_PATIENCE);
    result?;
    closed.map_err(|error| Unfinished { dirty_bytes: 0, why: format!("closing the store: {error}") })
}

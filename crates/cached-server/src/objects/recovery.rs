//! Beginning the recovery of what an earlier process logged, before clients are served.

use super::ObjectsError;
use cached_config::{ObjectsTable, begin_recovery, recovery_mistake};
use cached_core::object::ObjectCache;
use std::time::{Duration, Instant};

/// The time between two log lines while the start waits for the store.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Begins the recovery. While the store does not answer, asks again every second, until `end` is ready.
///
/// # Errors
/// [`ObjectsError::Ended`] if `end` was ready first; [`ObjectsError::Config`] if the journal cannot be
/// recovered over this store; [`ObjectsError::Store`].
pub(super) async fn begin(
    cache: &ObjectCache,
    objects: &ObjectsTable,
    end: impl Future<Output = ()>,
) -> Result<(), ObjectsError> {
    let mut logged: Option<Instant> = None;
    let waiting = |error: &blocker::Error| {
        if logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            tracing::warn!(cause = %error, "waiting for the store before the journal is recovered");
            logged = Some(Instant::now());
        }
    };
    tokio::select! {
        begun = begin_recovery(cache, waiting) => begun.map_err(|error| {
            recovery_mistake(objects, error).map_or_else(ObjectsError::Store, ObjectsError::from)
        }),
        () = end => Err(ObjectsError::Ended),
    }
}

//! The store behind the cache, as `[objects.backend]` configures it.

use super::ObjectsError;
use crate::config::{BackendTable, ObjectsTable};
use blocker::trace::Tracer;
use cached_admin::Health;
use cached_config::{OpenError, OpenOptions, Store};
use std::time::{Duration, Instant};
use synapse::Secret;

/// The time between two log lines while the start waits for the store.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Opens the store. While it is away, tries again every second, until `end` is ready.
///
/// # Errors
/// [`ObjectsError::Ended`] if `end` was ready first; others for failures that do not go away by waiting.
pub(super) async fn open(
    objects: &ObjectsTable,
    secret: Option<Secret>,
    tracer: Option<&Tracer>,
    end: impl Future<Output = ()>,
    health: Option<&Health>,
) -> Result<Store, ObjectsError> {
    let Some(table) = &objects.backend else {
        return Err(ObjectsError::Config("objects.backend: is missing".into()));
    };
    if matches!(table, BackendTable::Memory(_)) {
        tracing::warn!("objects are kept in memory: all of them are lost when this process ends");
    }
    let options = OpenOptions::default().object_bytes_max(objects.object_bytes_max.0);
    let options = options.secret(secret).tracer(tracer.cloned());
    let mut logged: Option<Instant> = None;
    let starting = |line: String| health.into_iter().for_each(|health| health.set_starting(line.as_str()));
    starting(format!("opening the store {table}"));
    let waiting = |error: &blocker::Error| {
        starting(format!("waiting for the store {table}: {error}"));
        if logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            tracing::warn!(cause = %error, store = %table, "waiting for the store of objects");
            logged = Some(Instant::now());
        }
    };
    tokio::select! {
        opened = Store::open_when_available(table, &options, waiting) => opened.map_err(|error| match error {
            OpenError::Config(error) => error.into(),
            OpenError::Store(error) => error.into(),
        }),
        () = end => Err(ObjectsError::Ended),
    }
}

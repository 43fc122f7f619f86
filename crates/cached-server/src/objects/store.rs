//! The store behind the cache, as `[objects.backend]` configures it.

use super::ObjectsError;
use crate::config::{BackendTable, ObjectsTable};
use crate::systemd;
use cached_config::{OpenError, OpenOptions, Store};
use std::time::{Duration, Instant};
use synapse::Secret;

/// The time between two attempts to open a store that is away.
const OPEN_DELAY: Duration = Duration::from_secs(1);

/// The time between two log lines while the start waits for the store.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Opens the store. While it is away, tries again every second, until `end` is ready.
///
/// # Errors
/// [`ObjectsError::Ended`] if `end` was ready first; others for failures that do not go away by waiting.
pub(super) async fn open(
    objects: &ObjectsTable,
    secret: Option<Secret>,
    end: impl Future<Output = ()>,
) -> Result<Store, ObjectsError> {
    let Some(table) = objects.backend.clone() else {
        return Err(ObjectsError::Config("objects.backend: is missing".into()));
    };
    if matches!(table, BackendTable::Memory(_)) {
        tracing::warn!("objects are kept in memory: all of them are lost when this process ends");
    }
    let options = OpenOptions::default().object_bytes_max(objects.object_bytes_max.0).secret(secret);
    let name = table.to_string();
    let opened = async {
        let mut logged: Option<Instant> = None;
        loop {
            let (table, options) = (table.clone(), options.clone());
            // On a thread of its own, because opening blocks, and one that hangs must not delay the end.
            let opening = tokio::task::spawn_blocking(move || Store::open(&table, &options));
            match opening.await {
                Ok(Err(OpenError::Store(error))) if error.is_retryable() => {
                    systemd::notify(&format!("STATUS=Waiting for {name}\nEXTEND_TIMEOUT_USEC=60000000"));
                    if logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
                        tracing::warn!(cause = %error, store = name, "waiting for the store of objects");
                        logged = Some(Instant::now());
                    }
                }
                Ok(Ok(store)) => return Ok(store),
                Ok(Err(OpenError::Store(error))) => return Err(error.into()),
                Ok(Err(OpenError::Config(error))) => return Err(error.into()),
                Err(error) => return Err(ObjectsError::Thread(std::io::Error::other(error))),
            }
            tokio::time::sleep(OPEN_DELAY).await;
        }
    };
    tokio::select! {
        opened = opened => opened,
        () = end => Err(ObjectsError::Ended),
    }
}

//! The recovery of a cache with a journal: begun before the cache is used, and its progress in the log.

use crate::error::ConfigError;
use crate::objects::ObjectsTable;
use blocker::{Clock, Error, SystemClock};
use cached_core::object::{ObjectCache, RecoveryError, RecoveryProgress};
use cached_process::notify;
use std::time::Duration;

/// The time between two attempts to ask a store that is away.
const ASK_DELAY: Duration = Duration::from_secs(1);
/// The time between two looks at the progress, and the number of looks between two lines about it.
const LOOK_DELAY: Duration = Duration::from_millis(200);
const LOOKS_PER_LINE: u32 = 50;

/// Begins the recovery of what an earlier process logged. While the store does not answer, asks again every
/// second, reports to the service manager that the start takes longer, and calls `waiting` with the reason of
/// every failed attempt.
///
/// # Cancel safety
/// Dropping the future ends the attempts. It may be called again.
///
/// # Errors
/// Errors that waiting does not resolve.
pub async fn begin_recovery(
    cache: &ObjectCache,
    mut waiting: impl FnMut(&Error),
) -> Result<(), RecoveryError> {
    loop {
        match cache.begin_recovery().await {
            Err(RecoveryError::Store(error)) if may_answer_later(&error) => {
                notify("STATUS=Waiting for the store\nEXTEND_TIMEOUT_USEC=60000000");
                waiting(&error);
            }
            begun => return begun,
        }
        SystemClock.sleep(ASK_DELAY).await;
    }
}

/// Returns why a recovery cannot begin as a mistake of the configuration, or the store's error.
///
/// # Errors
/// The store's error, if that is the reason.
pub fn recovery_mistake(objects: &ObjectsTable, error: RecoveryError) -> Result<ConfigError, Error> {
    if let RecoveryError::Store(error) = error {
        return Err(error);
    }
    let directory =
        objects.journal.as_ref().map_or_else(String::new, |table| table.directory.display().to_string());
    Ok(ConfigError { key: "objects.journal.directory".into(), why: format!("{directory}: {error}") })
}

fn may_answer_later(error: &Error) -> bool {
    error.is_retryable() || matches!(error, Error::DeadlinePassed | Error::OutcomeUnknown(_))
}

/// Logs how far the recovery is, every 10 s and at its end. Nothing if there is nothing to recover.
pub async fn log_recovery(cache: ObjectCache) {
    let RecoveryProgress { records, is_done, .. } = cache.recovery();
    if records == 0 || is_done {
        return;
    }
    tracing::info!(records, "recovering what the journal holds; objects are served meanwhile");
    let begun = SystemClock.now();
    for look in 1.. {
        SystemClock.sleep(LOOK_DELAY).await;
        let RecoveryProgress { records, records_applied, objects_failed, is_done, .. } = cache.recovery();
        let took_ms = SystemClock.now().0.saturating_sub(begun.0) / 1_000_000;
        if is_done && objects_failed > 0 {
            tracing::error!(
                records,
                records_applied,
                objects_failed,
                took_ms,
                "some objects could not be recovered: their records are damaged, and operations on them fail"
            );
        } else if is_done {
            tracing::info!(records, took_ms, "everything that the journal held is recovered");
        } else if look % LOOKS_PER_LINE == 0 {
            tracing::info!(records, records_applied, objects_failed, took_ms, "recovering");
        }
        if is_done {
            return;
        }
    }
}

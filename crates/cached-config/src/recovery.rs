//! The recovery of a cache with a journal: begun before the cache is used, and its progress in the log.

use crate::error::ConfigError;
use crate::objects::ObjectsTable;
use crate::waiting::{StartError, Waiting, may_pass};
use blocker::{Clock, SystemClock};
use cached_core::object::{ObjectCache, RecoveryError, RecoveryProgress};
use std::time::Duration;

/// The time between two looks at the progress, and the number of looks between two lines about it.
const LOOK_DELAY: Duration = Duration::from_millis(200);
const LOOKS_PER_LINE: u32 = 50;

/// Begins the recovery of what an earlier process logged. While the store does not answer, or the journal's disk fails,
/// tries again every second.
///
/// # Cancel safety
/// Dropping the future ends the attempts. It may be called again.
///
/// # Errors
/// Errors that waiting does not resolve.
pub async fn begin_recovery(
    cache: &ObjectCache,
    objects: &ObjectsTable,
    waiting: &mut Waiting<'_>,
) -> Result<(), StartError> {
    let directory = objects.journal.as_ref().map(|table| table.directory.display().to_string());
    let directory = directory.unwrap_or_default();
    loop {
        match cache.begin_recovery().await {
            Ok(()) => return Ok(()),
            Err(RecoveryError::Store(error)) if may_pass(&error) => {
                waiting.pause("the store before the journal is recovered", error).await;
            }
            Err(RecoveryError::Disk(why)) => {
                waiting.pause(&format!("the disk of the journal in {directory}"), why).await;
            }
            Err(RecoveryError::Store(error)) => return Err(StartError::Store(error)),
            Err(error @ (RecoveryError::Overtaken { .. } | RecoveryError::Journal(_))) => {
                let why = format!("{directory}: {error}");
                let key = "objects.journal.directory".into();
                return Err(StartError::Config(ConfigError { key, why }));
            }
        }
    }
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

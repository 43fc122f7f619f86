//! The shutdown of a cache: everything is stored, or the error states what is not.

use crate::waiting::may_pass;
use blocker::{Blocker, Clock, Durability, Error, FlushRequest, Scope, SystemClock};
use cached_core::object::{JournalState, ObjectCache};
use std::time::Duration;

/// Between tries, when storing fails at once.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// How long the journal has to confirm what the store has not taken.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Acknowledged writes that are not stored when a cache has shut down.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the object cache ended with {dirty_bytes} bytes of acknowledged writes not stored: {why}")]
pub struct ShutdownError {
    /// How much is lost, as far as the cache knows, in bytes.
    pub dirty_bytes: u64,
    /// Why.
    pub why: String,
}

impl ShutdownError {
    /// Returns the error for a cache that still has dirty data or losses.
    pub fn of_cache(cache: &ObjectCache, why: impl Into<String>) -> ShutdownError {
        let mut why = why.into();
        if cache.journal_health().is_some_and(|health| health.state == JournalState::Ok) {
            why.push_str(
                "; the journal has what was acknowledged as journaled, and the next start stores it",
            );
        }
        let objects = cache.recovery().objects_failed;
        if objects > 0 {
            let keeps = format!(
                "; {objects} objects could not be recovered: the journal keeps their records, and `cachectl journal export` saves what is readable"
            );
            why.push_str(&keeps);
        }
        ShutdownError { dirty_bytes: cache.counters().dirty_bytes + cache.lost().bytes(), why }
    }
}

/// Stores what is dirty, for at most `flush_max`, and closes the journal, if there is one: it then has nothing to
/// replay. What the store does not take in time is no loss if the journal has all of it: the next start stores it.
/// No other task may change anything any more.
///
/// # Errors
/// [`ShutdownError`] with what was acknowledged and is neither stored nor in the journal, and if objects could not be
/// recovered from the journal, which then keeps their records.
pub async fn store_all(cache: &ObjectCache, flush_max: Duration) -> Result<(), ShutdownError> {
    if cache.is_stored() {
        // The store need not be asked, which may be away.
        close_stored_journal(cache).await;
        return Ok(());
    }
    match flush_all(cache, flush_max).await {
        Ok(()) => close_stored_journal(cache).await,
        Err(_) if journal_all(cache).await && cache.recovery().objects_failed == 0 => {}
        Err(error) => return Err(ShutdownError::of_cache(cache, error.to_string())),
    }
    Ok(())
}

/// Closes the journal of a cache that has everything stored, if there is one.
pub async fn close_stored_journal(cache: &ObjectCache) {
    // Everything is stored: a journal that fails to state so costs the next start a replay.
    if let Err(error) = cache.close_journal().await {
        tracing::warn!(cause = %error, "the journal could not be closed");
    }
}

/// Stores what is dirty when it is called, and tries for at most `flush_max`. The cache goes on, whatever comes of it.
///
/// # Cancel safety
/// Dropping the future ends the attempts.
///
/// # Errors
/// The last attempt's.
pub async fn flush_all(cache: &ObjectCache, flush_max: Duration) -> Result<(), Error> {
    let dirty_bytes = cache.counters().dirty_bytes;
    if dirty_bytes > 0 {
        tracing::info!(dirty_bytes, "storing what is dirty");
    }
    let deadline = SystemClock.now() + flush_max;
    let mut last_logged = String::new();
    loop {
        let mut request = FlushRequest::new(Scope::All);
        request.call.deadline = Some(deadline);
        let error = match cache.flush(request).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        // With nothing dirty left, the error is about the store's own data.
        let is_hopeless = !may_pass(&error) && cache.counters().dirty_bytes == 0;
        let again = SystemClock.now() + RETRY_DELAY;
        if is_hopeless || again >= deadline {
            return Err(error);
        }
        let cause = error.to_string();
        if cause != last_logged {
            tracing::warn!(cause, "cannot store what is dirty yet");
            last_logged = cause;
        }
        SystemClock.sleep_until(again).await;
    }
}

/// Makes durable in the journal what the store has not taken, and closes the journal. Returns whether all of it is
/// there.
async fn journal_all(cache: &ObjectCache) -> bool {
    if cache.journal_health().is_none() {
        return false;
    }
    let mut request = FlushRequest::new(Scope::All).durability(Durability::Journaled);
    request.call.deadline = Some(SystemClock.now() + JOURNAL_TIMEOUT);
    if cache.flush(request).await.is_err() {
        return false;
    }
    let dirty_bytes = cache.counters().dirty_bytes;
    match cache.close_journal().await {
        Ok(()) => {
            // Of objects that could not be recovered the caller reports.
            if dirty_bytes > 0 || cache.recovery().objects_failed == 0 {
                tracing::warn!(dirty_bytes, "the journal has what is not stored: the next start stores it");
            }
            true
        }
        Err(error) => {
            tracing::warn!(cause = %error, "the journal could not be closed");
            false
        }
    }
}

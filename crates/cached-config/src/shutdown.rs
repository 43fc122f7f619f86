//! The shutdown of a cache: everything is stored, or the error states what is not.

use blocker::{Blocker, Clock, Error, FlushRequest, Scope, SystemClock};
use cached_core::object::ObjectCache;
use std::time::Duration;

/// Between tries, when storing fails at once.
const RETRY_DELAY: Duration = Duration::from_millis(100);

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
        ShutdownError { dirty_bytes: cache.counters().dirty_bytes + cache.lost().bytes(), why: why.into() }
    }
}

/// Returns whether a flush that failed with `error` may succeed when it is tried again.
fn may_succeed_later(error: &Error) -> bool {
    error.is_retryable() || matches!(error, Error::DeadlinePassed | Error::OutcomeUnknown(_))
}

/// Stores what is dirty, for at most `flush_max`. No other task may change anything any more.
///
/// # Errors
/// [`ShutdownError`] with what was acknowledged and is not stored.
pub async fn store_all(cache: &ObjectCache, flush_max: Duration) -> Result<(), ShutdownError> {
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
        let is_hopeless = !may_succeed_later(&error) && cache.counters().dirty_bytes == 0;
        let again = SystemClock.now() + RETRY_DELAY;
        if is_hopeless || again >= deadline {
            return Err(ShutdownError::of_cache(cache, error.to_string()));
        }
        let cause = error.to_string();
        if cause != last_logged {
            tracing::warn!(cause, "cannot store what is dirty yet");
            last_logged = cause;
        }
        SystemClock.sleep_until(again).await;
    }
}

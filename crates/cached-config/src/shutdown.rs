//! The end of a cache: everything stored, or a word about what is lost.

use blocker::{Blocker, Clock, Error, FlushRequest, Scope, SystemClock};
use cached_core::object::ObjectCache;
use std::time::Duration;

/// Between tries, when storing fails at once.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// What was acknowledged and is not stored at the end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the object cache ended with {dirty_bytes} bytes of acknowledged writes not stored: {why}")]
pub struct ShutdownError {
    /// How much is lost, as far as the cache knows.
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

/// Whether a flush that failed like this may succeed if it is tried again.
fn may_pass(error: &Error) -> bool {
    error.is_retryable() || matches!(error, Error::DeadlinePassed | Error::OutcomeUnknown(_))
}

/// Stores what is dirty, for as long as `flush_max`. Nobody may change anything any more.
///
/// # Errors
/// [`ShutdownError`] says what was acknowledged and is not stored.
pub async fn store_all(cache: &ObjectCache, flush_max: Duration) -> Result<(), ShutdownError> {
    let dirty_bytes = cache.counters().dirty_bytes;
    if dirty_bytes > 0 {
        tracing::info!(dirty_bytes, "storing what is dirty");
    }
    let deadline = SystemClock.now() + flush_max;
    let mut told = String::new();
    loop {
        let mut request = FlushRequest::new(Scope::All);
        request.call.deadline = Some(deadline);
        let error = match cache.flush(request).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        // With nothing dirty left, what the store says is about what it has itself: it may yet be able to, or never.
        let is_hopeless = !may_pass(&error) && cache.counters().dirty_bytes == 0;
        let again = SystemClock.now() + RETRY_DELAY;
        if is_hopeless || again >= deadline {
            return Err(ShutdownError::of_cache(cache, error.to_string()));
        }
        let words = error.to_string();
        if words != told {
            tracing::warn!(cause = words, "cannot store what is dirty yet");
            told = words;
        }
        SystemClock.sleep_until(again).await;
    }
}

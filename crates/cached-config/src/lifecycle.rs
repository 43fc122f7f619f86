//! The life cycle of a cache: the startup, which waits while the store or the journal's disk fails;
//! the recovery of the journal; the store's events; the shutdown.

use std::fmt;
use std::time::{Duration, Instant};

use blocker::event::{Event, Subscription};
use blocker::{Blocker, Clock, Durability, Error, FlushRequest, Scope, SystemClock};
use cached_core::object::{JournalState, ObjectCache, RecoveryError, RecoveryProgress};
use cached_process::notify;

use crate::config_file::ConfigError;
use crate::objects::ObjectsTable;

/// The delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The interval between two log lines about the same problem.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// The duration after which an operation in progress is reported.
const PATIENCE: Duration = Duration::from_secs(5);

/// The reason why a store or a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid, or something that it names cannot be used.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// Another process, or another part of this one, has the journal open.
    #[error("{0}")]
    Locked(ConfigError),
    /// The error of the store itself.
    #[error("{0}")]
    Store(#[from] Error),
}

/// Returns whether a later attempt may succeed after this error of a store.
pub(crate) fn may_pass(error: &Error) -> bool {
    error.is_retryable() || matches!(error, Error::DeadlinePassed | Error::OutcomeUnknown(_))
}

/// A startup that waits while something fails. Requires a tokio runtime with time.
pub struct Waiting<'a> {
    show: Box<dyn Fn(&str) + 'a>,
    logged: Option<(String, Instant)>,
}

impl<'a> Waiting<'a> {
    /// Returns a startup that passes a line about each of its steps to `show`, for the probes.
    #[must_use]
    pub fn new(show: impl Fn(&str) + 'a) -> Waiting<'a> {
        Waiting { show: Box::new(show), logged: None }
    }

    /// Shows the current step of the startup.
    pub(crate) fn step(&self, step: impl fmt::Display) {
        (self.show)(&step.to_string());
    }

    /// Reports why `what` fails, and waits until the time of the next attempt.
    pub async fn pause(&mut self, what: &str, cause: impl fmt::Display) {
        let cause = cause.to_string();
        notify(&format!("STATUS=Waiting for {what}: {cause}\nEXTEND_TIMEOUT_USEC=60000000"));
        self.step(format_args!("waiting for {what}: {cause}"));
        self.log(what, &cause);
        tokio::time::sleep(RETRY_DELAY).await;
    }

    /// Runs blocking work on a separate thread, and reports `what` if the work takes long. Returns
    /// `None` if the work has panicked.
    ///
    /// # Cancel safety
    /// Work that has begun continues on its thread; dropping the runtime waits for it,
    /// [`shutdown_background`](tokio::runtime::Runtime::shutdown_background) does not.
    pub(crate) async fn blocking<T: Send + 'static>(
        &mut self,
        what: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let begun = Instant::now();
        let mut work = tokio::task::spawn_blocking(work);
        loop {
            match tokio::time::timeout(PATIENCE, &mut work).await {
                Ok(done) => return done.ok(),
                Err(_) => {
                    let secs = begun.elapsed().as_secs();
                    notify("EXTEND_TIMEOUT_USEC=60000000");
                    self.step(format_args!("waiting for {what}: no answer for {secs} s"));
                    self.log(what, "no answer yet");
                }
            }
        }
    }

    fn log(&mut self, what: &str, cause: &str) {
        let is_known = |(known, since): &(String, Instant)| known == cause && since.elapsed() < LOG_INTERVAL;
        if !self.logged.as_ref().is_some_and(is_known) {
            tracing::warn!(cause, "waiting for {what}");
            self.logged = Some((cause.to_owned(), Instant::now()));
        }
    }
}

impl fmt::Debug for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("logged", &self.logged).finish_non_exhaustive()
    }
}

/// The interval between two checks of the progress, and the number of checks between two log lines.
const LOOK_DELAY: Duration = Duration::from_millis(200);
const LOOKS_PER_LINE: u32 = 50;

/// Begins the recovery of the changes that an earlier process logged. While the store does not
/// respond, or the journal's disk fails, retries every second.
///
/// # Cancel safety
/// Dropping the future ends the attempts. The function may be called again.
///
/// # Errors
/// Returns errors that do not pass with time.
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
                waiting.pause("the store, which the journal recovery needs", error).await;
            }
            Err(RecoveryError::Disk(why) | RecoveryError::NotSetAside(why)) => {
                waiting.pause(&format!("the disk of the journal in {directory}"), why).await;
            }
            Err(RecoveryError::Store(error)) => return Err(error.into()),
            Err(
                error
                @ (RecoveryError::Overtaken { .. } | RecoveryError::Elected | RecoveryError::Journal(_)),
            ) => {
                let why = format!("{directory}: {error}");
                return Err(ConfigError::new("objects.journal.directory", why).into());
            }
        }
    }
}

/// Logs the progress of the recovery, every 10 s and at its end. Logs nothing if there is nothing
/// to recover.
pub async fn log_recovery(cache: ObjectCache) {
    let RecoveryProgress { records, is_done, .. } = cache.recovery();
    if records == 0 || is_done {
        return;
    }
    tracing::info!(records, "recovering the journal's records; objects are served in the meantime");
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
            tracing::info!(records, took_ms, "all records of the journal are recovered");
        } else if look % LOOKS_PER_LINE == 0 {
            tracing::info!(records, records_applied, objects_failed, took_ms, "recovering");
        }
        if is_done {
            return;
        }
    }
}

/// The delay between attempts when storing fails immediately.
const FLUSH_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The maximum time for the journal to confirm the data that the store has not accepted.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Acknowledged writes that are not stored after the shutdown of a cache.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the object cache ended with {dirty_bytes} bytes of acknowledged writes not stored: {why}")]
pub struct ShutdownError {
    /// The amount of lost data in bytes, as far as the cache knows it.
    pub dirty_bytes: u64,
    /// The reason.
    pub why: String,
}

impl ShutdownError {
    /// Returns the error for a cache that still has dirty data or losses.
    pub fn of_cache(cache: &ObjectCache, why: impl Into<String>) -> ShutdownError {
        let mut why = why.into();
        if cache.journal_health().is_some_and(|health| health.state == JournalState::Ok) {
            why.push_str(match cache.acknowledges_journaled() {
                true => "; the journal has what was acknowledged as journaled, and the next start stores it",
                false => {
                    "; the journal keeps what it has of them, and this host stores it if it leads before any other"
                }
            });
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

/// Stores dirty data, for at most `flush_max`, and closes the journal, if there is one, which then
/// has nothing to replay. Data that the store does not accept in time is not lost if the journal
/// has all of it: the next startup stores it, unless the writer is elected. No other task may change
/// the cache any more.
///
/// # Errors
/// Returns [`ShutdownError`] if acknowledged data is neither stored nor in the journal, or if
/// objects could not be recovered from the journal, which then keeps their records.
pub async fn store_all(cache: &ObjectCache, flush_max: Duration) -> Result<(), ShutdownError> {
    if cache.is_stored() {
        // This does not need the store, which may be unavailable.
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

/// Closes the journal, if there is one, of a cache whose data is all stored.
pub async fn close_stored_journal(cache: &ObjectCache) {
    // Everything is stored. If the journal fails to record that, the next startup only has to
    // replay it.
    if let Err(error) = cache.close_journal().await {
        tracing::warn!(cause = %error, "the journal could not be closed");
    }
}

/// Stores the data that is dirty at the time of the call, retrying for at most `flush_max`. The
/// cache continues whether or not this succeeds.
///
/// # Cancel safety
/// Dropping the future ends the attempts.
///
/// # Errors
/// Returns the error of the last attempt.
pub async fn flush_all(cache: &ObjectCache, flush_max: Duration) -> Result<(), Error> {
    let dirty_bytes = cache.counters().dirty_bytes;
    if dirty_bytes > 0 {
        tracing::info!(dirty_bytes, "storing dirty data");
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
        // A flush that reports losses has stored everything else. If no data are dirty any more, the
        // error concerns the store's own data.
        let is_hopeless =
            matches!(error, Error::WritesLost(_)) || !may_pass(&error) && cache.counters().dirty_bytes == 0;
        let again = SystemClock.now() + FLUSH_RETRY_DELAY;
        if is_hopeless || again >= deadline {
            return Err(error);
        }
        let cause = error.to_string();
        if cause != last_logged {
            tracing::warn!(cause, "cannot store dirty data yet");
            last_logged = cause;
        }
        SystemClock.sleep_until(again).await;
    }
}

/// Makes the data that the store has not accepted durable in the journal, and closes the journal.
/// Returns whether the journal has all of this data.
async fn journal_all(cache: &ObjectCache) -> bool {
    if !cache.acknowledges_journaled() {
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
            // The caller reports objects that could not be recovered.
            if dirty_bytes > 0 || cache.recovery().objects_failed == 0 {
                tracing::warn!(
                    dirty_bytes,
                    "the journal has the data that are not stored: the next start stores them"
                );
            }
            true
        }
        Err(error) => {
            tracing::warn!(cause = %error, "the journal could not be closed");
            false
        }
    }
}

/// The minimum interval between two lines of the same kind; events in between are counted.
const QUIET: Duration = Duration::from_secs(10);

/// Logs the events of the store called `name` until the store is dropped: full, degraded,
/// recovered, or lost and found again. Lines of the same kind are at least 10 s apart.
pub async fn log_events(mut events: Subscription, name: String) {
    let mut away = Rate::default();
    let mut trouble = Rate::default();
    // Whether a problem has been logged, so that the recovery is logged as well.
    let mut is_logged = false;
    while let Some(event) = events.recv().await {
        match event {
            Event::Missed => {
                if let Some(more) = away.admits(Instant::now()) {
                    tracing::warn!(
                        store = name,
                        times = more + 1,
                        "the connection to the store broke, or it restarted; clean copies are dropped"
                    );
                }
            }
            Event::Emptied => {
                tracing::error!(
                    store = name,
                    "the store keeps its data in memory and has restarted empty: everything stored there is lost; clean \
                     copies are dropped, and dirty data are stored again"
                );
            }
            Event::Full => {
                is_logged = true;
                tracing::warn!(store = name, "the store is full");
            }
            Event::Degraded(why) => {
                if let Some(more) = trouble.admits(Instant::now()) {
                    is_logged = true;
                    tracing::warn!(store = name, cause = %why, times = more + 1, "the store reports errors");
                }
            }
            Event::Recovered if std::mem::take(&mut is_logged) => {
                tracing::info!(store = name, "the store works again");
            }
            // A store reports the claims of this process as well.
            Event::Fenced(scope, epoch) => {
                tracing::info!(store = name, ?scope, %epoch, "a scope is claimed: older epochs are refused");
            }
            _ => {}
        }
    }
}

/// A rate limiter, which admits one event per interval and counts the others.
#[derive(Default)]
pub(crate) struct Rate {
    last: Option<Instant>,
    held_back: u64,
}

impl Rate {
    /// If a line is due, returns the number of events suppressed since the last one.
    pub(crate) fn admits(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < QUIET) {
            self.held_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_flaps_is_logged_once_in_a_while_with_a_count() {
        let start = Instant::now();
        let mut rate = Rate::default();
        assert_eq!(rate.admits(start), Some(0));
        for millis in 1..=7 {
            assert_eq!(rate.admits(start + Duration::from_millis(millis)), None);
        }
        assert_eq!(rate.admits(start + QUIET), Some(7));
        assert_eq!(rate.admits(start + QUIET * 2), Some(0));
    }
}

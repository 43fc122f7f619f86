//! Trouble at a start: a disk, a store or the network that fails is waited for, and named in the log, by the probes
//! and to the service manager. A mistake ends the start.

use crate::error::ConfigError;
use crate::store::OpenError;
use blocker::Error;
use cached_process::{Exit, notify};
use std::fmt;
use std::time::{Duration, Instant};

/// The time between two attempts.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The time between two lines of the log about the same trouble.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// How long an operation may take before it is named.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a start cannot go on with its journal and its store. Waiting would not help.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot work, or what it names must be mended first.
    #[error("{0}")]
    Config(ConfigError),
    /// Another process has what the key names, or it is not there: its disk may be mounted later.
    #[error("{0}")]
    Refused(ConfigError),
    /// The store's own error.
    #[error("{0}")]
    Store(Error),
}

impl StartError {
    /// Returns the exit status of a start that ends so.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            StartError::Config(_) => Exit::Configuration,
            StartError::Refused(_) | StartError::Store(_) => Exit::Refused,
        }
    }
}

impl From<OpenError> for StartError {
    fn from(error: OpenError) -> StartError {
        match error {
            OpenError::Config(error) => StartError::Config(error),
            OpenError::Store(error) => StartError::Store(error),
        }
    }
}

/// Returns whether what a store has answered may be otherwise later.
pub(crate) fn may_pass(error: &Error) -> bool {
    error.is_retryable() || matches!(error, Error::DeadlinePassed | Error::OutcomeUnknown(_))
}

/// The trouble that a start waits for. Needs a tokio runtime with time.
pub struct Waiting<'a> {
    show: Box<dyn Fn(&str) + 'a>,
    logged: Option<(String, Instant)>,
}

impl<'a> Waiting<'a> {
    /// Returns what waits, and gives `show` a line about each step of the start: for the probes.
    #[must_use]
    pub fn new(show: impl Fn(&str) + 'a) -> Waiting<'a> {
        Waiting { show: Box::new(show), logged: None }
    }

    /// Shows what the start does.
    pub(crate) fn step(&self, step: impl fmt::Display) {
        (self.show)(&step.to_string());
    }

    /// Names the trouble of `what`, and returns when it is to be tried again.
    pub(crate) async fn pause(&mut self, what: &str, cause: impl fmt::Display) {
        self.name(what, &cause.to_string());
        tokio::time::sleep(RETRY_DELAY).await;
    }

    /// Runs what blocks on a thread of its own, and names `what` while it takes long; `None` if it has panicked.
    ///
    /// # Cancel safety
    /// What was begun goes on on its thread; dropping the runtime waits for it,
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

    fn name(&mut self, what: &str, cause: &str) {
        notify(&format!("STATUS=Waiting for {what}: {cause}\nEXTEND_TIMEOUT_USEC=60000000"));
        self.step(format_args!("waiting for {what}: {cause}"));
        self.log(what, cause);
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

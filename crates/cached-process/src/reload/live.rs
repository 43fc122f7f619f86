//! Settings that change while a program runs, and a reload beside its other work.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::reload::Reloader;

/// A number of seconds that can change. Clones are handles of the same number.
#[derive(Clone, Debug)]
pub struct LiveSecs(Arc<AtomicU64>);

impl LiveSecs {
    /// Returns a number that begins with `secs`.
    #[must_use]
    pub fn new(secs: u64) -> LiveSecs {
        LiveSecs(Arc::new(AtomicU64::new(secs)))
    }

    /// Changes it.
    pub fn set(&self, secs: u64) {
        self.0.store(secs, Ordering::Relaxed);
    }

    /// Returns it.
    #[must_use]
    pub fn get(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed))
    }
}

/// Runs the reloads that are requested, one at a time, on the runtime's threads for what blocks.
pub struct Reloads<'a> {
    reloader: &'a Arc<Reloader>,
    running: Option<JoinHandle<()>>,
    /// Whether another was requested while one runs: a file may have changed after it was read.
    is_due: bool,
}

impl<'a> Reloads<'a> {
    /// Returns reloads of which none runs.
    pub fn new(reloader: &'a Arc<Reloader>) -> Self {
        Self { reloader, running: None, is_due: false }
    }

    /// Begins a reload, or has one begin once that which runs has ended.
    ///
    /// # Panics
    /// Outside a runtime of tokio.
    pub fn request(&mut self) {
        if self.running.is_some() {
            self.is_due = true;
            return;
        }
        let reloader = Arc::clone(self.reloader);
        self.running = Some(tokio::task::spawn_blocking(move || drop(reloader.reload())));
    }

    /// Runs what has been requested. Never ready: to be polled beside what the caller waits for. Cancel safe: a
    /// reload that runs goes on.
    pub async fn run(&mut self) -> ! {
        loop {
            match &mut self.running {
                None => std::future::pending::<()>().await,
                Some(running) => {
                    if running.await.is_err() {
                        tracing::error!("reading the configuration again has panicked");
                    }
                    self.running = None;
                    if std::mem::take(&mut self.is_due) {
                        self.request();
                    }
                }
            }
        }
    }
}

impl fmt::Debug for Reloads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { running, is_due, .. } = self;
        f.debug_struct("Reloads").field("running", running).field("is_due", is_due).finish_non_exhaustive()
    }
}

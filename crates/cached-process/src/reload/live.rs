//! Settings that can change at run time, and reloads that run alongside other work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::reload::Reloader;

/// A number of seconds that can change. Clones share the number.
#[derive(Clone, Debug)]
pub struct LiveSecs(Arc<AtomicU64>);

impl LiveSecs {
    /// Returns a number that starts as `secs`.
    #[must_use]
    pub fn new(secs: u64) -> LiveSecs {
        LiveSecs(Arc::new(AtomicU64::new(secs)))
    }

    /// Changes the number.
    pub fn set(&self, secs: u64) {
        self.0.store(secs, Ordering::Relaxed);
    }

    /// Returns the number.
    #[must_use]
    pub fn get(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed))
    }
}

/// Runs requested reloads one at a time, on the runtime's threads for blocking work.
#[derive(Debug)]
pub struct Reloads<'a> {
    reloader: &'a Arc<Reloader>,
    running: Option<JoinHandle<()>>,
    /// Whether another reload was requested while the current one runs. A file may have changed
    /// after it was read.
    is_due: bool,
}

impl<'a> Reloads<'a> {
    /// Returns an instance with no reload in progress.
    pub fn new(reloader: &'a Arc<Reloader>) -> Self {
        Self { reloader, running: None, is_due: false }
    }

    /// Starts a reload, or schedules one after the present one.
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

    /// Runs the requested reloads. The future is never ready: poll it together with the caller's
    /// other work.
    ///
    /// # Cancel safety
    /// If the future is dropped, a reload in progress continues.
    pub async fn run(&mut self) -> ! {
        loop {
            match &mut self.running {
                None => std::future::pending::<()>().await,
                Some(running) => {
                    if running.await.is_err() {
                        tracing::error!("reloading the configuration has panicked");
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

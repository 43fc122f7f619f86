//! A setting that is one number, and can change while the process runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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

//! The request that a new process takes over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::Notify;

/// Requests that a new process takes over from this one. It keeps nothing of the server.
#[derive(Debug, Clone, Default)]
pub struct Upgrader {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    requested: Notify,
    /// The process that serves instead of this one; 0: none.
    successor: AtomicU32,
}

impl Upgrader {
    /// Requests it. What comes of it is logged.
    pub fn request(&self) {
        self.state.requested.notify_one();
    }

    /// Returns whether another process serves instead of this one.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.successor().is_some()
    }

    /// Returns the process that serves instead of this one, if one does.
    #[must_use]
    pub fn successor(&self) -> Option<u32> {
        Some(self.state.successor.load(Ordering::Acquire)).filter(|pid| *pid != 0)
    }

    pub(crate) fn set_done(&self, pid: u32) {
        self.state.successor.store(pid, Ordering::Release);
    }

    /// Waits for a request. For one waiter.
    pub(crate) async fn requested(&self) {
        self.state.requested.notified().await;
    }
}

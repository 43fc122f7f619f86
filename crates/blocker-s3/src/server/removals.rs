//! Removing what nothing names any more, beside the calls that have made it so.
//!
//! No call waits for it, and only half of the requests at once may be its: what there is no room or no time for is left
//! to a sweep. A store that is closed waits for what has begun.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::select;
use object_store::path::Path;

use crate::server::requests::{Requests, Spawn};

impl Requests {
    /// Has objects removed that nothing names any more, without waiting for it. What there is no room for is
    /// left to a sweep.
    pub(crate) async fn remove_later(self: &Arc<Self>, paths: Vec<Path>) {
        match &self.spawn {
            Spawn::Inline => {
                for path in paths {
                    self.remove_or_leave(&path).await;
                }
            }
            // Half of the room is for callers who wait.
            Spawn::On(_) if !self.width.is_half_free() => {
                self.stats.left_behind.fetch_add(paths.len() as u64, Ordering::Relaxed);
            }
            Spawn::On(handle) => {
                let this = Arc::clone(self);
                this.removals.under_way.fetch_add(1, Ordering::AcqRel);
                handle.spawn(async move {
                    for path in paths {
                        this.remove_or_leave(&path).await;
                    }
                    this.removals.under_way.fetch_sub(1, Ordering::AcqRel);
                    this.removals.ended.notify_waiters();
                });
            }
        }
    }

    /// Waits until nothing is being removed in the background, `timeout` at most.
    pub(crate) async fn removed(&self, timeout: Duration) {
        let all = async {
            loop {
                // Noticed from here on.
                let ended = self.removals.ended.notified();
                if self.removals.under_way.load(Ordering::Acquire) == 0 {
                    return;
                }
                ended.await;
            }
        };
        select(pin!(all), self.timer(timeout)).await;
    }

    async fn remove_or_leave(&self, path: &Path) {
        if self.delete(path).await.is_err() {
            self.stats.left_behind.fetch_add(1, Ordering::Relaxed);
        }
    }
}

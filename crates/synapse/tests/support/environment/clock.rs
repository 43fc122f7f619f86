//! Tokio's clock as the contract's.

use std::time::Duration;

use blocker::clock::Sleep;
use blocker::{Clock, Timestamp};
use tokio::time::Instant;

/// Tokio's time. Starts at zero when it is made.
#[derive(Clone, Copy)]
pub struct TokioClock {
    start: Instant,
}

impl TokioClock {
    /// Returns a clock that shows 0 now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::default() + self.start.elapsed()
    }

    fn sleep_until(&self, until: Timestamp) -> Sleep {
        let at = self.start.checked_add(Duration::from_nanos(until.0));
        Box::pin(async move {
            match at {
                Some(at) => tokio::time::sleep_until(at).await,
                // Beyond the range of tokio's clock: never.
                None => std::future::pending().await,
            }
        })
    }
}

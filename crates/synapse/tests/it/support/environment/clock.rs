//! Tokio's clock, as a clock of the storage contract.

use std::sync::Arc;
use std::time::Duration;

use blocker::clock::Sleep;
use blocker::memory::MemoryConfig;
use blocker::{Clock, Memory, Timestamp};
use tokio::time::Instant;

/// Tokio's time, which starts at zero when this value is created.
#[derive(Clone, Copy)]
pub struct TokioClock {
    start: Instant,
}

impl TokioClock {
    /// Returns a clock that shows 0 now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns an empty store with this clock. A store with another clock would misread the
    /// deadlines, and could regard them as expired if the test process has run for a while.
    pub fn memory(self) -> Memory {
        Memory::new(MemoryConfig::default(), Arc::new(self))
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
                // The sleep never ends, because the deadline is beyond the range of tokio's clock.
                None => std::future::pending().await,
            }
        })
    }
}

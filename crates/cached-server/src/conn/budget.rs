//! How much one connection may do before others are served.

use crate::shared::live::Live;

/// What is left for a connection in one call of [`Connection::drive`](super::Connection::drive).
pub(super) struct Budget {
    /// Batches: one read, or one full output buffer.
    batches: u32,
    /// Requests, if `-R` limits them, else [`UNLIMITED`](Self::UNLIMITED) less the number carried out.
    requests: u32,
}

impl Budget {
    const UNLIMITED: u32 = u32::MAX;

    pub(super) fn of(live: &Live) -> Budget {
        let requests = live.requests_per_wake().unwrap_or(Self::UNLIMITED);
        Budget { batches: live.batches_per_wake(), requests }
    }

    /// Returns whether requests are counted one by one. `-R` is at most `i32::MAX`, and without it no drive
    /// has so many requests that the counter falls to that.
    pub(super) fn limits_requests(&self) -> bool {
        self.requests <= i32::MAX as u32
    }

    /// Returns whether other connections are to be served first.
    pub(super) fn is_used_up(&self) -> bool {
        self.batches == 0 || self.requests == 0
    }

    /// Returns whether no request is left, though a batch may be.
    pub(super) fn has_no_request(&self) -> bool {
        self.requests == 0
    }

    pub(super) fn take_batch(&mut self) {
        self.batches = self.batches.saturating_sub(1);
    }

    pub(super) fn take_request(&mut self) {
        self.requests = self.requests.saturating_sub(1);
    }
}

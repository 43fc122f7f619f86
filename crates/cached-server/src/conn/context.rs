//! What a worker lends to the connection that it drives.

use crate::exec::Executor;
use crate::shared::Shared;
use crate::stats::Work;
use crate::stream::Output;
use crate::telemetry::counters::Counters;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A worker's counters and buffers, for the connection that it drives.
pub(crate) struct WorkerContext<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) counters: &'a Counters,
    /// [`INPUT_BYTES`](crate::stream::INPUT_BYTES) long.
    pub(crate) input: &'a mut [u8],
    /// The bytes that [`Connection::receive_ahead`](super::Connection::receive_ahead) has read.
    pub(crate) received: Option<&'a [u8]>,
    /// Empty between connections.
    pub(crate) output: &'a mut Output,
    /// What is left of this iteration for costly requests.
    pub(crate) work: &'a mut Work,
    /// The connection's socket.
    pub(crate) client: BorrowedFd<'a>,
}

impl WorkerContext<'_> {
    #[inline]
    pub(super) fn executor(&mut self) -> Executor<'_> {
        Executor::new(self.shared, self.counters, self.output, self.work, self.client.as_raw_fd())
    }
}

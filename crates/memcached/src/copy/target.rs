//! The target's end of a copy session.

use crate::shared::Shared;
use cached_ring::Map;
use std::sync::Arc;
use std::time::Duration;

/// Why a copy has ended before its end, as one line.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// This node ends, or has been told to hold moves.
    #[error("this node ends")]
    Ends,
    /// The move no longer exists.
    #[error("the move no longer exists")]
    Gone,
    /// The source refuses the session.
    #[error("node {0} refuses: {1}")]
    Refused(String, String),
    /// The session has failed.
    #[error("the connection to node {0} has failed: {1}")]
    Broken(String, String),
    /// Items were flushed here while others arrived, which may be older.
    #[error("items were flushed in the meantime")]
    Flushed,
}

/// A copy that has arrived completely: the source executes no requests for its slots. If this is
/// dropped, the session ends, and the source aborts the move.
#[derive(Debug)]
pub struct Copied {
    items: u64,
    bytes: u64,
}

impl Copied {
    /// Returns the number of items that were stored.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Returns the size of these items, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the time since the source was asked to seal the slots.
    pub fn sealed(&self) -> Duration {
        todo!()
    }

    pub(crate) async fn settle(self, _map: Map) {
        todo!()
    }
}

/// Copies the items of a move to this node.
pub(crate) async fn copy(
    _shared: Arc<Shared>,
    _id: u64,
    _confirm: impl AsyncFnOnce() -> bool,
) -> Result<Copied, CopyError> {
    todo!()
}

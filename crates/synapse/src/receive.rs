//! Receive buffers: memory that a large payload is read into from the socket, and that then is the payload.
//!
//! A backend that keeps payloads in buckets of its own hands those out through [`ReceiveBuffers`]; the bytes
//! then go from the socket into their bucket. Otherwise they go into buffers that are reused, because fresh
//! memory costs a page fault per 4 KiB, more than the copy that is saved.

use blocker::ObjectId;
pub use connection::{LARGE_BYTES, ReceiveBuffer};

/// A backend's receive buffers for payloads that are about to arrive.
///
/// The methods must not block. A buffer that is dropped before [`ReceiveBuffer::finish`] is free again.
pub trait ReceiveBuffers: Send + Sync {
    /// Returns memory for `len_bytes` to be written at `offset` of `object`; `None` if none is free, and the
    /// payload is received into a buffer of the server. Whether the write will be allowed is not known yet.
    fn reserve(&self, object: &ObjectId, offset: u64, len_bytes: usize) -> Option<Box<dyn ReceiveBuffer>>;
}

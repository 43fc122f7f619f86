//! Receive buffers: memory that the payload of a large write is read into from the socket, and that then is the
//! payload.

use std::io::{self, IoSliceMut};

use blocker::Segments;

/// Memory for one payload, which is visible to its holder only until it is finished. Dropped before, it is free
/// again.
///
/// A cache that keeps payloads in buckets of its own hands those out by
/// [`Export::receive_buffer`](crate::Export::receive_buffer): then the bytes go from the socket into their bucket.
pub trait ReceiveBuffer: Send {
    /// Calls `read` once with slices for the next bytes, in order, and counts what it reads as filled. The
    /// slices never add up to more than what is missing. Returns the number of bytes read.
    ///
    /// # Errors
    /// The error of `read`.
    fn fill(&mut self, read: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>)
    -> io::Result<usize>;

    /// Returns the payload, once all of it has been read.
    fn finish(self: Box<Self>) -> Segments;
}

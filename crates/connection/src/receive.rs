//! Receive buffers: memory that a large payload is read into from the socket, and that then is the payload.

use std::io::{self, IoSliceMut};
use std::task::{Context, Poll};

use blocker::Segments;

use crate::stream::Stream;

/// Payloads from this size on, in bytes, are read from the socket into receive buffers, without a copy.
pub const LARGE_BYTES: usize = 32 * 1024;
/// The most slices of one read, that of the next head included.
const PLACES_MAX: usize = 72;

/// Memory for one payload, which is visible to its holder only until it is finished. Dropped before, it is free
/// again.
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

/// What one read has brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filled {
    /// The bytes of the payload; with those beyond it 0 at the end of the stream.
    pub payload_bytes: usize,
    /// The bytes beyond the payload.
    pub beyond_bytes: usize,
}

/// Performs one read into `reserved`, of which `left_bytes` are missing, and, if all of them are there, of the first bytes
/// after them into `beyond`.
///
/// `beyond` has room for one more head, because another large payload is likely to follow, and for little more,
/// because what arrives with its head must be copied.
pub fn poll_fill(
    cx: &mut Context<'_>,
    stream: &mut Stream,
    reserved: &mut dyn ReceiveBuffer,
    left_bytes: usize,
    beyond: &mut [u8],
) -> Poll<io::Result<Filled>> {
    let mut beyond_bytes = 0;
    let mut read = |places: &mut [IoSliceMut<'_>]| {
        let offered: usize = places.iter().map(|place| place.len()).sum();
        let done = if offered == left_bytes && places.len() < PLACES_MAX {
            let mut all: [_; PLACES_MAX] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let count = places.len();
            all.iter_mut().zip(places).for_each(|(one, place)| *one = IoSliceMut::new(place));
            all[count] = IoSliceMut::new(beyond);
            stream.poll_read_vectored(cx, &mut all[..=count])
        } else {
            stream.poll_read_vectored(cx, places)
        };
        match done {
            Poll::Ready(Ok(count)) => {
                beyond_bytes = count.saturating_sub(offered);
                Ok(count - beyond_bytes)
            }
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    };
    match reserved.fill(&mut read) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        Err(error) => Poll::Ready(Err(error)),
        Ok(payload_bytes) => Poll::Ready(Ok(Filled { payload_bytes, beyond_bytes })),
    }
}

/// Copies bytes that have arrived with their head.
pub fn copy_into(reserved: &mut dyn ReceiveBuffer, mut bytes: &[u8]) {
    let mut read = |places: &mut [IoSliceMut<'_>]| io::Read::read_vectored(&mut bytes, places);
    // Reading from a slice never fails, and the receive buffer has room for all of it.
    while reserved.fill(&mut read).is_ok_and(|count| count > 0) {}
}

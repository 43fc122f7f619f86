//! A connection's receiving side: one buffer for requests and small payloads, and large payloads read from
//! the socket into buffers of their own, the export's or the server's.
//!
//! The read that ends a large payload has room for one more request, because another large one is likely to
//! follow, and for little more, because what arrives with its request must be copied.

use std::io::{self, IoSliceMut, Read as _};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use blocker::{Segment, Segments};
use bytes::Bytes;

use super::pool::{LARGE_BYTES, PayloadPool, buffer_bytes};
use super::stream::Stream;
use crate::protocol::wire::{PAYLOAD_BYTES_MAX, REQUEST_BYTES};
use crate::protocol::{Request, Violation};
use crate::receive::ReceiveBuffer;

/// The length of the buffer, in bytes: more than the longest request that passes through it.
pub(super) const BUFFER_BYTES: usize = 128 * 1024;
const _: () = assert!(BUFFER_BYTES >= LARGE_BYTES + REQUEST_BYTES);
/// The most bytes of one read.
const READ_BYTES: usize = 64 * 1024;
/// The most bytes of one read where a large write is expected: its head, and little of the payload.
const HEAD_READ_BYTES: usize = 512;
/// The most slices of one read.
const PLACES_MAX: usize = 72;
/// Payloads up to this size are copied into memory that the thread keeps for them.
const BUCKET_BYTES: usize = 4096;

/// Returns the bytes of memory of a request's payload.
pub(super) fn payload_memory_bytes(request: &Request) -> u64 {
    let len_bytes = request.payload_bytes() as usize;
    if len_bytes < LARGE_BYTES { len_bytes as u64 } else { buffer_bytes(len_bytes) as u64 }
}

/// A connection's receiving side.
pub(super) struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The large payload that is arriving.
    body: Option<Body>,
    read_bytes: usize,
    pool: Arc<PayloadPool>,
}

struct Body {
    request: Request,
    reserved: Box<dyn ReceiveBuffer>,
    left_bytes: usize,
}

impl Input {
    pub(super) fn new(pool: Arc<PayloadPool>) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into();
        Self { buffer, start: 0, end: 0, body: None, read_bytes: READ_BYTES, pool }
    }

    /// Returns the bytes that have arrived and were not taken.
    pub(super) fn arrived(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Takes `count` of those bytes.
    pub(super) fn take(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Returns whether the client has sent a part of something.
    pub(super) fn is_in_request(&self) -> bool {
        self.body.is_some() || self.start < self.end
    }

    /// Returns whether a large payload is arriving, or has arrived.
    pub(super) fn is_receiving(&self) -> bool {
        self.body.is_some()
    }

    /// Returns the bytes of memory of the large payload that is arriving.
    pub(super) fn receiving_bytes(&self) -> u64 {
        self.body.as_ref().map_or(0, |body| payload_memory_bytes(&body.request))
    }

    /// Frees the memory of the large payload that is arriving. Nothing can be received after this.
    pub(super) fn forget_payload(&mut self) {
        self.body = None;
    }

    /// Performs one read, and returns its length. 0 is the end of the stream.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<io::Result<usize>> {
        if self.body.as_ref().is_some_and(|body| body.left_bytes > 0) {
            return self.poll_fill_body(cx, stream);
        }
        if self.start > 0 && self.buffer.len() - self.end < self.read_bytes {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = (self.end + self.read_bytes).min(self.buffer.len());
        let mut places = [IoSliceMut::new(&mut self.buffer[self.end..room])];
        let count = ready!(stream.poll_read_vectored(cx, &mut places))?;
        self.end += count;
        Poll::Ready(Ok(count))
    }

    /// Performs one read into the buffer of the payload, and of a next request if all of the payload is there.
    fn poll_fill_body(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<io::Result<usize>> {
        let Some(body) = &mut self.body else { return Poll::Pending };
        // The buffer is empty: what had arrived of the payload was copied.
        let head = &mut self.buffer[..HEAD_READ_BYTES];
        let left_bytes = body.left_bytes;
        let mut beyond_bytes = 0;
        let mut read = |places: &mut [IoSliceMut<'_>]| {
            let offered: usize = places.iter().map(|place| place.len()).sum();
            let done = if offered == left_bytes && places.len() < PLACES_MAX {
                let mut all: [_; PLACES_MAX] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
                let count = places.len();
                all.iter_mut().zip(places).for_each(|(one, place)| *one = IoSliceMut::new(place));
                all[count] = IoSliceMut::new(head);
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
        match body.reserved.fill(&mut read) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
            Ok(count) => {
                body.left_bytes = left_bytes.saturating_sub(count);
                (self.start, self.end) = (0, beyond_bytes);
                Poll::Ready(Ok(count + beyond_bytes))
            }
        }
    }

    /// Returns the next request without taking it, or `None` if not all of its head has arrived.
    ///
    /// # Errors
    /// [`Violation`]: the connection cannot be continued.
    pub(super) fn peek(&self) -> Result<Option<Request>, Violation> {
        if let Some(body) = &self.body {
            return Ok(Some(body.request));
        }
        let request = Request::decode(self.arrived())?;
        match request.map(|request| request.payload_bytes()) {
            Some(length) if length > PAYLOAD_BYTES_MAX => Err(Violation::PayloadTooLong(length)),
            _ => Ok(request),
        }
    }

    /// Takes the request that [`Self::peek`] has returned, and returns its payload; `None` if not all of that
    /// has arrived. `reserve` may return memory of the export for a large one.
    pub(super) fn take_request(
        &mut self,
        request: Request,
        reserve: impl FnOnce() -> Option<Box<dyn ReceiveBuffer>>,
    ) -> Option<Segments> {
        if self.body.is_some() {
            let body = self.body.take_if(|body| body.left_bytes == 0)?;
            return Some(body.reserved.finish());
        }
        let length = request.payload_bytes() as usize;
        if length == 0 {
            self.take(REQUEST_BYTES);
            self.read_bytes = READ_BYTES;
            return Some(Segments::new());
        }
        if length < LARGE_BYTES {
            self.read_bytes = READ_BYTES;
            let payload = self.arrived().get(REQUEST_BYTES..REQUEST_BYTES + length)?;
            let payload = if length <= BUCKET_BYTES {
                Segment::copied(payload).into()
            } else {
                Bytes::copy_from_slice(payload).into()
            };
            self.take(REQUEST_BYTES + length);
            return Some(payload);
        }
        let mut reserved = reserve().unwrap_or_else(|| self.pool.reserve(length));
        let arrived = &self.buffer[self.start + REQUEST_BYTES..self.end];
        let count = arrived.len().min(length);
        copy_into(&mut *reserved, &arrived[..count]);
        self.take(REQUEST_BYTES + count);
        self.read_bytes = HEAD_READ_BYTES;
        if count == length {
            return Some(reserved.finish());
        }
        self.body = Some(Body { request, reserved, left_bytes: length - count });
        None
    }
}

fn copy_into(reserved: &mut dyn ReceiveBuffer, mut bytes: &[u8]) {
    let mut read = |places: &mut [IoSliceMut<'_>]| bytes.read_vectored(places);
    // Reading from a slice never fails, and the buffer has room for all of it.
    while reserved.fill(&mut read).is_ok_and(|count| count > 0) {}
}

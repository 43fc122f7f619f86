//! A connection's receiving side: one buffer for requests and small payloads, and large payloads read from
//! the socket into buffers of their own.
//!
//! The read that ends a large payload has room for one more request, because another large one is likely to
//! follow, and for little more, because what arrives with its request must be copied.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use blocker::{Segment, Segments};
use bytes::Bytes;

use super::pool::{LARGE_BYTES, Lease, PayloadPool, buffer_bytes};
use super::stream::Stream;
use crate::protocol::wire::{PAYLOAD_BYTES_MAX, REQUEST_BYTES};
use crate::protocol::{Request, Violation};

/// The length of the buffer, in bytes: more than the longest request that passes through it.
pub(super) const BUFFER_BYTES: usize = 128 * 1024;
const _: () = assert!(BUFFER_BYTES >= LARGE_BYTES + REQUEST_BYTES);
/// The most bytes of one read.
const READ_BYTES: usize = 64 * 1024;
/// The most bytes of one read where a large write is expected: its head, and little of the payload.
const HEAD_READ_BYTES: usize = 512;
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
    /// The large payload that is arriving, and its request.
    body: Option<(Request, Lease)>,
    read_bytes: usize,
    pool: Arc<PayloadPool>,
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
        self.body.as_ref().map_or(0, |(request, _)| payload_memory_bytes(request))
    }

    /// Frees the memory of the large payload that is arriving. Nothing can be received after this.
    pub(super) fn forget_payload(&mut self) {
        self.body = None;
    }

    /// Performs one read, and returns its length. 0 is the end of the stream.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<io::Result<usize>> {
        if let Some((_, lease)) = &mut self.body
            && !lease.is_full()
        {
            // The buffer is empty: what had arrived of the payload was copied.
            let (room, head) = (lease.room(), &mut self.buffer[..HEAD_READ_BYTES]);
            let wanted = room.len();
            let mut places = [IoSliceMut::new(room), IoSliceMut::new(head)];
            let count = ready!(stream.poll_read_vectored(cx, &mut places))?;
            lease.fill(count.min(wanted));
            (self.start, self.end) = (0, count.saturating_sub(wanted));
            return Poll::Ready(Ok(count));
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

    /// Returns the next request without taking it, or `None` if not all of its head has arrived.
    ///
    /// # Errors
    /// [`Violation`]: the connection cannot be continued.
    pub(super) fn peek(&self) -> Result<Option<Request>, Violation> {
        if let Some((request, _)) = &self.body {
            return Ok(Some(*request));
        }
        let request = Request::decode(self.arrived())?;
        match request.map(|request| request.payload_bytes()) {
            Some(length) if length > PAYLOAD_BYTES_MAX => Err(Violation::PayloadTooLong(length)),
            _ => Ok(request),
        }
    }

    /// Takes the request that [`Self::peek`] has returned, and returns its payload; `None` if not all of that
    /// has arrived.
    pub(super) fn take_request(&mut self, request: Request) -> Option<Segments> {
        if let Some((_, lease)) = &self.body {
            if !lease.is_full() {
                return None;
            }
            let (_, lease) = self.body.take()?;
            return Some(lease.finish());
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
        let mut lease = self.pool.reserve(length);
        let arrived = &self.buffer[self.start + REQUEST_BYTES..self.end];
        let count = arrived.len().min(length);
        lease.room()[..count].copy_from_slice(&arrived[..count]);
        lease.fill(count);
        self.take(REQUEST_BYTES + count);
        self.read_bytes = HEAD_READ_BYTES;
        if lease.is_full() {
            return Some(lease.finish());
        }
        self.body = Some((request, lease));
        None
    }
}

//! A connection's receiving side. Requests and small payloads go through one buffer; large payloads
//! are read from the socket directly into buffers of the export or the server.
//!
//! Until the first piece of a large payload has arrived, only that piece is counted and has memory,
//! so that a payload which is merely announced costs little. The memory for the rest is requested
//! as a whole, so that a payload that arrives does not stop a second time.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use blocker::{ReceiveBuffer, Segment, Segments};
use bytes::Bytes;
use connection::{LARGE_BYTES, PayloadPool, Stream, copy_into, poll_fill};

use crate::protocol::wire::{PAYLOAD_BYTES_MAX, REQUEST_BYTES};
use crate::protocol::{Request, Violation};

/// The length of the buffer, in bytes, which is more than the longest request that passes through
/// it.
pub(super) const BUFFER_BYTES: usize = 128 * 1024;
const _: () = assert!(BUFFER_BYTES >= LARGE_BYTES + REQUEST_BYTES);
/// The maximum number of bytes of one read.
const READ_BYTES: usize = 64 * 1024;
/// The maximum number of bytes of one read if a large write is expected: its head and a little of
/// the payload.
const HEAD_READ_BYTES: usize = 512;
/// The maximum number of bytes of a payload that have memory before any of them has arrived.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// The smallest such piece; what arrives together with the head fits into it. It is part of every
/// connection's guaranteed share, so a payload that waits for the memory of its rest does not hold
/// memory that others need.
pub(super) const PIECE_BYTES_MIN: u64 = BUFFER_BYTES as u64;
/// Payloads of up to this size are copied into memory that the thread keeps for them.
const BUCKET_BYTES: usize = 4096;

/// A connection's receiving side.
pub(super) struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The large payload in progress.
    body: Option<Body>,
    read_bytes: usize,
    pool: Arc<PayloadPool>,
    /// The bytes of a payload that have memory before any of them has arrived.
    piece_bytes: usize,
}

struct Body {
    request: Request,
    /// The part that arrived before `reserved` was set up.
    arrived: Segments,
    reserved: Box<dyn ReceiveBuffer>,
    /// The bytes missing in `reserved`.
    left_bytes: usize,
    /// The number of payload bytes that follow the bytes of `reserved`.
    rest_bytes: usize,
    /// Whether the whole payload is counted.
    is_admitted: bool,
}

impl Body {
    fn received_bytes(&self) -> usize {
        self.request.payload_bytes() as usize - self.left_bytes - self.rest_bytes
    }
}

impl Input {
    /// Creates the receiving side of a connection whose guaranteed share is `share_bytes`.
    pub(super) fn new(pool: Arc<PayloadPool>, share_bytes: u64) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into();
        // One of the pool's buffer lengths.
        let piece_bytes = 1 << share_bytes.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX).ilog2();
        Self { buffer, start: 0, end: 0, body: None, read_bytes: READ_BYTES, pool, piece_bytes }
    }

    /// Returns the memory for a request's payload, in bytes.
    pub(super) fn payload_memory_bytes(&self, request: &Request) -> u64 {
        let len_bytes = request.payload_bytes() as usize;
        let memory_bytes = if len_bytes < LARGE_BYTES {
            len_bytes
        } else if len_bytes <= self.piece_bytes {
            PayloadPool::buffer_bytes(len_bytes)
        } else {
            self.piece_bytes + PayloadPool::buffer_bytes(len_bytes - self.piece_bytes)
        };
        memory_bytes as u64
    }

    /// Returns the bytes that have arrived and were not consumed.
    pub(super) fn arrived(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Consumes `count` of the bytes that have arrived.
    pub(super) fn take(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Returns whether the client has sent part of a request.
    pub(super) fn is_in_request(&self) -> bool {
        self.body.is_some() || self.start < self.end
    }

    /// Returns whether a large payload is arriving or has arrived.
    pub(super) fn is_receiving(&self) -> bool {
        self.body.is_some()
    }

    /// Returns the memory of the large payload in progress, in bytes.
    pub(super) fn receiving_bytes(&self) -> u64 {
        self.body.as_ref().map_or(0, |body| match body.is_admitted {
            true => self.payload_memory_bytes(&body.request),
            false => self.piece_bytes as u64,
        })
    }

    /// Returns the memory, in bytes, needed before more of the request returned by [`Self::peek`]
    /// is received. The whole request needs `cost_bytes`.
    pub(super) fn needed_bytes(&self, request: &Request, cost_bytes: u64) -> u64 {
        match &self.body {
            Some(body) if body.is_admitted || body.received_bytes() >= self.piece_bytes => cost_bytes,
            None if request.payload_bytes() as usize <= self.piece_bytes => cost_bytes,
            _ => self.piece_bytes as u64,
        }
    }

    /// Frees the memory of the large payload in progress. Nothing can be received after this.
    pub(super) fn forget_payload(&mut self) {
        self.body = None;
    }

    /// Performs one read, and returns its length, which is 0 at the end of the stream.
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

    /// Performs one read into the payload's buffer, and, if that completes the payload, of the next
    /// request's head.
    fn poll_fill_body(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<io::Result<usize>> {
        let Some(body) = &mut self.body else { return Poll::Pending };
        // The small buffer is empty: the part of the payload that it held was copied.
        let head_bytes = if body.rest_bytes == 0 { HEAD_READ_BYTES } else { 0 };
        let head = &mut self.buffer[..head_bytes];
        let filled = ready!(poll_fill(cx, stream, &mut *body.reserved, body.left_bytes, head))?;
        body.left_bytes = body.left_bytes.saturating_sub(filled.payload_bytes);
        (self.start, self.end) = (0, filled.beyond_bytes);
        Poll::Ready(Ok(filled.payload_bytes + filled.beyond_bytes))
    }

    /// Returns the next request without consuming it, or `None` if its head has not arrived
    /// completely.
    ///
    /// # Errors
    /// [`Violation`]: the connection cannot continue.
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

    /// Consumes the request returned by [`Self::peek`] and returns its payload; `None` if that has
    /// not arrived completely. The caller has made sure of memory for [`Self::needed_bytes`].
    /// `reserve` may return memory of the export for a large payload.
    pub(super) fn take_request(
        &mut self,
        request: Request,
        reserve: impl FnOnce() -> Option<Box<dyn ReceiveBuffer>>,
    ) -> Option<Segments> {
        if let Some(body) = &mut self.body {
            body.is_admitted |= body.received_bytes() >= self.piece_bytes;
            if body.left_bytes == 0 && body.rest_bytes > 0 && body.is_admitted {
                let rest = self.pool.reserve(body.rest_bytes);
                body.arrived.append(std::mem::replace(&mut body.reserved, rest).finish());
                body.left_bytes = std::mem::take(&mut body.rest_bytes);
            }
            let mut body = self.body.take_if(|body| body.left_bytes == 0 && body.rest_bytes == 0)?;
            body.arrived.append(body.reserved.finish());
            return Some(body.arrived);
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
        let (mut reserved, rest_bytes) = match reserve() {
            Some(reserved) => (reserved, 0),
            None => {
                (self.pool.reserve(length.min(self.piece_bytes)), length.saturating_sub(self.piece_bytes))
            }
        };
        let arrived = &self.buffer[self.start + REQUEST_BYTES..self.end];
        let count = arrived.len().min(length);
        copy_into(&mut *reserved, &arrived[..count]);
        self.take(REQUEST_BYTES + count);
        self.read_bytes = HEAD_READ_BYTES;
        if count == length {
            return Some(reserved.finish());
        }
        let left_bytes = length - rest_bytes - count;
        let is_admitted = length <= self.piece_bytes;
        let arrived = Segments::new();
        self.body = Some(Body { request, arrived, reserved, left_bytes, rest_bytes, is_admitted });
        None
    }
}

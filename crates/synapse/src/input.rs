//! Shared code of both ends of a connection: the receiving side, which parses bytes into frames,
//! and a timer on the injected clock.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use blocker::clock::Sleep;
use blocker::{Clock, ReceiveBuffer, Segment, Segments, Timestamp};
use bytes::Bytes;
use connection::{LARGE_BYTES, PayloadPool, Stream, copy_into, poll_fill};

use crate::codec::{self, FrameError, HEAD_BYTES_MAX, Head, payload_crc};

/// The length of the buffer: several times the longest frame that passes through it.
const BUFFER_BYTES: usize = 128 * 1024;
/// The maximum number of bytes of one read.
const READ_BYTES: usize = 32 * 1024;
/// Payloads of at least this size, up to a bucket, are copied into memory that the thread keeps for
/// them.
const COPIED_BYTES_MIN: usize = 1024;
/// The maximum number of bytes of one read while a large frame is expected: enough for most heads,
/// and little of the payload.
const HEAD_READ_BYTES: usize = 512;
const _: () = assert!(BUFFER_BYTES >= HEAD_BYTES_MAX + LARGE_BYTES);

/// The maximum number of buffers that a thread keeps for connections that are about to read.
const KEPT_BUFFERS_MAX: usize = 8;

thread_local! {
    static BUFFERS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Returns one of the thread's buffers, or a new one.
fn take_buffer() -> Box<[u8]> {
    let kept = BUFFERS.try_with(|kept| kept.try_borrow_mut().ok().and_then(|mut kept| kept.pop()));
    kept.ok().flatten().unwrap_or_else(|| vec![0; BUFFER_BYTES].into())
}

/// Returns a buffer to the thread. A thread that is ending, or has enough buffers, drops it.
fn return_buffer(buffer: Box<[u8]>) {
    let _ = BUFFERS.try_with(|kept| {
        if let Ok(mut kept) = kept.try_borrow_mut()
            && kept.len() < KEPT_BUFFERS_MAX
        {
            kept.push(buffer);
        }
    });
}

/// A connection's receiving side.
pub(crate) struct Input {
    /// The buffer, which is empty while the connection waits for bytes.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The large payload that is arriving.
    body: Option<Body>,
    /// The head of the last large frame.
    large_head: Vec<u8>,
    read_bytes: usize,
    pool: Arc<PayloadPool>,
    /// The longest payload that is accepted, in bytes.
    pub(crate) payload_bytes_max: u32,
    /// The bytes of large payloads that were copied.
    pub(crate) copied_bytes: u64,
    /// The bytes that have arrived.
    pub(crate) received_bytes: u64,
    /// The time at which bytes arrived last.
    pub(crate) received_at: Timestamp,
}

struct Body {
    reserved: Box<dyn ReceiveBuffer>,
    len_bytes: usize,
    left_bytes: usize,
}

/// The payload of a frame.
pub(crate) enum Payload<'a> {
    /// The payload is in the connection's buffer, and must be copied to be retained.
    Buffered(&'a [u8]),
    /// The payload is in a receive buffer of its own.
    Received(Segments),
}

impl Payload<'_> {
    pub(crate) fn into_segments(self) -> Segments {
        match self {
            Self::Buffered([]) => Segments::new(),
            // A small payload must not occupy a whole bucket.
            Self::Buffered(bytes) if bytes.len() >= COPIED_BYTES_MIN => Segment::copied(bytes).into(),
            Self::Buffered(bytes) => Bytes::copy_from_slice(bytes).into(),
            Self::Received(segments) => segments,
        }
    }

    fn crc(&self) -> u32 {
        match self {
            Self::Buffered(bytes) => crc32fast::hash(bytes),
            Self::Received(segments) => payload_crc(segments),
        }
    }
}

/// A complete frame.
pub(crate) struct Frame<'a> {
    pub(crate) head: Head<'a>,
    /// The head as it arrived.
    pub(crate) head_bytes: &'a [u8],
    pub(crate) payload: Payload<'a>,
}

impl Frame<'_> {
    /// Returns whether the payload fails its checksum.
    pub(crate) fn is_damaged(&self) -> bool {
        self.head.payload_crc.is_some_and(|crc| crc != self.payload.crc())
    }
}

impl Input {
    pub(crate) fn new(pool: Arc<PayloadPool>, now: Timestamp) -> Self {
        Self {
            buffer: Box::default(),
            start: 0,
            end: 0,
            body: None,
            large_head: Vec::new(),
            read_bytes: READ_BYTES,
            pool,
            payload_bytes_max: 0,
            copied_bytes: 0,
            received_bytes: 0,
            received_at: now,
        }
    }

    /// Returns the buffer to the thread if it is empty, because there is nothing to read.
    pub(crate) fn release_buffer(&mut self) {
        if self.start == self.end && self.body.is_none() && !self.buffer.is_empty() {
            (self.start, self.end) = (0, 0);
            return_buffer(std::mem::take(&mut self.buffer));
        }
    }

    /// Performs one read, and returns its length. 0 means that the stream has ended.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<io::Result<usize>> {
        if self.body.as_ref().is_some_and(|body| body.left_bytes > 0) {
            return self.poll_fill_body(cx, stream);
        }
        if self.buffer.is_empty() {
            self.buffer = take_buffer();
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.buffer.len() - self.end < self.read_bytes {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = (self.end + self.read_bytes).min(self.buffer.len());
        let count = ready!(stream.poll_read(cx, &mut self.buffer[self.end..room]))?;
        self.end += count;
        self.received_bytes += count as u64;
        Poll::Ready(Ok(count))
    }

    /// Returns the length of the large payload that is arriving; 0 if there is none.
    pub(crate) fn receiving_bytes(&self) -> usize {
        self.body.as_ref().map_or(0, |body| body.len_bytes)
    }

    /// Returns whether a large payload is arriving.
    pub(crate) fn is_in_payload(&self) -> bool {
        self.body.is_some()
    }

    /// Performs one read into the receive buffer. If that completes the payload, the read includes
    /// as many bytes of the next head as the last head had, so that hardly any of the next payload
    /// comes with it.
    fn poll_fill_body(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<io::Result<usize>> {
        let Some(body) = &mut self.body else { return Poll::Pending };
        // The buffer is empty, because the payload has taken all of its bytes.
        let next_head = &mut self.buffer[..self.large_head.len()];
        let filled = ready!(poll_fill(cx, stream, &mut *body.reserved, body.left_bytes, next_head))?;
        body.left_bytes = body.left_bytes.saturating_sub(filled.payload_bytes);
        (self.start, self.end) = (0, filled.beyond_bytes);
        let count = filled.payload_bytes + filled.beyond_bytes;
        self.received_bytes += count as u64;
        Poll::Ready(Ok(count))
    }

    /// Returns the next frame, if it is complete. `reserve` may return the receive buffer for a
    /// large payload.
    ///
    /// # Errors
    /// Returns [`FrameError`]: the caller must close the connection.
    // This is inlined for the same reason as `codec::parse`.
    #[inline(always)]
    pub(crate) fn next_frame(
        &mut self,
        reserve: impl FnOnce(&Head<'_>) -> Option<Box<dyn ReceiveBuffer>>,
    ) -> Result<Option<Frame<'_>>, FrameError> {
        if let Some(body) = self.body.take_if(|body| body.left_bytes == 0) {
            let head = codec::parse(&self.large_head)?;
            let (head_bytes, payload) = (&*self.large_head, Payload::Received(body.reserved.finish()));
            return Ok(Some(Frame { head, head_bytes, payload }));
        }
        if self.body.is_some() {
            return Ok(None);
        }
        let waiting = &self.buffer[self.start..self.end];
        if waiting.is_empty() {
            return Ok(None);
        }
        let Some(measured) = codec::measure(waiting, self.payload_bytes_max)? else { return Ok(None) };
        let (head_bytes, payload_bytes) = (measured.head_bytes, measured.payload_bytes);
        if payload_bytes < LARGE_BYTES {
            // The size grows step by step, because there may be a small frame between large ones.
            self.read_bytes = (2 * self.read_bytes).min(READ_BYTES);
            if waiting.len() < head_bytes + payload_bytes {
                return Ok(None);
            }
            let (head, rest) = waiting.split_at(head_bytes);
            self.start += head_bytes + payload_bytes;
            return Ok(Some(Frame {
                head: codec::parse(head)?,
                head_bytes: head,
                payload: Payload::Buffered(&rest[..payload_bytes]),
            }));
        }
        self.read_bytes = HEAD_READ_BYTES;
        self.large_head.clear();
        self.large_head.extend_from_slice(&waiting[..head_bytes]);
        let head = codec::parse(&self.large_head)?;
        let mut reserved = reserve(&head).unwrap_or_else(|| self.pool.reserve(payload_bytes));
        let arrived = &waiting[head_bytes..waiting.len().min(head_bytes + payload_bytes)];
        copy_into(&mut *reserved, arrived);
        self.copied_bytes += arrived.len() as u64;
        self.start += head_bytes + arrived.len();
        if arrived.len() == payload_bytes {
            let (head_bytes, payload) = (&*self.large_head, Payload::Received(reserved.finish()));
            return Ok(Some(Frame { head, head_bytes, payload }));
        }
        self.body =
            Some(Body { reserved, len_bytes: payload_bytes, left_bytes: payload_bytes - arrived.len() });
        Ok(None)
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if !self.buffer.is_empty() {
            return_buffer(std::mem::take(&mut self.buffer));
        }
    }
}

// ---- A connection's timer, on the injected clock.
//
// Each poll of a clock's sleep leaves an entry behind, so the sleep is polled only when the timer
// is set or the task has a new waker. The timer's expiry is read from the clock.

pub(crate) struct Timer {
    clock: Arc<dyn Clock>,
    at: Timestamp,
    sleep: Option<Sleep>,
    waker: Option<Waker>,
}

impl Timer {
    /// Returns a timer that expires after `delay`.
    pub(crate) fn after(clock: Arc<dyn Clock>, delay: Duration) -> Self {
        let at = clock.now() + delay;
        Self { clock, at, sleep: None, waker: None }
    }

    /// Moves the expiry to `at`.
    pub(crate) fn set(&mut self, at: Timestamp) {
        if at != self.at {
            (self.at, self.sleep, self.waker) = (at, None, None);
        }
    }

    /// Is ready once the timer has expired, by the clock or by `now`, and until it is set again.
    /// The clock may be ahead of `now`: a task that decides by `now` wakes itself again.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, now: Timestamp) -> Poll<()> {
        if now >= self.at {
            return Poll::Ready(());
        }
        if self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        let sleep = self.sleep.get_or_insert_with(|| self.clock.sleep_until(self.at));
        if sleep.as_mut().poll(cx).is_ready() {
            self.sleep = None;
            return Poll::Ready(());
        }
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Returns the output of `future`, or `None` if the timer expires first.
    pub(crate) async fn limit<T>(mut self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let clock = Arc::clone(&self.clock);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.poll(cx, clock.now()).map(|()| None),
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    #[test]
    fn a_connection_that_waits_has_no_buffer_and_loses_no_bytes() {
        let (mut near, far) = tokio::io::duplex(1 << 16);
        let mut stream = Stream::Other(Box::new(far));
        let mut input = Input::new(PayloadPool::new(0), Timestamp(0));
        let mut cx = Context::from_waker(Waker::noop());
        let mut ping = Vec::new();
        codec::encode_ping(&mut ping, false);
        for round in 0..3 {
            assert!(input.poll_fill(&mut cx, &mut stream).is_pending());
            input.release_buffer();
            assert!(input.buffer.is_empty(), "{round}");
            // Half a frame stays in the buffer.
            for (part, is_whole) in [(&ping[..50], false), (&ping[50..], true)] {
                let mut writing = std::pin::pin!(tokio::io::AsyncWriteExt::write_all(&mut near, part));
                assert!(writing.as_mut().poll(&mut cx).is_ready());
                let Poll::Ready(Ok(count)) = input.poll_fill(&mut cx, &mut stream) else {
                    panic!("nothing was read")
                };
                assert_eq!(count, part.len());
                input.release_buffer();
                assert_eq!(input.next_frame(|_| None).unwrap().is_some(), is_whole, "{round}");
            }
        }
        assert!(BUFFERS.with_borrow(|kept| kept.len()) <= 1);
    }
}

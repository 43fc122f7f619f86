//! A connection's sending side. Reply heads and small payloads share one buffer, and large payloads
//! are sent by reference, all in as few vectored writes as the socket accepts.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use blocker::{Segment, Segments};
use bytes::Bytes;

use crate::stream::Stream;

/// Payloads below this size are copied next to their head, because the kernel sends bytes in the
/// CPU cache faster than bytes in main memory (for 4 KiB, by a third of a microsecond).
const INLINE_BYTES: usize = 16 * 1024;
/// The maximum number of slices of one write.
const PARTS_MAX: usize = 128;
/// A buffer that has grown beyond this size is freed once it is empty.
const KEPT_BYTES: usize = 128 * 1024;

/// A connection's sending side.
#[derive(Default, Debug)]
pub struct Output {
    /// Heads and small payloads, in order. The bytes before `sent` have been sent.
    small: Vec<u8>,
    sent: usize,
    parts: VecDeque<Part>,
    pending_bytes: usize,
    written_bytes: u64,
    /// The bytes of the payloads in `parts`, including those already sent.
    payload_bytes: usize,
    is_unflushed: bool,
}

#[derive(Debug)]
enum Part {
    /// The next bytes of `small`, by their number.
    Small(usize),
    /// A payload, from an offset in a segment to its end.
    Payload { payload: Segments, index: usize, from: usize },
}

impl Output {
    /// Returns the bytes that are still to be sent.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Returns the bytes written since the start of the connection.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Returns the bytes of memory held by the unsent data. Parts of that memory may have been sent
    /// already.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.small.len() + self.payload_bytes
    }

    /// Replaces pinned payloads by copies. This releases memory that others own: a cache cannot
    /// reuse a bucket while the bucket waits here for a client.
    pub fn unpin(&mut self) {
        for part in &mut self.parts {
            let Part::Payload { payload, index, from } = part else { continue };
            if !payload.iter().any(Segment::is_pinned) {
                continue;
            }
            let left: Vec<&[u8]> = payload.as_slice()[*index..].iter().map(Segment::as_slice).collect();
            let copy = Segments::from(Bytes::from(left.concat()).slice(*from..));
            self.payload_bytes -= payload.len_bytes() - copy.len_bytes();
            (*payload, *index, *from) = (copy, 0, 0);
        }
    }

    /// Appends the bytes that `write` puts into the buffer, followed by the payload that it
    /// returns.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Segments) {
        let start = self.small.len();
        let payload = write(&mut self.small);
        let length = payload.len_bytes();
        if length < INLINE_BYTES {
            payload.iter().for_each(|segment| self.small.extend_from_slice(segment.as_slice()));
            return self.push_small(self.small.len() - start);
        }
        self.push_small(self.small.len() - start);
        self.pending_bytes += length;
        self.payload_bytes += length;
        self.parts.push_back(Part::Payload { payload, index: 0, from: 0 });
    }

    /// Appends what `write` puts into the buffer.
    pub fn push_head(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.push(|small| {
            write(small);
            Segments::new()
        });
    }

    fn push_small(&mut self, count: usize) {
        self.pending_bytes += count;
        match self.parts.back_mut() {
            _ if count == 0 => {}
            Some(Part::Small(before)) => *before += count,
            _ => self.parts.push_back(Part::Small(count)),
        }
    }

    /// Writes as much as the socket accepts. Ready once everything is sent.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<io::Result<()>> {
        while self.pending_bytes > 0 {
            let small = &self.small[self.sent..];
            let count = if small.len() == self.pending_bytes {
                ready!(stream.poll_write_vectored(cx, &[IoSlice::new(small)]))?
            } else {
                let mut slices = [IoSlice::new(&[]); PARTS_MAX];
                let used = self.gather(&mut slices);
                ready!(stream.poll_write_vectored(cx, &slices[..used]))?
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.is_unflushed = true;
            self.advance(count);
        }
        if self.is_unflushed {
            ready!(stream.poll_flush(cx))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Fills `slices` with the next bytes to send. Returns the number of slices.
    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; PARTS_MAX]) -> usize {
        let mut small = &self.small[self.sent..];
        let mut places = slices.iter_mut();
        'parts: for part in &self.parts {
            match part {
                Part::Small(count) => {
                    let Some(place) = places.next() else { break };
                    let (first, rest) = small.split_at(*count);
                    small = rest;
                    *place = IoSlice::new(first);
                }
                Part::Payload { payload, index, from } => {
                    let mut from = *from;
                    for segment in &payload.as_slice()[*index..] {
                        let Some(place) = places.next() else { break 'parts };
                        *place = IoSlice::new(&segment.as_slice()[from..]);
                        from = 0;
                    }
                }
            }
        }
        PARTS_MAX - places.len()
    }

    fn advance(&mut self, mut count: usize) {
        self.pending_bytes -= count;
        self.written_bytes += count as u64;
        while count > 0 {
            let Some(part) = self.parts.front_mut() else { break };
            let is_over = match part {
                Part::Small(left) => {
                    let done = count.min(*left);
                    count -= done;
                    *left -= done;
                    self.sent += done;
                    *left == 0
                }
                Part::Payload { payload, index, from } => {
                    let length = payload.as_slice()[*index].len_bytes();
                    let done = count.min(length - *from);
                    count -= done;
                    *from += done;
                    if *from == length {
                        (*index, *from) = (*index + 1, 0);
                    }
                    *index == payload.as_slice().len()
                }
            };
            if is_over && let Some(Part::Payload { payload, .. }) = self.parts.pop_front() {
                self.payload_bytes -= payload.len_bytes();
            }
        }
        if self.sent == self.small.len() {
            self.sent = 0;
            self.small.clear();
            self.small.shrink_to(KEPT_BYTES);
        } else if self.sent > KEPT_BYTES && self.sent > self.small.len() / 2 {
            // The buffer drains only when at least half is sent, so the bytes moved never exceed
            // the bytes sent.
            self.small.drain(..self.sent);
            self.sent = 0;
            self.small.shrink_to(KEPT_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use blocker::SegmentOwner;

    use super::*;

    /// A 4 KiB bucket that counts its pins.
    #[derive(Default)]
    struct Bucket(AtomicUsize);

    impl SegmentOwner for Bucket {
        fn bytes(&self, _token: u64) -> &[u8] {
            &[7; 4096]
        }
        fn retain(&self, _token: u64) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn release(&self, _token: u64) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the unsent bytes.
    fn left(output: &Output) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); PARTS_MAX];
        let used = output.gather(&mut slices);
        slices[..used].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn what_is_copied_pins_nothing_and_goes_on_where_it_was() {
        let bucket = Arc::new(Bucket::default());
        let mut output = Output::default();
        for head in [b"one", b"two"] {
            let mut payload = Segments::zeros(10_000);
            for _ in 0..4 {
                bucket.retain(0);
                payload.push(Segment::pinned(Arc::clone(&bucket) as _, 0, 0..4096));
            }
            output.push(|out| {
                out.extend_from_slice(head);
                payload
            });
        }
        // The sent part ends inside the second pinned segment.
        output.advance(3 + 10_000 + 5000);
        let before = left(&output);
        assert_eq!((before.len(), output.pending_bytes()), (2 * 26_387 - 15_003, 2 * 26_387 - 15_003));
        output.unpin();
        assert_eq!(bucket.0.load(Ordering::Relaxed), 0);
        assert!(left(&output) == before);
        output.advance(before.len());
        assert_eq!((output.pending_bytes(), output.held_bytes()), (0, 0));
    }

    #[test]
    fn what_is_sent_counts_until_its_memory_is_free() {
        let mut output = Output::default();
        output.push(|out| {
            out.extend_from_slice(b"head");
            vec![7; 1 << 20].into()
        });
        output.advance(1 << 20);
        assert_eq!((output.pending_bytes(), output.held_bytes()), (4, 1 << 20));
        output.advance(4);
        assert_eq!(output.held_bytes(), 0);
        // The client receives some of many small replies. Their sent part is kept only while it is
        // smaller than the unsent part.
        for _ in 0..1000 {
            output.push(|_| vec![7; 4096].into());
        }
        for _ in 0..999 {
            output.advance(4096);
            assert!(output.small.len() <= output.held_bytes());
            assert!(output.small.capacity() <= 2 * output.held_bytes().max(KEPT_BYTES));
        }
    }
}

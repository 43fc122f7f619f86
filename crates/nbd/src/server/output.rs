//! A connection's sending side: heads and small payloads in one buffer, large payloads by reference, all of
//! it in as few vectored writes as the socket takes.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use blocker::Segments;

use super::stream::Stream;

/// Payloads below this size are copied next to their head: the kernel reads bytes that lie in the processor's
/// cache faster than bytes in far memory.
const INLINE_BYTES: usize = 16 * 1024;
/// The most slices of one write.
const PARTS_MAX: usize = 128;
/// A buffer that has grown beyond this size is freed once it is empty.
const KEPT_BYTES: usize = 256 * 1024;

/// A connection's sending side.
#[derive(Default)]
pub(super) struct Output {
    /// Heads and small payloads, in order; the bytes before `sent` are sent.
    small: Vec<u8>,
    sent: usize,
    parts: VecDeque<Part>,
    pending_bytes: usize,
    is_unflushed: bool,
}

enum Part {
    /// The next bytes of `small`.
    Small(usize),
    /// A payload, from this segment on and this offset in it.
    Payload { payload: Segments, index: usize, from: usize },
}

impl Output {
    /// Returns the bytes that are still to be sent.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Appends what `write` puts into the buffer, and then `payload`.
    pub(super) fn push(&mut self, payload: Segments, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.small.len();
        write(&mut self.small);
        let length = payload.len_bytes();
        if length < INLINE_BYTES {
            payload.iter().for_each(|segment| self.small.extend_from_slice(segment.as_slice()));
            return self.push_small(self.small.len() - start);
        }
        self.push_small(self.small.len() - start);
        self.pending_bytes += length;
        self.parts.push_back(Part::Payload { payload, index: 0, from: 0 });
    }

    fn push_small(&mut self, count: usize) {
        self.pending_bytes += count;
        match self.parts.back_mut() {
            _ if count == 0 => {}
            Some(Part::Small(before)) => *before += count,
            _ => self.parts.push_back(Part::Small(count)),
        }
    }

    /// Writes as much as the socket takes. Ready when nothing is left.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>, stream: &mut Stream) -> Poll<io::Result<()>> {
        while self.pending_bytes > 0 {
            let count = {
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
            if is_over {
                self.parts.pop_front();
            }
        }
        if self.sent == self.small.len() {
            self.sent = 0;
            self.small.clear();
            self.small.shrink_to(KEPT_BYTES);
        } else if self.sent > KEPT_BYTES && self.sent > self.small.len() / 2 {
            // So the bytes that are moved are never more than those that were sent.
            self.small.drain(..self.sent);
            self.sent = 0;
        }
    }
}

//! A payload as a [`Buf`], for writers that send it without a copy.

use std::io::IoSlice;

use bytes::Buf;

use crate::Segments;

/// The unread bytes of a payload, whose memory is kept until this value is dropped.
///
/// ```
/// use blocker::{Segment, Segments, SegmentsBuf};
/// use bytes::Buf;
///
/// let mut payload = Segments::from(b"head");
/// payload.push(Segment::copied(b"tail"));
/// let mut unread = SegmentsBuf::from(payload);
/// unread.advance(5);
/// assert_eq!((unread.remaining(), unread.chunk()), (3, &b"ail"[..]));
/// ```
#[derive(Debug)]
pub struct SegmentsBuf {
    segments: Segments,
    /// The index of the first unfinished segment, and the number of its bytes that have been read.
    at: (usize, usize),
    left: usize,
}

impl From<Segments> for SegmentsBuf {
    fn from(segments: Segments) -> Self {
        let left = segments.len_bytes();
        Self { segments, at: (0, 0), left }
    }
}

impl Buf for SegmentsBuf {
    fn remaining(&self) -> usize {
        self.left
    }

    fn chunk(&self) -> &[u8] {
        self.segments.as_slice().get(self.at.0).map_or(&[], |segment| &segment.as_slice()[self.at.1..])
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let (first, done) = self.at;
        let segments = self.segments.as_slice().iter().skip(first);
        let mut count = 0;
        for (place, segment) in into.iter_mut().zip(segments) {
            let from = if count == 0 { done } else { 0 };
            *place = IoSlice::new(&segment.as_slice()[from..]);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.left, "advanced past the end");
        self.left -= count;
        while count > 0 {
            let here = self.segments.as_slice()[self.at.0].len_bytes() - self.at.1;
            if count < here {
                self.at.1 += count;
                return;
            }
            count -= here;
            self.at = (self.at.0 + 1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segment;

    #[test]
    fn a_cursor_gives_every_byte_once_in_any_steps() {
        let mut segments = Segments::from(b"abc");
        segments.push(Segment::copied(b"defg"));
        segments.push(Segment::copied(b"h"));
        for step in 1..=8 {
            let mut data = SegmentsBuf::from(segments.clone());
            let mut read = Vec::new();
            while data.has_remaining() {
                let mut places = [IoSlice::new(&[]); 4];
                let count = data.chunks_vectored(&mut places);
                let total: usize = places[..count].iter().map(|place| place.len()).sum();
                assert_eq!(total, data.remaining());
                assert_eq!(&*places[0], data.chunk());
                let take = step.min(data.chunk().len());
                read.extend_from_slice(&data.chunk()[..take]);
                data.advance(take);
            }
            assert_eq!(read, b"abcdefgh");
        }
    }
}

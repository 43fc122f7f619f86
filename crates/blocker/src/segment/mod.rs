//! Payloads: owned, reference-counted byte sequences, in requests and in replies.
//!
//! A segment keeps its memory alive until it is dropped. So a request can safely be cancelled,
//! although a kernel or a library may still read the memory after the caller has stopped waiting.
//! And a hit copies nothing: a cache returns its own buckets through [`SegmentOwner`], without an
//! allocation. A segment of zeros takes no memory. The bytes of a segment never change while the
//! segment exists.

pub(crate) mod buffer;
mod cursor;

use std::fmt;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

pub use cursor::SegmentsBuf;

use buffer::{BUFFER_BYTES, Buffer};

use crate::ObjectId;

/// The longest single segment of zeros, in bytes.
const ZEROS_BYTES: usize = 64 * 1024;
static ZEROS: [u8; ZEROS_BYTES] = [0; ZEROS_BYTES];

/// The owner of the memory behind a pinned segment, for example a cache's arena, with the bucket as
/// `token`.
///
/// The caller of [`Segment::pinned`] passes one reference to `token`; each clone adds a reference
/// by `retain`, and each drop removes one by `release`. From the first reference to the last, the
/// bytes and their address stay the same.
pub trait SegmentOwner: Send + Sync {
    /// Returns the bytes of `token`, which do not change while a reference to `token` is held.
    fn bytes(&self, token: u64) -> &[u8];
    /// Adds a reference to `token`, for one more segment.
    fn retain(&self, token: u64);
    /// Removes a reference to `token`, for one segment less.
    fn release(&self, token: u64);
}

/// Memory for one payload that is being received, visible only to its holder until it is finished.
/// Dropping it earlier frees it.
pub trait ReceiveBuffer: Send {
    /// Calls `read` once with slices for the next bytes, in order, and counts the bytes read as
    /// filled. The slices never add up to more than the missing bytes. Returns the number of bytes
    /// read.
    ///
    /// # Errors
    /// Returns the error of `read`.
    fn fill(&mut self, read: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>)
    -> io::Result<usize>;

    /// Returns the payload after all of it has been read.
    fn finish(self: Box<Self>) -> Segments;
}

/// A source of memory for arriving payloads: a cache that keeps payloads in its own buckets, so that
/// bytes go from a server's socket directly into their bucket.
///
/// Returns memory for a payload of this length that is to be written at this offset of an object.
/// Returns `None` if no memory is free; then the server receives the payload into other memory.
/// Does not block. The write itself may still be refused later.
pub type ReceiveBuffers = Arc<dyn Fn(&ObjectId, u64, usize) -> Option<Box<dyn ReceiveBuffer>> + Send + Sync>;

/// One contiguous sequence of bytes, owned and reference-counted.
#[derive(Clone)]
pub struct Segment(Repr);

#[derive(Clone)]
enum Repr {
    Bytes(Bytes),
    Buffer(Buffer),
    Zeros(usize),
    Pinned(Pinned),
}

struct Pinned {
    owner: Arc<dyn SegmentOwner>,
    token: u64,
    start: u32,
    end: u32,
}

impl Clone for Pinned {
    fn clone(&self) -> Self {
        self.owner.retain(self.token);
        Self { owner: Arc::clone(&self.owner), ..*self }
    }
}

impl Drop for Pinned {
    #[inline]
    fn drop(&mut self) {
        self.owner.release(self.token);
    }
}

impl Segment {
    /// Returns the part `range` of the owner's bytes for `token`, and takes over one reference to
    /// `token`. Taking bytes from the segment panics if the range lies outside the owner's.
    ///
    /// # Panics
    /// Panics if `range` ends before it starts, or beyond 4 GiB; with debug assertions also if it lies outside
    /// the owner's bytes.
    #[must_use]
    #[inline]
    pub fn pinned(owner: Arc<dyn SegmentOwner>, token: u64, range: Range<usize>) -> Self {
        debug_assert!(range.end <= owner.bytes(token).len(), "outside the owner's bytes");
        assert!(range.start <= range.end, "a range that ends before it starts");
        let end = u32::try_from(range.end).expect("a pinned segment lies below 4 GiB");
        Self(Repr::Pinned(Pinned { owner, token, start: range.start as u32, end }))
    }

    /// Returns a copy of `bytes`. A copy of up to one bucket uses a reusable buffer of the thread,
    /// without an allocation in the steady state.
    #[must_use]
    pub fn copied(bytes: &[u8]) -> Self {
        let fill = |target: &mut [u8]| {
            target.copy_from_slice(bytes);
            true
        };
        let buffer = (bytes.len() <= BUFFER_BYTES).then(|| Buffer::filled(bytes.len(), fill)).flatten();
        buffer.map_or_else(|| Bytes::copy_from_slice(bytes).into(), Self::from)
    }

    /// Returns the bytes.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Repr::Bytes(bytes) => bytes,
            Repr::Buffer(buffer) => buffer.as_slice(),
            Repr::Zeros(len) => &ZEROS[..*len],
            Repr::Pinned(pin) => &pin.owner.bytes(pin.token)[pin.start as usize..pin.end as usize],
        }
    }

    /// Returns the number of bytes.
    #[must_use]
    #[inline]
    pub fn len_bytes(&self) -> usize {
        match &self.0 {
            Repr::Bytes(bytes) => bytes.len(),
            Repr::Buffer(buffer) => buffer.len_bytes(),
            Repr::Zeros(len) => *len,
            Repr::Pinned(pin) => (pin.end - pin.start) as usize,
        }
    }

    /// Returns whether the segment is a hole, that is, zeros without memory. The bytes of other
    /// segments may be zeros as well.
    #[must_use]
    pub fn is_hole(&self) -> bool {
        matches!(self.0, Repr::Zeros(_))
    }

    /// Returns whether the segment refers to memory of a [`SegmentOwner`].
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        matches!(self.0, Repr::Pinned(_))
    }

    /// Returns the part `range`, which shares the memory.
    ///
    /// # Panics
    /// Panics if `range` lies outside.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len_bytes(), "outside the segment");
        Self(match &self.0 {
            Repr::Bytes(bytes) => Repr::Bytes(bytes.slice(range)),
            Repr::Buffer(buffer) => Repr::Buffer(buffer.slice(range)),
            Repr::Zeros(_) => Repr::Zeros(range.len()),
            Repr::Pinned(pin) => {
                let mut part = pin.clone();
                // The new end lies within the old range, which fits.
                part.end = part.start + range.end as u32;
                part.start += range.start as u32;
                Repr::Pinned(part)
            }
        })
    }
}

impl From<Bytes> for Segment {
    #[inline]
    fn from(bytes: Bytes) -> Self {
        Self(Repr::Bytes(bytes))
    }
}

impl From<Buffer> for Segment {
    #[inline]
    fn from(buffer: Buffer) -> Self {
        Self(Repr::Buffer(buffer))
    }
}

/// A payload: segments that together form one byte sequence. Empty segments are dropped; a payload
/// of one segment needs no allocation.
///
/// ```
/// use blocker::{Segment, Segments};
///
/// let mut payload = Segments::from(b"head");
/// payload.append(Segments::zeros(2));
/// payload.push(Segment::copied(b"tail"));
/// assert_eq!(payload.slice(3..8).to_vec(), b"d\0\0ta");
/// ```
#[derive(Clone, Default)]
pub struct Segments(List);

#[derive(Clone, Default)]
enum List {
    #[default]
    Empty,
    One(Segment),
    /// The segments, and the total number of bytes, which every append needs. Clones share the
    /// segments: a request is cloned so that it can be retried, which is rare.
    Many(Arc<Vec<Segment>>, usize),
}

impl Segments {
    /// Returns a payload without bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a payload of `len_bytes` zeros, which take no memory.
    #[must_use]
    pub fn zeros(len_bytes: usize) -> Self {
        let mut zeros = Self::new();
        let mut left = len_bytes;
        while left > 0 {
            let run = left.min(ZEROS_BYTES);
            zeros.push(Segment(Repr::Zeros(run)));
            left -= run;
        }
        zeros
    }

    /// Appends a segment; an empty one is dropped.
    pub fn push(&mut self, segment: Segment) {
        if segment.len_bytes() == 0 {
            return;
        }
        match &mut self.0 {
            List::Empty => self.0 = List::One(segment),
            List::Many(many, len_bytes) => {
                *len_bytes += segment.len_bytes();
                Arc::make_mut(many).push(segment);
            }
            List::One(_) => {
                let List::One(first) = std::mem::take(&mut self.0) else { unreachable!("matched above") };
                let len_bytes = first.len_bytes() + segment.len_bytes();
                self.0 = List::Many(Arc::new(vec![first, segment]), len_bytes);
            }
        }
    }

    /// Appends the segments of another payload.
    pub fn append(&mut self, other: Self) {
        match other.0 {
            List::Empty => (),
            List::One(one) => self.push(one),
            List::Many(many, len_bytes) if self.is_empty() => self.0 = List::Many(many, len_bytes),
            List::Many(many, _) => {
                Arc::unwrap_or_clone(many).into_iter().for_each(|segment| self.push(segment));
            }
        }
    }

    /// Returns the segments, in order.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[Segment] {
        match &self.0 {
            List::Empty => &[],
            List::One(one) => std::slice::from_ref(one),
            List::Many(many, _) => many,
        }
    }

    /// Returns the segments, in order.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, Segment> {
        self.as_slice().iter()
    }

    /// Returns the number of bytes of all segments.
    #[must_use]
    #[inline]
    pub fn len_bytes(&self) -> usize {
        match &self.0 {
            List::Empty => 0,
            List::One(one) => one.len_bytes(),
            List::Many(_, len_bytes) => *len_bytes,
        }
    }

    /// Returns whether the payload has no bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        matches!(self.0, List::Empty)
    }

    /// Returns the part `range`, which shares the memory.
    ///
    /// # Panics
    /// Panics if `range` lies outside.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len_bytes(), "outside the payload");
        let mut part = Self::new();
        let mut at = 0;
        for segment in self {
            let len = segment.len_bytes();
            let (from, to) = (range.start.max(at), range.end.min(at + len));
            if from < to {
                part.push(segment.slice(from - at..to - at));
            }
            at += len;
        }
        part
    }

    /// Copies all bytes into `target`.
    ///
    /// # Panics
    /// If `target` has another length.
    #[inline]
    pub fn copy_to(&self, target: &mut [u8]) {
        assert_eq!(self.len_bytes(), target.len(), "the target must have the payload's length");
        let mut at = 0;
        for segment in self {
            let bytes = segment.as_slice();
            target[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
    }

    /// Returns all bytes in one buffer: shared if one segment holds them, copied otherwise.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            List::One(Segment(Repr::Bytes(bytes))) => bytes.clone(),
            List::One(Segment(Repr::Buffer(buffer))) => Bytes::from_owner(buffer.clone()),
            _ => self.to_vec().into(),
        }
    }

    /// Returns a copy of all bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len_bytes());
        self.iter().for_each(|segment| all.extend_from_slice(segment.as_slice()));
        all
    }

    /// Returns the first index at which these bytes differ from `other`. A missing byte differs
    /// from any.
    #[must_use]
    pub fn first_difference(&self, other: &[u8]) -> Option<usize> {
        let mut at = 0;
        for segment in self {
            let mine = segment.as_slice();
            let theirs = &other[at.min(other.len())..];
            if let Some(found) = mine.iter().zip(theirs).position(|(a, b)| a != b) {
                return Some(at + found);
            }
            if mine.len() > theirs.len() {
                return Some(other.len());
            }
            at += mine.len();
        }
        (at < other.len()).then_some(at)
    }
}

impl<'a> IntoIterator for &'a Segments {
    type Item = &'a Segment;
    type IntoIter = std::slice::Iter<'a, Segment>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<Segment> for Segments {
    #[inline]
    fn from(segment: Segment) -> Self {
        Self(if segment.len_bytes() == 0 { List::Empty } else { List::One(segment) })
    }
}

impl From<Bytes> for Segments {
    #[inline]
    fn from(bytes: Bytes) -> Self {
        Segment::from(bytes).into()
    }
}

impl From<Vec<u8>> for Segments {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<&'static [u8]> for Segments {
    fn from(bytes: &'static [u8]) -> Self {
        Bytes::from_static(bytes).into()
    }
}

impl<const N: usize> From<&'static [u8; N]> for Segments {
    fn from(bytes: &'static [u8; N]) -> Self {
        Bytes::from_static(bytes).into()
    }
}

impl FromIterator<Segment> for Segments {
    fn from_iter<I: IntoIterator<Item = Segment>>(segments: I) -> Self {
        let mut all = Self::new();
        segments.into_iter().for_each(|segment| all.push(segment));
        all
    }
}

impl PartialEq<[u8]> for Segments {
    fn eq(&self, other: &[u8]) -> bool {
        self.first_difference(other).is_none()
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_hole() { "zeros" } else { "bytes" };
        write!(f, "{} {kind}", self.len_bytes())
    }
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    struct Arena {
        bytes: Vec<u8>,
        counts: AtomicI64,
    }

    impl SegmentOwner for Arena {
        fn bytes(&self, token: u64) -> &[u8] {
            &self.bytes[token as usize * 4..][..4]
        }
        fn retain(&self, _: u64) {
            self.counts.fetch_add(1, Ordering::Relaxed);
        }
        fn release(&self, _: u64) {
            self.counts.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_pinned_segment_returns_every_count_that_it_took() {
        let arena = Arc::new(Arena { bytes: (0..8).collect(), counts: AtomicI64::new(1) });
        let owner: Arc<dyn SegmentOwner> = Arc::clone(&arena) as _;
        let segment = Segment::pinned(owner, 1, 1..4);
        let part = segment.slice(0..2).slice(1..2);
        assert_eq!(part.as_slice(), [6]);
        let all = Segments::from_iter([segment.clone(), part]);
        assert!(all == *[5, 6, 7, 6].as_slice());
        drop(segment);
        assert_eq!(arena.counts.load(Ordering::Relaxed), 2);
        drop(all);
        assert_eq!(arena.counts.load(Ordering::Relaxed), 0);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_pinned_segment_has_no_bytes_beyond_its_owners() {
        let owner = Arc::new(Arena { bytes: (0..12).collect(), counts: AtomicI64::new(1) });
        // As a build without debug assertions makes it.
        let pinned = Pinned { owner, token: 1, start: 2, end: 5 };
        let _ = Segment(Repr::Pinned(pinned)).as_slice().len();
    }

    #[test]
    fn a_copy_has_the_bytes_at_any_length() {
        for len in [0, 1, 4096, 4097] {
            assert_eq!(Segment::copied(&vec![3; len]).as_slice(), vec![3; len]);
        }
    }

    #[test]
    fn a_payload_reads_as_one_run() {
        let mut payload = Segments::from(b"abc");
        payload.push(Bytes::new().into());
        Segments::zeros(ZEROS_BYTES + 2).iter().for_each(|zeros| payload.push(zeros.clone()));
        payload.push(Bytes::from_static(b"de").into());
        assert_eq!(payload.as_slice().len(), 4);
        assert_eq!(payload.len_bytes(), ZEROS_BYTES + 7);
        let tail = payload.slice(ZEROS_BYTES + 4..ZEROS_BYTES + 7);
        assert_eq!(tail.to_vec(), b"\0de");
        assert_eq!(payload.slice(2..5).to_bytes(), &b"c\0\0"[..]);
        let mut all = payload.slice(0..2);
        for part in [payload.clone(), Segments::new(), payload.slice(1..2), payload.slice(2..9)] {
            let before = all.len_bytes();
            all.append(part.clone());
            assert_eq!(all.len_bytes(), before + part.len_bytes());
            assert_eq!(all.len_bytes(), all.to_vec().len());
        }
        let mut longer = payload.clone();
        longer.push(Bytes::from_static(b"f").into());
        assert_eq!((payload.as_slice().len(), longer.as_slice().len()), (4, 5));
        assert_eq!((payload.len_bytes(), longer.len_bytes()), (ZEROS_BYTES + 7, ZEROS_BYTES + 8));
        assert!(payload.slice(1..1).is_empty());
    }

    #[test]
    fn the_first_difference_counts_missing_bytes() {
        let payload =
            Segments::from_iter([Bytes::from_static(b"ab").into(), Bytes::from_static(b"cd").into()]);
        assert_eq!(payload.first_difference(b"abcd"), None);
        assert_eq!(payload.first_difference(b"abXd"), Some(2));
        assert_eq!(payload.first_difference(b"abc"), Some(3));
        assert_eq!(payload.first_difference(b""), Some(0));
        assert_eq!(payload.first_difference(b"abcde"), Some(4));
    }
}

//! Unsent replies: bytes in a buffer, with large values pinned in between.
//!
//! ```text
//!  bytes:  VALUE a 0 2␍␊hi␍␊VALUE b 0 70000␍␊   ␍␊END␍␊
//!                                            ▲
//!  pins:                                     └ 70000 bytes in the arena, sent from there
//! ```
//! A worker has one such buffer for all its connections. Bytes that a client does not take at once
//! move to a buffer of the connection's own; small values are copied then, so that a slow reader
//! keeps no arena memory from being reused.

use super::Transport;
use cached_core::kv::{ItemView, PinnedValue};
use std::io::{self, IoSlice};
use std::task::{Poll, ready};

/// Values from this size on are sent from the arena; smaller ones are copied. At 4 KiB, a pin and a
/// gathering write cost 1 to 3 % more CPU time than the copy (`compare --only "4 KiB"`).
pub(crate) const PIN_BYTES_MIN: usize = 8 << 10;

/// The buffer is sent once it holds this many bytes, before more requests are executed.
pub(crate) const FULL_BYTES: usize = 48 << 10;
/// A buffer whose capacity exceeds this is shrunk once it is empty.
const CAPACITY_BYTES_MAX: usize = 8 * FULL_BYTES;

/// Pinned values up to this total size are copied if the client is slow.
pub(crate) const COPY_BYTES_MAX: usize = 128 << 10;

/// The maximum number of pieces in one system call.
const PIECES_MAX: usize = 64;

/// Unsent replies.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// All bytes that are not pinned, in order.
    pub(crate) bytes: Vec<u8>,
    /// Values to be sent between parts of `bytes`, in order.
    pins: Vec<Pin>,
    /// The number of bytes pinned by `pins`, sent or not.
    pinned_bytes: usize,
    /// The part of the output that has been sent.
    sent: Progress,
    /// Whether the next request counts as one that follows others of its batch although the buffer
    /// is empty: the request has waited until the earlier replies had left the buffer.
    pub(crate) follows: bool,
}

/// A position within unsent output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    bytes: usize,
    pins: usize,
    pinned_bytes: usize,
}

#[derive(Debug)]
struct Pin {
    /// The number of `bytes` that precede the value.
    at: usize,
    value: PinnedValue,
}

/// The position of the first unsent byte. Already sent are the first `bytes` of `Output::bytes`,
/// all pins before `pin`, the chunks of that pin before `chunk`, and the first `within` bytes of
/// that chunk.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Progress {
    bytes: usize,
    pin: usize,
    chunk: usize,
    within: usize,
}

impl Output {
    pub(crate) fn with_capacity(bytes: usize) -> Output {
        Output { bytes: Vec::with_capacity(bytes), ..Output::default() }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.pins.is_empty()
    }

    /// Returns whether the buffer must be sent before more requests are executed.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() + self.pinned_bytes >= FULL_BYTES
    }

    /// Returns the memory use of the buffer itself, in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns the number of bytes of pinned values.
    pub(crate) fn pinned_bytes(&self) -> usize {
        self.pinned_bytes
    }

    /// Appends the value of an item, by copying or pinning it depending on its size.
    #[inline]
    pub(crate) fn push_value(&mut self, item: &ItemView<'_>) {
        if item.value_bytes() < PIN_BYTES_MIN {
            item.copy_value_to(&mut self.bytes);
        } else {
            self.push_pin(item.pin());
        }
    }

    #[cold]
    fn push_pin(&mut self, value: PinnedValue) {
        self.pinned_bytes += value.bytes();
        self.pins.push(Pin { at: self.bytes.len(), value });
    }

    /// Sends the whole buffer with one write, which is the usual case and is therefore inlined.
    /// Returns whether everything was sent and the buffer is empty again; if not,
    /// [`send`](Self::send) continues from there. In both cases, the number of bytes sent is added
    /// to `count`.
    #[inline(always)]
    pub(crate) fn send_at_once(&mut self, to: &mut impl Transport, count: &mut u64) -> bool {
        if !self.pins.is_empty() || self.sent.bytes > 0 {
            return false;
        }
        // `send` returns the same error: a socket that has failed does not recover.
        let Poll::Ready(Ok(written)) = to.write(&self.bytes) else { return false };
        *count += to.sent_by_write(written);
        if written < self.bytes.len() {
            self.sent.bytes = written;
            return false;
        }
        self.bytes.clear();
        if self.bytes.capacity() > CAPACITY_BYTES_MAX {
            self.shrink();
        }
        true
    }

    /// Sends the buffer. `Ready(Ok)` means that everything is sent and the buffer is empty again.
    /// The number of bytes sent is added to `count`, on errors and `Pending` too.
    pub(crate) fn send(&mut self, to: &mut impl Transport, count: &mut u64) -> Poll<io::Result<()>> {
        if self.pins.is_empty() {
            while self.sent.bytes < self.bytes.len() {
                let written = ready!(to.write(&self.bytes[self.sent.bytes..]))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.sent.bytes += written;
                *count += to.sent_by_write(written);
            }
        } else {
            ready!(self.send_pieces(to, count))?;
        }
        self.clear();
        Poll::Ready(Ok(()))
    }

    #[cold]
    fn send_pieces(&mut self, to: &mut impl Transport, count: &mut u64) -> Poll<io::Result<()>> {
        loop {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let used = self.gather(&mut pieces);
            if used == 0 {
                return Poll::Ready(Ok(()));
            }
            let written = ready!(to.write_vectored(&pieces[..used]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *count += to.sent_by_write(written);
            self.advance(written);
        }
    }

    /// Collects as many unsent pieces as fit, and returns their number.
    fn gather<'a>(&'a self, pieces: &mut [IoSlice<'a>; PIECES_MAX]) -> usize {
        let Progress { mut bytes, pin, mut chunk, mut within } = self.sent;
        let mut used = 0;
        let mut push = |piece: &'a [u8]| {
            if used < PIECES_MAX && !piece.is_empty() {
                pieces[used] = IoSlice::new(piece);
                used += 1;
            }
            used < PIECES_MAX
        };
        for Pin { at, value } in &self.pins[pin..] {
            if bytes < *at && !push(&self.bytes[bytes..*at]) {
                return used;
            }
            bytes = bytes.max(*at);
            while let Some(piece) = value.chunk(chunk) {
                if !push(&piece[within..]) {
                    return used;
                }
                (chunk, within) = (chunk + 1, 0);
            }
            chunk = 0;
        }
        push(&self.bytes[bytes..]);
        used
    }

    /// Records that `count` more bytes have been sent.
    fn advance(&mut self, mut count: usize) {
        let sent = &mut self.sent;
        while let Some(Pin { at, value }) = self.pins.get(sent.pin) {
            let before = count.min(at - sent.bytes);
            sent.bytes += before;
            count -= before;
            if sent.bytes < *at {
                return;
            }
            while let Some(piece) = value.chunk(sent.chunk) {
                let rest = piece.len() - sent.within;
                if count < rest {
                    sent.within += count;
                    return;
                }
                count -= rest;
                (sent.chunk, sent.within) = (sent.chunk + 1, 0);
            }
            (sent.pin, sent.chunk) = (sent.pin + 1, 0);
        }
        sent.bytes += count;
    }

    /// Inserts bytes before everything else, of which nothing has been sent.
    pub(crate) fn insert_first(&mut self, bytes: &[u8]) {
        debug_assert_eq!(self.sent, Progress::default());
        self.bytes.splice(0..0, bytes.iter().copied());
        for pin in &mut self.pins {
            pin.at += bytes.len();
        }
    }

    /// Returns the position of the end.
    #[inline]
    pub(crate) fn mark(&self) -> Mark {
        Mark { bytes: self.bytes.len(), pins: self.pins.len(), pinned_bytes: self.pinned_bytes }
    }

    /// Returns the number of bytes after `mark`.
    #[inline]
    pub(crate) fn bytes_since(&self, mark: Mark) -> usize {
        self.bytes.len() - mark.bytes + self.pinned_bytes - mark.pinned_bytes
    }

    /// Removes everything after `mark`, of which nothing has been sent, and returns it.
    pub(crate) fn split_off(&mut self, mark: Mark) -> Output {
        let bytes = self.bytes.split_off(mark.bytes);
        let mut pins = self.pins.split_off(mark.pins);
        pins.iter_mut().for_each(|pin| pin.at -= mark.bytes);
        let pinned_bytes = self.pinned_bytes - mark.pinned_bytes;
        self.pinned_bytes = mark.pinned_bytes;
        Output { bytes, pins, pinned_bytes, ..Output::default() }
    }

    /// Appends everything from `other`, of which nothing has been sent, and leaves it empty.
    pub(crate) fn append(&mut self, other: &mut Output) {
        debug_assert_eq!(other.sent, Progress::default());
        let before = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.pins.extend(other.pins.drain(..).map(|pin| Pin { at: pin.at + before, ..pin }));
        self.pinned_bytes += std::mem::take(&mut other.pinned_bytes);
        other.clear();
    }

    /// Moves the first unsent bytes, at most `bytes_max`, to the end of `to`.
    pub(crate) fn take_front(&mut self, bytes_max: usize, to: &mut Vec<u8>) {
        let end = to.len() + bytes_max;
        while to.len() < end {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let used = self.gather(&mut pieces);
            if used == 0 {
                return self.clear();
            }
            let before = to.len();
            for piece in &pieces[..used] {
                let count = piece.len().min(end - to.len());
                to.extend_from_slice(&piece[..count]);
            }
            let taken = to.len() - before;
            self.advance(taken);
        }
        if self.unsent_bytes() == 0 {
            self.clear();
        }
    }

    /// Returns the number of bytes that have not been sent.
    pub(crate) fn unsent_bytes(&self) -> usize {
        let Progress { bytes, pin, chunk, within } = self.sent;
        let pinned: usize = self.pins[pin..].iter().map(|pin| pin.value.bytes()).sum();
        let sent: usize = match self.pins.get(pin) {
            Some(pin) => (0..chunk).filter_map(|chunk| pin.value.chunk(chunk)).map(<[u8]>::len).sum(),
            None => 0,
        };
        self.bytes.len() - bytes + pinned - sent - within
    }

    /// Moves everything unsent to a separate buffer. Small values are copied; large ones stay
    /// pinned.
    pub(crate) fn take_unsent(&mut self) -> Output {
        let first = self.pins.get(self.sent.pin);
        let pinned: usize = self.pins[self.sent.pin..].iter().map(|pin| pin.value.bytes()).sum();
        let taken = if pinned <= COPY_BYTES_MAX {
            Output { bytes: self.flattened(pinned), ..Output::default() }
        } else {
            let cut = self.sent.bytes;
            let within_pin = first.is_some();
            let bytes = self.bytes[cut..].to_vec();
            let pins: Vec<Pin> =
                self.pins.drain(self.sent.pin..).map(|pin| Pin { at: pin.at - cut, ..pin }).collect();
            let sent = match within_pin {
                true => Progress { bytes: 0, pin: 0, ..self.sent },
                false => Progress::default(),
            };
            Output { bytes, pins, pinned_bytes: pinned, sent, ..Output::default() }
        };
        self.clear();
        taken
    }

    /// Returns a copy of everything unsent.
    fn flattened(&self, pinned: usize) -> Vec<u8> {
        let Progress { mut bytes, pin, mut chunk, mut within } = self.sent;
        let mut flat = Vec::with_capacity(self.bytes.len() - bytes + pinned);
        for Pin { at, value } in &self.pins[pin..] {
            flat.extend_from_slice(&self.bytes[bytes..*at]);
            bytes = *at;
            while let Some(piece) = value.chunk(chunk) {
                flat.extend_from_slice(&piece[within..]);
                (chunk, within) = (chunk + 1, 0);
            }
            chunk = 0;
        }
        flat.extend_from_slice(&self.bytes[bytes..]);
        flat
    }

    /// Discards everything, sent or not.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.sent.bytes = 0;
        if self.pinned_bytes > 0 {
            self.pins.clear();
            self.pinned_bytes = 0;
            self.sent = Progress::default();
        }
        if self.bytes.capacity() > CAPACITY_BYTES_MAX {
            self.shrink();
        }
    }

    /// Frees memory, because one huge reply of statistics or keys must not keep its memory for the
    /// lifetime of the worker.
    #[cold]
    fn shrink(&mut self) {
        self.bytes.shrink_to(2 * FULL_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cached_core::kv::{Kv, KvConfig, StoreOptions};

    /// A transport that accepts at most `room` bytes in all, `step` at a time.
    struct Sink {
        taken: Vec<u8>,
        room: usize,
        step: usize,
    }

    impl Transport for Sink {
        fn read(&mut self, _: &mut [u8]) -> Poll<io::Result<usize>> {
            unreachable!("only written to")
        }

        fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.write_vectored(&[IoSlice::new(bytes)])
        }

        fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
            let limit = self.room.min(self.step);
            if limit == 0 {
                return Poll::Pending;
            }
            let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).take(limit).collect();
            self.room -= all.len();
            self.taken.extend_from_slice(&all);
            Poll::Ready(Ok(all.len()))
        }
    }

    fn filled(kv: &Kv, sizes: &[usize]) -> (Output, Vec<u8>) {
        let (mut output, mut expected) = (Output::default(), Vec::new());
        for (index, size) in sizes.iter().enumerate() {
            let key = format!("key{index}");
            let value: Vec<u8> = (0..*size).map(|at| (at * 31 + index) as u8).collect();
            let hash = kv.hash(key.as_bytes());
            kv.store(key.as_bytes(), hash, &value, &StoreOptions::default());
            let head = format!("VALUE {key}\r\n");
            output.bytes.extend_from_slice(head.as_bytes());
            kv.read(key.as_bytes(), hash, |item| output.push_value(item)).unwrap();
            output.bytes.extend_from_slice(b"\r\n");
            expected.extend_from_slice(&[head.as_bytes(), &value, b"\r\n"].concat());
        }
        (output, expected)
    }

    fn kv() -> Kv {
        Kv::new(KvConfig { arena_bytes: 32 << 20, item_bytes_max: 8 << 20, ..KvConfig::default() }).unwrap()
    }

    #[test]
    fn pieces_are_sent_in_order_however_little_the_socket_takes() {
        let kv = kv();
        for step in [1 << 20, 4099, 700, 13] {
            let (mut output, expected) = filled(&kv, &[3, 20_000, 0, 9000, 8192, 5]);
            let mut sink = Sink { taken: Vec::new(), room: usize::MAX, step };
            let mut count = 0;
            assert!(output.send(&mut sink, &mut count).is_ready());
            assert_eq!(count, expected.len() as u64);
            assert!(sink.taken == expected, "in steps of {step}");
            assert!(output.is_empty());
        }
    }

    #[test]
    fn bytes_can_be_inserted_before_unsent_output() {
        let kv = kv();
        let (mut output, expected) = filled(&kv, &[3, 200_000, 5]);
        let mut output = output.take_unsent();
        assert_eq!(output.pinned_bytes(), 200_000);
        output.insert_first(b"earlier reply");
        let mut sink = Sink { taken: Vec::new(), room: usize::MAX, step: 4099 };
        assert!(output.send(&mut sink, &mut 0).is_ready());
        assert!(sink.taken == [b"earlier reply", &expected[..]].concat());
    }

    #[test]
    fn output_can_be_cut_and_joined_at_any_point() {
        let kv = kv();
        for sizes in [&[3, 20_000, 0][..], &[9000, 70_000, 8192, 5]] {
            let (mut output, first) = filled(&kv, sizes);
            let mark = output.mark();
            let (mut other, second) = filled(&kv, &[8193, 2, 150_000]);
            output.append(&mut other);
            assert!(other.is_empty());
            assert_eq!(output.bytes_since(mark), second.len());
            let rest = output.split_off(mark);
            for (mut output, expected, step) in [(output, first, 4099), (rest, second, 8190)] {
                let mut taken = Vec::new();
                while !output.is_empty() {
                    assert_eq!(output.unsent_bytes(), expected.len() - taken.len());
                    output.take_front(step, &mut taken);
                }
                assert_eq!((output.sent, output.pinned_bytes()), (Progress::default(), 0));
                assert!(taken == expected, "in steps of {step}");
            }
        }
    }

    #[test]
    fn the_unsent_rest_can_be_moved_at_any_point() {
        let kv = kv();
        // Once below the limit for copies, and once above it.
        for sizes in [&[3, 20_000, 0, 9000][..], &[3, 1_500_000, 9000, 200_000, 1]] {
            let total = filled(&kv, sizes).1.len();
            for room in (0..total).step_by(total / 23 + 1) {
                let (mut output, expected) = filled(&kv, sizes);
                let mut sink = Sink { taken: Vec::new(), room, step: 100_000 };
                let mut count = 0;
                assert!(output.send(&mut sink, &mut count).is_pending());
                let mut rest = output.take_unsent();
                assert!(output.is_empty());
                assert_eq!((output.sent, output.pinned_bytes), (Progress::default(), 0), "as good as new");
                assert!(rest.pinned_bytes() == 0 || rest.pinned_bytes() > COPY_BYTES_MAX);
                sink.room = usize::MAX;
                assert!(rest.send(&mut sink, &mut count).is_ready());
                assert!(sink.taken == expected, "after {room} of {total}");
                assert_eq!(count, total as u64);
            }
        }
    }
}

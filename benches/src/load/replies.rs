//! Reads the replies of one connection, however they are cut into pieces, and checks each against
//! its request.
//!
//! ```text
//!            head incomplete: keep its bytes (at most HEAD_BYTES_MAX)
//!           ┌──┐
//!  ───────> Head ──Value──> Body ──value and trailer taken──> Head, or the next request
//!            └──Miss, End, Stored, Refused──> the next request
//! ```
//! Values are compared as they arrive, and never collected. There are no sockets or clocks here.

use std::collections::VecDeque;

use crate::keyspace::{KeySpace, Verify};
use crate::protocol::{HEAD_BYTES_MAX, Head, HeadError, Protocol};

/// A request whose reply has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Done {
    /// When the request was sent or, in an open loop, when it was due.
    pub(super) started_ns: u64,
    /// Whether the request is a set; otherwise it is a get.
    pub(super) is_set: bool,
    /// Whether the server refused the request.
    pub(super) is_refused: bool,
    /// The number of keys requested.
    pub(super) keys: u32,
    /// The number of keys whose value arrived and was correct.
    pub(super) hits: u32,
}

/// The reason why a reply is wrong.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum ReplyError {
    /// The bytes are not a valid reply.
    #[error(transparent)]
    Head(#[from] HeadError),
    /// A reply arrived without a request.
    #[error("a reply to nothing that was asked")]
    Unasked,
    /// A reply of the wrong kind.
    #[error("a reply of another kind than the request (set: {is_set})")]
    WrongKind {
        /// The request.
        is_set: bool,
    },
    /// A value for a key that was not requested, or a value out of order.
    #[error("a value of a key that was not asked for: {0}")]
    WrongKey(String),
    /// A value of the wrong length.
    #[error("key {index}: a value of {got_bytes} bytes instead of {expected_bytes}")]
    WrongLength {
        /// The key's index.
        index: u64,
        /// The length announced by the server.
        got_bytes: usize,
        /// The stored length.
        expected_bytes: usize,
    },
    /// A value of the right length with other bytes.
    #[error("key {index}: the value is not the one that was stored")]
    WrongValue {
        /// The key's index.
        index: u64,
    },
    /// A head without an end.
    #[error("a reply line of more than {HEAD_BYTES_MAX} bytes")]
    HeadTooLong,
}

/// A request in progress.
#[derive(Clone, Copy, Debug)]
struct Pending {
    started_ns: u64,
    is_set: bool,
    keys: u32,
    /// The number of unanswered keys, at the front of `indexes`.
    keys_left: u32,
    hits: u32,
}

/// A value in progress.
#[derive(Clone, Copy, Debug)]
struct Body {
    index: u64,
    /// The number of consumed bytes of value and trailer.
    taken: usize,
    value_bytes: usize,
}

/// The receiving side of one connection.
#[derive(Debug)]
pub(super) struct ReplyReader {
    protocol: Protocol,
    verify: Verify,
    pending: VecDeque<Pending>,
    /// Keys of all pending gets, in order.
    indexes: VecDeque<u64>,
    /// The start of a head that is not complete yet.
    head_part: Vec<u8>,
    body: Option<Body>,
}

impl ReplyReader {
    pub(super) fn new(protocol: Protocol, verify: Verify) -> Self {
        Self {
            protocol,
            verify,
            pending: VecDeque::new(),
            indexes: VecDeque::new(),
            head_part: Vec::new(),
            body: None,
        }
    }

    /// Returns the number of requests without a complete reply.
    pub(super) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Returns when each request without a complete reply was sent, or due.
    pub(super) fn pending_started_ns(&self) -> impl Iterator<Item = u64> {
        self.pending.iter().map(|pending| pending.started_ns)
    }

    pub(super) fn expect_get(&mut self, indexes: &[u64], started_ns: u64) {
        let keys = indexes.len() as u32;
        self.indexes.extend(indexes);
        self.pending.push_back(Pending { started_ns, is_set: false, keys, keys_left: keys, hits: 0 });
    }

    pub(super) fn expect_set(&mut self, started_ns: u64) {
        self.pending.push_back(Pending { started_ns, is_set: true, keys: 1, keys_left: 0, hits: 0 });
    }

    /// Consumes `bytes` of the stream, and calls `on_done` for each request whose reply is
    /// complete.
    pub(super) fn feed(
        &mut self,
        mut bytes: &[u8],
        keys: &KeySpace,
        on_done: &mut impl FnMut(Done),
    ) -> Result<(), ReplyError> {
        while !bytes.is_empty() {
            bytes = if self.body.is_some() {
                self.feed_body(bytes, keys, on_done)?
            } else if self.head_part.is_empty() {
                match self.protocol.parse_head(bytes)? {
                    Some((head, used)) => {
                        self.handle_head(head, keys, on_done)?;
                        &bytes[used..]
                    }
                    None => self.keep_head_part(bytes)?,
                }
            } else {
                self.feed_head_part(bytes, keys, on_done)?
            };
        }
        Ok(())
    }

    fn keep_head_part<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ReplyError> {
        if self.head_part.len() + bytes.len() > HEAD_BYTES_MAX {
            return Err(ReplyError::HeadTooLong);
        }
        self.head_part.extend_from_slice(bytes);
        Ok(&[])
    }

    /// Continues a head whose first part has been kept.
    fn feed_head_part<'a>(
        &mut self,
        bytes: &'a [u8],
        keys: &KeySpace,
        on_done: &mut impl FnMut(Done),
    ) -> Result<&'a [u8], ReplyError> {
        let kept_bytes = self.head_part.len();
        let more = &bytes[..bytes.len().min(HEAD_BYTES_MAX - kept_bytes)];
        // The buffer is taken out of `self`, so that the head can borrow from it while the state
        // changes.
        let mut head_part = std::mem::take(&mut self.head_part);
        head_part.extend_from_slice(more);
        let rest = match self.protocol.parse_head(&head_part)? {
            Some((head, used)) => {
                self.handle_head(head, keys, on_done)?;
                head_part.clear();
                &bytes[used - kept_bytes..]
            }
            None if head_part.len() == HEAD_BYTES_MAX => return Err(ReplyError::HeadTooLong),
            None => &[],
        };
        self.head_part = head_part;
        Ok(rest)
    }

    fn handle_head(
        &mut self,
        head: Head<'_>,
        keys: &KeySpace,
        on_done: &mut impl FnMut(Done),
    ) -> Result<(), ReplyError> {
        let is_set = self.pending.front().ok_or(ReplyError::Unasked)?.is_set;
        match head {
            Head::Value { key, value_bytes } if !is_set => {
                let index = self.next_index(key, keys)?;
                let expected_bytes = keys.value_bytes(index);
                if value_bytes != expected_bytes {
                    return Err(ReplyError::WrongLength { index, got_bytes: value_bytes, expected_bytes });
                }
                self.body = Some(Body { index, taken: 0, value_bytes });
                if value_bytes + self.protocol.trailer().len() == 0 {
                    self.finish_body(on_done);
                }
                Ok(())
            }
            Head::Miss if !is_set => {
                self.next_index(None, keys)?;
                self.finish_key(on_done);
                Ok(())
            }
            Head::End if !is_set => {
                self.finish_request(false, on_done);
                Ok(())
            }
            Head::Stored if is_set => {
                self.finish_request(false, on_done);
                Ok(())
            }
            Head::Refused(_) => {
                self.finish_request(true, on_done);
                Ok(())
            }
            _ => Err(ReplyError::WrongKind { is_set }),
        }
    }

    /// Returns the index of the key whose value arrives: the next requested key that equals `key`.
    /// The keys before it are misses.
    fn next_index(&mut self, key: Option<&[u8]>, keys: &KeySpace) -> Result<u64, ReplyError> {
        let verify = self.verify;
        let front = self.pending.front_mut().ok_or(ReplyError::Unasked)?;
        while front.keys_left > 0 {
            front.keys_left -= 1;
            let index = self.indexes.pop_front().ok_or(ReplyError::Unasked)?;
            if verify == Verify::Length || key.is_none_or(|key| keys.is_key(index, key)) {
                return Ok(index);
            }
        }
        Err(ReplyError::WrongKey(key.unwrap_or_default().escape_ascii().to_string()))
    }

    fn feed_body<'a>(
        &mut self,
        bytes: &'a [u8],
        keys: &KeySpace,
        on_done: &mut impl FnMut(Done),
    ) -> Result<&'a [u8], ReplyError> {
        let Some(body) = &mut self.body else { return Ok(bytes) };
        let trailer = self.protocol.trailer();
        let wrong = ReplyError::WrongValue { index: body.index };
        let in_value = bytes.len().min(body.value_bytes.saturating_sub(body.taken));
        let (value, rest) = bytes.split_at(in_value);
        if !keys.is_value_part(body.index, body.taken.min(body.value_bytes), value, self.verify) {
            return Err(wrong);
        }
        body.taken += in_value;
        let trailer_left = trailer.len() - body.taken.saturating_sub(body.value_bytes);
        let in_trailer = if body.taken < body.value_bytes { 0 } else { rest.len().min(trailer_left) };
        let trailer_start = trailer.len() - trailer_left;
        if rest[..in_trailer] != trailer[trailer_start..trailer_start + in_trailer] {
            return Err(wrong);
        }
        body.taken += in_trailer;
        if body.taken == body.value_bytes + trailer.len() {
            self.finish_body(on_done);
        }
        Ok(&rest[in_trailer..])
    }

    fn finish_body(&mut self, on_done: &mut impl FnMut(Done)) {
        self.body = None;
        if let Some(front) = self.pending.front_mut() {
            front.hits += 1;
        }
        self.finish_key(on_done);
    }

    /// Finishes the request if its reply ends with the key that has just been answered.
    fn finish_key(&mut self, on_done: &mut impl FnMut(Done)) {
        let Some(front) = self.pending.front() else { return };
        if front.keys_left == 0 && self.protocol.ends_with_last_key(front.keys) {
            self.finish_request(false, on_done);
        }
    }

    fn finish_request(&mut self, is_refused: bool, on_done: &mut impl FnMut(Done)) {
        let Some(front) = self.pending.pop_front() else { return };
        self.indexes.drain(..(front.keys_left as usize).min(self.indexes.len()));
        let Pending { started_ns, is_set, keys, hits, .. } = front;
        on_done(Done { started_ns, is_set, is_refused, keys, hits });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::ValueBytes;

    fn keys() -> KeySpace {
        KeySpace::new(0, 100, 8, ValueBytes { min: 0, max: 60 }, 5).unwrap()
    }

    fn value(index: u64) -> Vec<u8> {
        let mut value = Vec::new();
        keys().push_value(index, &mut value);
        value
    }

    /// Returns these replies: get 1 (hit), get 2 3 4 (3 missing), get 5 (miss), set 6, set 7
    /// (refused).
    fn stream(protocol: Protocol) -> Vec<u8> {
        let mut out = Vec::new();
        let text = |out: &mut Vec<u8>, index: u64| {
            out.extend(format!("VALUE k{index:07} 0 {}\r\n", value(index).len()).bytes());
            out.extend(value(index));
            out.extend(b"\r\n");
        };
        let meta = |out: &mut Vec<u8>, index: u64, key: &str| {
            out.extend(format!("VA {}{key}\r\n", value(index).len()).bytes());
            out.extend(value(index));
            out.extend(b"\r\n");
        };
        let binary = |out: &mut Vec<u8>, opcode: u8, status: u8, index: Option<u64>, with_key: bool| {
            let value = index.map(value).unwrap_or_default();
            let key = if with_key { format!("k{:07}", index.unwrap()) } else { String::new() };
            let extras = if index.is_some() { 4 } else { 0 };
            out.extend([0x81, opcode, 0, key.len() as u8, extras, 0, 0, status]);
            out.extend((u32::from(extras) + (key.len() + value.len()) as u32).to_be_bytes());
            out.extend([0; 12]);
            out.extend(vec![0; usize::from(extras)]);
            out.extend(key.bytes());
            out.extend(value);
        };
        match protocol {
            Protocol::Text => {
                text(&mut out, 1);
                out.extend(b"END\r\n");
                text(&mut out, 2);
                text(&mut out, 4);
                out.extend(b"END\r\nEND\r\nSTORED\r\nSERVER_ERROR out of memory storing object\r\n");
            }
            Protocol::Meta => {
                meta(&mut out, 1, "");
                meta(&mut out, 2, " kk0000002");
                meta(&mut out, 4, " kk0000004");
                out.extend(b"MN\r\nEN\r\nHD\r\nSERVER_ERROR out of memory storing object\r\n");
            }
            Protocol::Binary => {
                binary(&mut out, 0, 0, Some(1), false);
                binary(&mut out, 0x0d, 0, Some(2), true);
                binary(&mut out, 0x0d, 0, Some(4), true);
                binary(&mut out, 0x0a, 0, None, false);
                binary(&mut out, 0, 1, None, false);
                binary(&mut out, 1, 0, None, false);
                binary(&mut out, 1, 0x82, None, false);
            }
            Protocol::Resp => {
                let bulk = |out: &mut Vec<u8>, index: u64| {
                    out.extend(format!("${}\r\n", value(index).len()).bytes());
                    out.extend(value(index));
                    out.extend(b"\r\n");
                };
                bulk(&mut out, 1);
                bulk(&mut out, 2);
                out.extend(b"$-1\r\n");
                bulk(&mut out, 4);
                out.extend(b"$-1\r\n+OK\r\n-OOM command not allowed\r\n");
            }
        }
        out
    }

    fn reader(protocol: Protocol) -> ReplyReader {
        let mut reader = ReplyReader::new(protocol, Verify::Full);
        reader.expect_get(&[1], 10);
        reader.expect_get(&[2, 3, 4], 20);
        reader.expect_get(&[5], 30);
        reader.expect_set(40);
        reader.expect_set(50);
        reader
    }

    #[test]
    fn replies_cut_anywhere_are_read_alike() {
        for protocol in [Protocol::Text, Protocol::Meta, Protocol::Binary, Protocol::Resp] {
            let stream = stream(protocol);
            let done = |started_ns, keys, hits| Done {
                started_ns,
                is_set: started_ns >= 40,
                is_refused: started_ns == 50,
                keys,
                hits,
            };
            let expected = [done(10, 1, 1), done(20, 3, 2), done(30, 1, 0), done(40, 1, 0), done(50, 1, 0)];
            for piece in 1..=stream.len() {
                let (mut reader, mut seen) = (reader(protocol), Vec::new());
                for bytes in stream.chunks(piece) {
                    reader.feed(bytes, &keys(), &mut |done| seen.push(done)).unwrap();
                }
                assert_eq!(seen, expected, "{protocol:?} in pieces of {piece}");
                assert_eq!((reader.pending_count(), reader.indexes.len()), (0, 0));
            }
        }
    }

    fn error_of(request: &[u64], reply: &[u8]) -> ReplyError {
        let mut reader = ReplyReader::new(Protocol::Text, Verify::Ends);
        if !request.is_empty() {
            reader.expect_get(request, 0);
        }
        reader.feed(reply, &keys(), &mut |_| ()).unwrap_err()
    }

    #[test]
    fn wrong_replies_are_errors() {
        let long = (0..100).find(|&index| value(index).len() > 20).unwrap();
        let head = format!("VALUE k{long:07} 0 {}\r\n", value(long).len());
        let mut wrong_value = head.clone().into_bytes();
        wrong_value.extend(value(long));
        *wrong_value.last_mut().unwrap() ^= 1;
        assert_eq!(error_of(&[long], &wrong_value), ReplyError::WrongValue { index: long });
        assert!(matches!(error_of(&[long + 1], head.as_bytes()), ReplyError::WrongKey(_)));
        let short = format!("VALUE k{long:07} 0 1\r\n");
        assert!(matches!(error_of(&[long], short.as_bytes()), ReplyError::WrongLength { .. }));
        assert_eq!(error_of(&[], b"END\r\n"), ReplyError::Unasked);
        assert_eq!(error_of(&[1], b"STORED\r\n"), ReplyError::WrongKind { is_set: false });
        assert!(matches!(error_of(&[1], b"ERROR\r\n"), ReplyError::Head(_)));
        assert_eq!(error_of(&[1], &[b'x'; HEAD_BYTES_MAX + 1]), ReplyError::HeadTooLong);
    }

    #[test]
    fn a_head_without_end_is_bounded_in_small_pieces_too() {
        let mut reader = ReplyReader::new(Protocol::Text, Verify::Ends);
        reader.expect_get(&[1], 0);
        let error = (0..=HEAD_BYTES_MAX).find_map(|_| reader.feed(b"x", &keys(), &mut |_| ()).err());
        assert_eq!(error, Some(ReplyError::HeadTooLong));
    }
}

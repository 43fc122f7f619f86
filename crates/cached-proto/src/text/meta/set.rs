//! `ms key len flags*` and a data block: all the ways to store.

use super::line::Line;
use super::{Flag, MetaFlags, MetaItem, MetaKey, Status};
use crate::reply;
use crate::text::{BodyHeader, Decoded, Request, TERMINATOR_LEN, check_terminator, value_len};

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    /// In any case (`S`, and the default).
    Set,
    /// If there is no item (`E`).
    Add,
    /// If there is an item (`R`).
    Replace,
    /// After the value of the item (`A`); with `N`, created if there is none.
    Append,
    /// Before the value of the item (`P`); with `N`, created if there is none.
    Prepend,
}

/// The line of an `ms`.
///
/// `T` is the expiry, or `N` where [`SetMode::Append`] and [`SetMode::Prepend`] create; `F` the client's
/// flags. `C` turns set and replace into compare-and-store, with which `I` lets an older CAS value store as
/// stale; append and prepend compare too. `E` sets the CAS value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetHeader<'a> {
    /// The key.
    pub key: MetaKey<'a>,
    /// How to store.
    pub mode: SetMode,
    /// The number of bytes of the value, without its terminator. Up to 2 GiB, so check it before reserving
    /// memory.
    pub value_len: usize,
    /// The flags.
    pub flags: MetaFlags,
}

/// An `ms` with its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set<'a> {
    /// The command line.
    pub header: SetHeader<'a>,
    /// The value and two more bytes, which should be CRLF.
    pub body: &'a [u8],
}

impl<'a> Set<'a> {
    /// Returns the value, or `None` if it is not followed by CRLF: reply [`reply::BAD_DATA_CHUNK`], with `q`
    /// too, and store nothing.
    #[inline]
    pub fn value(&self) -> Option<&'a [u8]> {
        check_terminator(self.body)
    }
}

/// Appends the reply to an `ms`, from its flags (which may be kept while the body is read): `HD` (not to be
/// sent with `q`, which the caller checks), `NS`, `EX` or `NF`.
///
/// Of `item` key, size (of the whole value after append or prepend) and CAS value (0 where nothing was
/// stored) are used.
pub fn encode_set(out: &mut Vec<u8>, status: Status, flags: &MetaFlags, item: &MetaItem<'_>) {
    use super::ReturnFlag::{Cas, Key, Opaque, Size};

    out.extend_from_slice(status.code());
    for flag in flags.returns.iter().filter(|flag| matches!(flag, Opaque | Key | Cas | Size)) {
        item.encode_flag(out, flag, flags);
    }
    out.extend_from_slice(b"\r\n");
}

pub(super) fn decode<'a>(input: &'a [u8], text: &'a [u8], line_len: usize) -> Decoded<'a> {
    let refused = Decoded::refused(reply::BAD_FORMAT, line_len);
    let Some(line) = Line::read(text, true) else { return refused };
    let Some(value_len) = value_len(line.argument) else { return refused };
    let body_len = value_len + TERMINATOR_LEN;
    if let Some(words) = line.fault {
        return Decoded::swallow(words, line_len, body_len);
    }
    let mode = match line.mode {
        0 | b'S' => SetMode::Set,
        b'E' => SetMode::Add,
        b'R' => SetMode::Replace,
        b'A' => SetMode::Append,
        b'P' => SetMode::Prepend,
        _ => return Decoded::swallow(reply::META_SET_MODE, line_len, body_len),
    };
    if line.flags.opaque.is_too_long() {
        return Decoded::swallow(reply::META_OPAQUE_TOO_LONG, line_len, body_len);
    }
    let header = SetHeader { key: line.key(), mode, value_len, flags: line.flags };
    match input.get(line_len..line_len + body_len) {
        Some(body) => Decoded::Request {
            request: Request::MetaSet(Set { header, body }),
            consumed: line_len + body_len,
        },
        None => Decoded::Body { header: BodyHeader::MetaSet(header), consumed: line_len, body_len },
    }
}

impl SetHeader<'_> {
    /// Returns the expiry of the command: that of `N` where an append or prepend may create, otherwise that
    /// of `T`, or never.
    #[inline]
    pub fn exptime(&self) -> i32 {
        match (self.mode, self.flags.vivify()) {
            (SetMode::Append | SetMode::Prepend, Some(exptime)) => exptime,
            _ => self.flags.ttl().unwrap_or(0),
        }
    }

    /// Returns whether an append or prepend creates a missing item.
    #[inline]
    pub fn creates(&self) -> bool {
        matches!(self.mode, SetMode::Append | SetMode::Prepend) && self.flags.has(Flag::Vivify)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    fn decoded(input: &[u8]) -> Decoded<'_> {
        crate::text::decode(input, 0, &Limits::DEFAULT)
    }

    fn set(input: &[u8]) -> Set<'_> {
        match decoded(input) {
            Decoded::Request { request: Request::MetaSet(set), consumed } => {
                assert_eq!(consumed, input.len());
                set
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn modes_and_times() {
        for (flags, mode, exptime, creates) in [
            ("", SetMode::Set, 0, false),
            ("T-1 MS", SetMode::Set, -1, false),
            ("ME T5 N6", SetMode::Add, 5, false),
            ("MReplace", SetMode::Replace, 0, false),
            ("MA T5", SetMode::Append, 5, false),
            ("MA T5 N6", SetMode::Append, 6, true),
            ("MP N6", SetMode::Prepend, 6, true),
        ] {
            let input = format!("ms k 2 {flags}\r\nhi\r\n");
            let set = set(input.as_bytes());
            assert_eq!(
                (set.header.mode, set.header.exptime(), set.header.creates()),
                (mode, exptime, creates)
            );
            assert_eq!((set.header.value_len, set.value()), (2, Some(&b"hi"[..])));
        }
    }

    #[test]
    fn a_malformed_line_is_refused_alone() {
        for line in ["ms", "ms k", "ms k -1", "ms k abc", "ms k 2147483646", "ms k 1 ?", "ms k +1"] {
            let input = format!("{line}\r\n");
            assert_eq!(decoded(input.as_bytes()), Decoded::refused(reply::BAD_FORMAT, input.len()), "{line}");
        }
    }

    #[test]
    fn bad_flags_throw_the_body_away() {
        let (key, opaque) = ("k".repeat(251), "o".repeat(32));
        for (line, words) in [
            (&format!("ms {key} 3")[..], reply::BAD_FORMAT),
            ("ms k 3 F", reply::BAD_FORMAT),
            ("ms k 3 F q", reply::BAD_FORMAT),
            ("ms k 3 T", reply::META_BAD_TOKEN),
            ("ms k 3 v v", reply::META_DUPLICATE_FLAG),
            ("ms k 3 M", reply::META_SET_MODE),
            ("ms k 3 Me", reply::META_SET_MODE),
            ("ms k 3 M ", reply::META_SET_MODE),
            (&format!("ms k 3 O{opaque}"), reply::META_OPAQUE_TOO_LONG),
            (&format!("ms k 3 O{opaque} MX"), reply::META_SET_MODE),
        ] {
            let input = format!("{line}\r\n");
            assert_eq!(decoded(input.as_bytes()), Decoded::swallow(words, input.len(), 5), "{line}");
        }
    }

    #[test]
    fn a_body_under_way_is_announced() {
        let Decoded::Body { header: BodyHeader::MetaSet(header), consumed, body_len } =
            decoded(b"ms k 4 T9\r\nva")
        else {
            panic!("no body");
        };
        assert_eq!((header.value_len, header.exptime(), consumed, body_len), (4, 9, 11, 6));
        assert_eq!(set(b"ms k 2\r\nhixx").value(), None);
    }

    #[test]
    fn replies_echo_what_is_known() {
        let set = set(b"ms Zm9v 2 b k Oop s c t F5\r\nhi\r\n");
        let item = MetaItem { key: b"foo", key_is_binary: true, size: 2, cas: 9, ..MetaItem::default() };
        let mut out = Vec::new();
        encode_set(&mut out, Status::Done, &set.header.flags, &item);
        encode_set(&mut out, Status::NotStored, &MetaFlags::NONE, &item);
        assert_eq!(out, b"HD kZm9v b Oop s2 c9\r\nNS\r\n");
    }
}

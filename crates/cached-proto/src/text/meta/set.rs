//! The meta commands that change an item. `ms key len flags*` and a data block stores in all modes;
//! `ma key flags*` increments or decrements, and creates the number with `N`; `md key flags*`
//! deletes, marks as stale, or replaces the value by an empty one.

use super::{Flag, Line, MetaFlags, MetaItem, MetaKey, ReturnFlag, Status};
use crate::text::{BodyHeader, Decoded, Request, TERMINATOR_LEN, check_terminator, value_len};
use crate::{number, reply};

/// The way of storing a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    /// Stores unconditionally (`S`, and the default).
    Set,
    /// Stores only if the item does not exist (`E`).
    Add,
    /// Stores only if the item exists (`R`).
    Replace,
    /// Appends to the value of the item (`A`); with `N`, creates a missing item.
    Append,
    /// Prepends to the value of the item (`P`); with `N`, creates a missing item.
    Prepend,
}

/// The line of an `ms`.
///
/// The expiry is `T`, or `N` if [`SetMode::Append`] or [`SetMode::Prepend`] creates the item. `F`
/// has the client's flags. `C` turns set and replace into compare-and-store; with `I`, an older CAS
/// value then stores the value as stale. Append and prepend compare too. `E` sets the CAS value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetHeader<'a> {
    /// The key.
    pub key: MetaKey<'a>,
    /// The way in which the value is stored.
    pub mode: SetMode,
    /// The length of the value in bytes, without its terminator. It may be up to 2 GiB, so check it
    /// before reserving memory.
    pub value_len: usize,
    /// The flags.
    pub flags: MetaFlags,
}

/// An `ms` with its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set<'a> {
    /// The command line.
    pub header: SetHeader<'a>,
    /// The value and two more bytes, which must be CRLF.
    pub body: &'a [u8],
}

impl<'a> Set<'a> {
    /// Returns the value, or `None` if it is not followed by CRLF. In that case, reply
    /// [`reply::BAD_DATA_CHUNK`], even with `q`, and store nothing.
    #[inline]
    pub fn value(&self) -> Option<&'a [u8]> {
        check_terminator(self.body)
    }
}

/// Appends the reply to an `ms` from its flags, which may have been kept while the body was read:
/// `HD` (the caller suppresses it with `q`), `NS`, `EX` or `NF`.
///
/// The reply uses the key, the size (of the whole value after append or prepend) and the CAS value
/// (0 if nothing was stored) of `item`.
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
    /// Returns the expiry of the command: that of `N` if an append or prepend may create the item,
    /// otherwise that of `T`, or never.
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

/// An increment or decrement. The reply is [`Arithmetic::encode_number`] (suppressed by `q`), or
/// [`encode_status`](super::encode_status) with `NF`, `EX` or `NS`.
///
/// `N` creates a missing number, with the value of `J` and the expiry of `N`. `D` is the delta. `T`
/// sets the expiry, even of a number just created, unless `N` comes after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic<'a> {
    /// The key.
    pub key: MetaKey<'a>,
    /// Whether to decrement (`MD`, `M-`), stopping at 0; otherwise increments (`MI`, `M+`),
    /// wrapping at 2^64.
    pub decrement: bool,
    /// The flags.
    pub flags: MetaFlags,
}

impl Arithmetic<'_> {
    /// Appends `HD flags*`, or with `v` `VA len flags*` and the number.
    ///
    /// The reply uses the time to live and the CAS value of `item`.
    pub fn encode_number(&self, out: &mut Vec<u8>, value: u64, item: &MetaItem<'_>) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value);
        if self.flags.value() {
            out.extend_from_slice(b"VA ");
            number::write_u64(out, digits.len() as u64);
        } else {
            out.extend_from_slice(b"HD");
        }
        for flag in self.flags.returns.iter() {
            match flag {
                ReturnFlag::Key => self.key.encode_flag(out),
                ReturnFlag::Opaque | ReturnFlag::TtlLeft | ReturnFlag::Cas => {
                    item.encode_flag(out, flag, &self.flags);
                }
                _ => {}
            }
        }
        out.extend_from_slice(b"\r\n");
        if self.flags.value() {
            out.extend_from_slice(digits.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

pub(super) fn decode_arithmetic<'a>(text: &'a [u8], line_len: usize) -> Decoded<'a> {
    let Some(line) = Line::read(text, false) else {
        return Decoded::refused(reply::BAD_FORMAT, line_len);
    };
    // This command has the same reply for all errors in flags.
    if line.fault.is_some() {
        return Decoded::refused(reply::META_INVALID_OR_DUPLICATE_FLAG, line_len);
    }
    let decrement = match line.mode {
        0 | b'I' | b'+' => false,
        b'D' | b'-' => true,
        _ => return Decoded::refused(reply::META_ARITHMETIC_MODE, line_len),
    };
    if line.flags.opaque.is_too_long() {
        return Decoded::refused(reply::META_OPAQUE_TOO_LONG, line_len);
    }
    let request = Request::MetaArithmetic(Arithmetic { key: line.key(), decrement, flags: line.flags });
    Decoded::Request { request, consumed: line_len }
}

/// A removal. The reply is [`encode_status`](super::encode_status): `HD` (suppressed by `q`), `NF`,
/// or `EX` if `C` does not match.
///
/// `x` replaces the item by an empty value with the flags of `F` and the expiry of `T`. `I` marks
/// the item as stale instead of removing it: it gets the expiry of `T` (if given) and a new CAS
/// value (that of `E`, if given), and the next client wins the right to recache it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The key.
    pub key: MetaKey<'a>,
    /// The flags.
    pub flags: MetaFlags,
}

pub(super) fn decode_delete<'a>(text: &'a [u8], line_len: usize) -> Decoded<'a> {
    let line = match Line::read_flags(text) {
        Ok(line) => line,
        Err(words) => return Decoded::refused(words, line_len),
    };
    let request = Request::MetaDelete(Delete { key: line.key(), flags: line.flags });
    Decoded::Request { request, consumed: line_len }
}

#[cfg(test)]
mod tests {
    use super::super::encode_status;
    use super::*;
    use crate::text::decode;
    use crate::{Limits, reply};

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

    fn arithmetic(input: &str) -> Arithmetic<'_> {
        match decode(input.as_bytes(), 0, &Limits::DEFAULT) {
            Decoded::Request { request: Request::MetaArithmetic(arithmetic), .. } => arithmetic,
            other => panic!("{input:?}: {other:?}"),
        }
    }

    #[test]
    fn modes_and_numbers() {
        for (flags, decrement) in [("", false), ("MI", false), ("M+", false), ("MD", true), ("M-", true)] {
            let input = format!("ma n {flags} D5 J13 N30\r\n");
            let request = arithmetic(&input);
            assert_eq!(request.decrement, decrement);
            let flags = &request.flags;
            assert_eq!((flags.delta(), flags.initial(), flags.vivify()), (5, 13, Some(30)));
        }
    }

    #[test]
    fn replies() {
        let item = MetaItem { cas: 321, ttl: Some(30), ..MetaItem::default() };
        let reply = |input: &str, value| {
            let mut out = Vec::new();
            arithmetic(input).encode_number(&mut out, value, &item);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(reply("ma n\r\n", 1), "HD\r\n");
        assert_eq!(reply("ma n v t\r\n", 13), "VA 2 t30\r\n13\r\n");
        assert_eq!(
            reply("ma bg== b c v k s Oq\r\n", u64::MAX),
            "VA 20 c321 kbg== b Oq\r\n18446744073709551615\r\n"
        );
    }

    #[test]
    fn malformed_arithmetic_is_refused() {
        let key = "k".repeat(251);
        for (line, words) in [
            ("ma", reply::BAD_FORMAT),
            ("ma n ?", reply::BAD_FORMAT),
            (&format!("ma {key}"), reply::META_INVALID_OR_DUPLICATE_FLAG),
            ("ma n D-1", reply::META_INVALID_OR_DUPLICATE_FLAG),
            ("ma n v v", reply::META_INVALID_OR_DUPLICATE_FLAG),
            ("ma n MX", reply::META_ARITHMETIC_MODE),
            ("ma n M", reply::META_ARITHMETIC_MODE),
            ("ma n O23456789012345678901234567890123", reply::META_OPAQUE_TOO_LONG),
        ] {
            let input = format!("{line}\r\n");
            assert_eq!(
                decode(input.as_bytes(), 0, &Limits::DEFAULT),
                Decoded::refused(words, input.len()),
                "{line}"
            );
        }
    }

    #[test]
    fn deletes_and_their_replies() {
        let Decoded::Request { request: Request::MetaDelete(delete), .. } =
            decode(b"md mk I x T30 E5 C4 q k O1 v\r\n", 0, &Limits::DEFAULT)
        else {
            panic!("not a delete");
        };
        let flags = &delete.flags;
        assert!(flags.has(Flag::Invalidate) && flags.has(Flag::RemoveValue) && flags.quiet());
        assert_eq!((flags.ttl(), flags.new_cas(), flags.compare_cas()), (Some(30), Some(5), Some(4)));
        let mut out = Vec::new();
        for status in [Status::Done, Status::NotFound, Status::Exists] {
            encode_status(&mut out, status, flags, &delete.key);
        }
        assert_eq!(out, b"HD kmk O1\r\nNF kmk O1\r\nEX kmk O1\r\n");
    }

    #[test]
    fn malformed_deletes_are_refused() {
        for (line, words) in [
            (&b"md\r\n"[..], reply::BAD_FORMAT),
            (b"md k Tx\r\n", reply::META_BAD_TOKEN),
            (b"md k O23456789012345678901234567890123\r\n", reply::META_OPAQUE_TOO_LONG),
        ] {
            assert_eq!(decode(line, 0, &Limits::DEFAULT), Decoded::refused(words, line.len()));
        }
    }
}

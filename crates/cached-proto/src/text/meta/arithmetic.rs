//! `ma key flags*`: increment or decrement, creating the number with `N`.

use super::line::Line;
use super::{MetaFlags, MetaItem, MetaKey, ReturnFlag};
use crate::text::{Decoded, Request};
use crate::{number, reply};

/// An increment or decrement. The reply is [`Arithmetic::encode_number`] (suppressed by `q`), or
/// [`encode_status`](super::encode_status): `NF`, `EX`, `NS`.
///
/// `N` creates a missing number, with the value of `J` and the expiry of `N`; `D` is the delta. `T` sets the
/// expiry, also of a number just created unless `N` comes after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic<'a> {
    /// The key.
    pub key: MetaKey<'a>,
    /// Decrement (`MD`, `M-`), stopping at 0; otherwise increment (`MI`, `M+`), wrapping at 2^64.
    pub decrement: bool,
    /// The flags.
    pub flags: MetaFlags,
}

impl Arithmetic<'_> {
    /// Appends `HD flags*`, or with `v` `VA len flags*` and the number.
    ///
    /// Of `item`, time to live and CAS value are used.
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

pub(super) fn decode<'a>(text: &'a [u8], line_len: usize) -> Decoded<'a> {
    let Some(line) = Line::read(text, false) else {
        return Decoded::refused(reply::BAD_FORMAT, line_len);
    };
    // This command has one reply for all errors in flags.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;
    use crate::text::decode;

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
    fn what_is_refused() {
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
}

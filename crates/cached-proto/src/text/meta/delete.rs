//! `md key flags*`: delete, mark as stale, or leave an empty value.

use super::line::Line;
use super::{MetaFlags, MetaKey};
use crate::text::{Decoded, Request};

/// A removal. The reply is [`encode_status`](super::encode_status): `HD` (suppressed by `q`), `NF`, or `EX`
/// if `C` does not match.
///
/// `x` replaces the item with an empty value, with the flags of `F` and the expiry of `T`. `I` marks the item
/// stale instead of removing it, gives it the expiry of `T` (if any) and a new CAS value (that of `E`, if
/// any), and lets the next client win.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The key.
    pub key: MetaKey<'a>,
    /// The flags.
    pub flags: MetaFlags,
}

pub(super) fn decode<'a>(text: &'a [u8], line_len: usize) -> Decoded<'a> {
    let line = match Line::read_flags(text) {
        Ok(line) => line,
        Err(words) => return Decoded::refused(words, line_len),
    };
    let request = Request::MetaDelete(Delete { key: line.key(), flags: line.flags });
    Decoded::Request { request, consumed: line_len }
}

#[cfg(test)]
mod tests {
    use super::super::{Flag, Status, encode_status};
    use super::*;
    use crate::Limits;
    use crate::reply;
    use crate::text::decode;

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
    fn what_is_refused() {
        for (line, words) in [
            (&b"md\r\n"[..], reply::BAD_FORMAT),
            (b"md k Tx\r\n", reply::META_BAD_TOKEN),
            (b"md k O23456789012345678901234567890123\r\n", reply::META_OPAQUE_TOO_LONG),
        ] {
            assert_eq!(decode(line, 0, &Limits::DEFAULT), Decoded::refused(words, line.len()));
        }
    }
}

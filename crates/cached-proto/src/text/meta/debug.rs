//! `me key`: the attributes of an item, for people.

use super::key::encode;
use super::line::Line;
use super::{MetaKey, Status};
use crate::limits::KEY_LEN_MAX;
use crate::text::{Decoded, Request};
use crate::{number, reply};

/// An inspection of an item, which is not an access. `q` has no effect; the reply to a miss is `EN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debug<'a> {
    /// The key.
    pub key: MetaKey<'a>,
}

/// The attributes of an item that `me` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DebugItem<'a> {
    /// The key as the item holds it.
    pub key: &'a [u8],
    /// The item was stored by `ms … b`.
    pub key_is_binary: bool,
    /// Seconds left to live, or `None`.
    pub ttl: Option<u32>,
    /// Seconds since the last access.
    pub last_access: u32,
    /// The CAS value.
    pub cas: u64,
    /// It was fetched.
    pub fetched: bool,
    /// Its size class.
    pub class: u32,
    /// The number of bytes it takes in all.
    pub size: usize,
}

impl Debug<'_> {
    /// Appends `EN`.
    pub fn encode_miss(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(Status::Miss.code());
        out.extend_from_slice(b"\r\n");
    }

    /// Appends `ME key exp=… la=… cas=… fetch=… cls=… size=…`.
    pub fn encode_hit(&self, out: &mut Vec<u8>, item: &DebugItem<'_>) {
        out.extend_from_slice(b"ME ");
        if item.key_is_binary {
            encode(out, item.key);
        } else {
            out.extend_from_slice(item.key);
        }
        out.extend_from_slice(b" exp=");
        match item.ttl {
            Some(ttl) => number::write_u64(out, u64::from(ttl)),
            None => out.extend_from_slice(b"-1"),
        }
        for (name, value) in [(" la=", u64::from(item.last_access)), (" cas=", item.cas)] {
            out.extend_from_slice(name.as_bytes());
            number::write_u64(out, value);
        }
        out.extend_from_slice(if item.fetched { b" fetch=yes cls=" } else { b" fetch=no cls=" });
        number::write_u64(out, u64::from(item.class));
        out.extend_from_slice(b" size=");
        number::write_u64(out, item.size as u64);
        out.extend_from_slice(b"\r\n");
    }
}

/// `me key [b anything]`: base64 counts only if another word follows the `b`, as in memcached.
pub(super) fn decode<'a>(text: &'a [u8], line_len: usize) -> Decoded<'a> {
    let refused = Decoded::refused(reply::BAD_FORMAT, line_len);
    let Some(line) = Line::read(text, false) else { return refused };
    if line.key.len() > KEY_LEN_MAX {
        return refused;
    }
    let binary = line.words >= 4 && line.first_flag == b"b";
    if binary && MetaKey::base64_len(line.key).is_none() {
        return refused;
    }
    let key = MetaKey::new(line.key, binary);
    Decoded::Request { request: Request::MetaDebug(Debug { key }), consumed: line_len }
}

#[cfg(test)]
mod tests {
    use super::super::KeyBuffer;
    use super::*;
    use crate::Limits;
    use crate::text;

    fn key(input: &str) -> Option<Vec<u8>> {
        match text::decode(input.as_bytes(), 0, &Limits::DEFAULT) {
            Decoded::Request { request: Request::MetaDebug(debug), .. } => {
                Some(debug.key.bytes(&mut KeyBuffer::new()).to_vec())
            }
            other => {
                assert_eq!(other, Decoded::refused(reply::BAD_FORMAT, input.len()));
                None
            }
        }
    }

    #[test]
    fn base64_needs_a_word_behind_it() {
        assert_eq!(key("me Zm9v\r\n").unwrap(), b"Zm9v");
        assert_eq!(key("me Zm9v b\r\n").unwrap(), b"Zm9v");
        assert_eq!(key("me Zm9v b x\r\n").unwrap(), b"foo");
        assert_eq!(key("me Zm9v bx x\r\n").unwrap(), b"Zm9v");
        assert_eq!(key("me k b x\r\n"), None);
        assert_eq!(key("me\r\n"), None);
        assert_eq!(key("me k ?\r\n"), None);
        assert_eq!(key(&format!("me {}\r\n", "k".repeat(251))), None);
    }

    #[test]
    fn replies() {
        let debug = Debug { key: MetaKey::new(b"k", false) };
        let item = DebugItem { key: b"k", class: 1, size: 64, cas: 2, ..DebugItem::default() };
        let mut out = Vec::new();
        debug.encode_miss(&mut out);
        debug.encode_hit(&mut out, &item);
        let item = DebugItem { key: b"foo", key_is_binary: true, ttl: Some(5), fetched: true, ..item };
        debug.encode_hit(&mut out, &item);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "EN\r\nME k exp=-1 la=0 cas=2 fetch=no cls=1 size=64\r\n\
             ME Zm9v exp=5 la=0 cas=2 fetch=yes cls=1 size=64\r\n"
        );
    }
}

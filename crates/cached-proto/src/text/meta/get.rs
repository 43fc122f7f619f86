//! `mg key flags*`: fetch, inspect, touch, or create on a miss. If many clients miss the same item,
//! one of them wins the right to recache it. `me key`: the attributes of an item, for people.

use super::{Flag, Line, MetaFlags, MetaKey, ReturnFlag, Status, encode_flag, encode_key};
use crate::limits::KEY_LEN_MAX;
use crate::text::{Decoded, Request};
use crate::{number, reply};

/// A fetch. The reply to a miss is [`encode_status`](super::encode_status) with
/// [`Status::Miss`](super::Status::Miss), which `q` suppresses. The reply to a hit is
/// [`Get::encode_hit`], which `q` does not suppress.
///
/// On a hit, the flags act in this order. With `C` and an equal CAS value, no value is returned.
/// `T` sets the expiry. The client wins the right to recache (`W`) in three cases: no win has been
/// recorded since the last change and `R` finds too little time left (never for an item without
/// expiry); the item is stale and no win has been recorded; or `N` has just created the item. The
/// win is then recorded with the item. `u` keeps its last access and position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get<'a> {
    /// The key.
    pub key: MetaKey<'a>,
    /// The flags.
    pub flags: MetaFlags,
}

/// The attributes of an item in replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaItem<'a> {
    /// The key as the item holds it.
    pub key: &'a [u8],
    /// Whether the item was stored by `ms … b`, so that its key is shown in base64.
    pub key_is_binary: bool,
    /// The number of bytes of the value.
    pub size: usize,
    /// The client's flags.
    pub client_flags: u32,
    /// The CAS value.
    pub cas: u64,
    /// The remaining seconds to live; `None` if the item never expires, which is shown as -1. See
    /// [`MetaFlags::shows_ttl_before_update`].
    pub ttl: Option<u32>,
    /// Seconds between the previous access and this one.
    pub last_access: u32,
    /// Whether the item was fetched before this request.
    pub fetched: bool,
    /// `W`: whether this client won the right to recache.
    pub won: bool,
    /// `X`: whether the item is stale.
    pub stale: bool,
    /// `Z`: whether another client won the right to recache before.
    pub token_sent: bool,
}

impl MetaItem<'_> {
    /// Appends a space and the attribute that the flag requests.
    #[inline]
    pub(super) fn encode_flag(&self, out: &mut Vec<u8>, flag: ReturnFlag, flags: &MetaFlags) {
        let (letter, value) = match flag {
            ReturnFlag::Opaque => return flags.opaque.encode(out),
            ReturnFlag::Key => return encode_flag(out, self.key, self.key_is_binary),
            ReturnFlag::TtlLeft => match self.ttl {
                Some(ttl) => (b't', u64::from(ttl)),
                None => return out.extend_from_slice(b" t-1"),
            },
            ReturnFlag::Size => (b's', self.size as u64),
            ReturnFlag::Cas => (b'c', self.cas),
            ReturnFlag::ClientFlags => (b'f', u64::from(self.client_flags)),
            ReturnFlag::LastAccess => (b'l', u64::from(self.last_access)),
            ReturnFlag::Hit => (b'h', u64::from(self.fetched)),
        };
        out.extend_from_slice(&[b' ', letter]);
        number::write_u64(out, value);
    }
}

impl Get<'_> {
    /// Returns whether a hit returns the value: `v` was given, and there is no `C` with the item's
    /// own CAS value.
    #[inline]
    pub fn returns_value(&self, cas: u64) -> bool {
        self.flags.has(Flag::Value) && self.flags.compare_cas() != Some(cas)
    }

    /// Appends `VA size flags*` or `HD flags*`, and CRLF. The value and another CRLF follow a `VA`.
    pub fn encode_hit(&self, out: &mut Vec<u8>, item: &MetaItem<'_>) {
        if self.returns_value(item.cas) {
            out.extend_from_slice(b"VA ");
            number::write_u64(out, item.size as u64);
        } else {
            out.extend_from_slice(b"HD");
        }
        for flag in self.flags.returns.iter() {
            item.encode_flag(out, flag, &self.flags);
        }
        for (set, letter) in [(item.token_sent, b'Z'), (item.stale, b'X'), (item.won, b'W')] {
            if set {
                out.extend_from_slice(&[b' ', letter]);
            }
        }
        out.extend_from_slice(b"\r\n");
    }
}

pub(super) fn decode<'a>(text: &'a [u8], line_len: usize) -> Decoded<'a> {
    let line = match Line::read_flags(text) {
        Ok(line) => line,
        Err(words) => return Decoded::refused(words, line_len),
    };
    let request = Request::MetaGet(Get { key: line.key(), flags: line.flags });
    Decoded::Request { request, consumed: line_len }
}

/// An inspection of an item, which does not count as an access. `q` has no effect; the reply to a
/// miss is `EN`.
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
    /// Whether the item was stored by `ms … b`.
    pub key_is_binary: bool,
    /// The remaining seconds to live; `None` if the item never expires.
    pub ttl: Option<u32>,
    /// Seconds since the last access.
    pub last_access: u32,
    /// The CAS value.
    pub cas: u64,
    /// Whether the item was fetched.
    pub fetched: bool,
    /// The item's size class.
    pub class: u32,
    /// The number of bytes that the item occupies in all.
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
            encode_key(out, item.key);
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

/// Decodes `me key [b anything]`. As in memcached, `b` marks the key as base64 only if another word
/// follows it.
pub(super) fn decode_debug<'a>(text: &'a [u8], line_len: usize) -> Decoded<'a> {
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
    use super::super::{KeyBuffer, Status, encode_status};
    use super::*;
    use crate::text::{self, decode};
    use crate::{Limits, reply};

    fn get(input: &str) -> Get<'_> {
        match decode(input.as_bytes(), 0, &Limits::DEFAULT) {
            Decoded::Request { request: Request::MetaGet(get), consumed } => {
                assert_eq!(consumed, input.len());
                get
            }
            other => panic!("{input:?}: {other:?}"),
        }
    }

    fn hit(input: &str, item: &MetaItem<'_>) -> String {
        let mut out = Vec::new();
        get(input).encode_hit(&mut out, item);
        String::from_utf8(out).unwrap()
    }

    fn miss(input: &str) -> String {
        let (mut out, get) = (Vec::new(), get(input));
        encode_status(&mut out, Status::Miss, &get.flags, &get.key);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn hits_echo_in_order() {
        let item = MetaItem { key: b"mk", size: 2, client_flags: 7, cas: 88, ..MetaItem::default() };
        assert_eq!(hit("mg mk\r\n", &item), "HD\r\n");
        assert_eq!(hit("mg mk v\r\n", &item), "VA 2\r\n");
        assert_eq!(hit("mg mk s v f h l t k Oxyz q\r\n", &item), "VA 2 s2 f7 h0 l0 t-1 kmk Oxyz\r\n");
        assert_eq!(hit("mg mk E99 c\r\n", &item), "HD c88\r\n");
        assert_eq!(hit("mg mk v C88\r\n", &item), "HD\r\n");
        assert_eq!(hit("mg mk v C89\r\n", &item), "VA 2\r\n");
        let item = MetaItem { ttl: Some(30), last_access: 4, fetched: true, stale: true, ..item };
        assert_eq!(hit("mg mk t l h\r\n", &MetaItem { won: true, ..item }), "HD t30 l4 h1 X W\r\n");
        assert_eq!(hit("mg mk\r\n", &MetaItem { token_sent: true, ..item }), "HD Z X\r\n");
        let item = MetaItem { key: b"foo", key_is_binary: true, ..item };
        assert_eq!(hit("mg foo k\r\n", &MetaItem { stale: false, ..item }), "HD kZm9v b\r\n");
    }

    #[test]
    fn misses_echo_opaque_and_key() {
        assert_eq!(miss("mg nokey\r\n"), "EN\r\n");
        assert_eq!(miss("mg nokey Oabc v t k s\r\n"), "EN Oabc knokey\r\n");
        assert_eq!(miss("mg Zm9v k b O\r\n"), "EN kZm9v b O\r\n");
    }

    #[test]
    fn keys_may_be_base64() {
        let input = String::from("mg Zm9v b\r\n");
        let mut buffer = KeyBuffer::new();
        assert_eq!(get(&input).key.bytes(&mut buffer), b"foo");
        assert_eq!(get("mg Zm9v\r\n").key.bytes(&mut buffer), b"Zm9v");
    }

    #[test]
    fn what_is_refused() {
        let key = "k".repeat(251);
        let opaque = "o".repeat(32);
        for (line, words) in [
            ("mg", reply::BAD_FORMAT),
            (&format!("mg {key}"), reply::BAD_FORMAT),
            (&format!("mg k O{opaque}"), reply::META_OPAQUE_TOO_LONG),
            (&format!("mg k O{opaque} T"), reply::META_BAD_TOKEN),
            ("mg k S", reply::META_INVALID_FLAG),
            ("mg k !", reply::BAD_FORMAT),
            ("mz k", reply::ERROR),
            ("mz k noreply", reply::SILENT),
            (" mg k", reply::ERROR),
        ] {
            let input = format!("{line}\r\n");
            assert_eq!(
                decode(input.as_bytes(), 0, &Limits::DEFAULT),
                Decoded::refused(words, input.len()),
                "{line}"
            );
        }
    }

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

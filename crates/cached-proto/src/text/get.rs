//! `get`, `gets`, `gat`, `gats`: any number of keys, found one at a time.
//!
//! Neither the line of keys nor its replies have a limited length. The keys stay in the input and
//! are found one by one; a connection that has to continue later, after its output has been sent,
//! keeps only [`Get::cursor`].
//!
//! If one key has more than 250 bytes, the whole line is refused before any key is served.
//! (memcached serves the keys before it, drops those replies and all earlier unsent ones, and adds
//! a stray CRLF to the error. Here only the error is sent.)

use super::{Decoded, Request};
use crate::limits::{KEY_LEN_MAX, TOKENIZED_LEN_MAX};
use crate::{number, reply, scan};
use memchr::memrchr;
use std::fmt;

/// A retrieval of one or more keys.
///
/// The reply to each hit is [`encode_value_head`], the value and CRLF. A miss has no reply.
/// [`reply::END`] comes last. There is no `noreply`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Get<'a> {
    /// Whether to show the CAS value (`gets`, `gats`).
    pub with_cas: bool,
    /// `gat`, `gats`: the new expiry of found items, as the client sent it.
    pub exptime: Option<i32>,
    /// The line without its end.
    line: &'a [u8],
    /// The position in `line` from which to search for the next key.
    at: usize,
    /// The end of the key that starts at `at`, if it is known; otherwise 0.
    key_end: usize,
}

impl<'a> Get<'a> {
    /// Returns the next key, 1 to 250 bytes. The first call always finds one.
    #[inline]
    pub fn next_key(&mut self) -> Option<&'a [u8]> {
        let (start, end) = match self.key_end {
            0 => scan::next_word(self.line, self.at)?,
            end => (self.at, end),
        };
        (self.at, self.key_end) = (end, 0);
        Some(&self.line[start..end])
    }

    /// Fills `into` with the next keys and returns their number. If `into` is not full, no further
    /// keys follow.
    #[inline]
    pub fn next_keys(&mut self, into: &mut [&'a [u8]]) -> usize {
        if self.key_end != 0 {
            // This is a line with one key, whose end is known.
            return match into.first_mut().zip(self.next_key()) {
                Some((place, key)) => {
                    *place = key;
                    1
                }
                None => 0,
            };
        }
        let (count, at) = scan::words(self.line, self.at, into);
        self.at = at;
        count
    }

    /// Returns whether the line is used up, so that no key can follow.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.at >= self.line.len()
    }

    /// Returns the position of the next key, to continue from there later.
    #[inline]
    pub fn cursor(&self) -> GetCursor {
        GetCursor { with_cas: self.with_cas, exptime: self.exptime, at: self.at, end: self.line.len() }
    }
}

impl fmt::Debug for Get<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = *self;
        let keys: Vec<_> =
            std::iter::from_fn(|| rest.next_key()).map(|key| key.escape_ascii().to_string()).collect();
        f.debug_struct("Get")
            .field("with_cas", &self.with_cas)
            .field("exptime", &self.exptime)
            .field("keys", &keys)
            .finish()
    }
}

/// A suspended [`Get`]: keep the line in the input, and [`resume`](Self::resume) when the output
/// has space again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetCursor {
    with_cas: bool,
    exptime: Option<i32>,
    at: usize,
    end: usize,
}

impl GetCursor {
    /// Returns the retrieval at the key where it stopped.
    ///
    /// `input` must start with the same line as when the cursor was created; bytes may have been
    /// appended. With other input, the keys are wrong or missing.
    #[inline]
    pub fn resume<'a>(&self, input: &'a [u8]) -> Get<'a> {
        let line = &input[..self.end.min(input.len())];
        Get { with_cas: self.with_cas, exptime: self.exptime, line, at: self.at, key_end: 0 }
    }
}

const KEY_AT: usize = 4;

/// Returns the key of the most frequent request, `get k` and CRLF with nothing else in the line,
/// and the request's length in bytes.
///
/// `None` says nothing about the input; [`decode_line`](super::decode_line) decodes it. A server
/// that calls this first avoids building a whole [`Decoded`] per request.
#[inline]
pub fn plain_get(input: &[u8]) -> Option<(&[u8], usize)> {
    let rest = input.strip_prefix(b"get ")?;
    // The search goes no further than the longest key, so that an endless line is not searched
    // again with every piece.
    let key_len = scan::word_before_crlf(&rest[..rest.len().min(KEY_LEN_MAX + 2)])?;
    (1..=KEY_LEN_MAX).contains(&key_len).then(|| (&rest[..key_len], KEY_AT + key_len + 2))
}

/// Returns a guess of the first key in `input`, if it starts with `get` or `set`. The guess may be
/// wrong, so use it only for prefetching.
#[inline]
pub fn first_key(input: &[u8]) -> Option<&[u8]> {
    let rest = input.strip_prefix(b"get ").or_else(|| input.strip_prefix(b"set "))?;
    scan::plain_word(&rest[..rest.len().min(KEY_LEN_MAX + 1)])
}

/// Fills `into` with the keys of a `get k…` and CRLF, if they fit and the line contains nothing
/// else. Returns their number and the request's length in bytes.
///
/// This finds the keys and the end of the line in one pass. As in [`plain_get`], `None` says
/// nothing about the input.
#[inline]
pub fn plain_gets<'a>(input: &'a [u8], into: &mut [&'a [u8]]) -> Option<(usize, usize)> {
    if !input.starts_with(b"get ") {
        return None;
    }
    let (count, end) = scan::words_before_crlf(input, KEY_AT, into)?;
    let keys = &into[..count];
    (count > 0 && keys.iter().all(|key| key.len() <= KEY_LEN_MAX)).then_some((count, end + 2))
}

/// Decodes the same line as a request.
#[inline]
pub(super) fn decode_plain(input: &[u8]) -> Option<Decoded<'_>> {
    let (_, consumed) = plain_get(input)?;
    let key_end = consumed - 2;
    let get = Get { with_cas: false, exptime: None, line: &input[..key_end], at: KEY_AT, key_end };
    Some(Decoded::Request { request: Request::Get(get), consumed })
}

/// Decodes `get k…` and `gets k…`; the verb is `at` bytes long.
#[inline]
pub(super) fn decode_get<'a>(text: &'a [u8], at: usize, with_cas: bool, line_len: usize) -> Decoded<'a> {
    keys(text, at, with_cas, None, line_len)
}

/// Decodes `gat exptime k…` and `gats exptime k…`; the verb is `at` bytes long.
pub(super) fn decode_gat<'a>(text: &'a [u8], at: usize, with_cas: bool, line_len: usize) -> Decoded<'a> {
    let Some((start, end)) = scan::next_word(text, at) else {
        return Decoded::refused(reply::BAD_FORMAT, line_len);
    };
    if scan::next_word(text, end).is_none() {
        return Decoded::refused(reply::BAD_FORMAT, line_len);
    }
    let Some(exptime) = number::token_i32(&text[start..end]) else {
        return Decoded::refused(reply::INVALID_EXPTIME, line_len);
    };
    keys(text, end, with_cas, Some(exptime), line_len)
}

#[inline]
fn keys<'a>(
    line: &'a [u8],
    mut at: usize,
    with_cas: bool,
    exptime: Option<i32>,
    line_len: usize,
) -> Decoded<'a> {
    while line.get(at) == Some(&b' ') {
        at += 1;
    }
    let keys = &line[at..];
    if keys.is_empty() || keys.len() > KEY_LEN_MAX && (at >= TOKENIZED_LEN_MAX - 1 || has_long_key(keys)) {
        return Decoded::refused(reply::BAD_FORMAT, line_len);
    }
    Decoded::Request {
        request: Request::Get(Get { with_cas, exptime, line, at, key_end: 0 }),
        consumed: line_len,
    }
}

/// Returns whether more than 250 bytes in a row contain no space. Checks one byte in 250,
/// regardless of the number of keys.
fn has_long_key(mut keys: &[u8]) -> bool {
    while let Some(window) = keys.get(..=KEY_LEN_MAX) {
        match memrchr(b' ', window) {
            Some(space) => keys = &keys[space + 1..],
            None => return true,
        }
    }
    false
}

/// Appends `VALUE key flags len [cas]` and CRLF; the value and another CRLF follow.
#[inline]
pub fn encode_value_head(out: &mut Vec<u8>, key: &[u8], flags: u32, value_len: usize, cas: Option<u64>) {
    // The header consists of "VALUE ", three numbers with a space each, and CRLF.
    const ROOM: usize = 6 + 11 + 21 + 21 + 2;
    out.reserve(ROOM + key.len());
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    number::write_u64(out, u64::from(flags));
    out.push(b' ');
    number::write_u64(out, value_len as u64);
    if let Some(cas) = cas {
        out.push(b' ');
        number::write_u64(out, cas);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a complete hit whose value is contiguous.
#[inline]
pub fn encode_value(out: &mut Vec<u8>, key: &[u8], flags: u32, value: &[u8], cas: Option<u64>) {
    out.reserve(key.len() + value.len() + 64);
    encode_value_head(out, key, flags, value.len(), cas);
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::*;
    use crate::Limits;

    fn get(input: &[u8]) -> Option<Get<'_>> {
        match decode(input, 0, &Limits::DEFAULT) {
            Decoded::Request { request: Request::Get(get), consumed } => {
                assert_eq!(consumed, input.len());
                Some(get)
            }
            _ => None,
        }
    }

    fn keys_of(input: &[u8]) -> Vec<&[u8]> {
        let mut get = get(input).expect("a get");
        std::iter::from_fn(|| get.next_key()).collect()
    }

    fn refusal(input: &[u8]) -> &'static [u8] {
        match decode(input, 0, &Limits::DEFAULT) {
            Decoded::Refused(refused) => {
                assert_eq!((refused.consumed, refused.swallow, refused.close), (input.len(), 0, false));
                refused.reply
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_spaces_separate_keys() {
        assert_eq!(keys_of(b"get k\r\n"), [b"k"]);
        assert_eq!(keys_of(b"get k\n"), [b"k"]);
        assert_eq!(keys_of(b"get   a  bc   \r\n"), [&b"a"[..], b"bc"]);
        assert_eq!(keys_of(b"get a\tb\0c\r\r\n"), [b"a\tb\0c\r"]);
        assert_eq!(keys_of(b"get k noreply\r\n"), [&b"k"[..], b"noreply"]);
        let many = [&b"gets"[..], &b" key".repeat(10_000), b"\r\n"].concat();
        assert_eq!(keys_of(&many).len(), 10_000);
        let mut get = get(&many).unwrap();
        let mut into = [&b""[..]; 16];
        let counts: Vec<_> =
            std::iter::from_fn(|| Some(get.next_keys(&mut into)).filter(|count| *count != 0)).collect();
        assert_eq!(counts, [16; 625]);
        assert_eq!(into, [b"key"; 16]);
    }

    #[test]
    fn the_four_verbs() {
        let plain = get(b"get k\r\n").unwrap();
        assert_eq!((plain.with_cas, plain.exptime), (false, None));
        let gets = get(b"gets k\r\n").unwrap();
        assert_eq!((gets.with_cas, gets.exptime), (true, None));
        let gat = get(b"gat -1 k\r\n").unwrap();
        assert_eq!((gat.with_cas, gat.exptime), (false, Some(-1)));
        let gats = get(b"gats 10 k l\r\n").unwrap();
        assert_eq!((gats.with_cas, gats.exptime), (true, Some(10)));
    }

    #[test]
    fn keys_come_in_batches() {
        let mut into = [&b""[..]; 3];
        let mut one = get(b"get k\r\n").unwrap();
        assert_eq!((one.next_keys(&mut into), into[0]), (1, &b"k"[..]));
        assert_eq!(one.next_keys(&mut into), 0);
        let mut many = get(b"get a  b c d\r\n").unwrap();
        assert_eq!((many.next_keys(&mut into), into), (3, [&b"a"[..], b"b", b"c"]));
        assert_eq!(many.cursor().resume(b"get a  b c d\r\n").next_key(), Some(&b"d"[..]));
        assert_eq!((many.next_keys(&mut into), into[0]), (1, &b"d"[..]));
        assert_eq!(many.next_keys(&mut into), 0);
    }

    #[test]
    fn missing_and_bad_arguments() {
        for line in [&b"get\r\n"[..], b"gets\r\n", b"get   \r\n", b"gat\r\n", b"gat 1\r\n", b"gats x\r\n"] {
            assert_eq!(refusal(line), reply::BAD_FORMAT, "{line:?}");
        }
        assert_eq!(refusal(b"gat x k\r\n"), reply::INVALID_EXPTIME);
        assert_eq!(refusal(b"gat +1 k\r\n"), reply::INVALID_EXPTIME);
        assert_eq!(refusal(b" get k\r\n"), reply::ERROR);
        assert_eq!(refusal(b"GET k\r\n"), reply::ERROR);
    }

    #[test]
    fn one_long_key_refuses_the_line() {
        let (good, bad) = ([b'k'; 250], [b'k'; 251]);
        let line = |keys: &[&[u8]]| [&b"get "[..], &keys.join(&b' '), b"\r\n"].concat();
        assert_eq!(keys_of(&line(&[&good, b"a", &good, &good])).len(), 4);
        for keys in [&[&bad[..]][..], &[b"a", &bad], &[&good, &bad, b"c"], &[b"a", &good, b"b", &bad]] {
            assert_eq!(refusal(&line(keys)), reply::BAD_FORMAT);
        }
    }

    #[test]
    fn keys_of_every_length() {
        for len in 1..=250 {
            let key = vec![b'k'; len];
            for end in [&b"\r\n"[..], b"\n", b" \r\n"] {
                assert_eq!(keys_of(&[b"get ", &key[..], end].concat()), [&key]);
                assert_eq!(keys_of(&[b"gets  ", &key[..], b" ", &key, end].concat()), [&key, &key]);
            }
        }
    }

    #[test]
    fn the_first_key_is_guessed() {
        for input in [&b"get key\r\n"[..], b"get key k\r\n", b"get key ", b"set key 0 0 2\r\nhi\r\n"] {
            assert_eq!(first_key(input), Some(&b"key"[..]));
        }
        assert_eq!(first_key(&[b"get ", &[b'k'; 250][..], b"\r\n"].concat()), Some(&[b'k'; 250][..]));
        for input in [&b"gets key\r\n"[..], b"get key", b"get  key\r\n", b"get \r\n", b"", b"\x80\0\0"] {
            assert_eq!(first_key(input), None, "{:?}", input.escape_ascii().to_string());
        }
        assert_eq!(first_key(&[b"set ", &[b'k'; 300][..], b" 0"].concat()), None);
    }

    #[test]
    fn plain_gets_are_gets() {
        let good = [b'k'; 250];
        let bad = [b'k'; 251];
        for count in 0..20 {
            for (key, space, end) in [
                (&b"k"[..], &b" "[..], &b"\r\n"[..]),
                (b"a-key-of-some-length", b"  ", b" \r\n"),
                (&good, b" ", b"\r\n"),
            ] {
                let words = [space, key].concat().repeat(count);
                let line = [b"get", &words[..], end].concat();
                let input = [&line[..], b"get next\r\n"].concat();
                let mut into = [&b""[..]; 16];
                let plain = plain_gets(&input, &mut into);
                if (1..=16).contains(&count) {
                    assert_eq!(plain, Some((count, line.len())));
                    assert_eq!(into[..count], keys_of(&line));
                } else {
                    assert_eq!(plain, None);
                }
            }
        }
        for line in [
            &b"gets a b\r\n"[..],
            b"get a\tb\r\n",
            b"get a b\n",
            b"get a b\r",
            b"get a b",
            b"get",
            b"",
            &[b"get a ", &bad[..], b"\r\n"].concat(),
        ] {
            assert_eq!(plain_gets(line, &mut [&b""[..]; 16]), None, "{:?}", line.escape_ascii().to_string());
        }
    }

    #[test]
    fn a_cursor_resumes_at_the_next_key() {
        let input = b"gats 5 one two three\r\nget other\r\n";
        let Decoded::Request { request: Request::Get(mut get), .. } = decode(input, 0, &Limits::DEFAULT)
        else {
            panic!("not a get");
        };
        assert_eq!(get.next_key(), Some(&b"one"[..]));
        let moved = input.to_vec();
        let mut resumed = get.cursor().resume(&moved);
        assert_eq!(format!("{resumed:?}"), format!("{get:?}"));
        assert_eq!(resumed.next_key(), Some(&b"two"[..]));
        assert_eq!(resumed.next_key(), Some(&b"three"[..]));
        assert_eq!(resumed.cursor().resume(&moved).next_key(), None);
        assert_eq!(get.cursor().resume(b"gats").next_key(), None, "another input does no harm");
    }

    #[test]
    fn values_are_framed() {
        let mut out = Vec::new();
        encode_value(&mut out, b"k", 5, b"hi", None);
        encode_value(&mut out, b"key", u32::MAX, b"", Some(u64::MAX));
        assert_eq!(out, b"VALUE k 5 2\r\nhi\r\nVALUE key 4294967295 0 18446744073709551615\r\n\r\n".to_vec());
    }
}

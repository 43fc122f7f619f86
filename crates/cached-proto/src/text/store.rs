//! `set`, `add`, `replace`, `append`, `prepend`, `cas`: a line, then a data block that ends in
//! CRLF.
//!
//! The length is checked first. If it is malformed, only the line is refused, even with `noreply`,
//! and the bytes after it are read as commands. If it is valid, any other error discards the body,
//! and `noreply` suppresses the reply. The terminator of a body is checked last, by
//! [`Store::value`], after the server has checked the size.

use super::{BodyHeader, Decoded, Request};
use crate::limits::{KEY_LEN_MAX, TOKENS_MAX, VALUE_LEN_MAX};
use crate::reply::{self, unless};
use crate::{number, scan};

/// The way of storing a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreVerb {
    /// Unconditionally.
    Set,
    /// Stores only if the item does not exist.
    Add,
    /// Stores only if the item exists.
    Replace,
    /// Appends to the value of the item, whose flags and expiry stay.
    Append,
    /// Prepends to the value of the item, whose flags and expiry stay.
    Prepend,
    /// Stores only if the item has not changed since the client read it.
    Cas,
}

impl StoreVerb {
    #[inline]
    pub(super) fn parse(verb: &[u8]) -> Option<StoreVerb> {
        Some(match verb {
            b"set" => StoreVerb::Set,
            b"add" => StoreVerb::Add,
            b"replace" => StoreVerb::Replace,
            b"append" => StoreVerb::Append,
            b"prepend" => StoreVerb::Prepend,
            b"cas" => StoreVerb::Cas,
            _ => return None,
        })
    }
}

/// The line of a storage command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreHeader<'a> {
    /// The way in which the value is stored.
    pub verb: StoreVerb,
    /// The key, 1 to 250 bytes.
    pub key: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// The expiry as the client sent it. 0: never; negative: immediately; up to 30 days: relative,
    /// in seconds; above that: Unix time.
    pub exptime: i32,
    /// The CAS value to compare with; 0 unless `verb` is [`StoreVerb::Cas`].
    pub cas: u64,
    /// The length of the value in bytes, without its terminator. It may be up to 2 GiB, so check it
    /// before reserving memory.
    pub value_len: usize,
    /// Whether to suppress all replies, including errors.
    pub noreply: bool,
}

/// A storage command with its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// The command line.
    pub header: StoreHeader<'a>,
    /// The value and two more bytes, which must be CRLF.
    pub body: &'a [u8],
}

impl<'a> Store<'a> {
    /// Returns the value, or `None` if it is not followed by CRLF. In that case, reply
    /// [`reply::BAD_DATA_CHUNK`] (unless `noreply`) and store nothing.
    #[inline]
    pub fn value(&self) -> Option<&'a [u8]> {
        check_terminator(self.body)
    }
}

/// The number of bytes after a value: CR and LF.
pub const TERMINATOR_LEN: usize = 2;

/// Returns the value of a body, or `None` if the body does not end in CRLF.
#[inline]
pub fn check_terminator(body: &[u8]) -> Option<&[u8]> {
    body.strip_suffix(b"\r\n")
}

/// Decodes `set key flags exptime len [noreply]` and `cas key flags exptime len unique [noreply]`.
pub(super) fn decode<'a>(verb: StoreVerb, input: &'a [u8], text: &'a [u8], line_len: usize) -> Decoded<'a> {
    match plain_header(verb, text) {
        Some(header) => with_body(header, input, line_len),
        None => decode_unusual(verb, input, text, line_len),
    }
}

/// Decodes a line with single spaces, short plain numbers and at most `noreply` after them. `None`
/// says nothing about the input.
#[inline]
fn plain_header(verb: StoreVerb, text: &[u8]) -> Option<StoreHeader<'_>> {
    if verb == StoreVerb::Cas {
        return None;
    }
    let (start, end) = scan::next_word(text, scan::word_len(text))?;
    let (flags, at) = plain_number(text, end)?;
    let (exptime, at) = plain_number(text, at)?;
    let (value_len, at) = plain_number(text, at)?;
    let noreply = match &text[at..] {
        b"" => false,
        b" noreply" => true,
        _ => return None,
    };
    let key = &text[start..end];
    let header = StoreHeader {
        verb,
        key,
        flags,
        exptime: exptime as i32,
        cas: 0,
        value_len: value_len as usize,
        noreply,
    };
    (key.len() <= KEY_LEN_MAX).then_some(header)
}

/// Reads one space and one to nine digits, up to a space or the end; returns the number and its
/// end.
#[inline]
fn plain_number(text: &[u8], at: usize) -> Option<(u32, usize)> {
    if text.get(at) != Some(&b' ') {
        return None;
    }
    let (start, mut end, mut number) = (at + 1, at + 1, 0u32);
    while let Some(byte) = text.get(end) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        // The value wraps only if there are too many digits anyway.
        number = number.wrapping_mul(10).wrapping_add(u32::from(digit));
        end += 1;
    }
    let ended = text.get(end).is_none_or(|byte| *byte == b' ');
    (ended && (1..=9).contains(&(end - start))).then_some((number, end))
}

fn decode_unusual<'a>(verb: StoreVerb, input: &'a [u8], text: &'a [u8], line_len: usize) -> Decoded<'a> {
    let mut words = Words { text, at: scan::word_len(text), count: 1 };
    let (Some(key), Some(flags), Some(exptime), Some(len)) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Decoded::refused(reply::BAD_FORMAT, line_len);
    };
    let Some(value_len) = value_len(words.of(len)) else {
        return Decoded::refused(reply::BAD_FORMAT, line_len);
    };
    let unique = words.next();
    let noreply = words.noreply(unique.unwrap_or(len));

    let body_len = value_len + TERMINATOR_LEN;
    let refused = || Decoded::swallow(unless(noreply, reply::BAD_FORMAT), line_len, body_len);
    let key = words.of(key);
    if key.len() > KEY_LEN_MAX {
        return refused();
    }
    let (Some(flags), Some(exptime)) = (number::c_flags(&text[flags.0..]), number::c_i32(&text[exptime.0..]))
    else {
        return refused();
    };
    let mut cas = 0;
    if verb == StoreVerb::Cas {
        match unique.and_then(|unique| number::token_u64(words.of(unique))) {
            Some(unique) => cas = unique,
            None => return refused(),
        }
    }

    with_body(StoreHeader { verb, key, flags, exptime, cas, value_len, noreply }, input, line_len)
}

/// Returns the header with its body, if that has arrived.
#[inline]
fn with_body<'a>(header: StoreHeader<'a>, input: &'a [u8], line_len: usize) -> Decoded<'a> {
    let body_len = header.value_len + TERMINATOR_LEN;
    match input.get(line_len..line_len + body_len) {
        Some(body) => Decoded::Request {
            request: Request::Store(Store { header, body }),
            consumed: line_len + body_len,
        },
        None => Decoded::Body { header: BodyHeader::Store(header), consumed: line_len, body_len },
    }
}

/// Returns the length of a data block, unless it is malformed or above memcached's limit.
pub(crate) fn value_len(token: &[u8]) -> Option<usize> {
    let len = usize::try_from(number::token_i32(token)?).ok()?;
    (len <= VALUE_LEN_MAX).then_some(len)
}

/// The words of a line, in order. They are counted, because memcached stops at [`TOKENS_MAX`].
pub(super) struct Words<'a> {
    pub(super) text: &'a [u8],
    pub(super) at: usize,
    pub(super) count: usize,
}

impl<'a> Words<'a> {
    #[inline]
    pub(super) fn next(&mut self) -> Option<(usize, usize)> {
        if self.count == TOKENS_MAX {
            return None;
        }
        let word = scan::next_word(self.text, self.at)?;
        self.at = word.1;
        self.count += 1;
        Some(word)
    }

    #[inline]
    pub(super) fn of(&self, word: (usize, usize)) -> &'a [u8] {
        &self.text[word.0..word.1]
    }

    /// Returns whether the last word is `noreply`; `last` is the last one read so far.
    #[inline]
    pub(super) fn noreply(&mut self, mut last: (usize, usize)) -> bool {
        while let Some(word) = self.next() {
            last = word;
        }
        self.of(last) == b"noreply"
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::*;
    use crate::Limits;

    fn decoded(input: &[u8]) -> Decoded<'_> {
        decode(input, 0, &Limits::DEFAULT)
    }

    fn store(input: &[u8]) -> Store<'_> {
        match decoded(input) {
            Decoded::Request { request: Request::Store(store), consumed } => {
                assert_eq!(consumed, input.len());
                store
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_verbs_and_arguments() {
        for (name, verb) in [
            ("set", StoreVerb::Set),
            ("add", StoreVerb::Add),
            ("replace", StoreVerb::Replace),
            ("append", StoreVerb::Append),
            ("prepend", StoreVerb::Prepend),
        ] {
            let input = format!("{name} k 7 -1 2 noreply\r\nhi\r\n");
            let store = store(input.as_bytes());
            let header =
                StoreHeader { verb, key: b"k", flags: 7, exptime: -1, cas: 0, value_len: 2, noreply: true };
            assert_eq!(store.header, header);
            assert_eq!(store.value(), Some(&b"hi"[..]));
        }
        let cas = store(b"cas k 0 2592001 0 18446744073709551615\n\r\n");
        assert_eq!((cas.header.cas, cas.header.exptime, cas.header.noreply), (u64::MAX, 2_592_001, false));
        assert_eq!(cas.value(), Some(&b""[..]));
    }

    #[test]
    fn numbers_as_memcached_reads_them() {
        let set = |args: &str| format!("set k {args} 1\r\nx\r\n");
        assert_eq!(store(set("4294967296 0").as_bytes()).header.flags, 0);
        assert_eq!(store(set("5\t9 0").as_bytes()).header.flags, 5);
        assert_eq!(store(set("\t 6").as_bytes()).header.flags, 6, "white space runs on into the next word");
        assert_eq!(store(set("0 9999999999").as_bytes()).header.exptime, 1_410_065_407);
        for bad in ["-1 0", "abc 0", "0 abc", "0x1 0"] {
            let input = set(bad);
            let line_len = input.len() - 3;
            assert_eq!(decoded(input.as_bytes()), Decoded::swallow(reply::BAD_FORMAT, line_len, 3), "{bad}");
        }
    }

    #[test]
    fn a_malformed_length_refuses_the_line_alone() {
        for len in ["-1", "+1", "abc", "1x", "2147483648", "2147483646", "4294967295", "000000000001"] {
            for noreply in ["", " noreply"] {
                let input = format!("set k 0 0 {len}{noreply}\r\n");
                assert_eq!(
                    decoded(input.as_bytes()),
                    Decoded::refused(reply::BAD_FORMAT, input.len()),
                    "{input}"
                );
            }
        }
        assert_eq!(decoded(b"set k 0 0\r\n"), Decoded::refused(reply::BAD_FORMAT, 11));
        assert_eq!(decoded(b"set\r\n"), Decoded::refused(reply::BAD_FORMAT, 5));
        assert!(matches!(decoded(b"set k 0 0 2147483645\r\n"), Decoded::Body { body_len: 0x7fff_ffff, .. }));
    }

    #[test]
    fn later_errors_throw_the_body_away_and_obey_noreply() {
        let key = "k".repeat(251);
        let cases = [
            format!("set {key} 0 0 5"),
            "cas k 0 0 5".into(),
            "cas k 0 0 5 -1".into(),
            "cas k 0 0 5 abc".into(),
        ];
        for line in cases {
            let input = format!("{line}\r\n");
            assert_eq!(
                decoded(input.as_bytes()),
                Decoded::swallow(reply::BAD_FORMAT, input.len(), 7),
                "{line}"
            );
            let input = format!("{line} noreply\r\n");
            assert_eq!(decoded(input.as_bytes()), Decoded::swallow(reply::SILENT, input.len(), 7), "{line}");
        }
    }

    #[test]
    fn usual_and_unusual_lines_mean_the_same() {
        for numbers in ["0 0 2", "7 60 2", "999999999 999999999 2", "0 0 02"] {
            for noreply in ["", " noreply"] {
                let usual = format!("set key {numbers}{noreply}\r\nhi\r\n");
                assert!(
                    plain_header(StoreVerb::Set, &usual.as_bytes()[..usual.len() - 6]).is_some(),
                    "{usual}"
                );
                let unusual = format!("set  key {numbers} {noreply} \r\nhi\r\n");
                let (one, other) = (store(usual.as_bytes()), store(unusual.as_bytes()));
                assert_eq!(format!("{one:?}"), format!("{other:?}"));
            }
        }
        for line in [
            "set k 0 0",
            "set k 0 0 ",
            "set k 0 0 1x",
            "set k 0 0 1234567890",
            "set k  0 0 1",
            "set k 0 0 1 x",
            "set",
        ] {
            assert!(plain_header(StoreVerb::Set, line.as_bytes()).is_none(), "{line}");
        }
    }

    #[test]
    fn noreply_is_the_last_of_23_words() {
        let line = |extra: usize| format!("set k 0 0 0{} noreply\r\n\r\n", " x".repeat(extra));
        assert!(store(line(0).as_bytes()).header.noreply);
        assert!(store(line(17).as_bytes()).header.noreply);
        assert!(!store(line(18).as_bytes()).header.noreply);
        assert!(!store(b"set k 0 0 0 noreply x\r\n\r\n").header.noreply);
    }

    #[test]
    fn a_body_under_way_is_announced() {
        let input = b"set key 1 2 3\r\nabc\r\n";
        for have in 15..input.len() {
            let Decoded::Body { header: BodyHeader::Store(header), consumed, body_len } =
                decoded(&input[..have])
            else {
                panic!("with {have} bytes");
            };
            assert_eq!((header.key, header.value_len, consumed, body_len), (&b"key"[..], 3, 15, 5));
        }
        assert_eq!(store(input).value(), Some(&b"abc"[..]));
        assert_eq!(store(b"set key 1 2 3\r\nabcde").value(), None);
        assert_eq!(check_terminator(b"abc\r\n"), Some(&b"abc"[..]));
        assert_eq!(check_terminator(b"\n"), None);
    }
}

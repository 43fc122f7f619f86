//! The meta commands: two letters, a key, and flags of one letter each.
//!
//! All of them share one flag grammar ([`MetaFlags`]): any known flag may come with any command,
//! and is ignored where it has no meaning. A reply is a two-letter code and, in the order of the
//! request, the flags that request something in return ([`ReturnFlags`]). The server suppresses the
//! replies that `q` hides: [`Get`], [`Set`], [`Delete`] and [`Arithmetic`] name them.
//!
//! An opaque that is too long is refused before the command has any effect. (memcached notices it
//! while it writes the reply, when `mg … N`, `mg … T` or `ma` have had their effect, or another
//! error has come first.)

mod flags;
mod get;
mod set;

pub use flags::{Flag, MetaFlags, Opaque, ReturnFlag, ReturnFlags};
pub use get::{Debug, DebugItem, Get, MetaItem};
pub use set::{Arithmetic, Delete, Set, SetHeader, SetMode, encode_set};

use super::{Decoded, Request};
use crate::limits::{KEY_LEN_MAX, META_TOKENS_MAX, TOKENS_MAX};
use crate::{reply, scan};
use flags::FlagError;

/// The two letters at the start of a reply without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// `HD`: the command was executed, or the item was found and its value not requested.
    Done,
    /// `EN`: a miss of `mg`.
    Miss,
    /// `NF`: a miss of `md`, `ma`, or of a conditional `ms`.
    NotFound,
    /// `NS`: not stored.
    NotStored,
    /// `EX`: the CAS value differs.
    Exists,
}

impl Status {
    /// Returns the two letters.
    #[inline]
    pub fn code(self) -> &'static [u8; 2] {
        match self {
            Status::Done => b"HD",
            Status::Miss => b"EN",
            Status::NotFound => b"NF",
            Status::NotStored => b"NS",
            Status::Exists => b"EX",
        }
    }
}

/// Appends a reply without a value that repeats opaque and key only: a miss, and all replies to
/// `md`.
#[inline]
pub fn encode_status(out: &mut Vec<u8>, status: Status, flags: &MetaFlags, key: &MetaKey<'_>) {
    out.extend_from_slice(status.code());
    for flag in flags.returns.iter() {
        match flag {
            ReturnFlag::Opaque => flags.opaque.encode(out),
            ReturnFlag::Key => key.encode_flag(out),
            _ => {}
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Decodes a line whose verb is `m` and `letter`.
pub(crate) fn decode<'a>(letter: u8, input: &'a [u8], text: &'a [u8], line_len: usize) -> Decoded<'a> {
    match letter {
        b'g' => get::decode(text, line_len),
        b's' => set::decode(input, text, line_len),
        b'd' => set::decode_delete(text, line_len),
        b'a' => set::decode_arithmetic(text, line_len),
        b'n' => Decoded::Request { request: Request::MetaNoop, consumed: line_len },
        b'e' => get::decode_debug(text, line_len),
        _ => crate::text::decode_unknown(text, line_len),
    }
}

// A meta command's line: key, sometimes an argument, and flags. As in memcached, the reply names
// one of several errors: first a flag that starts with neither a letter nor a digit, then a key
// that is too long, too many words, a repeated flag or an unknown letter. A malformed number is
// reported after all flags were read, and the last such error is the one reported.

/// The line of a meta command, read in one pass.
struct Line<'a> {
    /// The key as it was sent, of any length.
    key: &'a [u8],
    /// The word between key and flags, for commands that have one (the length in `ms`).
    argument: &'a [u8],
    /// The first flag as it was sent; empty if there are no flags.
    first_flag: &'a [u8],
    /// The number of words of the line, at most 23.
    words: usize,
    /// The byte after `M`; 0 without such a flag, a line feed (which is not a mode) for `M` alone.
    mode: u8,
    /// The flags; not valid if there is a `fault`.
    flags: MetaFlags,
    /// The reply to an error in key or flags.
    fault: Option<&'static [u8]>,
}

impl<'a> Line<'a> {
    /// Reads the line of a command with a key and flags. An error is the reply.
    #[inline]
    fn read_flags(text: &'a [u8]) -> Result<Line<'a>, &'static [u8]> {
        let Some(line) = Line::read(text, false) else { return Err(reply::BAD_FORMAT) };
        match line.fault {
            Some(words) => Err(words),
            None if line.flags.opaque.is_too_long() => Err(reply::META_OPAQUE_TOO_LONG),
            None => Ok(line),
        }
    }

    /// Reads a line; returns `None` if the key or the argument is missing, or if a flag starts with
    /// neither a letter nor a digit.
    #[inline]
    fn read(text: &'a [u8], argument: bool) -> Option<Line<'a>> {
        let (start, mut at) = scan::next_word(text, 2)?;
        let key = &text[start..at];
        let mut line = Line {
            key,
            argument: b"",
            first_flag: b"",
            words: 2,
            mode: 0,
            flags: MetaFlags::NONE,
            fault: if key.len() > KEY_LEN_MAX { Some(reply::BAD_FORMAT) } else { None },
        };
        if argument {
            let (start, end) = scan::next_word(text, at)?;
            (line.argument, line.words, at) = (&text[start..end], 3, end);
        }
        // An error in the key or in the number of words comes first, then an error that stops the
        // parser, then one that is only kept.
        let (mut stopped, mut kept) = (line.fault.is_some(), None);
        while line.words < TOKENS_MAX
            && let Some((start, end)) = scan::next_word(text, at)
        {
            let token = &text[start..end];
            if !matches!(token[0], b'A'..=b'z' | b'0'..=b'9') {
                return None;
            }
            if line.first_flag.is_empty() {
                line.first_flag = token;
            }
            line.words += 1;
            at = end;
            if stopped {
                continue;
            }
            match line.flags.add(token, key) {
                Ok(()) => {}
                Err(FlagError::Stop(words)) => (line.fault, stopped) = (Some(words), true),
                Err(FlagError::Later(words)) => kept = words.or(kept).or(Some(reply::BAD_FORMAT)),
            }
            if token[0] == Flag::Mode as u8 {
                line.mode = *token.get(1).unwrap_or(&b'\n');
            }
            line.flags.mark(token[0]);
        }
        if line.words > META_TOKENS_MAX && key.len() <= KEY_LEN_MAX {
            line.fault = Some(reply::META_TOO_MANY_FLAGS);
        }
        line.fault = line.fault.or(kept);
        Some(line)
    }

    /// Returns the key, once the flags are known to be valid.
    #[inline]
    fn key(&self) -> MetaKey<'a> {
        MetaKey::new(self.key, self.flags.has(Flag::BinaryKey))
    }
}

/// Returns the flags of a line without an argument, or the reply to its error.
#[cfg(test)]
fn parse(line: &str) -> Result<MetaFlags, &'static [u8]> {
    let line = Line::read(line.as_bytes(), false).ok_or(reply::BAD_FORMAT)?;
    line.fault.map_or(Ok(line.flags), Err)
}

// Keys of meta commands may be base64. Like memcached's decoder, this one skips bytes outside the
// alphabet. Replies encode the key again instead of repeating the text that was sent.

/// The maximum length of a key whose base64 form has 250 bytes.
pub const KEY_DECODED_LEN_MAX: usize = KEY_LEN_MAX / 4 * 3;

/// Space for a decoded key.
#[derive(Clone, Copy, Debug)]
pub struct KeyBuffer([u8; KEY_DECODED_LEN_MAX]);

impl KeyBuffer {
    /// Returns an empty buffer.
    pub const fn new() -> KeyBuffer {
        KeyBuffer([0; KEY_DECODED_LEN_MAX])
    }
}

impl Default for KeyBuffer {
    fn default() -> Self {
        KeyBuffer::new()
    }
}

/// A key as it was sent, and whether that is base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaKey<'a> {
    text: &'a [u8],
    binary: bool,
}

impl<'a> MetaKey<'a> {
    /// Returns a key of at most 250 bytes. If `binary`, `text` must be well-formed base64.
    fn new(text: &'a [u8], binary: bool) -> MetaKey<'a> {
        MetaKey { text, binary }
    }

    /// Returns the key as it was sent, in base64 or not.
    #[inline]
    pub fn as_sent(&self) -> &'a [u8] {
        self.text
    }

    /// Returns whether the key was sent as base64. `ms` stores this with the item, so that later
    /// replies show it in base64 too.
    #[inline]
    pub fn is_binary(&self) -> bool {
        self.binary
    }

    /// Returns the key itself, 1 to 250 bytes; `buffer` holds the result if the key is base64.
    #[inline]
    pub fn bytes<'b>(&self, buffer: &'b mut KeyBuffer) -> &'b [u8]
    where
        'a: 'b,
    {
        if self.binary { decode_base64(self.text, buffer) } else { self.text }
    }

    /// Appends ` k` and the key. If it was sent as base64, it is returned as base64, followed by `
    /// b`.
    #[inline]
    fn encode_flag(&self, out: &mut Vec<u8>) {
        let mut buffer = KeyBuffer::new();
        encode_flag(out, self.bytes(&mut buffer), self.binary);
    }

    /// Returns the length of the key that `text` encodes, if `text` is base64.
    fn base64_len(text: &[u8]) -> Option<usize> {
        let mut buffer = KeyBuffer::new();
        let len = decode_base64(text, &mut buffer).len();
        (len > 0).then_some(len)
    }
}

/// Appends ` k` and the key of an item.
fn encode_flag(out: &mut Vec<u8>, key: &[u8], binary: bool) {
    out.extend_from_slice(b" k");
    if binary {
        encode_key(out, key);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
}

/// Decodes `text`; the result is empty if the text is not base64.
fn decode_base64<'b>(text: &[u8], buffer: &'b mut KeyBuffer) -> &'b [u8] {
    let digits = text.iter().filter(|byte| base64_value(**byte).is_some()).count();
    if digits == 0 || digits % 4 != 0 {
        return &[];
    }
    let (mut len, mut block, mut count, mut pads) = (0, 0u32, 0, 0);
    for byte in text {
        let Some(value) = base64_value(*byte) else { continue };
        pads += usize::from(*byte == b'=');
        block = block << 6 | value;
        count += 1;
        if count % 4 != 0 {
            continue;
        }
        let [_, bytes @ ..] = block.to_be_bytes();
        let Some(room) = buffer.0.get_mut(len..len + 3) else { return &[] };
        room.copy_from_slice(&bytes);
        block = 0;
        if pads > 2 {
            return &[];
        }
        len += 3 - pads;
        if pads > 0 {
            break;
        }
    }
    &buffer.0[..len]
}

/// Appends the base64 of a key.
pub fn encode_key(out: &mut Vec<u8>, key: &[u8]) {
    for chunk in key.chunks(3) {
        let mut bytes = [0; 4];
        bytes[1..=chunk.len()].copy_from_slice(chunk);
        let block = u32::from_be_bytes(bytes);
        for digit in 0..4 {
            out.push(if digit <= chunk.len() {
                ALPHABET[(block >> (18 - 6 * digit) & 63) as usize]
            } else {
                b'='
            });
        }
    }
}

/// Returns the six bits of a base64 digit; padding counts as zero.
fn base64_value(byte: u8) -> Option<u32> {
    Some(u32::from(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        b'=' => 0,
        _ => return None,
    }))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_flags() {
        for (line, words) in [
            ("mg k v v", reply::META_DUPLICATE_FLAG),
            ("mg k T1 T2", reply::META_DUPLICATE_FLAG),
            ("mg k a", reply::META_INVALID_FLAG),
            ("mg k 5", reply::META_INVALID_FLAG),
            ("mg k 5 5", reply::META_INVALID_FLAG),
            ("mg k [", reply::META_INVALID_FLAG),
            ("mg k ?", reply::BAD_FORMAT),
            ("mg k v {", reply::BAD_FORMAT),
            ("mg k \u{e9}", reply::BAD_FORMAT),
            ("mg k T", reply::META_BAD_TOKEN),
            ("mg k Nx", reply::META_BAD_TOKEN),
            ("mg k R+1", reply::META_BAD_TOKEN),
            ("mg k C-1", reply::META_BAD_TOKEN),
            ("mg k E", reply::META_BAD_TOKEN),
            ("mg k Jx", reply::META_INVALID_INITIAL),
            ("mg k Dx", reply::META_INVALID_DELTA),
            ("mg k F", reply::BAD_FORMAT),
            ("mg k F-1", reply::BAD_FORMAT),
            ("mg Zm9 b", reply::META_BAD_KEY),
            ("mg Zm9 b T", reply::META_BAD_TOKEN),
            ("mg Zm9 T b", reply::META_BAD_KEY),
            ("mg Zm9 b F", reply::META_BAD_KEY),
            ("mg k F T", reply::META_BAD_TOKEN),
            ("mg k T a", reply::META_INVALID_FLAG),
        ] {
            assert_eq!(parse(line), Err(words), "{line}");
        }
    }

    #[test]
    fn how_many_flags() {
        let letters = "bcfhklOqstuvxCDEFIJLMNPRT";
        let line = |flags: usize| {
            let mut line = String::from("mg Zm9v");
            for letter in letters.chars().take(flags) {
                line += &format!(" {letter}1");
            }
            line
        };
        assert!(parse(&line(18)).is_ok());
        assert_eq!(parse(&line(19)), Err(reply::META_TOO_MANY_FLAGS));
        assert_eq!(parse(&line(25)), Err(reply::META_TOO_MANY_FLAGS));
        // The 24th word is ignored, the 23rd is not.
        assert_eq!(parse(&(line(21) + " ?")), Err(reply::META_TOO_MANY_FLAGS));
        assert_eq!(parse(&(line(20) + " ?")), Err(reply::BAD_FORMAT));
    }

    #[test]
    fn base64_as_memcached_reads_it() {
        for (text, key) in [
            (&b"Zm9v"[..], &b"foo"[..]),
            (b"Zm9vYg==", b"foob"),
            (b"Zm9vYmE=", b"fooba"),
            (b"Z!m9.v", b"foo"),
            (b"AA==ignored=", b"\0"),
            (b"=AAA", b"\0\0"),
            (b"+/+/", b"\xfb\xff\xbf"),
        ] {
            assert_eq!(decode_base64(text, &mut KeyBuffer::new()), key, "{text:?}");
        }
        for bad in [&b"Zm9"[..], b"", b"!", b"A===", b"====", b"k", b"Zm9vZ"] {
            assert_eq!(MetaKey::base64_len(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_longest_key_fits() {
        let text = [b'A'; KEY_LEN_MAX];
        assert_eq!(MetaKey::base64_len(&text), None);
        assert_eq!(MetaKey::base64_len(&text[..248]), Some(KEY_DECODED_LEN_MAX));
    }

    #[test]
    fn keys_are_shown_as_they_were_sent() {
        let mut out = Vec::new();
        MetaKey::new(b"Zm!9v", true).encode_flag(&mut out);
        MetaKey::new(b"Zm9v", false).encode_flag(&mut out);
        assert_eq!(out, b" kZm9v b kZm9v");
    }

    #[test]
    fn base64_round_trips() {
        for len in 1..=KEY_DECODED_LEN_MAX {
            let key: Vec<u8> = (0..len).map(|at| (at * 89 + len) as u8).collect();
            let mut text = Vec::new();
            encode_key(&mut text, &key);
            assert_eq!(decode_base64(&text, &mut KeyBuffer::new()), key);
        }
    }
}

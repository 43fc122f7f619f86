//! The text protocol: one line per command, followed by a data block for storage commands.
//!
//! A line ends with LF; a CR before it belongs to the line end. Only spaces separate words.
//! Commands are case-sensitive. The verb of a data command is the text before the *first* space of
//! the line, so a leading space makes ` get k` unknown; administrative commands are recognised by
//! their first word. A line that is too short, has too few arguments or a malformed length is
//! refused immediately. If another argument is invalid, the line is refused with a reply unless
//! `noreply` ends the line, and the body that follows is discarded.
//!
//! Each module has the types, the decoder and the encoders of a family of commands; [`decode_line`]
//! chooses among them.

pub mod auth;
mod get;
pub mod meta;
mod simple;
mod store;

pub use get::{Get, GetCursor, encode_value, encode_value_head, first_key, plain_get, plain_gets};
pub(crate) use simple::decode_unknown;
pub use simple::{
    Admin, Arithmetic, Delete, FlushAll, FlushPrefix, Touch, Verb, Verbosity, encode_number, encode_stat,
    encode_version,
};
pub(crate) use store::value_len;
pub use store::{Store, StoreHeader, StoreVerb, TERMINATOR_LEN, check_terminator};

use crate::limits::{LEADING_SPACES_MAX, LINE_LEN_MAX, LINE_LEN_MIN, Limits, TOKENIZED_LEN_MAX, TOKENS_MAX};
use crate::{reply, scan};
use memchr::memchr;
use std::fmt;

/// The result of [`decode`].
pub type Decoded<'a> = crate::Decoded<Request<'a>, BodyHeader<'a>, &'static [u8]>;

/// One complete text or meta request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// `get`, `gets`, `gat`, `gats`.
    Get(Get<'a>),
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`, with the body.
    Store(Store<'a>),
    /// `delete`.
    Delete(Delete<'a>),
    /// `incr`, `decr`.
    Arithmetic(Arithmetic<'a>),
    /// `touch`.
    Touch(Touch<'a>),
    /// `mg`.
    MetaGet(meta::Get<'a>),
    /// `ms`, with its body.
    MetaSet(meta::Set<'a>),
    /// `md`.
    MetaDelete(meta::Delete<'a>),
    /// `ma`.
    MetaArithmetic(meta::Arithmetic<'a>),
    /// `mn`: reply with [`reply::META_NOOP`], and send all replies.
    MetaNoop,
    /// `me`.
    MetaDebug(meta::Debug<'a>),
    /// `flush_all`.
    FlushAll(FlushAll),
    /// `flush_prefix`.
    FlushPrefix(FlushPrefix<'a>),
    /// `version`.
    Version,
    /// `quit`: send the replies that are due, then close the connection without another reply.
    Quit,
    /// `verbosity`.
    Verbosity(Verbosity),
    /// `stats`; word 0 is the verb itself. It has no `noreply`.
    Stats(Tokens<'a>),
    /// An administrative command.
    Admin(Admin<'a>),
}

/// The header of a request whose body has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyHeader<'a> {
    /// `set` and the other storage commands.
    Store(StoreHeader<'a>),
    /// `ms`.
    MetaSet(meta::SetHeader<'a>),
}

/// Decodes the request at the start of `input`.
///
/// `scanned` is the length that `input` had when a call returned
/// [`Incomplete`](crate::Decoded::Incomplete), or 0 if none did. These bytes contain no line feed,
/// so a long line that arrives in small pieces is not searched repeatedly. A wrong value may decode
/// this request wrongly, but never violates memory safety.
///
/// As in memcached, lines longer than 2048 bytes depend on how they arrive: such a line closes the
/// connection if its end has not arrived, and is decoded if it has.
#[inline]
pub fn decode<'a>(input: &'a [u8], scanned: usize, limits: &Limits) -> Decoded<'a> {
    if let Some(get) = get::decode_plain(input) {
        return get;
    }
    decode_line(input, scanned, limits)
}

/// Like [`decode`], for input in which [`plain_get`] found nothing. It is a separate function, so
/// that `decode` is small enough to inline.
pub fn decode_line<'a>(input: &'a [u8], scanned: usize, limits: &Limits) -> Decoded<'a> {
    let Some(line_len) = line_end(input, scanned) else {
        return unfinished_line(input, limits);
    };
    if line_len < LINE_LEN_MIN {
        return Decoded::refused(reply::BAD_FORMAT, line_len);
    }
    let text = trim_line_end(&input[..line_len]);
    if text.starts_with(b"get ") {
        return get::decode_get(text, 3, false, line_len);
    }
    if text.starts_with(b"set ") {
        return store::decode(StoreVerb::Set, input, tokenized(text), line_len);
    }
    let verb_len = scan::word_len(text);
    let verb = &text[..verb_len];
    if let [b'm', letter] = *verb {
        return meta::decode(letter, input, tokenized(text), line_len);
    }
    if let Some(verb) = StoreVerb::parse(verb) {
        return store::decode(verb, input, tokenized(text), line_len);
    }
    match verb {
        b"get" => get::decode_get(text, verb_len, false, line_len),
        b"gets" => get::decode_get(text, verb_len, true, line_len),
        b"gat" => get::decode_gat(text, verb_len, false, line_len),
        b"gats" => get::decode_gat(text, verb_len, true, line_len),
        b"delete" => simple::decode_delete(tokenized(text), line_len),
        b"incr" => simple::decode_arithmetic(tokenized(text), false, line_len),
        b"decr" => simple::decode_arithmetic(tokenized(text), true, line_len),
        b"touch" => simple::decode_touch(tokenized(text), line_len),
        b"version" => Decoded::Request { request: Request::Version, consumed: line_len },
        b"quit" => Decoded::Request { request: Request::Quit, consumed: line_len },
        b"stats" => {
            Decoded::Request { request: Request::Stats(Tokens::split(tokenized(text))), consumed: line_len }
        }
        b"watch" => simple::decode_watch(tokenized(text), line_len),
        _ => simple::decode_unknown(tokenized(text), line_len),
    }
}

/// The words of a line: at most 23, separated by spaces, and not empty.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tokens<'a> {
    text: &'a [u8],
    count: usize,
}

impl<'a> Tokens<'a> {
    /// Splits a line given without its end.
    pub(crate) fn split(text: &'a [u8]) -> Tokens<'a> {
        let count = Tokens { text, count: TOKENS_MAX }.iter().count();
        Tokens { text, count }
    }

    /// Returns the number of words, including the verb.
    #[expect(clippy::len_without_is_empty, reason = "the verb is always there")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the word at `index`; word 0 is the verb.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.iter().nth(index)
    }

    /// Returns the words in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (text, mut at) = (self.text, 0);
        std::iter::from_fn(move || {
            let (start, end) = scan::next_word(text, at)?;
            at = end;
            Some(&text[start..end])
        })
        .take(self.count)
    }

    /// Returns whether there is a word at `index` and `name` begins with it. memcached compares
    /// sub-commands this way.
    pub fn is_prefix_of(&self, index: usize, name: &str) -> bool {
        self.get(index).is_some_and(|token| name.as_bytes().starts_with(token))
    }
}

impl fmt::Debug for Tokens<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|token| token.escape_ascii().to_string())).finish()
    }
}

/// Returns the length of the first line including its line feed, if that has arrived. The first
/// `scanned` bytes contain none.
#[inline]
fn line_end(input: &[u8], scanned: usize) -> Option<usize> {
    let rest = input.get(scanned..).unwrap_or(&[]);
    memchr(b'\n', rest).map(|at| scanned + at + 1)
}

/// Returns the line without its end, LF or CRLF.
#[inline]
fn trim_line_end(line: &[u8]) -> &[u8] {
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    text.strip_suffix(b"\r").unwrap_or(text)
}

/// Returns the part of a line that is split into words. It is limited because memcached keeps their
/// offsets in 16 bits.
#[inline]
fn tokenized(text: &[u8]) -> &[u8] {
    // The limit includes CRLF (or LF).
    &text[..text.len().min(TOKENIZED_LEN_MAX - 1)]
}

/// Decides what to do with a line whose end has not arrived.
#[cold]
fn unfinished_line<'a>(input: &[u8], limits: &Limits) -> Decoded<'a> {
    if input.len() <= LINE_LEN_MAX {
        return Decoded::Incomplete;
    }
    let spaces = input.iter().take(LEADING_SPACES_MAX + 1).take_while(|byte| **byte == b' ').count();
    let rest = &input[spaces..];
    if spaces > LEADING_SPACES_MAX || !(rest.starts_with(b"get ") || rest.starts_with(b"gets ")) {
        return Decoded::Close;
    }
    if input.len() > limits.get_line_len_max {
        return Decoded::refused_close(reply::OUT_OF_MEMORY_READING, input.len());
    }
    Decoded::Incomplete
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(input: &[u8]) -> Decoded<'_> {
        decode(input, 0, &Limits::DEFAULT)
    }

    #[test]
    fn short_lines_are_refused() {
        for line in [&b"\n"[..], b"\r\n", b"a\r\n", b"ab\n", b"mn\n", b" \r\n"] {
            assert_eq!(decoded(line), Decoded::refused(reply::BAD_FORMAT, line.len()), "{line:?}");
        }
        assert!(matches!(decoded(b"mn\r\n"), Decoded::Request { consumed: 4, .. }));
    }

    #[test]
    fn a_long_line_must_be_a_get() {
        let junk = vec![b'x'; LINE_LEN_MAX + 1];
        assert_eq!(decoded(&junk[..LINE_LEN_MAX]), Decoded::Incomplete);
        assert_eq!(decoded(&junk), Decoded::Close);
        assert_eq!(decoded(&vec![b' '; LINE_LEN_MAX + 1]), Decoded::Close);
        for verb in [&b"get "[..], b"gets "] {
            let mut line = [verb, &junk].concat();
            assert_eq!(decoded(&line), Decoded::Incomplete);
            line.splice(0..0, vec![b' '; LEADING_SPACES_MAX]);
            assert_eq!(decoded(&line), Decoded::Incomplete);
            line.insert(0, b' ');
            assert_eq!(decoded(&line), Decoded::Close);
        }
        assert_eq!(decoded(&[&b"gat 1 "[..], &junk].concat()), Decoded::Close);
        // A line whose end has arrived may have any length.
        let line = [&junk[..], b"\r\n"].concat();
        assert_eq!(decoded(&line), Decoded::refused(reply::ERROR, line.len()));
    }

    #[test]
    fn an_endless_get_is_capped() {
        let line = [&b"get "[..], &vec![b'k'; 5000]].concat();
        let limits = Limits { get_line_len_max: 5000 };
        assert_eq!(decode(&line[..5000], 0, &limits), Decoded::Incomplete);
        assert_eq!(
            decode(&line, 5000, &limits),
            Decoded::refused_close(reply::OUT_OF_MEMORY_READING, line.len())
        );
    }

    #[test]
    fn bytes_without_a_line_feed_are_scanned_once() {
        let line = b"gets key\r\n";
        for scanned in 0..line.len() {
            assert_eq!(decode(line, scanned, &Limits::DEFAULT), decoded(line));
        }
        // A wrong value finds no key, and does no harm.
        assert_eq!(decode(line, 100, &Limits::DEFAULT), Decoded::Incomplete);
    }
}

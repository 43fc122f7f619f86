//! The end of a line, and the limits of a line without one.

use memchr::memchr;

use super::Decoded;
use crate::limits::{LEADING_SPACES_MAX, LINE_LEN_MAX, Limits, TOKENIZED_LEN_MAX};
use crate::reply;

/// Returns the length of the first line with its line feed, if that has arrived; the first `scanned` bytes
/// hold none.
#[inline]
pub(super) fn len(input: &[u8], scanned: usize) -> Option<usize> {
    let rest = input.get(scanned..).unwrap_or(&[]);
    memchr(b'\n', rest).map(|at| scanned + at + 1)
}

/// Returns the line without its end: LF, or CR and LF.
#[inline]
pub(super) fn trim_end(line: &[u8]) -> &[u8] {
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    text.strip_suffix(b"\r").unwrap_or(text)
}

/// Returns the part of a line that is split into words: memcached keeps their offsets in 16 bits.
#[inline]
pub(super) fn tokenized(text: &[u8]) -> &[u8] {
    // A CRLF (or LF) short of the limit.
    &text[..text.len().min(TOKENIZED_LEN_MAX - 1)]
}

/// Decides about a line whose end has not arrived.
#[cold]
pub(super) fn unfinished<'a>(input: &[u8], limits: &Limits) -> Decoded<'a> {
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
    use super::super::decode;
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
        // With its end, a line may have any length.
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
        // A wrong value finds nothing and breaks nothing.
        assert_eq!(decode(line, 100, &Limits::DEFAULT), Decoded::Incomplete);
    }
}

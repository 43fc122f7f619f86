//! A meta command's line: key, perhaps an argument, and flags.
//!
//! Of several errors the reply names one, as in memcached: first a flag that begins with neither letter nor
//! digit, then a key that is too long, too many words, a repeated or unknown letter; a malformed number is
//! reported after all flags were read, so that the last such error is named.

use super::flags::FlagError;
use super::{Flag, MetaFlags, MetaKey};
use crate::limits::{KEY_LEN_MAX, META_TOKENS_MAX, TOKENS_MAX};
use crate::{reply, scan};

/// A meta command's line, read in one pass.
pub(super) struct Line<'a> {
    /// The key as it was sent, of any length.
    pub(super) key: &'a [u8],
    /// The word between key and flags, if the command has one (`ms`: the length).
    pub(super) argument: &'a [u8],
    /// The first flag as it was sent; empty if there is none.
    pub(super) first_flag: &'a [u8],
    /// The number of words of the line, at most 23.
    pub(super) words: usize,
    /// The byte after `M`; 0 if there is no such flag, a line feed (which is no mode) if `M` stands alone.
    pub(super) mode: u8,
    /// The flags; not valid if there is a `fault`.
    pub(super) flags: MetaFlags,
    /// The reply to an error in key or flags.
    pub(super) fault: Option<&'static [u8]>,
}

impl<'a> Line<'a> {
    /// Reads the line of a command that consists of key and flags; an error is the reply.
    #[inline]
    pub(super) fn read_flags(text: &'a [u8]) -> Result<Line<'a>, &'static [u8]> {
        let Some(line) = Line::read(text, false) else { return Err(reply::BAD_FORMAT) };
        match line.fault {
            Some(words) => Err(words),
            None if line.flags.opaque.is_too_long() => Err(reply::META_OPAQUE_TOO_LONG),
            None => Ok(line),
        }
    }

    /// Reads a line; `None` if key or argument are missing, or if a flag does not begin with a letter or
    /// digit.
    #[inline]
    pub(super) fn read(text: &'a [u8], argument: bool) -> Option<Line<'a>> {
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
        // An error in key or number of words precedes one that stops, and that one precedes those that are
        // only kept.
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
    pub(super) fn key(&self) -> MetaKey<'a> {
        MetaKey::new(self.key, self.flags.has(Flag::BinaryKey))
    }
}

/// Returns the flags of a line without an argument, or the reply to its error.
#[cfg(test)]
pub(super) fn parse(line: &str) -> Result<MetaFlags, &'static [u8]> {
    let line = Line::read(line.as_bytes(), false).ok_or(reply::BAD_FORMAT)?;
    line.fault.map_or(Ok(line.flags), Err)
}

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
}

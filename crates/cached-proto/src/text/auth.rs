//! Text authentication (`-Y`): what a client may send before its password has been checked.
//!
//! A client authenticates by a `set` whose value is user and password; key, flags and expiry are
//! ignored. Everything else is refused without being interpreted as a command.
//!
//! ```text
//! set x 0 0 11␍␊
//! user secret␍␊
//! ```

use super::{Tokens, line_end, tokenized, trim_line_end};
use crate::limits::{AUTH_TOKEN_LEN_MAX, LINE_LEN_MAX};
use crate::{number, reply};
use std::convert::Infallible;

/// A user and a password that a client has sent. Both may be empty, and the password may hold
/// blanks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Password<'a> {
    /// The bytes before the first blank.
    pub user: &'a [u8],
    /// The bytes after the blank.
    pub password: &'a [u8],
}

/// The result of [`decode`]. After a refusal, send its text; the connection stays unauthenticated.
pub type Decoded<'a> = crate::Decoded<Password<'a>, Infallible, &'static [u8]>;

/// The shortest input that memcached interprets.
const INPUT_LEN_MIN: usize = 3;

/// Decodes what a client has sent before its authentication.
///
/// The input kept for an incomplete request is at most a read of 16 KiB plus
/// [`AUTH_TOKEN_LEN_MAX`].
pub fn decode(input: &[u8]) -> Decoded<'_> {
    if input.len() < INPUT_LEN_MIN {
        return Decoded::Incomplete;
    }
    let Some(line_len) = line_end(input, 0) else {
        return if input.len() > LINE_LEN_MAX { Decoded::Close } else { Decoded::Incomplete };
    };
    let text = trim_line_end(&input[..line_len]);
    let tokens = Tokens::split(tokenized(text));
    if tokens.get(0).is_none() {
        return Decoded::Close;
    }
    let announced = tokens.get(4).and_then(number::token_u32).filter(|_| text.starts_with(b"set"));
    let Some(value_len) = announced else { return Decoded::refused(reply::UNAUTHENTICATED, line_len) };
    let value_len = value_len as usize;
    if value_len > AUTH_TOKEN_LEN_MAX {
        // The value is not skipped: its lines are refused one by one.
        return Decoded::refused(reply::AUTH_TOKEN_TOO_LONG, line_len);
    }
    let consumed = line_len + value_len + 2;
    let Some(body) = input.get(line_len..consumed) else { return Decoded::Incomplete };
    let Some(token) = body.strip_suffix(b"\r\n") else {
        return Decoded::refused(reply::AUTH_BAD_TERMINATION, consumed);
    };
    match memchr::memchr(b' ', token) {
        Some(at) => {
            let request = Password { user: &token[..at], password: &token[at + 1..] };
            Decoded::Request { request, consumed }
        }
        None => Decoded::refused(reply::AUTH_BAD_TOKEN, consumed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(input: &[u8]) -> (&'static [u8], usize) {
        match decode(input) {
            Decoded::Refused(refused) => {
                assert!(!refused.close && refused.swallow == 0);
                (refused.reply, refused.consumed)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_set_with_user_and_password() {
        for (head, token) in [("set x 0 0 ", "user secret"), ("set  other 7 -1 ", "user secret")] {
            let input = format!("{head}{}\r\n{token}\r\nget k\r\n", token.len());
            let request = Password { user: b"user", password: b"secret" };
            let consumed = input.len() - "get k\r\n".len();
            assert_eq!(decode(input.as_bytes()), Decoded::Request { request, consumed });
            for have in 0..consumed {
                assert_eq!(decode(&input.as_bytes()[..have]), Decoded::Incomplete, "{have}");
            }
        }
        let blanks = b"set x 0 0 6 noreply\r\nu  a b\r\n";
        let request = Password { user: b"u", password: b" a b" };
        assert_eq!(decode(blanks), Decoded::Request { request, consumed: blanks.len() });
        let bare = b"set x 0 0 1\n \r\n";
        let request = Password { user: b"", password: b"" };
        assert_eq!(decode(bare), Decoded::Request { request, consumed: bare.len() });
    }

    #[test]
    fn everything_else_is_refused() {
        for line in [
            "get k\r\n",
            "stats\n",
            "mn\r\n",
            "version\r\n",
            "quit\r\n",
            " set x 0 0 1\r\n",
            "set x 0 0\r\n",
            "set x 0 0 -1\r\n",
            "set x 0 0 4294967296\r\n",
            "set x 0 0 a\r\n",
            "add x 0 0 3\r\n",
            "\u{80}\0\0\0\n",
        ] {
            assert_eq!(refused(line.as_bytes()), (reply::UNAUTHENTICATED, line.len()), "{line}");
        }
        for len in ["16385", "1048576", "2147483646", "4294967295"] {
            let line = format!("set x 0 0 {len}\r\n");
            assert_eq!(refused(line.as_bytes()), (reply::AUTH_TOKEN_TOO_LONG, line.len()), "{line}");
        }
        assert_eq!(refused(b"set x 0 0 3\r\na bcd"), (reply::AUTH_BAD_TERMINATION, 18));
        assert_eq!(refused(b"set x 0 0 2\r\nhi\r\n"), (reply::AUTH_BAD_TOKEN, 17));
    }

    #[test]
    fn blank_and_endless_lines_close() {
        for input in [&b"\r\n\r\n"[..], b"   \r\n", b"\n\n\n", b"\r\r\n"] {
            assert!(matches!(decode(input), Decoded::Close | Decoded::Refused(_)), "{input:?}");
        }
        assert_eq!(decode(b"\r\n\r\n"), Decoded::Close);
        assert_eq!(decode(b"     \r\n"), Decoded::Close);
        assert_eq!(decode(&[b'x'; LINE_LEN_MAX]), Decoded::Incomplete);
        assert_eq!(decode(&[b'x'; LINE_LEN_MAX + 1]), Decoded::Close);
        assert_eq!(decode(&[b' '; LINE_LEN_MAX + 1]), Decoded::Close);
    }
}

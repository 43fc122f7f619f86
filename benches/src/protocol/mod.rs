//! Encodes requests and decodes reply heads of memcached's three protocols and of Valkey's, by pure
//! functions without sockets.
//!
//! A reply is a sequence of *heads* (a line, or a binary header with extras and key). A [`Head::Value`] is
//! followed by the value's bytes, which the caller takes from the stream itself, so that a large value is never
//! collected anywhere.
//!
//! | request | text | meta | binary | RESP |
//! |---|---|---|---|---|
//! | get of one | `get k` | `mg k v` | GET | `GET` |
//! | get of many | `get k1 k2 …` | `mg k q k v` each, then `mn` | GETKQ each, then NOOP | `GET` each |
//! | set | `set k 0 exp len` | `ms k len Texp` | SET | `SET` |

mod binary;
mod meta;
mod resp;
mod text;

use crate::keyspace::KeySpace;

/// The maximum length of a head: a key of 250 bytes with the fields around it, or an error line.
pub const HEAD_BYTES_MAX: usize = 1024;

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// The classic text commands.
    Text,
    /// The meta commands.
    Meta,
    /// The binary protocol.
    Binary,
    /// RESP2, the protocol of Valkey and Redis.
    Resp,
}

/// One step of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head<'a> {
    /// A value of `value_bytes` bytes follows, then [`Protocol::trailer`].
    Value {
        /// The key, if the reply repeats it.
        key: Option<&'a [u8]>,
        /// Length of the value, without the trailer.
        value_bytes: usize,
    },
    /// The requested key is missing.
    Miss,
    /// The end of this get's reply.
    End,
    /// The set was done.
    Stored,
    /// The server refused the set, for example for lack of memory; the connection stays open.
    Refused(&'a [u8]),
}

/// Bytes that are not a valid reply.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum HeadError {
    /// A complete but unexpected head. This includes `CLIENT_ERROR`, which means that the request
    /// was invalid.
    #[error("unexpected reply: {0}")]
    Unexpected(String),
}

impl HeadError {
    fn unexpected(bytes: &[u8]) -> Self {
        Self::Unexpected(bytes[..bytes.len().min(120)].escape_ascii().to_string())
    }
}

impl Protocol {
    /// Appends a get of all `indexes` (at least one).
    pub fn push_get(self, keys: &KeySpace, indexes: &[u64], out: &mut Vec<u8>) {
        match self {
            Self::Text => text::push_get(keys, indexes, out),
            Self::Meta => meta::push_get(keys, indexes, out),
            Self::Binary => binary::push_get(keys, indexes, out),
            Self::Resp => resp::push_get(keys, indexes, out),
        }
    }

    /// Appends a set of `index` to its value, which expires after `expiry_s` seconds (0: never).
    pub fn push_set(self, keys: &KeySpace, index: u64, expiry_s: u32, out: &mut Vec<u8>) {
        match self {
            Self::Text => text::push_set(keys, index, expiry_s, out),
            Self::Meta => meta::push_set(keys, index, expiry_s, out),
            Self::Binary => binary::push_set(keys, index, expiry_s, out),
            Self::Resp => resp::push_set(keys, index, expiry_s, out),
        }
    }

    /// Returns the head at the start of `bytes` and its length, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// Fails if the bytes are not a reply.
    pub fn parse_head(self, bytes: &[u8]) -> Result<Option<(Head<'_>, usize)>, HeadError> {
        match self {
            Self::Text => text::parse_head(bytes),
            Self::Meta => meta::parse_head(bytes),
            Self::Binary => binary::parse_head(bytes),
            Self::Resp => resp::parse_head(bytes),
        }
    }

    /// Returns whether the reply to a get of `keys` ends with the last key's value or miss;
    /// otherwise an end of its own follows.
    pub fn ends_with_last_key(self, keys: u32) -> bool {
        match self {
            Self::Text => false,
            Self::Meta | Self::Binary => keys == 1,
            Self::Resp => true,
        }
    }

    /// Returns the bytes that follow every value.
    pub fn trailer(self) -> &'static [u8] {
        match self {
            Self::Text | Self::Meta | Self::Resp => b"\r\n",
            Self::Binary => b"",
        }
    }
}

/// Returns the line at the start of `bytes` without its CRLF, and its length including the CRLF.
fn line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, HeadError> {
    match memchr::memchr(b'\n', bytes) {
        Some(end) if end > 0 && bytes[end - 1] == b'\r' => Ok(Some((&bytes[..end - 1], end + 1))),
        Some(end) => Err(HeadError::unexpected(&bytes[..end])),
        None => Ok(None),
    }
}

/// Parses a decimal number without sign or spaces.
fn decimal(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 10 {
        return None;
    }
    digits
        .iter()
        .try_fold(0_usize, |sum, &digit| digit.is_ascii_digit().then(|| sum * 10 + usize::from(digit - b'0')))
}

/// Appends a number in decimal.
fn push_decimal(number: usize, out: &mut Vec<u8>) {
    use std::io::Write;
    // Writing into a Vec cannot fail.
    let _ = write!(out, "{number}");
}

//! The limits of the protocol, as in memcached 1.6.45.
//!
//! Limits from the server's configuration (item size, memory) are not here. The server checks them
//! after decoding a storage command.

/// The maximum length of a key, in bytes; a base64 key is measured before it is decoded.
pub const KEY_LEN_MAX: usize = 250;

/// The maximum length of a value in a command line. A greater length counts as malformed.
pub const VALUE_LEN_MAX: usize = i32::MAX as usize - 2;

/// The number of bytes that may arrive without a line feed, unless they begin a `get`.
pub const LINE_LEN_MAX: usize = 2048;

/// The maximum number of leading spaces of a long `get` line.
pub const LEADING_SPACES_MAX: usize = 100;

/// The minimum length of a line, including its line feed (two characters and CRLF, or three and a
/// bare LF).
pub const LINE_LEN_MIN: usize = 4;

/// The number of tokens of a line that are read. The rest of the line is ignored, except by `get`,
/// which has any number of keys.
pub const TOKENS_MAX: usize = 23;

/// The number of bytes at the beginning of a line within which words must start (memcached keeps
/// their offsets in 16 bits).
pub const TOKENIZED_LEN_MAX: usize = u16::MAX as usize - 1;

/// The maximum number of tokens of a meta command, including the command and its key.
pub const META_TOKENS_MAX: usize = 20;

/// The maximum length of an opaque, without its leading `O`.
pub const OPAQUE_LEN_MAX: usize = 31;

/// The maximum length of a binary request's body.
pub const BINARY_BODY_LEN_MAX: u32 = 1 << 30;

/// A binary request's header, extras and key must fit a read buffer of this size.
pub const BINARY_FRAME_HEAD_LEN_MAX: usize = 16 * 1024;

/// The maximum length of user and password in text authentication, and of the data of a SASL frame.
pub const AUTH_TOKEN_LEN_MAX: usize = 16 * 1024;

/// The maximum length of the name of a SASL mechanism.
pub const SASL_MECHANISM_LEN_MAX: usize = 32;

/// The amount of input that a decoder accepts while it waits for the end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum length of a `get` or `gets` line, in bytes.
    ///
    /// memcached 1.6.45 doubles its buffer until an `int` overflows at 1 GiB, and then replies
    /// `SERVER_ERROR out of memory reading request`. This crate gives the same reply at a limit
    /// that the server chooses.
    pub get_line_len_max: usize,
}

impl Limits {
    /// The defaults: 4 MiB for a `get` line, which is sufficient for 16 000 keys of the maximum
    /// length, or 100 000 of usual length.
    pub const DEFAULT: Limits = Limits { get_line_len_max: 4 << 20 };
}

const _: () = assert!(KEY_LEN_MAX <= u8::MAX as usize);
const _: () = assert!(LINE_LEN_MAX < Limits::DEFAULT.get_line_len_max);

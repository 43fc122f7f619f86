//! The meta commands: two letters, a key, and flags of one letter each.
//!
//! All of them share one flag grammar ([`MetaFlags`]): any known flag may come with any command, and is
//! ignored where it has no meaning. A reply is a two-letter code and, in the order of the request, the flags
//! that request something in return ([`ReturnFlags`]). The server suppresses the replies that `q` hides:
//! [`Get`], [`Set`], [`Delete`] and [`Arithmetic`] name them.
//!
//! An opaque that is too long is refused before the command has any effect. (memcached notices it while it
//! writes the reply, when `mg … N`, `mg … T` or `ma` have had their effect, or another error has come first.)

mod arithmetic;
mod debug;
mod delete;
mod flags;
mod get;
mod key;
mod line;
mod returns;
mod set;

pub use arithmetic::Arithmetic;
pub use debug::{Debug, DebugItem};
pub use delete::Delete;
pub use flags::{Flag, MetaFlags};
pub use get::{Get, MetaItem};
pub use key::{KEY_DECODED_LEN_MAX, KeyBuffer, MetaKey, encode as encode_key};
pub use returns::{Opaque, ReturnFlag, ReturnFlags};
pub use set::{Set, SetHeader, SetMode, encode_set};

use crate::text::{Decoded, Request};

/// The two letters at the start of a reply without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// `HD`: done, or found without its value.
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

/// Appends a reply without a value that repeats opaque and key only: a miss, and all replies to `md`.
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
        b'd' => delete::decode(text, line_len),
        b'a' => arithmetic::decode(text, line_len),
        b'n' => Decoded::Request { request: Request::MetaNoop, consumed: line_len },
        b'e' => debug::decode(text, line_len),
        _ => crate::text::decode_unknown(text, line_len),
    }
}

//! The binary protocol: frames with a fixed header.
//!
//! A frame is decoded once header, extras and key have arrived; a value may follow later. The reply to a
//! malformed frame has status 04 and the connection is closed; lengths that contradict each other have status
//! 81. Three oddities of memcached are kept, because a client's stream would lose its frame boundaries
//! without them: an unknown opcode discards `body length` bytes *after* extras and key; `STAT`, `TOUCH` and
//! `GAT` leave a value that they should not have in the stream, where it is read as the next header; and a
//! frame whose extras and key exceed a 16 KiB buffer closes the connection once that is full.

mod header;
pub mod opcode;
mod request;
mod response;
pub mod sasl;
#[cfg(test)]
mod test_frame;

pub use header::{HEADER_LEN, Head, Header, MAGIC_REQUEST, MAGIC_RESPONSE};
pub use request::{Arithmetic, Command, Request, Store, StoreHeader, StoreVerb};
pub use response::{
    ErrorReply, Status, encode_done, encode_error, encode_error_text, encode_miss, encode_number,
    encode_response, encode_stat, encode_stat_end, encode_value_head, encode_version,
};

/// The result of [`decode`].
pub type Decoded<'a> = crate::Decoded<Request<'a>, StoreHeader<'a>, ErrorReply>;

/// Decodes the frame at the start of `input`.
#[inline]
pub fn decode(input: &[u8]) -> Decoded<'_> {
    match Header::read(input) {
        Some(header) => request::decode(&header, input),
        None => Decoded::Incomplete,
    }
}

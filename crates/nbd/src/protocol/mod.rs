//! The NBD protocol without I/O: what a server has to decode, to check and to encode. Nothing here reads, writes, or waits.
//!
//! | module | content |
//! |---|---|
//! | [`wire`] | numbers and limits; [`Errno`], the errors of requests; [`Violation`], the ends of connections |
//! | `description` | [`Description`] of an export, and [`Context`]: what extents can be asked for |
//! | `negotiation` | [`Negotiation`]: from the greeting to an export |
//! | `request` | [`Request`]: decoding, and checks against the description; replies, simple and structured |
//!
//! Fixed newstyle, structured replies, contexts and TLS are implemented; extended headers are not. Bytes of a
//! client never panic: they are a request, an error reply, or a [`Violation`].

mod description;
mod negotiation;
mod request;
pub mod wire;

pub use description::{Context, Description, Features};
pub use negotiation::{Action, Answered, Negotiation, NoExport, Session, TlsMode};
pub use request::{
    Command, Extent, Refusal, Request, Zeroes, encode_block_status, encode_done, encode_error, encode_read,
    sent_extents,
};
pub use wire::{Errno, Violation};

#[cfg(test)]
mod tests;

//! The NBD protocol without I/O: the decoding, checking and encoding of messages. Nothing here
//! reads, writes or waits.
//!
//! | module | content |
//! |---|---|
//! | [`wire`] | numbers and limits; [`Errno`], the errors of requests; [`Violation`], why a connection has to be closed |
//! | `description` | [`Description`] of an export, and [`Context`], a kind of extent information |
//! | `negotiation` | [`Negotiation`]: from the greeting to an export |
//! | `request` | [`Request`]: decoding, and checks against the description; replies, simple and structured |
//!
//! Fixed newstyle, structured replies, contexts and TLS are implemented; extended headers are not.
//! Bytes of a client never panic: they are a request, an error reply, or a [`Violation`].

mod description;
mod negotiation;
mod request;
pub mod wire;

pub use description::{Context, Description};
pub use negotiation::{Action, Answered, Negotiation, NoExport, Session, TlsMode};
pub use request::{
    Command, Extent, Refusal, Request, Zeroes, encode_block_status, encode_done, encode_error, encode_read,
    sent_extents,
};
pub use wire::{Errno, Violation};

#[cfg(test)]
mod tests;

//! The NBD protocol without I/O: what a server has to decode, to check and to encode.
//!
//! | module | content |
//! |---|---|
//! | [`wire`] | numbers and limits |
//! | `negotiation` | [`Negotiation`]: from the greeting to an export |
//! | `request` | [`Request`]: decoding, and checks against the export's [`Description`] |
//! | `answer` | replies, simple and structured |
//! | `context` | [`Context`]: what extents can be asked for |
//! | `errno`, `violation` | errors of requests, and the ends of connections |
//!
//! Fixed newstyle, structured replies, contexts and TLS are implemented; extended headers are not. Bytes of a
//! client never panic: they are a request, an error reply, or a [`Violation`].

mod answer;
mod context;
mod description;
mod errno;
mod fields;
mod negotiation;
mod option_reply;
mod request;
mod violation;
pub mod wire;

pub use answer::{Extent, encode_block_status, encode_done, encode_error, encode_read, sent_extents};
pub use context::Context;
pub use description::{Description, Features};
pub use errno::Errno;
pub use negotiation::{Action, Answered, Negotiation, NoExport, Session, TlsMode};
pub use request::{Command, Refusal, Request, Zeroes};
pub use violation::Violation;

#[cfg(test)]
mod tests;

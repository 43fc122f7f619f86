//! The NBD protocol without I/O: the decoding, checking and encoding of messages. Nothing here
//! reads, writes or waits.
//!
//! | module | content |
//! |---|---|
//! | [`wire`] | numbers and limits; [`Errno`], the errors of requests; [`Violation`], why a connection has to be closed |
//! | here | [`Description`] of an export, and [`Context`], a kind of extent information |
//! | `negotiation` | [`Negotiation`]: from the greeting to an export |
//! | `request` | [`Request`]: decoding, and checks against the description; replies, simple and structured |
//!
//! Fixed newstyle, structured replies, contexts and TLS are implemented; extended headers are not.
//! Bytes of a client never panic: they are a request, an error reply, or a [`Violation`].

mod negotiation;
mod request;
#[cfg(test)]
mod tests;
pub mod wire;

use std::fmt;

use wire::{PAYLOAD_BYTES_MAX, TEXT_BYTES_MAX, transmission};

pub use negotiation::{Action, Answered, Negotiation, NoExport, Session, TlsMode};
pub use request::{
    Command, Extent, Refusal, Request, Zeroes, encode_block_status, encode_done, encode_error, encode_read,
    sent_extents,
};
pub use wire::{Errno, Violation};

/// The description of an export. It stays the same for the whole life of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// The size in bytes.
    pub size_bytes: u64,
    /// The smallest unit of a request, in bytes: a power of two, at most 64 KiB.
    pub block_bytes_min: u32,
    /// The best unit of requests, in bytes: a power of two, at least `block_bytes_min`.
    pub block_bytes_preferred: u32,
    /// Whether the export refuses changes.
    pub read_only: bool,
    /// A one-line description for people.
    pub text: String,
    /// The contexts for which block status is available.
    pub contexts: Vec<Context>,
}

impl Description {
    /// Returns the description of a writable export: blocks from 1 byte, 4 KiB preferred, and the
    /// context `base:allocation`.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            block_bytes_min: 1,
            block_bytes_preferred: 4096,
            read_only: false,
            text: String::new(),
            contexts: vec![Context::Allocation],
        }
    }

    /// Returns the longest payload, in bytes: a multiple of the smallest block.
    #[must_use]
    pub fn payload_bytes_max(&self) -> u32 {
        PAYLOAD_BYTES_MAX - PAYLOAD_BYTES_MAX % self.block_bytes_min.max(1)
    }

    /// Returns the transmission flags on a connection with or without structured replies.
    #[must_use]
    pub fn transmission_flags(&self, is_structured: bool) -> u16 {
        let mut flags = transmission::HAS_FLAGS | transmission::SEND_FLUSH | transmission::SEND_FUA;
        flags |= transmission::SEND_CACHE | transmission::CAN_MULTI_CONN;
        flags |= match self.read_only {
            true => transmission::READ_ONLY,
            false => transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES | transmission::SEND_FAST_ZERO,
        };
        if is_structured { flags | transmission::SEND_DF } else { flags }
    }
}

const ALLOCATION: &str = "base:allocation";
const DIRTY_BITMAP: &str = "qemu:dirty-bitmap:";

/// A metadata context of block status.
///
/// ```
/// use nbd::protocol::Context;
///
/// assert_eq!(Context::parse("base:allocation"), Some(Context::Allocation));
/// assert_eq!(Context::parse("qemu:dirty-bitmap:monday"), Some(Context::ChangedSince("monday".into())));
/// assert_eq!(Context::ChangedSince("monday".into()).to_string(), "qemu:dirty-bitmap:monday");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Context {
    /// `base:allocation`: which extents take up space, and which are zeros.
    Allocation,
    /// `qemu:dirty-bitmap:NAME`: which extents have changed since the snapshot of that name.
    ChangedSince(String),
}

impl Context {
    /// Returns the context whose full name is `name`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        if name == ALLOCATION {
            return Some(Self::Allocation);
        }
        let snapshot = name.strip_prefix(DIRTY_BITMAP)?;
        (!snapshot.is_empty() && name.len() <= TEXT_BYTES_MAX).then(|| Self::ChangedSince(snapshot.into()))
    }

    /// Returns whether a query in a request for the list of contexts matches this one: by its name,
    /// by its namespace, or by a beginning of its name up to a colon.
    #[must_use]
    pub fn is_listed_by(&self, query: &str) -> bool {
        match self {
            Self::Allocation => query == "base:" || query == ALLOCATION,
            Self::ChangedSince(_) => query == "qemu:" || query == DIRTY_BITMAP || query == self.to_string(),
        }
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocation => f.write_str(ALLOCATION),
            Self::ChangedSince(snapshot) => write!(f, "{DIRTY_BITMAP}{snapshot}"),
        }
    }
}

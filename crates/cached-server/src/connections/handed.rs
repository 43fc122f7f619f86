//! What is known of a connection that another process goes on with.

use cached_proto::Protocol;

/// The most unused input that is handed over with a connection.
pub(crate) const HANDED_INPUT_BYTES_MAX: usize = 64 << 10;

/// A connection between two requests, or within one of which only the beginning has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HandedConnection {
    /// The protocol, once it is known.
    pub(crate) protocol: Option<Protocol>,
    /// The client has authenticated.
    pub(crate) is_authenticated: bool,
    pub(crate) phase: HandedPhase,
    /// Input that has not been used, at most [`HANDED_INPUT_BYTES_MAX`].
    pub(crate) input: Vec<u8>,
}

/// Where a handed connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandedPhase {
    /// At the start of a request, or within one that is incomplete.
    Command,
    /// Before the client is authenticated.
    Gate { swallow: u64, is_started: bool, failures: u8 },
    /// Within a value that was refused, this many bytes before its end.
    Swallow(u64),
}

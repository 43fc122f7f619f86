//! Why connections end.

use std::io;

use crate::protocol::{NoExport, Violation};

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// The client has closed it, or it broke.
    Closed(io::Result<()>),
    /// The client has ended it in order.
    Ended,
    /// The client breaks the protocol.
    Broken(Violation),
    /// The client asked, by an option without an error reply, for an export that it cannot have.
    NoExport(String, NoExport),
    /// TLS did not come about.
    Tls(io::Error),
    /// The client did not finish its negotiation in time.
    Slow,
    /// The client makes no progress.
    Stalled,
    /// Others need the memory that waits for the client, and it is the slowest.
    Slowest,
    /// The server shuts down.
    ShuttingDown,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Closed(Err(error))
    }
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        Self::Broken(violation)
    }
}

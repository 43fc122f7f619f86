//! Where a connection stands between two bytes of input.

use crate::exec::{Begun, Dump};
use crate::stream::Body;
use crate::telemetry::watch::Subscription;
use cached_proto::Protocol;
use cached_proto::text::GetCursor;

/// Where a connection stands between two bytes of input.
pub(super) enum Phase {
    /// Before the client is authenticated.
    Gate(Gate),
    /// At the start of a request, or within one that is incomplete.
    Command,
    /// Within a retrieval that filled the output buffer; its line is still in the input and `line_bytes`
    /// long.
    Get { cursor: GetCursor, line_bytes: usize },
    /// Within a dump.
    Dump(Dump),
    /// Within a value.
    Body(Box<Body>),
    /// Within a value that was refused, this many bytes before its end.
    Swallow(usize),
    /// Receiving log lines from the log thread; input is ignored.
    Watch(Subscription),
}

/// The state of a client that is not authenticated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Gate {
    /// The number of bytes to discard: the rest of a frame that was refused.
    pub(super) swallow: usize,
    /// PLAIN has begun without data, which the next SASL_STEP brings.
    pub(super) started: bool,
    /// Wrong passwords.
    pub(super) failures: u8,
}

impl Phase {
    /// Returns the phase for a value of `body_len` bytes that follows `head`, once its command has begun.
    pub(super) fn of_body(begun: Begun, protocol: Protocol, head: &[u8], body_len: usize) -> Phase {
        match begun {
            Begun::Reserved(reservation) => {
                Phase::Body(Box::new(Body::reserved(protocol, head, reservation)))
            }
            Begun::Collect(bytes) => Phase::Body(Box::new(Body::collected(protocol, head, bytes))),
            Begun::Refused => Phase::Swallow(body_len),
        }
    }
}

/// Why execution stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    /// All input is used, except for an incomplete request.
    Input,
    /// The output is to be sent before more is executed.
    Output,
    /// Other connections are to be served first: the budget of requests is used up, or the work for costly ones.
    Budget,
    /// The connection is to be closed once the output is sent.
    Close,
}

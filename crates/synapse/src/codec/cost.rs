//! The cost of a request, in the bytes that a session may have outstanding.

use blocker::Capabilities;

use super::header::{HEADER_BYTES, Header};
use super::op::Op;

/// The most bytes of an entry of a listing, or of a name or value in a control answer.
pub const LIST_ENTRY_BYTES_MAX: u64 = 1 + 255 + 8 + 8;
/// The most names or values in a control answer.
pub const CONTROL_ENTRIES_MAX: usize = 1000;

/// The most bytes of the payload of a control answer.
pub const CONTROL_BYTES_MAX: u64 = CONTROL_ENTRIES_MAX as u64 * LIST_ENTRY_BYTES_MAX;

/// Returns the cost of a request in bytes, under these limits of the server: its own length and the most that
/// its answer may take.
#[must_use]
pub fn cost_bytes(header: &Header, head_bytes: usize, payload_bytes: usize, limits: &Capabilities) -> u64 {
    let answer = match header.op {
        Op::Read => header.length.min(limits.request_bytes_max),
        Op::List => header.length.min(limits.list_entries_max.into()) * LIST_ENTRY_BYTES_MAX,
        Op::Statistics
        | Op::Namespaces
        | Op::Metrics
        | Op::Losses
        | Op::NamespaceState
        | Op::NamespaceStates => CONTROL_BYTES_MAX,
        _ => 0,
    };
    (head_bytes + payload_bytes) as u64 + 2 * HEADER_BYTES as u64 + answer
}

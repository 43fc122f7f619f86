//! Copy sessions: the connection on which a move's source sends its items to the target.
//!
//! The messages, and the decisions of both ends as machines: the caller has the socket, the items,
//! the words of the slots and the registry. A session is good for one attempt of one move; what
//! breaks before the seal has changed nothing.
//!
//! ```text
//! target                         source
//!   clears its own items
//!   COPY(move) ───────────────────►  hears of changes, then walks all items of the slots
//!   applies  ◄──────── ITEM, GONE …
//!            ◄────────────── READY   has walked; few changes wait
//!   asks the registry whether the move is still in progress
//!   SEAL ─────────────────────────►  executes no request of the slots any more
//!   applies  ◄──────── ITEM, GONE …
//!            ◄──────── END(count)    has sent everything
//!   commits the move
//!   COMMITTED(version) ───────────►  the slots are the target's in the map
//! ```
//! The source sends each key as it is when it is sent, so that the order of the messages about a key
//! is the order of its states. Once the slots are sealed, only a map without the move ends that:
//! the source does not know whether the target has committed the move.

mod frames;
mod pace;
mod source;
mod target;

pub use frames::{Frame, HEAD_BYTES, ItemFrame, Malformed, REFUSED_BYTES_MAX, bits, frame};
pub use pace::{CHANGES_MANY, Pace};
pub use source::{Source, SourceAction, SourceEvent, SourceState};
pub use target::{Target, TargetAction, TargetEvent, TargetState};

/// An event that cannot happen in the state of a session's end: if a message is the reason, the
/// peer breaks the protocol, and the session is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{event} came to a copy session that is {state}")]
pub struct OutOfOrder {
    /// The event.
    pub event: &'static str,
    /// The state.
    pub state: &'static str,
}

//! The steward of a ring whose map is in the registry: the thread by which a node reads the ring's
//! documents, changes them, and moves slots to itself. A ring whose map is a file has no steward.
//!
//! ```text
//!                ┌── watch ──► map ──► in force at the server
//!  registry ◄────┤── change ◄── join, operators, moves that this node must abort
//!                └── change ◄── move: begin ─► copy by the server ─► commit ─► settled
//! ```
//! | module | content |
//! |---|---|
//! | `documents` | the documents of a ring as a map, and changes of all of them by compare-and-set |
//! | `join` | how a node becomes a part of the ring when its process starts |
//! | `steward` | the tasks of the thread: the watch, aborted moves, requests of operators, the hand-over |
//! | `lease` | this node's lease, and what it does when another node's has ended |
//! | `moves` | the moves of slots to this node |
//! | `host` | the text by which a node's document names the host of its process |
//! | `control` | routes of the admin listener, and the hand-over to another process |
//!
//! The registry may be away at any time after the start: clients are served as before, and only moves
//! and the commands of operators wait.

mod control;
mod documents;
mod host;
mod join;
mod lease;
mod moves;
mod steward;

pub use control::RingControl;
pub use join::Joined;
pub use steward::Steward;

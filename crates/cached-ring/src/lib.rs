//! A ring of nodes: any node answers, and each key has one owner.
//!
//! Everything here is pure: no sockets, no clock, no runtime. The server drives these types with
//! bytes, and so do the simulator and the fuzz targets.
//!
//! | module | content |
//! |---|---|
//! | `slots` | [`Slot`]: the unit of ownership, and the slot of a key |
//! | `map` | [`Map`]: the nodes, and which of them owns each slot |
//! | `form` | the documents in which a map is kept |
//! | `plan` | which slots a changed set of nodes should own |
//! | `numbered` | the table of an enum's numbers on the wire |
//! | `hello` | the frames by which two nodes accept each other |
//! | `wire` | the messages between them |
//! | `lane` | [`Outbound`], [`Inbound`]: the two ends of a connection between nodes |
#![warn(missing_debug_implementations)]

mod form;
pub mod hello;
mod lane;
mod map;
mod numbered;
mod plan;
mod slots;
pub mod wire;

pub use form::{from_documents, to_file};
pub use lane::{Answer, Asked, Executed, Failed, Inbound, Outbound, RequestId, Waiter};
pub use map::*;
pub use plan::planned;
pub use slots::*;
pub use wire::{Flags, Hostile, Report};

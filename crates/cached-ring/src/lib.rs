//! A ring of nodes: any node answers, and each key has one owner.
//!
//! Everything here is pure: no sockets, no clock, no runtime. The server drives these types with
//! bytes, and so do the simulator and the fuzz targets.
//!
//! | module | content |
//! |---|---|
//! | `slots` | [`Slot`]: the unit of ownership, and the slot of a key |
//! | `node` | [`Node`]: a node's name, addresses, weight, lease and warden |
//! | `map` | [`Map`]: the nodes, and which of them owns each slot |
//! | `digest` | [`Map::digest`], [`Map::mark`]: numbers by which maps are compared |
//! | `form` | the documents in which a map is kept |
//! | `change` | the changes of the nodes of a map that is in a registry: joins, weights, wardens |
//! | `moves` | [`Move`]: slots on their way to another node, and which ones move next |
//! | `wishes` | [`Wish`]: slots that an operator gives to a node |
//! | `lease` | [`Holder`], [`Warden`]: until when a node answers, and when another one may strike it off |
//! | `predecessor` | [`Predecessor`]: when a process joins whose earlier one may run on another host |
//! | `plan` | which slots a changed set of nodes should own |
//! | `numbered` | the table of an enum's numbers on the wire |
//! | `hello` | the frames by which two nodes accept each other |
//! | `wire` | the messages between them |
//! | `lane` | [`Outbound`], [`Inbound`]: the two ends of a connection between nodes |
//! | `copy` | the messages of a connection that copies the items of a move, and its two ends |
#![warn(missing_debug_implementations)]

mod change;
pub mod copy;
mod digest;
mod form;
pub mod hello;
mod lane;
mod lease;
#[cfg(test)]
mod lease_model_tests;
mod map;
#[cfg(test)]
mod model_tests;
mod moves;
mod node;
mod numbered;
mod plan;
mod predecessor;
mod slots;
pub mod wire;
mod wishes;

pub use form::{documents, from_documents, from_file, to_file};
pub use lane::{Answer, Asked, Executed, Failed, Inbound, Outbound, RequestId, Waiter};
pub use lease::{Holder, Promise, Strike, Warden};
pub use map::*;
pub use moves::{Move, SOURCE_MOVES_MAX};
pub use node::*;
pub use plan::planned;
pub use predecessor::{Look, Predecessor};
pub use slots::*;
pub use wire::{Flags, Hostile, Report};
pub use wishes::{WISHES_MAX, Wish};

//! What the NBD, synapse and object-HTTP servers share: sockets, limits on connections, and one
//! memory budget. The NBD and synapse servers also share the streams: everything except the
//! protocol.
//!
//! ```text
//! ListeningSocket ──► serve_all ──► Place: counted against the limits on connections, in all and per address
//!                                     │
//!                   Stream ──► the protocol's input ──► requests ──► Output ──► Stream
//!                                     │                                │
//!                                     └──── Grant: a part of Budget ───┘
//! ```
//!
//! # One client never stops another
//!
//! - Every connection has a guaranteed minimum of memory for as long as it exists. Further bytes
//!   come from the remaining memory, in the order of demands ([`Budget`]).
//! - While a demand cannot be met, the server closes the connection whose client is slowest to send
//!   or receive the bytes for which it holds memory ([`Grant::look`]), but never one that holds no
//!   more than its minimum.
//! - A connection's memory counts until it is freed: a [`Grant`] is dropped after the buffers that
//!   it counts.
//! - The number of connections per address is limited ([`Connections`]).
//!
//! | module | content |
//! |---|---|
//! | `budget` | the memory of all connections, each one's part, and how fast its client sends and receives |
//! | `address` | addresses as text, and the sockets bound to them |
//! | `listen` | the loop that accepts connections; tasks and threads |
//! | `places` | all connections and their limits, in all and per address; the peer of a connection |
//! | `stream`, `output` | bytes in both directions |
//! | `adjacent` | ranges of memory that are adjacent |
//! | `receive` | buffers for large payloads |
//! | `report` | errors in settings; limits on log lines that clients can cause |
//! | `secret` | the secret that two parties share, and the proof that they know it |
#![warn(missing_debug_implementations)]

mod address;
mod adjacent;
mod budget;
mod listen;
mod output;
mod places;
mod receive;
mod report;
mod secret;
mod stream;

pub use address::{Address, AddressError, ListenError, ListeningSocket};
pub use adjacent::join_adjacent;
pub use budget::{Budget, Grant, LOOK_TIME};
pub use listen::{Accepted, ListenerThreads, Service, serve_all, spawn};
pub use output::Output;
pub use places::{Connections, Limits, Peer, Place, Refusal};
pub use receive::{Filled, LARGE_BYTES, PayloadPool, copy_into, poll_fill};
pub use report::{LogLimit, SettingError};
pub use secret::{SECRET_BYTES_MIN, Secret, SecretError, Transcript};
pub use stream::{Duplex, Stream, unreceived_bytes};

//! What the servers of NBD and synapse have in common: everything of a connection but its protocol.
//!
//! ```text
//! ListeningSocket ──► serve_all ──► Place: one of so many connections, in all and of each address
//!                                     │
//!                   Stream ──► the protocol's input ──► requests ──► Output ──► Stream
//!                                     │                                │
//!                                     └──── Grant: a part of Budget ───┘
//! ```
//!
//! # One client never stops another
//!
//! - Every connection has a floor of its own of the memory, for as long as it lives. Beyond it, bytes come from what is
//!   left, in the order of demands ([`Budget`]).
//! - While a demand cannot be met, the connection is closed whose client is the slowest to send or to take what it holds
//!   memory for ([`Grant::is_slowest`]); never one that holds no more than its floor.
//! - What a connection holds counts until it is freed: a [`Grant`] is dropped after the buffers that it counts.
//! - An address has a limited part of the connections ([`Connections`]).
//!
//! | module | content |
//! |---|---|
//! | `budget` | the memory of all connections, each one's part, and how fast its client does what is its turn |
//! | `listen` | sockets that listen, and the loop that accepts from them |
//! | `places` | the number of connections, in all and of each address; the other end of one |
//! | `stream`, `output` | bytes in both directions |
//! | `receive` | memory that large payloads are read into |
//! | `report` | settings that cannot work; log lines that clients can cause |
#![warn(missing_debug_implementations)]

mod budget;
mod listen;
mod output;
mod places;
mod receive;
mod report;
mod stream;

pub use budget::{Budget, Grant, Turn};
pub use listen::{Accepted, ListeningSocket, Service, serve_all};
pub use output::Output;
pub use places::{Connections, Limits, Peer, Place, Refusal};
pub use receive::{Filled, LARGE_BYTES, PayloadPool, ReceiveBuffer, copy_into, poll_fill};
pub use report::{LogLimit, SettingError};
pub use stream::{Duplex, Stream};

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
//! | `budget` | the memory of all connections, and each one's part |
//! | `turn` | how fast a client does what is its turn |
//! | `listen`, `places`, `peer` | sockets that listen; the number of connections; the other end |
//! | `stream`, `output` | bytes in both directions |
//! | `receive`, `pool` | memory that large payloads are read into |
//! | `log_limit`, `setting` | log lines that clients can cause; settings that cannot work |
#![warn(missing_debug_implementations)]

mod budget;
mod listen;
mod log_limit;
mod output;
mod peer;
mod places;
mod pool;
mod receive;
mod setting;
mod stream;
mod turn;

pub use budget::{Budget, Grant};
pub use listen::{Accepted, ListeningSocket, Service, serve_all};
pub use log_limit::LogLimit;
pub use output::Output;
pub use peer::Peer;
pub use places::{Connections, Limits, Place, Refusal};
pub use pool::PayloadPool;
pub use receive::{Filled, LARGE_BYTES, ReceiveBuffer, copy_into, poll_fill};
pub use setting::SettingError;
pub use stream::{Duplex, Stream};
pub use turn::{SLOW_TIME, Turn};

//! NBD, the network block device: disks over TCP and unix sockets, to qemu, libnbd, nbdkit's tools and the
//! Linux kernel.
//!
//! - [`protocol`] is the protocol as pure functions and a state machine: no sockets, no runtime.
//! - [`Server`] serves whatever implements [`Export`] and [`Exports`], over TCP and unix sockets, with TLS.
//! - [`MemoryExport`] is a disk in memory, for tests, examples and measurements.
//!
//! # What it guarantees
//!
//! - A flush is passed to the export after every change that it covers was acknowledged; several connections
//!   may share an export.
//! - Once the export has been asked, a request runs to its end, even if its client is gone.
//! - What a client can make grow has a limit: options, names, payloads, requests and bytes outstanding,
//!   connections, in all and of each address, and the time for a negotiation. A client that makes no progress is
//!   disconnected.
//! - One client never stops another: each connection has a floor of the memory, which no other can take, and where more
//!   is needed the slowest client is disconnected.
//! - The payload of a large write is read from the socket into the memory that the export is passed, which may
//!   be the export's own ([`Export::receive_buffer`]); the payload of a large read is sent from the memory that
//!   the export returns.
//!
//! What it leaves out: extended headers, which the specification calls experimental, the export of a size
//! that changes (clients reconnect), and TLS with keys shared beforehand, which rustls does not have.
#![warn(missing_debug_implementations)]

mod export;
pub mod protocol;
mod server;

pub use connection::{ReceiveBuffer, SettingError};
pub use export::{Export, Exports, Lookup, MemoryExport, NamedExports, READ_AHEAD_BYTES};
pub use server::{Address, AddressError, ListenError, PORT_DEFAULT, Server, ServerConfig};

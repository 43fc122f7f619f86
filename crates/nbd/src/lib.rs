//! A server for NBD, the network block device protocol: disks over TCP and unix sockets, for qemu,
//! libnbd, nbdkit's tools and the Linux kernel.
//!
//! - [`protocol`] implements the protocol as pure functions and a state machine, without sockets or
//!   a runtime.
//! - [`Server`] serves whatever implements [`Export`] and [`Exports`], over TCP and unix sockets,
//!   with TLS.
//! - [`MemoryExport`] is a disk in memory, for tests, examples and measurements.
//!
//! # Guarantees
//!
//! - A flush reaches the export after every change that it covers was acknowledged; several
//!   connections may share an export.
//! - A request that has been passed to the export runs to completion, even if its client has
//!   disconnected.
//! - Everything that a client can make grow has a limit: options, names, payloads, requests and
//!   bytes outstanding, connections in all and per address, and the time for a negotiation. A
//!   client that makes no progress is disconnected.
//! - One client never blocks another: each connection has a guaranteed minimum of memory, and if
//!   more is needed the slowest client is disconnected.
//! - The payload of a large write is read from the socket directly into the memory that is passed
//!   to the export, which may be the export's own ([`Export::receive_buffer`]); the payload of a
//!   large read is sent from the memory that the export returns.
//!
//! Not supported: extended headers, which the specification calls experimental; exports whose size
//! changes (clients have to reconnect); and TLS with pre-shared keys, which rustls does not have.
#![warn(missing_debug_implementations)]

mod export;
pub mod protocol;
mod server;

pub use connection::SettingError;
pub use export::{Export, Exports, Lookup, MemoryExport, NamedExports, READ_AHEAD_BYTES};
pub use server::{Address, AddressError, ListenError, PORT_DEFAULT, Server, ServerConfig};

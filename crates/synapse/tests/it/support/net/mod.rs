//! Networks with seeded faults between a client and a server.
//!
//! - [`plan`]: the faults of one connection, drawn from a seed and the connection's number.
//! - [`pump`]: forwards one direction of a connection, with faults at given bytes.
//! - [`relay`]: two streams connected by two pumps.
//! - [`sim`]: a network in memory, for tokio's paused clock: it takes no real time, and runs are
//!   repeatable.
//! - [`tcp`]: the same between sockets.

pub mod plan;
pub mod pump;
pub mod relay;
pub mod sim;
pub mod tcp;

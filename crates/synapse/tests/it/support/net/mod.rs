//! Networks with seeded faults between a client and a server.
//!
//! - [`plan`]: what goes wrong on one connection, drawn from a seed and the connection's number.
//! - [`pump`]: carries one direction of a connection, with its faults at their bytes.
//! - [`relay`]: two streams joined by two pumps.
//! - [`sim`]: a network in memory, for tokio's paused clock: nothing waits for real, and a run repeats.
//! - [`tcp`]: the same between sockets.

pub mod plan;
pub mod pump;
pub mod relay;
pub mod sim;
pub mod tcp;

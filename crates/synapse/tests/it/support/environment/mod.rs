//! The environment of a simulated test: its clock, its server, its stores, its clients.
//!
//! - [`clock`]: tokio's clock as a clock of the contract, so that pausing one pauses the other.
//! - [`sim_server`]: synapse itself, client and server, over a simulated network.
//! - [`ledger`]: a store that records the changes made to it, in order.
//! - [`broken`]: layers that each break one promise, to prove that the checks detect it.
//! - [`mortal`]: a process that can be killed, above a store that survives.
//! - [`workload`]: clients that read, write and compare-and-write registers, and record the
//!   outcomes.

pub mod broken;
pub mod clock;
pub mod ledger;
pub mod mortal;
pub mod sim_server;
pub mod workload;

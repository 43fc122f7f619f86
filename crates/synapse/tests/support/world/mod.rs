//! A small world around what is tested: its time, its store, its clients.
//!
//! - [`clock`]: tokio's clock as the contract's, so that pausing one pauses the other.
//! - [`door`]: synapse itself, client and server, over a simulated network.
//! - [`ledger`]: a store that writes down what was applied to it, in which order.
//! - [`broken`]: layers that break one promise each, to see whether the proofs notice.
//! - [`mortal`]: a process that dies, above a store that stays.
//! - [`workload`]: clients that read, write and compare-and-write registers, and record what they were told.

pub mod broken;
pub mod clock;
pub mod door;
pub mod ledger;
pub mod mortal;
pub mod workload;

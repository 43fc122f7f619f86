//! Tests of the file backend on a simulated disk. Tests of a single module are in its file; the
//! conformance suite runs in the crate's integration tests.

mod damage;
mod fault;
mod order;
mod power_loss;
mod simulated;
mod testing;
mod trouble;

//! Tests on the simulated disk.

mod damage;
mod decoding;
mod kit;
mod opening;
mod power_loss;
mod space;
mod trouble;

//! Tests on the simulated disk.

mod damage;
mod decoding;
mod kit;
mod opening;
mod power_loss;
mod reading;
mod space;
mod trouble;

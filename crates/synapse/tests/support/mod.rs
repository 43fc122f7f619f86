//! What the proofs of `synapse` share: histories with their check, and networks with their faults.

// Each test binary includes it, and uses a part: public here means to the tests.
#![allow(dead_code, unreachable_pub)]

pub mod history;
pub mod net;
pub mod world;

//! Treats arbitrary bytes as what a synapse client sends. The first byte determines whether
//! checksums are corrected first.

#![no_main]

// The tests' own checks are used, so that `cargo test` replays the corpus through the same
// functions.
#[path = "../../crates/synapse/tests/it/checks/mod.rs"]
#[allow(dead_code, reason = "the other direction is another target's")]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::requests(data));

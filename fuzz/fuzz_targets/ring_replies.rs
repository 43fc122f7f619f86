//! Treats arbitrary bytes as what an owner sends on a lane on which ten requests were made. The first byte
//! determines how they are cut into pieces.

#![no_main]

// The tests' own checks are used, so that `cargo test` replays the corpus through the same
// functions.
#[path = "../../crates/cached-ring/tests/it/checks/mod.rs"]
#[allow(dead_code, reason = "the other directions are other targets'")]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::replies(data));

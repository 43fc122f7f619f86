//! Treats arbitrary bytes as what comes on a copy session between two nodes.

#![no_main]

// The tests' own checks are used, so that `cargo test` replays the corpus through the same
// functions.
#[path = "../../crates/cached-ring/tests/it/checks/mod.rs"]
#[allow(dead_code, reason = "the other directions are other targets'")]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::copies(data));

//! Any bytes as a stream of binary frames; the first byte says how they are cut into pieces.

#![no_main]

// The checks are the tests' own, so that `cargo test` replays the corpus through the same functions.
#[path = "../../crates/cached-proto/tests/it/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::binary(data));

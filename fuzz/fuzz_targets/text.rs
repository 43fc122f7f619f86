//! Treats arbitrary bytes as a stream of text and meta commands. The first byte determines how they
//! are cut into pieces.

#![no_main]

// The tests' own checks are used, so that `cargo test` replays the corpus through the same
// functions.
#[path = "../../crates/cached-proto/tests/it/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::text(data));

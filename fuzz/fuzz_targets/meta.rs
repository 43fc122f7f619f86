//! The same as `text`, and also treats the bytes as key and flags of each meta command.

#![no_main]

// The tests' own checks are used, so that `cargo test` replays the corpus through the same
// functions.
#[path = "../../crates/cached-proto/tests/it/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::meta(data));

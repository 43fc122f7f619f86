//! Treats arbitrary bytes as what a client without a password sends, and as a datagram. The first
//! byte determines how they are cut into pieces.

#![no_main]

// The tests' own checks are used, so that `cargo test` replays the corpus through the same
// functions.
#[path = "../../crates/cached-proto/tests/it/checks/auth.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::gates(data));

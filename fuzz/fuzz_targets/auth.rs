//! Any bytes as what a client without a password sends, and as a datagram; the first byte says how they are
//! cut into pieces.

#![no_main]

// The checks are the tests' own, so that `cargo test` replays the corpus through the same functions.
#[path = "../../crates/cached-proto/tests/it/checks/auth.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::gates(data));

//! Treats arbitrary bytes as damage to a journal's files or records, which is replayed through a
//! cache over a store in memory.

#![no_main]

// The tests' own check is used, so that `cargo test` replays the corpus through the same code.
#[path = "../../crates/cached-core/tests/it/replay_bytes/mod.rs"]
mod replay_bytes;

libfuzzer_sys::fuzz_target!(|data: &[u8]| replay_bytes::run(data));

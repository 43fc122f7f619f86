//! Treats arbitrary bytes as a program of operations on a small store, run alongside a plain map.

#![no_main]

// The tests' own interpreter is used, so that `cargo test` replays the corpus through the same
// code.
#[path = "../../crates/cached-core/tests/it/store_ops/mod.rs"]
mod store_ops;

libfuzzer_sys::fuzz_target!(|data: &[u8]| store_ops::run(data));

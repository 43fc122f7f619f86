//! Treats arbitrary bytes as a file of a file store. The first byte determines which file.

#![no_main]

// The tests' own checks are used, so that `cargo test` replays the corpus through the same
// functions.
#[path = "../../crates/blocker/tests/it/disk_bytes/mod.rs"]
mod disk_bytes;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let dir = tempfile::tempdir().expect("a temporary directory");
    disk_bytes::run(dir.path(), data);
});

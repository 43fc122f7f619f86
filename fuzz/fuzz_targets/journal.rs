//! Treats arbitrary bytes as a journal's superblock, segment header or batches. The first byte
//! determines which, and which checksums are corrected first.

#![no_main]

// The crate's own check is used, so that `cargo test` replays the corpus through the same function.
libfuzzer_sys::fuzz_target!(|data: &[u8]| cached_journal::check::any_bytes(data));

//! Any bytes as a journal's superblock, segment header or batches; the first byte says which, and what of them is mended.

#![no_main]

// The check is the crate's own, so that `cargo test` replays the corpus through the same function.
libfuzzer_sys::fuzz_target!(|data: &[u8]| cached_journal::check::any_bytes(data));

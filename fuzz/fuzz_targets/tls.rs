//! TLS records that are cut, flipped and doubled on their way to the server; the bytes say how.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cached_server::fuzzing::transport(data));

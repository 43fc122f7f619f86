//! TLS records that are truncated, modified and duplicated on their way to the server; the input
//! determines how.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cached_memcached::fuzzing::transport(data));

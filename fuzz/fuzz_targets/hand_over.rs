//! Messages between a process that hands over and the one that takes over.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cached_server::fuzzing::hand_over(data));

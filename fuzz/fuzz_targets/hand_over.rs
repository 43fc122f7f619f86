//! Messages between a process that hands its state over and the process that takes it over.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cached_memcached::fuzzing::hand_over(data));

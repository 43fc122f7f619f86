//! Treats arbitrary bytes as the contents of the bucket of a store on S3 (a head, a record, a key,
//! or the object with the layout's edition), or as a server's refusal.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| blocker_s3::fuzzing::bucket(data));

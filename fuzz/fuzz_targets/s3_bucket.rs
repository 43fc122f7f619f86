//! Any bytes as what lies in the bucket of a store on S3 (a head, a record, a key, what states the edition of its
//! layout), or as a server's refusal.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| blocker_s3::fuzzing::bucket(data));

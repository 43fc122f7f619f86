//! Any bytes as what identifies a client of S3: a header, a query, a path, a time, and a document of keys to delete.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| s3_sidecar::auth::fuzzing::signatures(data));

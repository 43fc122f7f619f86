//! Treats arbitrary bytes as the data that identify an S3 client (a header, a query, a path, a
//! time), and as a document of keys to delete.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| s3_sidecar::auth::fuzzing::signatures(data));

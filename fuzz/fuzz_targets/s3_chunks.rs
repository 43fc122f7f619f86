//! Treats arbitrary bytes as the body of a chunked S3 upload (`aws-chunked`), cut into arbitrary
//! parts.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| s3_sidecar::auth::fuzzing::chunks(data));

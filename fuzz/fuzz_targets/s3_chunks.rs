//! Any bytes as the body of an S3 upload in chunks (`aws-chunked`), cut into any parts.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| s3_sidecar::auth::fuzzing::chunks(data));

//! The tests of the program with an S3 server.

#[cfg(feature = "s3")]
#[path = "../../../blocker-s3/tests/it/support/http.rs"]
mod http;
#[cfg(feature = "s3")]
mod s3;

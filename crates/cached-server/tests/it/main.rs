//! The tests of the server: connections in this process, and the program with an S3 server.

mod connection;
#[cfg(feature = "s3")]
#[path = "../../../blocker-s3/tests/it/support/http.rs"]
mod http;
#[cfg(feature = "s3")]
mod s3;

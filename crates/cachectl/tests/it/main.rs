//! The tests of `cachectl` as a program.

mod cachectl;
#[cfg(feature = "s3")]
#[path = "../../../blocker-s3/tests/it/support/http.rs"]
mod http;
mod journal;
mod server;
mod sweep;
mod volume_admin;
mod volume_contents;

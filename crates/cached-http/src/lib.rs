//! The HTTP client of `cached`: hyper's HTTP/1.1 client over TCP and TLS, with kept connections.
//!
//! | module | content |
//! |---|---|
//! | `client` | [`Client`]: requests without waiting for their answers |
//! | `connector` | [`Connector`]: TCP, TLS, and the environment's proxies |
//! | `patient` | [`Patient`]: connections that can read an answer to an unfinished upload |
//! | `blocking` | [`Blocking`]: one request at a time, for a blocking thread |
//!
//! Retries, signatures and the interpretation of statuses are up to the caller.

mod blocking;
mod client;
mod connector;
mod patient;

use std::error::Error;

pub use blocking::{Blocking, RequestError};
pub use client::{Client, builder};
pub use connector::{Connector, Route};
pub use hyper::http;
pub use patient::Patient;

/// Returns an error with its causes as one line.
#[must_use]
pub fn whole_text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

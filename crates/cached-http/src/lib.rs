//! The HTTP client of `cached`, which is hyper's HTTP/1.1 client over TCP and TLS, and the
//! connections of its HTTP servers.
//!
//! | module | content |
//! |---|---|
//! | `client` | [`Client`]: asynchronous requests over kept connections |
//! | `connector` | [`Connector`]: TCP, TLS, and the environment's proxies |
//! | `patient` | [`Patient`]: connections that can read the response to an unfinished upload |
//! | `blocking` | [`Blocking`]: one request at a time, for a blocking thread |
//! | `server` | [`serve`]: the requests of one client connection |
//!
//! Retries, signatures and the interpretation of statuses are up to the caller.

mod blocking;
mod client;
mod connector;
mod patient;
mod server;

use std::error::Error;

pub use blocking::{Blocking, RequestError};
pub use client::{Client, builder};
pub use connector::{Connector, Route};
pub use hyper::http;
pub use patient::Patient;
pub use server::{Answer, BodyError, Data, ResponseBody, ServerLimits, Socket, serve};

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

//! The HTTP client of `cached`, which is hyper's HTTP/1.1 client over TCP and TLS, and the
//! connections of its HTTP servers.
//!
//! | module | content |
//! |---|---|
//! | `client` | [`Client`]: asynchronous requests over kept connections; [`Blocking`]: one request at a time, for a blocking thread |
//! | `connector` | [`Connector`]: TCP, TLS, and the environment's proxies; [`Patient`]: connections that can read the response to an unfinished upload |
//! | `listen` | [`bind`]: a server's sockets; [`accept`]: the loop that accepts their connections |
//! | `server` | [`serve`]: the requests of one client connection |
//!
//! Retries, signatures and the interpretation of statuses are up to the caller.

mod client;
mod connector;
mod listen;
mod server;

use std::error::Error;

pub use client::{Blocking, Client, RequestError, builder};
pub use connector::{Connector, Patient, Route};
pub use hyper::http;
pub use listen::{Server, accept, bind};
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

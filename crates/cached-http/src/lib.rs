//! The HTTP client of `cached`, which is hyper's HTTP/1.1 client over TCP and TLS, and what its HTTP
//! servers share.
//!
//! | module | content |
//! |---|---|
//! | `client` | [`Client`]: asynchronous requests over kept connections; [`Blocking`]: one request at a time, for a blocking thread |
//! | `connector` | [`Connector`]: TCP, TLS, and the environment's proxies; [`Patient`]: connections that can read the response to an unfinished upload |
//! | `listen` | [`bind`]: a server's sockets; [`accept`]: the loop that accepts their connections |
//! | `server` | [`serve`]: the requests of one client connection; [`drain`] |
//! | [`framing`], [`values`] | the checks of a request's framing; look-ups of headers, ranges, entity tags and encoded names |
//! | `keys` | the file of clients' keys |
//! | `stall` | [`Stall`]: a time limit for clients that do not read |
//!
//! Retries, signatures and the interpretation of statuses are up to the caller.

mod client;
mod connector;
pub mod framing;
mod keys;
mod listen;
mod server;
mod stall;
pub mod values;

use std::error::Error;

pub use client::{Blocking, Client, RequestError, builder};
pub use connector::{Connector, Patient, Route};
pub use hyper::http;
pub use keys::{KeyEntry, KeyTable, parse_keys};
pub use listen::{Server, accept, bind};
pub use server::{
    Answer, BodyError, DRAIN_TIME_MAX, Data, HEADERS_MAX, ResponseBody, ServerLimits, Socket, drain, serve,
};
pub use stall::Stall;

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

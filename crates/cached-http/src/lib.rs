//! The HTTP client of `cached`: hyper's HTTP/1.1 client over TCP and TLS, with kept connections.
//!
//! | module | content |
//! |---|---|
//! | `connector` | [`Connector`]: TCP, TLS, and the environment's proxies |
//! | `patient` | [`Patient`]: connections that can read an answer to an unfinished upload |
//! | `blocking` | [`Blocking`]: one request at a time, for a blocking thread |
//!
//! Retries, signatures and the interpretation of statuses are up to the caller.

mod blocking;
mod connector;
mod patient;

use std::error::Error;
use std::time::Duration;

use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};

pub use blocking::{Blocking, RequestError};
pub use connector::{Connector, Route};
pub use hyper::http;
pub use patient::Patient;

/// A client that reuses its connections. `B` is the body type of its requests.
pub type Client<B> = legacy::Client<Connector, B>;

/// How long an idle connection is kept for the next request: shorter than servers keep theirs.
const IDLE_MAX: Duration = Duration::from_secs(15);

/// Returns a builder of clients whose idle connections are closed after 15 s.
#[must_use]
pub fn builder() -> legacy::Builder {
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_MAX);
    builder
}

/// Returns an error and its causes in one line.
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

//! Asynchronous requests.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::Request;
use hyper::body::Body;
use hyper_util::client::legacy::{self, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::Connector;

/// The body of a request.
type AnyBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// A client that keeps its connections.
///
/// Neither the bodies' type nor hyper's client is a part of its type: their code takes long to
/// compile, and each crate with a client would have its own copy.
pub struct Client(Box<dyn Fn(Request<AnyBody>) -> ResponseFuture + Send + Sync>);

impl Client {
    /// Returns a client with these settings; [`builder`] returns the common settings of all clients.
    #[must_use]
    pub fn new(settings: &legacy::Builder, connector: Connector) -> Self {
        let client: legacy::Client<Connector, AnyBody> = settings.build(connector);
        Self(Box::new(move |request| client.request(request)))
    }

    /// Sends a request, whose URL names the server. Redirects are not followed.
    pub fn request<B>(&self, request: Request<B>) -> ResponseFuture
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        (self.0)(request.map(|body| body.map_err(Into::into).boxed_unsync()))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// The maximum time for which a connection is kept for the next request. Servers keep theirs for
/// longer.
const IDLE_MAX: Duration = Duration::from_secs(15);

/// Returns the settings of a client that closes idle connections after 15 s.
#[must_use]
pub fn builder() -> legacy::Builder {
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_MAX);
    builder
}

//! One connection: HTTP/1.1 with limits on headers, bodies and time.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::access::Gate;
use crate::config::AdminConfig;
use crate::counts::Counts;
use crate::health::Health;
use crate::parts::absent;
use crate::routes::{Found, Request, Response, Routes};
use crate::tokens::Tokens;

/// The largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The largest number of headers of a request.
const HEADERS_MAX: usize = 64;

/// What answers requests, shared by all connections.
pub(crate) struct Service {
    routes: Routes,
    health: Health,
    tokens: Option<Tokens>,
    body_bytes_max: usize,
    request_timeout: Duration,
    connection_time_max: Duration,
    pub(crate) counts: Arc<Counts>,
}

impl Service {
    pub(crate) fn new(config: &AdminConfig, routes: Routes, health: Health, counts: Arc<Counts>) -> Service {
        Service {
            routes,
            health,
            tokens: config.tokens.clone(),
            body_bytes_max: config.body_bytes_max,
            request_timeout: config.request_timeout,
            connection_time_max: config.connection_time_max,
            counts,
        }
    }

    /// Serves a connection to its end.
    ///
    /// # Errors
    /// One line: what the client did wrong, or how its connection broke.
    pub(crate) async fn serve(
        self: Arc<Self>,
        socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        is_loopback: bool,
    ) -> Result<(), String> {
        let service = Arc::clone(&self);
        let answer = service_fn(move |request| {
            let service = Arc::clone(&service);
            async move {
                let response = service.answer(request, peer, is_loopback).await;
                Ok::<_, Infallible>(finished(response))
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // Also the time for which a connection may be idle between two requests.
            .header_read_timeout(self.request_timeout)
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(socket), answer);
        let mut connection = pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => return ended.map_err(|error| error.to_string()),
            () = tokio::time::sleep(self.connection_time_max) => connection.as_mut().graceful_shutdown(),
        }
        // A client that takes no answer does not keep the connection.
        match tokio::time::timeout(2 * self.request_timeout, connection).await {
            Ok(ended) => ended.map_err(|error| error.to_string()),
            Err(_) => Err("the client did not take its answer in time".into()),
        }
    }

    async fn answer(
        &self,
        request: hyper::Request<Incoming>,
        peer: SocketAddr,
        is_loopback: bool,
    ) -> Response {
        self.counts.requests.increment();
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        let route = match self.routes.find(&head.method, path) {
            Found::Route(route) => route,
            Found::Nothing => return absent(path, self.health.not_started()),
            Found::OtherMethods(methods) => {
                let names: Vec<&str> = methods.iter().map(hyper::Method::as_str).collect();
                let names = names.join(", ");
                let mut response = Response::failure(405, format_args!("the method must be {names}"));
                if let Ok(allow) = HeaderValue::from_str(&names) {
                    response.headers.insert(ALLOW, allow);
                }
                return response;
            }
        };
        let gate = Gate { is_loopback, tokens: self.tokens.as_ref() };
        let has_token = match gate.admit(route.access, &head.uri, &head.headers) {
            Ok(has_token) => has_token,
            Err(response) => {
                self.counts.unauthorized.increment();
                return *response;
            }
        };
        let answer = async {
            let body = match Limited::new(body, self.body_bytes_max).collect().await {
                Ok(body) => body.to_bytes(),
                Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                    let most = self.body_bytes_max;
                    return Response::failure(413, format_args!("the body is larger than {most} bytes"));
                }
                Err(error) => return Response::failure(400, error),
            };
            let request = Request {
                path: path.to_owned(),
                query: head.uri.query().unwrap_or_default().to_owned(),
                headers: head.headers.clone(),
                body,
                peer,
                has_token,
            };
            (route.handler)(request).await
        };
        match tokio::time::timeout(self.request_timeout, answer).await {
            Ok(response) => response,
            Err(_) => Response::failure(503, "the answer takes too long"),
        }
    }
}

/// Adds the headers that every response has.
fn finished(response: Response) -> hyper::Response<Full<Bytes>> {
    let mut out = hyper::Response::new(Full::new(response.body));
    *out.status_mut() = response.status;
    *out.headers_mut() = response.headers;
    for (name, value) in [
        ("cache-control", "no-store"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
    ] {
        out.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    out
}

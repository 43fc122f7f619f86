//! Connections of a server.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

/// A part of a response body.
pub type Data = Box<dyn Buf + Send + Sync>;

/// The reason why a response body ends early. The connection is then aborted, so that no client
/// mistakes the body for complete.
pub type BodyError = Box<dyn Error + Send + Sync>;

/// The body of a response.
pub type ResponseBody = UnsyncBoxBody<Data, BodyError>;

/// A response in progress.
pub type Answer = Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send>>;

/// A client's socket, with or without TLS.
pub trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// The usual maximum number of headers in a message. hyper has places for this number on the stack,
/// unless it is given a maximum: then it initialises two arrays, with an allocation each if the
/// maximum is larger, for every message that it parses.
pub const HEADERS_MAX: usize = 100;

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// The maximum number of headers in a request.
    pub headers_max: usize,
    /// The maximum size of the head of a request in bytes, at least 8192. This is also the size of
    /// the buffer for each direction.
    pub head_bytes_max: usize,
    /// The maximum time for receiving the head of a request, and between two requests.
    pub head_time_max: Duration,
    /// Whether requests keep the letter case of their headers' names, for a client that forwards
    /// them. Otherwise names are in lower case.
    pub keeps_case: bool,
}

/// Serves a connection until it ends, or until its current request ends once `end` has completed.
///
/// No type is a type parameter: hyper's code for a connection takes long to compile, and each crate
/// with a server would have its own copy.
///
/// # Errors
/// Returns the client's mistake, or the reason why the connection broke.
pub fn serve(
    socket: Box<dyn Socket>,
    limits: ServerLimits,
    answer: Box<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
) -> Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>> {
    Box::pin(async move {
        let service = service_fn(|request| {
            let answer = answer(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let mut settings = http1::Builder::new();
        settings
            .max_header_size(limits.head_bytes_max)
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_time_max)
            .max_buf_size(limits.head_bytes_max)
            .preserve_header_case(limits.keeps_case);
        if limits.headers_max != HEADERS_MAX {
            settings.max_headers(limits.headers_max);
        }
        let mut connection = pin!(settings.serve_connection(TokioIo::new(socket), service));
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = end => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    })
}

/// The maximum time for reading a refused body.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// Reads the rest of a refused body, within limits: a client that is still sending could miss the
/// response if its connection were closed. Stops after `bytes_max`, after [`DRAIN_TIME_MAX`], or
/// when the client pauses for `stall_max`.
pub async fn drain(mut body: Incoming, bytes_max: usize, stall_max: Duration) {
    let draining = async {
        let mut left = bytes_max;
        while let Ok(Some(Ok(frame))) = timeout(stall_max, body.frame()).await {
            let len = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(len) else { return };
            left = rest;
        }
    };
    // The response is sent whether or not the body was drained.
    let _ = timeout(DRAIN_TIME_MAX, draining).await;
}

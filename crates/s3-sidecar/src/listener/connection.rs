//! One connection of a client: HTTP/1.1 with limits on heads and time.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::endpoint::upstream::Upstream;
use crate::listener::service::answer;
use crate::listener::stall::{Progress, Stall};
use crate::shared::Shared;

/// Serves a connection to its end, or to the end of its request once `end` closes.
///
/// # Errors
/// One line: what the client did wrong, or how its connection broke.
pub(crate) async fn serve(
    shared: &Arc<Shared>,
    upstream: &Arc<Upstream>,
    peer: SocketAddr,
    socket: impl AsyncRead + AsyncWrite + Progress + Unpin + Send + 'static,
    mut end: watch::Receiver<()>,
) -> Result<(), String> {
    let config = &shared.config;
    let service =
        service_fn(
            |request| async move { Ok::<_, Infallible>(answer(shared, upstream, peer, request).await) },
        );
    let socket = TokioIo::new(Stall::new(socket, config.stall_max));
    let connection = http1::Builder::new()
        .max_headers(config.headers_max)
        .max_header_size(config.head_bytes_max)
        .timer(TokioTimer::new())
        // Also the time for which a connection may be idle between two requests.
        .header_read_timeout(config.client_idle_max)
        .max_buf_size(config.head_bytes_max)
        .preserve_header_case(true)
        .serve_connection(socket, service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended.map_err(|error| error.to_string()),
        _ = end.changed() => connection.as_mut().graceful_shutdown(),
    }
    connection.await.map_err(|error| error.to_string())
}

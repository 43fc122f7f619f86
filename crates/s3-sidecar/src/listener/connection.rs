//! One client connection: HTTP/1.1 with limits on heads and time.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

use crate::endpoint::upstream::Upstream;
use crate::listener::service::answer;
use crate::shared::Shared;

/// Serves a connection until it ends, or until its current request ends once `end` has closed.
///
/// # Errors
/// A one-line message with the client's mistake, or the reason why the connection broke.
pub(crate) async fn serve(
    shared: &Arc<Shared>,
    upstream: &Arc<Upstream>,
    peer: SocketAddr,
    socket: Box<dyn Socket>,
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
        // This is also the maximum idle time between two requests.
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

/// A client's socket, with or without TLS. The socket is not a type parameter of the connection,
/// because hyper's code for a connection takes long to compile, and would be compiled twice.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Progress + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Progress + Unpin + Send> Socket for S {}

/// A stream that can send earlier bytes while a write waits.
pub(crate) trait Progress {
    /// Returns the number of bytes sent.
    fn sent(&self) -> u64 {
        0
    }
}

impl<S> Progress for cached_tls::TlsStream<S> {}

/// A connection with a time limit for writes without progress.
struct Stall {
    socket: Box<dyn Socket>,
    time_max: Duration,
    /// The number of bytes sent at the time when the timer was started.
    sent: u64,
    /// The timer, which runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    fn new(socket: Box<dyn Socket>, time_max: Duration) -> Self {
        Self { socket, time_max, sent: 0, timer: None }
    }

    fn limit<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.timer = None;
            return outcome;
        }
        let sent = self.socket.sent();
        if std::mem::replace(&mut self.sent, sent) != sent {
            self.timer = None;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.time_max)));
        match timer.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl AsyncRead for Stall {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, into)
    }
}

impl AsyncWrite for Stall {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.limit(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        runs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(cx, runs);
        self.limit(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.socket).poll_flush(cx);
        self.limit(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.limit(cx, outcome)
    }
}

//! Connections that read the response even if the server stops reading the request.
//!
//! A server that refuses an upload may answer and close before it has read the body. Writing the
//! rest then fails, although the answer has already arrived. So a write error does not end the
//! connection: further writes are discarded, and the request's outcome depends on the server's
//! answer or on the end of its stream.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

type Socket = TokioIo<TcpStream>;

/// A connection.
#[derive(Debug)]
pub struct Patient {
    socket: Socket,
    /// Whether the other side has stopped reading.
    is_deaf: bool,
}

impl From<Socket> for Patient {
    fn from(socket: Socket) -> Self {
        Self { socket, is_deaf: false }
    }
}

impl Patient {
    /// Writes with `write`. If the other side has stopped reading, all `len` bytes count as
    /// written.
    fn poll_out(
        &mut self,
        cx: &mut Context<'_>,
        len: usize,
        write: impl FnOnce(Pin<&mut Socket>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if !self.is_deaf {
            match ready!(write(Pin::new(&mut self.socket), cx)) {
                Ok(written) => return Poll::Ready(Ok(written)),
                Err(_) => self.is_deaf = true,
            }
        }
        Poll::Ready(Ok(len))
    }
}

impl Read for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, into)
    }
}

impl Write for Patient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_out(cx, bytes.len(), |socket, cx| socket.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        runs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let len = runs.iter().map(|run| run.len()).sum();
        self.poll_out(cx, len, |socket, cx| socket.poll_write_vectored(cx, runs))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_out(cx, 0, |socket, cx| socket.poll_flush(cx).map_ok(|()| 0)).map_ok(drop)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_out(cx, 0, |socket, cx| socket.poll_shutdown(cx).map_ok(|()| 0)).map_ok(drop)
    }
}

impl Connection for Patient {
    fn connected(&self) -> Connected {
        self.socket.connected()
    }
}

//! What a connection needs from the outside: bytes in, bytes out.
//!
//! The state machine in this folder knows nothing of tokio; another event loop (epoll, io_uring) would
//! implement [`Transport`] and call [`Connection::drive`](super::Connection::drive) when it is woken.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A byte stream that never blocks.
///
/// `Pending` is a promise: the connection will be driven again when the same call can get further.
pub(crate) trait Transport {
    /// Reads into the front of `into`; 0 is the end of the stream.
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>>;
    /// Writes some of `bytes`.
    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>>;
    /// Writes some of the pieces, in order.
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;
}

/// A client's socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket together with the task that is to be woken for it.
pub(crate) struct Socket<'a, 'b> {
    pub(crate) stream: &'a mut Stream,
    pub(crate) context: &'a mut Context<'b>,
}

/// Calls one method of the stream, whichever it is.
macro_rules! on_stream {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.stream {
            Stream::Tcp(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Stream::Unix(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
        }
    };
}

impl Transport for Socket<'_, '_> {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        // A short read also clears tokio's readiness: the next call answers `Pending` without a system call.
        let mut buffer = ReadBuf::new(into);
        let polled = on_stream!(self, stream => stream.poll_read(self.context, &mut buffer));
        polled.map(|result| result.map(|()| buffer.filled().len()))
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write(self.context, bytes))
    }

    #[inline]
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write_vectored(self.context, pieces))
    }
}

/// A socket at shutdown: what has arrived is still read, whether or not an event has told of it.
pub(crate) struct Draining<'a, 'b>(pub(crate) Socket<'a, 'b>);

impl Transport for Draining<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = match self.0.stream {
            Stream::Tcp(stream) => rustix::io::read(stream, into),
            Stream::Unix(stream) => rustix::io::read(stream, into),
        };
        match read {
            // Nothing more was accepted before the end: as good as the end of the stream.
            Err(rustix::io::Errno::AGAIN) => Poll::Ready(Ok(0)),
            other => Poll::Ready(other.map_err(io::Error::from)),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.0.write_vectored(pieces)
    }
}

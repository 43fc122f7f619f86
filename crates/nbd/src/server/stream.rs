//! A connection's stream of bytes: TCP, a unix socket, or TLS over one of them.

use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsAcceptor;

/// An open connection.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<dyn Duplex>),
}

pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// Performs one transfer of at most `$bytes_max` bytes on a socket that is ready. A shorter one has emptied
/// the socket, or filled it: the runtime learns that at once, which spares the system call that would find it
/// out.
macro_rules! transfer {
    ($stream:ident, $interest:expr, $bytes_max:ident, $call:expr) => {{
        let mut moved = None;
        let done = $stream.try_io($interest, || {
            let count = $call?;
            moved = Some(count);
            if count < $bytes_max { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
        });
        moved.map_or(done, Ok)
    }};
}

impl Stream {
    /// Begins TLS.
    pub(super) async fn accept_tls(self, config: Arc<ServerConfig>) -> io::Result<Self> {
        let acceptor = TlsAcceptor::from(config);
        Ok(Self::Tls(match self {
            Self::Tcp(stream) => Box::new(acceptor.accept(stream).await?),
            Self::Unix(stream) => Box::new(acceptor.accept(stream).await?),
            Self::Tls(_) => return Err(io::Error::other("TLS has begun already")),
        }))
    }

    /// Performs one read into several slices, and returns its length. 0 is the end of the stream.
    pub(super) fn poll_read_vectored(
        &mut self,
        cx: &mut Context<'_>,
        places: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let room = places.iter().map(|place| place.len()).sum();
        loop {
            let read = match self {
                Self::Tcp(stream) => {
                    ready!(stream.poll_read_ready(cx))?;
                    transfer!(stream, Interest::READABLE, room, stream.try_read_vectored(places))
                }
                Self::Unix(stream) => {
                    ready!(stream.poll_read_ready(cx))?;
                    transfer!(stream, Interest::READABLE, room, stream.try_read_vectored(places))
                }
                // It has no vectored read.
                Self::Tls(stream) => {
                    let Some(place) = places.iter_mut().find(|place| !place.is_empty()) else {
                        return Poll::Ready(Ok(0));
                    };
                    let mut buffer = ReadBuf::new(place);
                    let read = ready!(Pin::new(stream).poll_read(cx, &mut buffer));
                    return Poll::Ready(read.map(|()| buffer.filled().len()));
                }
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Performs one write from several slices, and returns its length.
    pub(super) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = parts.iter().map(|part| part.len()).sum();
        loop {
            let written = match self {
                Self::Tcp(stream) => {
                    ready!(stream.poll_write_ready(cx))?;
                    transfer!(stream, Interest::WRITABLE, all, stream.try_write_vectored(parts))
                }
                Self::Unix(stream) => {
                    ready!(stream.poll_write_ready(cx))?;
                    transfer!(stream, Interest::WRITABLE, all, stream.try_write_vectored(parts))
                }
                Self::Tls(stream) => return Pin::new(stream).poll_write_vectored(cx, parts),
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Passes on what a layer in between holds back. Ready when nothing is left.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    /// Closes the sending direction.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

//! A connection's byte stream: TCP, a unix socket, or another stream such as TLS over one of them.

use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::adjacent::join_adjacent;

/// After this time without a byte, and then at this interval, the system probes whether the other
/// host is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The maximum number of slices of one transfer.
const SLICES_MAX: usize = 128;

/// A stream of bytes in both directions: TLS, a tunnel, or a simulated network.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// An open connection.
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
    /// Another stream.
    Other(Box<dyn Duplex>),
}

/// Performs one transfer of at most `$bytes_max` bytes on a ready socket. A shorter transfer means
/// that the socket is now empty or full. Reporting this to the runtime immediately saves the system
/// call that would discover it.
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
    /// Returns the stream of a TCP connection.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        // Frames are assembled before the write, so the kernel need not wait for more data.
        stream.set_nodelay(true)?;
        // A peer may be silent for as long as it likes, but a host that is gone must be detected.
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        Ok(Self::Tcp(stream))
    }

    /// Performs one read, and returns its length. 0 is the end of the stream.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(bytes);
        let read = match self {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Self::Other(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
        };
        read.map_ok(|()| buffer.filled().len())
    }

    /// Performs one read into several slices, and returns its length. 0 is the end of the stream.
    pub fn poll_read_vectored(
        &mut self,
        cx: &mut Context<'_>,
        places: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let count = places.len().min(SLICES_MAX);
        let places = &mut places[..count];
        let room = places.iter().map(|place| place.len()).sum();
        loop {
            let read = match self {
                Self::Tcp(stream) => {
                    ready!(stream.poll_read_ready(cx))?;
                    transfer!(stream, Interest::READABLE, room, read_slices(stream, places))
                }
                Self::Unix(stream) => {
                    ready!(stream.poll_read_ready(cx))?;
                    transfer!(stream, Interest::READABLE, room, read_slices(stream, places))
                }
                // This kind of stream has no vectored read.
                Self::Other(_) => {
                    let first = places.iter_mut().find(|place| !place.is_empty());
                    return first.map_or(Poll::Ready(Ok(0)), |place| self.poll_read(cx, place));
                }
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Performs one write from several slices, and returns its length.
    pub fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let parts = &parts[..parts.len().min(SLICES_MAX)];
        let all = parts.iter().map(|part| part.len()).sum();
        loop {
            let written = match self {
                Self::Tcp(stream) => {
                    ready!(stream.poll_write_ready(cx))?;
                    transfer!(stream, Interest::WRITABLE, all, write_slices(stream, parts))
                }
                Self::Unix(stream) => {
                    ready!(stream.poll_write_ready(cx))?;
                    transfer!(stream, Interest::WRITABLE, all, write_slices(stream, parts))
                }
                Self::Other(stream) => return Pin::new(stream).poll_write_vectored(cx, parts),
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Sends the bytes that an intermediate layer such as TLS has buffered. Ready once nothing
    /// remains.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Poll::Ready(Ok(())),
            Self::Other(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    /// Returns the number of written bytes that the peer has not received yet, as far as the system
    /// knows.
    #[must_use]
    pub fn unreceived_bytes(&self) -> Option<u64> {
        match self {
            Self::Tcp(stream) => unreceived_bytes(stream),
            Self::Unix(stream) => unreceived_bytes(stream),
            Self::Other(_) => None,
        }
    }

    /// Closes the sending direction.
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Other(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    /// Closes the sending direction.
    ///
    /// # Errors
    /// Returns the system's error.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_shutdown(cx)).await
    }
}

/// Returns the number of bytes written to a socket that its peer has not received yet, as far as the
/// system knows.
#[must_use]
pub fn unreceived_bytes(socket: &impl AsRawFd) -> Option<u64> {
    let mut count: libc::c_int = 0;
    // SAFETY: the descriptor is open as long as `socket` is borrowed, and TIOCOUTQ writes one int to the
    // pointer, which points to one.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    u64::try_from(count).ok().filter(|_| done == 0)
}

// ---- Transfers in which slices that are adjacent in memory are one. The system copies 128 KiB in one
// slice a quarter faster than in 32, and a cache often has adjacent buckets for adjacent bytes.

const NO_VECTOR: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
/// With at most this number of slices, no larger array is filled.
const FEW: usize = 2;

/// Performs `call` on ranges of memory, of which there are at most [`SLICES_MAX`].
///
/// # Safety
/// `call` may do what it does with the bytes of each range.
unsafe fn call_joined(
    socket: &impl AsRawFd,
    call: unsafe extern "C" fn(libc::c_int, *const libc::iovec, libc::c_int) -> libc::ssize_t,
    ranges: impl ExactSizeIterator<Item = (*mut u8, usize)>,
) -> io::Result<usize> {
    let (mut few, mut many);
    let vectors: &mut [libc::iovec] = if ranges.len() <= FEW {
        few = [NO_VECTOR; FEW];
        &mut few
    } else {
        many = [NO_VECTOR; SLICES_MAX];
        &mut many
    };
    let mut count = 0;
    for (vector, (start, len)) in vectors.iter_mut().zip(join_adjacent(ranges)) {
        *vector = libc::iovec { iov_base: start.cast(), iov_len: len };
        count += 1;
    }
    // SAFETY: the descriptor is open as long as `socket` is borrowed, and the caller allows the rest.
    let done = unsafe { call(socket.as_raw_fd(), vectors.as_ptr(), count) };
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

fn read_slices(socket: &impl AsRawFd, places: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let ranges = places.iter_mut().map(|place| (place.as_mut_ptr(), place.len()));
    // SAFETY: the bytes of `places` are borrowed exclusively.
    unsafe { call_joined(socket, libc::readv, ranges) }
}

fn write_slices(socket: &impl AsRawFd, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let ranges = parts.iter().map(|part| (part.as_ptr().cast_mut(), part.len()));
    // SAFETY: the bytes of `parts` are borrowed, and `writev` only reads them.
    unsafe { call_joined(socket, libc::writev, ranges) }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(stream) => stream.fmt(f),
            Self::Unix(stream) => stream.fmt(f),
            Self::Other(_) => f.write_str("Other"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn adjacent_slices_keep_their_order_on_both_sides() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut one, mut other) = (Stream::Unix(one), Stream::Unix(other));
        let bytes: Vec<u8> = (0..10_000_u32).map(|at| (at % 251) as u8).collect();
        let (lower, upper) = bytes.split_at(6_000);
        // Two runs of adjacent slices, with an empty slice and another piece of memory between them,
        // and at the end a run in descending order, in which nothing is adjacent.
        let mut sent: Vec<&[u8]> = upper.chunks(100).collect();
        sent.extend([&[][..], b"between"]);
        sent.extend(lower.chunks(1000));
        sent.extend(upper.chunks(1000).rev());
        let slices: Vec<_> = sent.iter().map(|slice| IoSlice::new(slice)).collect();
        let count = poll_fn(|cx| one.poll_write_vectored(cx, &slices)).await.unwrap();
        assert_eq!(count, sent.concat().len());
        let mut received = vec![0; 20_000];
        let (first, rest) = received.split_at_mut(3_000);
        let mut places: Vec<_> = first.chunks_mut(10).take(50).chain(rest.chunks_mut(1000)).collect();
        let mut places: Vec<_> = places.iter_mut().map(|place| IoSliceMut::new(place)).collect();
        assert_eq!(poll_fn(|cx| other.poll_read_vectored(cx, &mut places)).await.unwrap(), count);
        let got = [&received[..500], &received[3_000..3_000 + count - 500]].concat();
        assert!(got == sent.concat());
        // More slices than fit into one call: the rest is left for the next one.
        let many = [IoSlice::new(b"x"); SLICES_MAX + 1];
        assert_eq!(poll_fn(|cx| one.poll_write_vectored(cx, &many)).await.unwrap(), SLICES_MAX);
    }
}

//! A connection's stream of bytes: TCP, a unix socket, or another one; and addresses as text.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// The TCP port of synapse unless another one is given.
pub const PORT_DEFAULT: u16 = 11311;

/// The address of a server.
///
/// ```
/// use synapse::Address;
///
/// assert_eq!("node-1".parse(), Ok(Address::Tcp("node-1:11311".into())));
/// assert_eq!("[::1]:7000".parse(), Ok(Address::Tcp("[::1]:7000".into())));
/// assert_eq!("unix:/run/s.sock".parse(), Ok(Address::Unix("/run/s.sock".into())));
/// assert_eq!(Address::Unix("/run/s.sock".into()).to_string(), "unix:/run/s.sock");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// `HOST:PORT`. The host is resolved at each connection.
    Tcp(String),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// Why a text is not an [`Address`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// There is nothing after `unix:`.
    #[error("unix: needs a path")]
    NoPath,
    /// There is no host.
    #[error("{text:?} names no host; write HOST:PORT or unix:PATH")]
    NoHost {
        /// The text.
        text: String,
    },
    /// The port is not a number up to 65535.
    #[error("{text:?}: the port is a number up to 65535")]
    Port {
        /// The text.
        text: String,
    },
}

impl FromStr for Address {
    type Err = AddressError;

    /// `unix:PATH`, `HOST:PORT`, `[V6]:PORT`, or `HOST` for [`PORT_DEFAULT`].
    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let is_there = !path.is_empty();
            return is_there.then(|| Self::Unix(path.into())).ok_or(AddressError::NoPath);
        }
        let (host, port) = match text.rsplit_once(':') {
            // A bare address of IPv6 has colons of its own.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        if host.is_empty() {
            return Err(AddressError::NoHost { text: text.into() });
        }
        match port.map(str::parse::<u16>) {
            None if host.contains(':') => Ok(Self::Tcp(format!("[{host}]:{PORT_DEFAULT}"))),
            None => Ok(Self::Tcp(format!("{host}:{PORT_DEFAULT}"))),
            Some(Ok(port)) => Ok(Self::Tcp(format!("{host}:{port}"))),
            Some(Err(_)) => Err(AddressError::Port { text: text.into() }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A stream of bytes in both directions: a tunnel, or a simulated network.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A stream that is being opened.
pub type Opening = Pin<Box<dyn Future<Output = io::Result<Box<dyn Duplex>>> + Send>>;

/// Opens streams to a server that is not reached by an [`Address`].
pub type Connector = Arc<dyn Fn() -> Opening + Send + Sync>;

/// An open connection.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Other(Box<dyn Duplex>),
}

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
    pub(crate) async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => Self::tcp(TcpStream::connect(address.as_str()).await?),
            Address::Unix(path) => UnixStream::connect(path).await.map(Self::Unix),
        }
    }

    pub(crate) fn tcp(stream: TcpStream) -> io::Result<Self> {
        // Frames are put together before the write; the kernel must not wait for more.
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// Performs one read, and returns its length. 0 is the end of the stream.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(bytes);
        let read = match self {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Self::Other(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
        };
        read.map_ok(|()| buffer.filled().len())
    }

    /// Performs one read into several slices, and returns its length. 0 is the end of the stream.
    pub(crate) fn poll_read_vectored(
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
    pub(crate) fn poll_write_vectored(
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
                Self::Other(stream) => return Pin::new(stream).poll_write_vectored(cx, parts),
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Returns the number of bytes written that the other side has not received yet, as far as the system
    /// knows.
    pub(crate) fn unreceived_bytes(&self) -> Option<u64> {
        let descriptor = match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
            Self::Other(_) => return None,
        };
        let mut count: libc::c_int = 0;
        // SAFETY: the descriptor is open as long as `self` is borrowed, and TIOCOUTQ writes one int to the
        // pointer, which points to one.
        let done = unsafe { libc::ioctl(descriptor, libc::TIOCOUTQ, &raw mut count) };
        u64::try_from(count).ok().filter(|_| done == 0)
    }

    /// Closes the sending direction.
    pub(crate) async fn shutdown(&mut self) -> io::Result<()> {
        poll_fn(|cx| match self {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Other(stream) => Pin::new(stream).poll_shutdown(cx),
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_with_ports_or_paths() {
        let tcp = |text: &str| Ok(Address::Tcp(text.into()));
        assert_eq!("node1:7000".parse(), tcp("node1:7000"));
        assert_eq!("node1".parse(), tcp("node1:11311"));
        assert_eq!("[::1]:7".parse(), tcp("[::1]:7"));
        assert_eq!("::1".parse(), tcp("[::1]:11311"));
        assert_eq!("unix:/run/x".parse(), Ok(Address::Unix("/run/x".into())));
        for wrong in ["", ":7", "unix:", "a:b", "a:70000"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}

//! A connected socket, TCP or unix, behind one type; every call is one system call.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::Target;
use crate::tls::TlsStream;

/// Longest wait for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A connected socket.
#[derive(Debug)]
pub enum Stream {
    /// TCP, without Nagle's delay.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
    /// TLS over TCP.
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Connects in blocking mode.
    ///
    /// # Errors
    /// Returns the connection error, or a timeout after five seconds (TCP).
    pub fn connect(target: &Target) -> io::Result<Self> {
        Ok(match target {
            Target::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, CONNECT_LIMIT)?;
                stream.set_nodelay(true)?;
                Self::Tcp(stream)
            }
            Target::Unix(path) => Self::Unix(UnixStream::connect(path)?),
            Target::Tls(address) => Self::Tls(Box::new(TlsStream::connect(address)?)),
        })
    }

    /// Switches between waiting and returning `WouldBlock`.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(nonblocking),
            Self::Unix(stream) => stream.set_nonblocking(nonblocking),
            Self::Tls(stream) => stream.socket().set_nonblocking(nonblocking),
        }
    }

    /// Limits how long a blocking read or write waits.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn set_wait_limit(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(limit)).and(stream.set_write_timeout(Some(limit)))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(limit)).and(stream.set_write_timeout(Some(limit)))
            }
            Self::Tls(stream) => {
                let socket = stream.socket();
                socket.set_read_timeout(Some(limit)).and(socket.set_write_timeout(Some(limit)))
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.as_fd(),
        }
    }
}

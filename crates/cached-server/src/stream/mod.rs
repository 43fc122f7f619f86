//! The byte stream of a connection, below the execution of requests: nonblocking reads and writes
//! ([`Transport`]), buffers, TLS. Nothing here knows an event loop or executes a request.
//!
//! | module | content |
//! |---|---|
//! | `tls` | [`TlsSocket`]: a socket whose bytes are TLS records |
//! | `output` | [`Output`]: replies that have not been sent |
//! | `body` | [`Body`]: a value that has not arrived completely |

mod body;
mod output;
pub(crate) mod tls;

pub(crate) use body::{Body, OutOfMemory};
pub(crate) use output::{COPY_BYTES_MAX, FULL_BYTES, Output, PIN_BYTES_MIN};
pub(crate) use tls::{BUFFERS_BYTES as TLS_BUFFERS_BYTES, TlsBuffers, TlsSocket, TlsStream};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::task::Poll;

/// Bytes requested by one read.
pub(crate) const READ_BYTES: usize = 16 << 10;

/// A worker's input buffer: one read, and the unused rest of the one before.
pub(crate) const INPUT_BYTES: usize = 2 * READ_BYTES;

/// The number of connections that are read from before the first of them is answered: enough for
/// their waits for memory to overlap, and few enough for the first reply not to be late.
pub(crate) const GROUP: usize = 4;

/// Bytes read from each connection of a group: a value of 4 KiB with its command. The rest of a
/// larger value is better read straight into its place, and buffers that every sender fills to the
/// end cost memory.
pub(crate) const AHEAD_BYTES: usize = (4 << 10) + (1 << 9);

/// A worker's input buffers together.
pub(crate) const INPUT_BUFFERS_BYTES: usize = INPUT_BYTES + GROUP * AHEAD_BYTES;

/// A byte stream that never blocks.
///
/// `Pending` is a promise: the connection will be driven again when the same call can make
/// progress.
pub(crate) trait Transport {
    /// Reads into the front of `into`; returns the number of bytes, 0 at the end of the stream.
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>>;
    /// Writes some of `bytes`; returns how many.
    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>>;
    /// Writes some of the pieces, in order; returns the number of bytes.
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;
    /// Returns whether to try a read: `false` only if it would be `Pending` without a system call.
    #[inline]
    fn may_read(&self) -> bool {
        true
    }
    /// Returns whether the bytes are encrypted, so that none may go to the socket by another way.
    #[inline]
    fn is_encrypted(&self) -> bool {
        false
    }
}

/// The readiness of a socket, known without a system call. The system reports changes (edges) only.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readiness {
    /// There may be something to read.
    pub(crate) read: bool,
    /// There may be space to write to.
    pub(crate) write: bool,
    /// The peer has closed or failed: a read always returns something.
    pub(crate) closed: bool,
    /// The peer has sent urgent data: a read stops before it, whatever follows.
    pub(crate) urgent: bool,
}

impl Readiness {
    /// A new socket, of which nothing is known: trying is right.
    pub(crate) const NEW: Readiness = Readiness { read: true, write: true, closed: false, urgent: false };
}

/// A socket and its readiness.
pub(crate) struct Socket<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) ready: &'a mut Readiness,
}

impl Transport for Socket<'_> {
    #[inline]
    fn may_read(&self) -> bool {
        self.ready.read
    }

    #[inline]
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if !self.ready.read {
            return Poll::Pending;
        }
        let wanted = into.len();
        loop {
            match rustix::net::recv(self.fd, &mut *into, RecvFlags::empty()) {
                Ok((count, _)) => {
                    // A short read has emptied the socket, and more input raises an event of its
                    // own. Except when the end has been reported, which is reported once, or when
                    // the read stopped at urgent data.
                    self.ready.read = count == wanted || self.ready.closed | self.ready.urgent;
                    return Poll::Ready(Ok(count));
                }
                Err(Errno::AGAIN) => {
                    self.ready.read = false;
                    return Poll::Pending;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.ready.write {
            return Poll::Pending;
        }
        self.written(rustix::net::send(self.fd, bytes, SendFlags::NOSIGNAL), bytes.len())
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if !self.ready.write {
            return Poll::Pending;
        }
        let wanted = pieces.iter().map(|piece| piece.len()).sum();
        let sent = rustix::net::sendmsg(self.fd, pieces, &mut Default::default(), SendFlags::NOSIGNAL);
        self.written(sent, wanted)
    }
}

impl Socket<'_> {
    #[inline]
    fn written(&mut self, sent: rustix::io::Result<usize>, wanted: usize) -> Poll<io::Result<usize>> {
        match sent {
            Ok(count) => {
                // A short write has filled the socket.
                self.ready.write = count == wanted;
                Poll::Ready(Ok(count))
            }
            Err(Errno::AGAIN) => {
                self.ready.write = false;
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

/// A socket at shutdown: bytes that have arrived are still read, and the stream ends after them.
pub(crate) struct Draining<'a>(pub(crate) Socket<'a>);

impl Transport for Draining<'_> {
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.ready.read = true;
        match self.0.read(into) {
            Poll::Pending => Poll::Ready(Ok(0)),
            ready => ready,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.0.write_vectored(pieces)
    }
}

//! The byte stream of a connection, below the execution of requests: nonblocking reads and writes
//! ([`Transport`]), buffers, TLS. Nothing here depends on an event loop or executes a request.
//!
//! | module | content |
//! |---|---|
//! | `tls` | [`TlsSocket`]: a socket whose bytes are TLS records |
//! | `link` | [`Link`]: a connection to another node |
//! | `uring` | [`Uring`]: one system call for several sockets |
//! | `output` | [`Output`]: replies that have not been sent |
//! | `body` | [`Body`]: a value that has not arrived completely |

mod body;
mod link;
mod output;
pub(crate) mod tls;
mod uring;

pub(crate) use body::{Body, OutOfMemory};
pub(crate) use link::{Link, LinkIo};
pub(crate) use output::{COPY_BYTES_MAX, FULL_BYTES, Mark, Output, PIN_BYTES_MIN};
pub(crate) use tls::{
    BUFFERS_BYTES as TLS_BUFFERS_BYTES, CountHandshake, NOT_TLS, TlsBuffers, TlsSocket, TlsStream,
};
pub(crate) use uring::{BUNDLE, URING_BYTES, Uring};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::task::Poll;

/// The number of bytes requested by one read.
pub(crate) const READ_BYTES: usize = 16 << 10;

/// The size of a worker's input buffer: one read, plus the unconsumed rest of the previous one.
pub(crate) const INPUT_BYTES: usize = 2 * READ_BYTES;

/// The number of connections that are read from before the first of them is answered: enough for
/// their cache misses to overlap, and few enough not to delay the first reply.
pub(crate) const GROUP: usize = 4;

/// The number of bytes read from each connection of a group: enough for a value of 4 KiB with its
/// command. The rest of a larger value is better read directly into its destination, and buffers
/// that every sender fills completely cost memory.
pub(crate) const AHEAD_BYTES: usize = (4 << 10) + (1 << 9);

/// The size of a worker's input buffers, without those that bundles add.
pub(crate) const INPUT_BUFFERS_BYTES: usize = INPUT_BYTES + GROUP * AHEAD_BYTES;

/// A byte stream that never blocks.
///
/// Returning `Pending` is a promise: the connection will be driven again when the same call can
/// make progress.
pub(crate) trait Transport {
    /// Reads into the front of `into`. Returns the number of bytes read, 0 at the end of the
    /// stream.
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>>;
    /// Writes some of `bytes`. Returns the number of bytes written.
    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>>;
    /// Writes some of the pieces, in order. Returns the number of bytes written.
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;
    /// Returns how many of the bytes that the last write accepted, `written`, count as sent now. A
    /// transport that only queued them counts them itself once they are sent.
    #[inline]
    fn sent_by_write(&self, written: usize) -> u64 {
        written as u64
    }
    /// Returns whether a read is worth trying: `false` only if it would return `Pending` without a
    /// system call.
    #[inline]
    fn may_read(&self) -> bool {
        true
    }
    /// Returns whether bytes that were accepted have not been given to the system yet.
    #[inline]
    fn has_queued(&self) -> bool {
        false
    }
    /// Returns whether the stream is encrypted, in which case no bytes may bypass this transport to
    /// the socket.
    #[inline]
    fn is_encrypted(&self) -> bool {
        false
    }
}

/// The readiness of a socket, known without a system call. The system reports only changes (edges).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readiness {
    /// Whether there may be something to read.
    pub(crate) read: bool,
    /// Whether there may be space for a write.
    pub(crate) write: bool,
    /// Whether the peer has closed the connection or failed, so that a read always returns
    /// something.
    pub(crate) closed: bool,
    /// Whether the peer has sent urgent data: a read stops before such data, whatever follows.
    pub(crate) urgent: bool,
}

impl Readiness {
    /// The readiness of a new socket, of which nothing is known, so that trying is right.
    pub(crate) const NEW: Readiness = Readiness { read: true, write: true, closed: false, urgent: false };

    /// Records the result of a receive of at most `wanted` bytes.
    #[inline]
    pub(crate) fn received(
        &mut self,
        result: rustix::io::Result<usize>,
        wanted: usize,
    ) -> Poll<io::Result<usize>> {
        match result {
            Ok(count) => {
                // A short read has emptied the socket, and more input will raise an event. The
                // exceptions: the end of the stream has been reported, which happens only once, or
                // the read stopped at urgent data.
                self.read = count == wanted || self.closed | self.urgent;
                Poll::Ready(Ok(count))
            }
            Err(Errno::AGAIN) => {
                self.read = false;
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    /// Records the result of a send of `wanted` bytes.
    #[inline]
    pub(crate) fn sent(
        &mut self,
        result: rustix::io::Result<usize>,
        wanted: usize,
    ) -> Poll<io::Result<usize>> {
        match result {
            Ok(count) => {
                // A short write has filled the socket.
                self.write = count == wanted;
                Poll::Ready(Ok(count))
            }
            Err(Errno::AGAIN) => {
                self.write = false;
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
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
                Err(Errno::INTR) => {}
                result => return self.ready.received(result.map(|(count, _)| count), wanted),
            }
        }
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.ready.write {
            return Poll::Pending;
        }
        self.ready.sent(rustix::net::send(self.fd, bytes, SendFlags::NOSIGNAL), bytes.len())
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if !self.ready.write {
            return Poll::Pending;
        }
        let wanted = pieces.iter().map(|piece| piece.len()).sum();
        let sent = rustix::net::sendmsg(self.fd, pieces, &mut Default::default(), SendFlags::NOSIGNAL);
        self.ready.sent(sent, wanted)
    }
}

/// A socket at shutdown: bytes that have arrived are still read, after which the stream ends.
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

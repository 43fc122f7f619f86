//! A connection to or from another node of a ring, with TLS or without: lanes in workers, copy
//! sessions in threads of their own, handshakes in the acceptor's thread.

use super::tls::{TlsBuffers, TlsSocket, TlsStream};
use super::{Readiness, Socket, Transport};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::{Poll, ready};

/// A socket that does not block, and the TLS side of the connection.
pub(crate) struct Link<S = OwnedFd> {
    socket: S,
    pub(crate) ready: Readiness,
    tls: Option<Box<TlsStream>>,
}

impl<S: AsFd> Link<S> {
    /// Returns a connection over a socket that does not block, with TLS if `tls` is given.
    pub(crate) fn new(socket: S, tls: Option<Box<TlsStream>>) -> Link<S> {
        Link { socket, ready: Readiness::NEW, tls }
    }

    pub(crate) fn socket(&self) -> &S {
        &self.socket
    }

    /// Returns the socket and the TLS side, for another event loop.
    pub(crate) fn into_parts(self) -> (S, Option<Box<TlsStream>>) {
        (self.socket, self.tls)
    }

    /// Returns the transport. `buffers` are created for the first connection with TLS; connections
    /// use them in turn.
    #[inline]
    pub(crate) fn io<'a>(&'a mut self, buffers: &'a mut Option<Box<TlsBuffers>>) -> LinkIo<'a> {
        let socket = Socket { fd: self.socket.as_fd(), ready: &mut self.ready };
        let Some(stream) = &mut self.tls else { return LinkIo::Plain(socket) };
        let buffers = buffers.get_or_insert_with(TlsBuffers::new);
        // The acceptor limits handshakes.
        buffers.handshakes_left = u32::MAX;
        stream.is_deferred = false;
        LinkIo::Tls(TlsSocket { socket, stream, buffers, counts: None, is_draining: false })
    }

    /// Returns whether a read is worth trying before the next event of the socket.
    #[inline]
    pub(crate) fn may_read(&self) -> bool {
        self.ready.read || self.tls.as_ref().is_some_and(|stream| stream.may_read())
    }

    /// Returns whether the last read has returned nothing although there is input, so that others are
    /// served first.
    #[inline]
    pub(crate) fn is_deferred(&self) -> bool {
        self.tls.as_ref().is_some_and(|stream| stream.is_deferred)
    }

    /// Returns whether what was pending waits until the socket can be read, and until it can be
    /// written: for neither if it only lets others go first.
    pub(crate) fn awaits(&self) -> (bool, bool) {
        (!self.may_read(), !self.ready.write)
    }

    /// Returns the reason why TLS cannot continue, if it cannot.
    pub(crate) fn tls_failure(&self) -> Option<&str> {
        self.tls.as_ref()?.failure()
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Link {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The transport of a [`Link`].
pub(crate) enum LinkIo<'a> {
    Plain(Socket<'a>),
    Tls(TlsSocket<'a>),
}

impl LinkIo<'_> {
    /// Goes on with the handshake of TLS until it is complete.
    pub(crate) fn establish(&mut self) -> Poll<io::Result<()>> {
        if let LinkIo::Plain(_) = self {
            return Poll::Ready(Ok(()));
        }
        // Nothing but TLS itself comes before the first bytes of this side.
        match (self.read(&mut []), self) {
            (_, LinkIo::Tls(tls)) if tls.stream.is_established => Poll::Ready(Ok(())),
            (Poll::Ready(Ok(_)), _) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            (read, _) => read.map_ok(drop),
        }
    }

    /// Writes some of the bytes, which are in two slices, and returns their number; 0 if there are none.
    /// Bytes count as written as soon as the peer may receive one of them, as encrypted ones do of which
    /// the socket has taken a part: the rest is sent by the next call.
    pub(crate) fn send(&mut self, first: &[u8], second: &[u8]) -> Poll<io::Result<usize>> {
        if let LinkIo::Tls(tls) = self {
            ready!(tls.flush())?;
        }
        let written = match (first.is_empty(), second.is_empty()) {
            (true, _) => return Poll::Ready(Ok(0)),
            (_, true) => self.write(first),
            (_, false) => self.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]),
        };
        match (written, self) {
            (Poll::Pending, LinkIo::Tls(tls)) if tls.stream.owes() => Poll::Ready(Ok(tls.stream.take_owed())),
            (written, _) => written,
        }
    }
}

impl Transport for LinkIo<'_> {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            LinkIo::Plain(socket) => socket.read(into),
            LinkIo::Tls(tls) => tls.read(into).map_err(|error| match tls.stream.failure() {
                Some(why) => io::Error::new(error.kind(), why),
                None => error,
            }),
        }
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            LinkIo::Plain(socket) => socket.write(bytes),
            LinkIo::Tls(tls) => tls.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self {
            LinkIo::Plain(socket) => socket.write_vectored(pieces),
            LinkIo::Tls(tls) => tls.write_vectored(pieces),
        }
    }

    fn is_encrypted(&self) -> bool {
        matches!(self, LinkIo::Tls(_))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tls::tests::harness::{BOTH, configs};
    use super::*;
    use rustls::pki_types::ServerName;
    use std::os::unix::net::UnixStream;

    /// One end, what it sends, and what it has received.
    struct End {
        link: Link,
        buffers: Option<Box<TlsBuffers>>,
        bytes: Vec<u8>,
        sent: usize,
        received: Vec<u8>,
    }

    impl End {
        fn new(socket: UnixStream, tls: Option<Box<TlsStream>>, seed: usize) -> End {
            socket.set_nonblocking(true).unwrap();
            let bytes = (0..3_000_000).map(|at| ((at + seed) * 31 % 251) as u8).collect();
            let link = Link::new(socket.into(), tls);
            End { link, buffers: None, bytes, sent: 0, received: Vec::new() }
        }

        /// The socket may have changed.
        fn io(&mut self) -> LinkIo<'_> {
            self.link.ready = Readiness::NEW;
            self.link.io(&mut self.buffers)
        }

        /// Sends until the socket takes no more.
        fn send(&mut self) {
            loop {
                let (first, second) = self.bytes[self.sent..].split_at((self.bytes.len() - self.sent) / 2);
                self.link.ready = Readiness::NEW;
                match self.link.io(&mut self.buffers).send(first, second) {
                    Poll::Ready(Ok(0)) | Poll::Pending => return,
                    Poll::Ready(sent) => self.sent += sent.expect("a connection"),
                }
            }
        }

        fn receive(&mut self) {
            let mut into = vec![0; 64 << 10];
            while let Poll::Ready(read) = self.io().read(&mut into) {
                match read.expect("a connection") {
                    0 => return,
                    count => self.received.extend_from_slice(&into[..count]),
                }
            }
        }
    }

    fn ends(has_tls: bool) -> [End; 2] {
        let (near, far) = UnixStream::pair().unwrap();
        let [mut a, mut b] = if has_tls {
            let (server, client) = configs(BOTH);
            let name = ServerName::try_from("localhost").unwrap();
            let dialled = TlsStream::dialled(client, name).expect("a hello");
            [End::new(near, Some(dialled), 0), End::new(far, Some(TlsStream::accepted(server)), 7)]
        } else {
            [End::new(near, None, 0), End::new(far, None, 7)]
        };
        while a.io().establish().is_pending() {
            b.receive();
        }
        // The end of the handshake.
        b.receive();
        [a, b]
    }

    /// A peer may receive, and act on, any byte that was encrypted, also if the socket has not taken all
    /// of its batch. And either end reads while its own bytes wait, since the other one may do the same.
    #[test]
    fn both_ends_send_at_once_and_nobody_receives_what_is_not_sent() {
        for has_tls in [false, true] {
            let [mut a, mut b] = ends(has_tls);
            while a.received.len() < b.bytes.len() || b.received.len() < a.bytes.len() {
                let before = a.received.len() + b.received.len();
                a.send();
                b.send();
                a.receive();
                b.receive();
                assert!(b.received.len() <= a.sent && a.received.len() <= b.sent);
                assert!(a.received.len() + b.received.len() > before, "they wait for each other");
            }
            assert!(a.received == b.bytes && b.received == a.bytes);
            // The end is that of the protocol above.
            drop(b);
            assert!(matches!(a.io().read(&mut [0; 8]), Poll::Ready(Ok(0))));
        }
    }
}

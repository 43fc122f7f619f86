//! TLS under a connection: records in, records out, in the worker's own loop.
//!
//! ```text
//!  socket ──► worker's `incoming` ──► rustls ──► plaintext ──► the reader's buffer
//!             (a part of a record: `partial`)    (more than it takes: `received`)
//!  replies ──► rustls, up to 16 KiB a record ──► worker's `outgoing` ──► one send
//!                                                (what the socket does not take: `unsent`)
//! ```
//! A connection keeps none of these buffers while it is idle. rustls itself holds no bytes, because
//! its unbuffered interface is used. Until a client has sent its first byte, there is no TLS state
//! at all.
//!
//! Encrypted bytes must be sent unchanged. Plaintext therefore counts as written once the socket
//! has accepted the last of its records; until then [`TlsSocket::write`] returns `Pending`, and the
//! caller offers the same bytes again, which are not encrypted a second time.
//!
//! Between two nodes of a ring (*duplex*) either end sends at any time, and may wait with its own
//! bytes until the other one has read: there, bytes are read while others wait to be sent. The end of
//! the stream is what the protocol above says, so close_notify is not expected.
//!
//! `records` contains the calls to rustls: decrypting, encrypting, alerts; `tests::harness` contains
//! a client for the other end, for tests and fuzzing.

mod records;
#[cfg(any(test, fuzzing))]
pub(crate) mod tests;

pub(crate) use records::NOT_TLS;

use super::{Socket, Transport};
use records::{Processed, Side};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConfig, HandshakeKind, ServerConfig};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Poll, ready};

/// The maximum number of bytes of incomplete records: one record, or one handshake message that
/// spans several.
const PARTIAL_BYTES_MAX: usize = 32 << 10;

/// The number of reads without plaintext after which other connections are served: records may be
/// empty.
const FRUITLESS_READS_MAX: usize = 8;

/// The TLS side of one connection.
pub(crate) struct TlsStream {
    state: State,
    /// Records that have not arrived completely.
    partial: Vec<u8>,
    /// Plaintext for which the reader had no space, from `received_used` on.
    received: Vec<u8>,
    received_used: usize,
    /// Records that the socket has not accepted, from `unsent_used` on.
    unsent: Vec<u8>,
    unsent_used: usize,
    /// The number of plaintext bytes within `unsent` that do not count as written yet.
    owed: usize,
    /// The second, by the server's clock, in which the handshake began.
    since: u32,
    /// Whether this is a connection between two nodes.
    is_duplex: bool,
    /// Whether the handshake is complete.
    pub(crate) is_established: bool,
    /// Whether the peer has sent a close_notify.
    is_ended: bool,
    /// Whether there is input whose processing is deferred until other connections have been
    /// served.
    pub(crate) is_deferred: bool,
    /// The reason why the connection cannot continue.
    failure: Option<Box<str>>,
}

/// The state of a connection.
enum State {
    /// Nothing has been received.
    Waiting(Arc<ServerConfig>),
    Begun(Box<UnbufferedServerConnection>),
    /// This is the side that has opened the connection.
    Dialled(Box<UnbufferedClientConnection>),
    /// Nothing more can be received or sent.
    Over,
}

impl TlsStream {
    /// Returns the TLS side of a connection that was accepted in second `since` of the server's
    /// clock.
    pub(crate) fn new(config: Arc<ServerConfig>, since: u32) -> Box<TlsStream> {
        TlsStream::with(State::Waiting(config), since, false)
    }

    /// Returns the TLS side of a connection that another node has opened.
    pub(crate) fn accepted(config: Arc<ServerConfig>) -> Box<TlsStream> {
        TlsStream::with(State::Waiting(config), 0, true)
    }

    /// Returns the TLS side of a connection to another node, which must show a certificate for
    /// `name`. The first read sends the client's hello.
    ///
    /// # Errors
    /// Fails if the configuration does not allow a connection.
    pub(crate) fn dialled(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Box<TlsStream>, String> {
        let connection = UnbufferedClientConnection::new(config, name).map_err(|error| error.to_string())?;
        let (mut connection, mut hello, mut bytes) = (Box::new(connection), Vec::new(), 0);
        let mut nothing = Vec::new();
        Processed::new(&mut [], &mut nothing).take_in(&mut *connection, &mut [], &mut hello, &mut bytes)?;
        hello.truncate(bytes);
        let mut stream = TlsStream::with(State::Dialled(connection), 0, true);
        stream.unsent = hello;
        Ok(stream)
    }

    fn with(state: State, since: u32, is_duplex: bool) -> Box<TlsStream> {
        Box::new(TlsStream {
            state,
            partial: Vec::new(),
            received: Vec::new(),
            received_used: 0,
            unsent: Vec::new(),
            unsent_used: 0,
            owed: 0,
            since,
            is_duplex,
            is_established: false,
            is_ended: false,
            is_deferred: false,
            failure: None,
        })
    }

    /// Returns whether the handshake has taken longer than `secs_max`.
    pub(crate) fn is_overdue(&self, now: u32, secs_max: u32) -> bool {
        !self.is_established && now.saturating_sub(self.since) > secs_max
    }

    /// Returns the number of buffer bytes that the connection keeps while it waits.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.partial.capacity() + self.received.capacity() + self.unsent.capacity()
    }

    /// Returns the reason why the connection could not continue, if there is one.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns whether a read returns something without another event of the socket.
    pub(crate) fn may_read(&self) -> bool {
        !self.received.is_empty() || self.is_deferred
    }

    /// Returns whether bytes were encrypted that do not count as written yet.
    pub(crate) fn owes(&self) -> bool {
        self.owed > 0
    }

    /// Returns the number of these bytes, which count as written from here on.
    pub(crate) fn take_owed(&mut self) -> usize {
        std::mem::take(&mut self.owed)
    }

    /// Records why the connection cannot continue.
    pub(crate) fn fail(&mut self, why: impl Into<Box<str>>) -> io::Error {
        self.failure.get_or_insert_with(|| why.into());
        self.state = State::Over;
        io::ErrorKind::InvalidData.into()
    }

    /// Moves plaintext that was left over to `into`. Returns the number of bytes moved.
    fn take_received(&mut self, into: &mut [u8]) -> usize {
        let rest = &self.received[self.received_used..];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.received_used += count;
        if self.received_used == self.received.len() {
            (self.received, self.received_used) = (Vec::new(), 0);
        }
        count
    }
}

/// Who counts handshakes.
pub(crate) trait CountHandshake {
    /// A handshake is complete. No request was executed before.
    fn count_handshake(&self, is_resumed: bool);
}

/// A socket with TLS, and the worker's buffers for one step.
pub(crate) struct TlsSocket<'a> {
    pub(crate) socket: Socket<'a>,
    pub(crate) stream: &'a mut TlsStream,
    pub(crate) buffers: &'a mut TlsBuffers,
    /// Counts the handshakes of clients; `None` between nodes.
    pub(crate) counts: Option<&'a dyn CountHandshake>,
    /// Whether the server is shutting down: data that has arrived is still read, after which the
    /// stream ends.
    pub(crate) is_draining: bool,
}

impl Transport for TlsSocket<'_> {
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if !self.stream.received.is_empty() {
            return Poll::Ready(Ok(self.stream.take_received(into)));
        }
        for _ in 0..FRUITLESS_READS_MAX {
            if self.stream.failure.is_some() {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
            if self.stream.is_duplex {
                // After an error, the peer's last words may still be there.
                let _ = self.flush();
                if self.stream.unsent.len() > UNSENT_BYTES_MAX {
                    return Poll::Pending;
                }
            } else {
                // Nothing more is read from a client that does not accept the bytes sent to it.
                ready!(self.flush())?;
            }
            if self.stream.is_ended {
                return Poll::Ready(Ok(0));
            }
            let count = ready!(self.read_records(into))?;
            if count > 0 {
                return Poll::Ready(Ok(count));
            }
        }
        self.stream.is_deferred = true;
        Poll::Pending
    }

    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        ready!(self.flush())?;
        if self.stream.owed > 0 {
            return Poll::Ready(Ok(self.stream.take_owed()));
        }
        if !self.socket.ready.write {
            return Poll::Pending;
        }
        let plain = self.encrypt(pieces)?;
        self.stream.owed = plain;
        ready!(self.send_outgoing())?;
        self.stream.owed = 0;
        Poll::Ready(Ok(plain))
    }

    fn is_encrypted(&self) -> bool {
        true
    }
}

impl TlsSocket<'_> {
    /// Reads from the socket once, and decrypts. Returns the number of plaintext bytes, which may
    /// be 0.
    fn read_records(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if !self.stream.is_established && self.socket.ready.read && self.buffers.handshakes_left == 0 {
            self.stream.is_deferred = true;
            return Poll::Pending;
        }
        let held = self.stream.partial.len();
        let incoming = &mut self.buffers.incoming;
        incoming[..held].copy_from_slice(&self.stream.partial);
        if self.is_draining {
            self.socket.ready.read = true;
        }
        let read = match self.socket.read(&mut incoming[held..held + READ_BYTES]) {
            Poll::Pending if self.is_draining => {
                self.stream.is_ended = true;
                return Poll::Ready(Ok(0));
            }
            read => ready!(read),
        };
        let count = match read {
            Ok(0) | Err(_) if !self.stream.is_established => {
                // A port scan, or a client that went away.
                let why = "the peer has closed during the handshake";
                if matches!(self.stream.state, State::Waiting(_)) {
                    self.stream.is_ended = true;
                    return Poll::Ready(Ok(0));
                }
                if self.stream.is_duplex {
                    // Nothing that has to do with TLS: the connection is lost.
                    self.stream.state = State::Over;
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                return Poll::Ready(Err(self.stream.fail(why)));
            }
            Ok(0) if self.stream.is_duplex => {
                self.stream.is_ended = true;
                return Poll::Ready(Ok(0));
            }
            Ok(0) => {
                let why = "the stream was cut off: the peer has closed without close_notify";
                return Poll::Ready(Err(self.stream.fail(why)));
            }
            Ok(count) => count,
            Err(error) => return Poll::Ready(Err(self.stream.fail(error.to_string()))),
        };
        self.stream.partial = Vec::new();
        if !self.stream.is_established {
            self.buffers.handshakes_left = self.buffers.handshakes_left.saturating_sub(1);
        }
        self.process(held + count, into)
    }

    /// Decrypts the first `filled` bytes of `incoming`, and sends the replies of TLS itself.
    /// Returns the number of plaintext bytes in `into`.
    fn process(&mut self, filled: usize, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if let State::Waiting(config) = &self.stream.state {
            match UnbufferedServerConnection::new(config.clone()) {
                Ok(connection) => self.stream.state = State::Begun(Box::new(connection)),
                Err(error) => return Poll::Ready(Err(self.stream.fail(error.to_string()))),
            }
        }
        self.buffers.outgoing_used = 0;
        let TlsBuffers { incoming, outgoing, outgoing_used, .. } = &mut *self.buffers;
        let TlsStream { state, received, is_established, .. } = &mut *self.stream;
        let mut processed = Processed::new(into, received);
        let (result, common) = match state {
            State::Begun(connection) => {
                let connection = &mut **connection;
                let input = &mut incoming[..filled];
                (processed.take_in(connection, input, outgoing, outgoing_used), connection.common())
            }
            State::Dialled(connection) => {
                let connection = &mut **connection;
                let input = &mut incoming[..filled];
                (processed.take_in(connection, input, outgoing, outgoing_used), connection.common())
            }
            State::Waiting(_) | State::Over => {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
        };
        let Processed { used, plain_bytes: count, is_ended, .. } = processed;
        let has_ended = !*is_established && !common.is_handshaking();
        let ended = has_ended.then(|| common.handshake_kind());
        self.stream.is_ended |= is_ended;
        let rest = &incoming[used..filled];
        if !rest.is_empty() && !self.stream.is_ended {
            self.stream.partial = rest.to_vec();
        }
        if let Err(why) = result {
            // The alert reports the reason to the peer, as far as it can be sent without waiting.
            let _ = self.send_outgoing();
            return Poll::Ready(Err(self.stream.fail(why)));
        }
        if self.stream.partial.len() > PARTIAL_BYTES_MAX {
            let why = "a handshake message is too long";
            return Poll::Ready(Err(self.stream.fail(why)));
        }
        if let Some(handshake) = ended {
            self.stream.is_established = true;
            if let Some(counts) = self.counts {
                counts.count_handshake(handshake == Some(HandshakeKind::Resumed));
            }
        }
        match self.send_outgoing() {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending if count == 0 && !self.stream.is_duplex => Poll::Pending,
            _ => Poll::Ready(Ok(count)),
        }
    }

    /// Encrypts some of the pieces into `outgoing`. Returns the number of plaintext bytes
    /// encrypted.
    fn encrypt(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let TlsStream { state, partial, .. } = &mut *self.stream;
        let encrypted = match state {
            State::Begun(connection) => records::encrypt(&mut **connection, partial, pieces, self.buffers),
            State::Dialled(connection) => records::encrypt(&mut **connection, partial, pieces, self.buffers),
            State::Waiting(_) | State::Over => return Err(io::ErrorKind::NotConnected.into()),
        };
        encrypted.map_err(|why| self.stream.fail(why))
    }

    /// Sends `outgoing`; the part that the socket does not accept is kept.
    fn send_outgoing(&mut self) -> Poll<io::Result<()>> {
        let bytes = &self.buffers.outgoing[..self.buffers.outgoing_used];
        if bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if !self.stream.unsent.is_empty() {
            debug_assert!(self.stream.is_duplex, "records would overtake each other");
            self.stream.unsent.extend_from_slice(bytes);
            return Poll::Pending;
        }
        let taken = match self.socket.write(bytes) {
            Poll::Ready(Ok(count)) if count == bytes.len() => return Poll::Ready(Ok(())),
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => 0,
        };
        self.stream.unsent = bytes[taken..].to_vec();
        Poll::Pending
    }

    /// Sends the records that the socket did not accept earlier.
    pub(crate) fn flush(&mut self) -> Poll<io::Result<()>> {
        let stream = &mut *self.stream;
        while stream.unsent_used < stream.unsent.len() {
            stream.unsent_used += ready!(self.socket.write(&stream.unsent[stream.unsent_used..]))?;
        }
        if !stream.unsent.is_empty() {
            (stream.unsent, stream.unsent_used) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }

    /// Closes the stream in order (close_notify), as far as that is possible without waiting.
    pub(crate) fn close(&mut self) {
        let State::Begun(connection) = &mut self.stream.state else { return };
        if !self.stream.is_established || !self.stream.unsent.is_empty() {
            return;
        }
        self.buffers.outgoing_used = 0;
        records::close_notify(connection, &mut self.stream.partial, self.buffers);
        // Fails if the peer has already gone, which does not matter.
        let _ = self.send_outgoing();
    }
}

/// The number of bytes requested by one read: the longest record that peers send, so that a stream
/// of such records is read record by record.
const READ_BYTES: usize = (16 << 10) + 256 + 5;

/// The number of plaintext bytes encrypted before they are sent.
const BATCH_BYTES: usize = 64 << 10;

/// The maximum plaintext of one record.
const RECORD_BYTES: usize = 16 << 10;

/// Space for the records of a batch, and for TLS's own messages before them.
const OUTGOING_BYTES: usize = BATCH_BYTES + (8 << 10);

/// The number of bytes that wait to be sent above which nothing is read. A batch is fewer; the replies
/// of TLS itself, to a peer that does not read them, add to it.
const UNSENT_BYTES_MAX: usize = 2 * OUTGOING_BYTES;

/// The size of all TLS buffers of a worker.
pub(crate) const BUFFERS_BYTES: usize = PARTIAL_BYTES_MAX + READ_BYTES + OUTGOING_BYTES + RECORD_BYTES;

/// Buffers that the TLS connections of a worker use in turn.
pub(crate) struct TlsBuffers {
    /// Encrypted records, as received from the socket.
    incoming: Box<[u8]>,
    /// Records to be sent, up to `outgoing_used`. Grows for the certificates of a long chain.
    outgoing: Vec<u8>,
    outgoing_used: usize,
    /// The plaintext of a record that consists of several pieces.
    joined: Vec<u8>,
    /// The number of handshake steps that may be performed before other connections are served.
    pub(crate) handshakes_left: u32,
}

impl TlsBuffers {
    pub(crate) fn new() -> Box<TlsBuffers> {
        Box::new(TlsBuffers {
            incoming: vec![0; PARTIAL_BYTES_MAX + READ_BYTES].into(),
            outgoing: vec![0; OUTGOING_BYTES],
            outgoing_used: 0,
            joined: Vec::with_capacity(RECORD_BYTES),
            handshakes_left: 0,
        })
    }
}

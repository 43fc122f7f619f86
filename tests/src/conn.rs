//! One client connection: writes requests whole or in fragments, and reads exactly the expected
//! bytes before a deadline.
//!
//! If the server does not behave as expected, every method panics with the bytes received and the
//! bytes sent so far, so that this module composes a test's failure message.

use crate::bytes::show;
use crate::pattern::{Captures, Match, Pattern};
use crate::server::Address;
use crate::tls::TlsClient;
use crate::udp::UdpClient;
use memchr::{memchr, memmem};
use std::io::{ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The time limit for an expected reply. It is generous, because the machine may be busy, and a
/// hang fails anyway.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// The number of sent bytes kept for failure messages.
const SENT_KEPT_MAX: usize = 4096;

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsClient>),
    Udp(UdpClient),
}

/// A client connection.
pub struct Conn {
    stream: Stream,
    received: Vec<u8>,
    ended: bool,
    sent: Vec<u8>,
}

impl Conn {
    /// Connects.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn open(address: &Address) -> std::io::Result<Self> {
        let stream = match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
            Address::Tls(address, config) => Stream::Tls(Box::new(TlsClient::connect(*address, config)?)),
        };
        Ok(Self::over(stream))
    }

    /// Returns a client that sends each write in a datagram, and treats the datagrams of replies as
    /// a stream.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn datagrams(address: SocketAddr) -> std::io::Result<Self> {
        UdpClient::connect(address).map(Stream::Udp).map(Self::over)
    }

    fn over(stream: Stream) -> Self {
        Self { stream, received: Vec::new(), ended: false, sent: Vec::new() }
    }

    /// Sends all bytes. A closed connection is not an error here, because the following read checks
    /// the reply.
    ///
    /// # Panics
    /// Panics if the server accepts no more bytes before the deadline.
    pub fn send(&mut self, bytes: &[u8]) {
        self.keep_sent(bytes);
        self.write(bytes);
    }

    /// Sends all bytes in pieces of these sizes, repeated; each piece is one write.
    pub fn send_fragments(&mut self, bytes: &[u8], sizes: impl IntoIterator<Item = usize>) {
        self.keep_sent(bytes);
        let mut rest = bytes;
        for size in sizes {
            if rest.is_empty() {
                return;
            }
            let (piece, after) = rest.split_at(size.clamp(1, rest.len()));
            self.write(piece);
            // This gives the server an opportunity to read the piece separately; the test does not
            // depend on it.
            std::thread::yield_now();
            rest = after;
        }
        self.write(rest);
    }

    /// Sends bytes without reading until the server has accepted no more for `patience`; returns
    /// the number of accepted bytes.
    pub fn send_until_stuck(&mut self, bytes: &[u8], patience: Duration) -> usize {
        let mut taken = 0;
        while taken < bytes.len() && self.wait(libc::POLLOUT, patience) & libc::POLLOUT != 0 {
            match self.write_some(&bytes[taken..]) {
                Ok(count) => taken += count,
                Err(_) => break,
            }
        }
        taken
    }

    /// Closes the sending side.
    pub fn finish_sending(&mut self) {
        let _ = match &mut self.stream {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
            Stream::Tls(stream) => {
                stream.finish_sending();
                Ok(())
            }
            // Datagrams have no end.
            Stream::Udp(_) => Ok(()),
        };
    }

    /// Reads exactly these bytes.
    pub fn expect(&mut self, expected: &[u8], about: &str) {
        self.expect_pattern(&Pattern::literal(expected), &mut Captures::default(), about);
    }

    /// Sends a request and reads exactly this reply.
    pub fn ask(&mut self, request: &[u8], expected: &[u8]) {
        self.send(request);
        self.expect(expected, "the reply");
    }

    /// Reads exactly as many bytes as the pattern matches, and returns them.
    pub fn expect_pattern(&mut self, pattern: &Pattern, captures: &mut Captures, about: &str) -> Vec<u8> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let problem = match pattern.matches(&self.received, captures) {
                Match::Full(count) => return self.received.drain(..count).collect(),
                Match::Differs(at) => format!("differs at byte {at}"),
                Match::More if self.ended => "connection closed".to_owned(),
                Match::More if self.fill(deadline) => continue,
                Match::More if self.ended => continue,
                Match::More => "deadline".to_owned(),
            };
            self.fill_until_quiet(Duration::from_millis(100));
            panic!(
                "{about}: {problem}\n  sent:     {}\n  expected: {pattern}\n  got:      {}{}",
                show(&self.sent),
                show(&self.received),
                if self.ended { " (closed)" } else { "" },
            );
        }
    }

    /// Reads one line and returns it without its end.
    pub fn read_line(&mut self) -> Vec<u8> {
        let deadline = Instant::now() + DEADLINE;
        let mut searched = 0;
        loop {
            if let Some(end) = memchr(b'\n', &self.received[searched..]) {
                let mut line: Vec<u8> = self.received.drain(..=searched + end).collect();
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return line;
            }
            searched = self.received.len();
            assert!(
                self.fill(deadline),
                "no line\n  sent: {}\n  got:  {}",
                show(&self.sent),
                show(&self.received)
            );
        }
    }

    /// Reads one line, or nothing if the server closes before a line has begun.
    ///
    /// # Panics
    /// Panics if the server closes within a line.
    pub fn try_read_line(&mut self) -> Option<Vec<u8>> {
        let deadline = Instant::now() + DEADLINE;
        while !self.received.contains(&b'\n') {
            if !self.fill(deadline) {
                assert!(self.ended && self.received.is_empty(), "cut off: {}", show(&self.received));
                return None;
            }
        }
        Some(self.read_line())
    }

    /// Reads exactly this many bytes.
    pub fn read_exact(&mut self, count: usize) -> Vec<u8> {
        let deadline = Instant::now() + DEADLINE;
        while self.received.len() < count {
            assert!(
                self.fill(deadline),
                "{} of {count} bytes came\n  sent: {}\n  got:  {}",
                self.received.len(),
                show(&self.sent),
                show(&self.received)
            );
        }
        self.received.drain(..count).collect()
    }

    /// Reads up to and including this many occurrences of a byte string, and returns the number of
    /// bytes.
    pub fn skip_until_seen(&mut self, needle: &[u8], times: usize) -> usize {
        let deadline = Instant::now() + 4 * DEADLINE;
        let (mut seen, mut skipped) = (0, 0);
        loop {
            while let Some(at) = memmem::find(&self.received, needle) {
                self.received.drain(..at + needle.len());
                skipped += at + needle.len();
                seen += 1;
                if seen == times {
                    return skipped;
                }
            }
            let keep = self.received.len().min(needle.len() - 1);
            skipped += self.received.len() - keep;
            self.received.drain(..self.received.len() - keep);
            assert!(
                self.fill(deadline),
                "{} seen {seen} of {times} times after {skipped} bytes",
                show(needle)
            );
        }
    }

    /// Reads to the end of the stream and returns all of it.
    ///
    /// # Panics
    /// Panics if the server does not close before the deadline.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let deadline = Instant::now() + DEADLINE;
        while self.fill(deadline) {}
        assert!(self.ended, "not closed\n  sent: {}\n  got:  {}", show(&self.sent), show(&self.received));
        std::mem::take(&mut self.received)
    }

    /// Expects that the server closes the connection without sending more.
    pub fn expect_closed(&mut self, about: &str) {
        let rest = self.read_to_end();
        assert!(
            rest.is_empty(),
            "{about}: bytes before the close\n  sent: {}\n  got:  {}",
            show(&self.sent),
            show(&rest)
        );
    }

    /// Returns the received bytes once no more have arrived for a while. Use this only where no
    /// fence can be sent.
    pub fn read_until_quiet(&mut self, quiet: Duration) -> Vec<u8> {
        self.fill_until_quiet(quiet);
        std::mem::take(&mut self.received)
    }

    /// Returns whether a read has found that the server has closed.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Returns the descriptor, for socket options.
    pub fn fd(&self) -> RawFd {
        match &self.stream {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
            Stream::Tls(stream) => stream.fd(),
            Stream::Udp(stream) => stream.fd(),
        }
    }

    /// Closes the connection with a reset instead of an orderly shutdown.
    pub fn reset(self) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: the descriptor is open (self owns it) and the option value is a live struct of that size.
        unsafe {
            libc::setsockopt(
                self.fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size_of::<libc::linger>() as libc::socklen_t,
            );
        }
    }

    fn keep_sent(&mut self, bytes: &[u8]) {
        let room = SENT_KEPT_MAX.saturating_sub(self.sent.len());
        self.sent.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Writes all bytes while reading, so that neither side blocks the other.
    fn write(&mut self, bytes: &[u8]) {
        let deadline = Instant::now() + DEADLINE;
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.write_some(rest) {
                Ok(count) => rest = &rest[count..],
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) if err.kind() == ErrorKind::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    assert!(!left.is_zero(), "the server takes no more bytes\n  sent: {}", show(&self.sent));
                    if self.wait(libc::POLLIN | libc::POLLOUT, left) & libc::POLLIN != 0 && !self.ended {
                        self.fill(deadline);
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Writes as much as possible without waiting.
    fn write_some(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match &mut self.stream {
            Stream::Tls(stream) => return stream.write_some(bytes),
            Stream::Udp(stream) => return stream.send(bytes).map(|()| bytes.len()),
            _ => {}
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: a live buffer of that length and a descriptor that self owns.
        let count = unsafe { libc::send(self.fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        usize::try_from(count).map_err(|_| std::io::Error::last_os_error())
    }

    /// Waits for one of these events; returns 0 after the deadline.
    fn wait(&self, events: libc::c_short, time: Duration) -> libc::c_short {
        let mut poll = libc::pollfd { fd: self.fd(), events, revents: 0 };
        let millis = i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1);
        // SAFETY: one live pollfd.
        unsafe { libc::poll(&raw mut poll, 1, millis) };
        poll.revents
    }

    fn fill_until_quiet(&mut self, quiet: Duration) {
        while !self.ended && self.fill(Instant::now() + quiet) {}
    }

    /// Waits for more bytes; returns false at the deadline and at the end of the stream.
    fn fill(&mut self, deadline: Instant) -> bool {
        let mut chunk = [0; 65536];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.ended {
                return false;
            }
            let read = match &mut self.stream {
                Stream::Tcp(stream) => {
                    stream.set_read_timeout(Some(left)).and_then(|()| stream.read(&mut chunk))
                }
                Stream::Unix(stream) => {
                    stream.set_read_timeout(Some(left)).and_then(|()| stream.read(&mut chunk))
                }
                Stream::Tls(stream) => stream.read_some(&mut chunk, left),
                Stream::Udp(stream) => stream.read_some(&mut chunk, left),
            };
            match read {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    self.received.extend_from_slice(&chunk[..count]);
                    return true;
                }
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return false;
                }
                Err(_) => self.ended = true,
            }
        }
    }
}

//! The connection of a session. Its ends are threads: each waits for the other, for a limited time.

use crate::stream::{Link, TlsBuffers, Transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::task::Poll;
use std::time::{Duration, Instant};

/// A connection with its buffers.
pub(crate) struct Line {
    link: Link,
    tls: Option<Box<TlsBuffers>>,
}

impl Line {
    pub(crate) fn new(link: Link) -> Line {
        Line { link, tls: None }
    }

    /// Reads once, up to `within` later. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// Returns [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing has come by then.
    pub(crate) fn read(&mut self, into: &mut [u8], within: Duration) -> io::Result<usize> {
        if let Poll::Ready(read) = self.link.io(&mut self.tls).read(into) {
            return read;
        }
        self.wait(within)?;
        done(self.link.io(&mut self.tls).read(into))
    }

    /// Writes some of the bytes without waiting. After a call without success, the next one must begin
    /// with the same bytes.
    ///
    /// # Errors
    /// Returns [`WouldBlock`](io::ErrorKind::WouldBlock) if the other end takes none at present.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        done(self.link.io(&mut self.tls).write(bytes))
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// Fails if the other end does not take them within the given time.
    pub(crate) fn write_all(&mut self, mut bytes: &[u8], within: Duration) -> io::Result<()> {
        let deadline = Instant::now() + within;
        while !bytes.is_empty() {
            match self.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    self.wait(left)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until another read or write is worth trying, up to `within`.
    pub(super) fn wait(&mut self, within: Duration) -> io::Result<()> {
        let flags = match self.link.awaits() {
            (true, true) => PollFlags::IN | PollFlags::OUT,
            (true, false) => PollFlags::IN,
            (false, true) => PollFlags::OUT,
            (false, false) => return Ok(()),
        };
        let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
        let mut sockets = [PollFd::new(&self.link, flags)];
        match poll(&mut sockets, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let found = sockets[0].revents();
        let is_closed = found.intersects(PollFlags::HUP | PollFlags::ERR);
        let ready = &mut self.link.ready;
        ready.closed |= is_closed;
        ready.read |= is_closed || found.contains(PollFlags::IN);
        ready.write |= is_closed || found.contains(PollFlags::OUT);
        Ok(())
    }
}

fn done<T>(of: Poll<io::Result<T>>) -> io::Result<T> {
    match of {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

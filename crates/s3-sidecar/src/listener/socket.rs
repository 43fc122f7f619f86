//! The sockets of clients without TLS, which send cached pages without a copy.
//!
//! Runs of lent bytes go through a pipe; everything else, and short runs, are copied into the
//! socket. Bytes in the pipe count as written, and a flush waits for them.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use connection::{join_adjacent, unreceived_bytes};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::Shared;
use crate::memory::pieces::LENT_BYTES_MIN;

/// The maximum number of runs before the lent ones: the head of a response, and the rest of the
/// previous response.
const OTHERS_MAX: usize = 4;

/// A socket that sends lent bytes without a copy.
pub(crate) struct Splicing {
    socket: TcpStream,
    shared: Arc<Shared>,
    pipes: Arc<Pipes>,
    /// The pipe, which exists while it contains bytes or some are about to follow.
    pipe: Option<Pipe>,
    /// The number of bytes that have left the pipe.
    sent: u64,
}

impl Splicing {
    pub(crate) fn new(socket: TcpStream, shared: Arc<Shared>, pipes: Arc<Pipes>) -> Self {
        Self { socket, shared, pipes, pipe: None, sent: 0 }
    }

    /// Returns a number that changes when the client receives bytes while a write waits.
    pub(crate) fn progress(&self) -> u64 {
        self.sent.wrapping_sub(unreceived_bytes(&self.socket).unwrap_or_default())
    }

    /// Ensures that there is a pipe. Returns whether a pipe was available.
    fn has_pipe(&mut self) -> bool {
        if self.pipe.is_none() {
            self.pipe = self.pipes.take();
        }
        self.pipe.is_some()
    }

    /// Sends the content of the pipe.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(pipe) = self.pipe.as_mut().filter(|pipe| pipe.filled > 0) {
            ready!(self.socket.poll_write_ready(cx))?;
            let socket = &self.socket;
            match socket.try_io(Interest::WRITABLE, || pipe.send(socket)) {
                Ok(sent) => self.sent += sent as u64,
                Err(error) if is_passing(&error) => (),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns the range of these runs that are lent, if they justify a pipe.
    fn lent(&self, runs: &[IoSlice<'_>]) -> Option<std::ops::Range<usize>> {
        let is_lent = |run: &IoSlice<'_>| self.shared.pieces.has_lent(run);
        let first = runs.iter().take(OTHERS_MAX + 1).position(is_lent)?;
        let count = runs[first..].iter().take_while(|run| is_lent(run)).count();
        let bytes: usize = runs[first..first + count].iter().map(|run| run.len()).sum();
        (bytes >= LENT_BYTES_MIN).then_some(first..first + count)
    }

    /// Sends runs immediately, although other runs follow them.
    fn poll_send_more(&self, cx: &mut Context<'_>, runs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let socket = &self.socket;
        loop {
            ready!(socket.poll_write_ready(cx))?;
            let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
            let send = || Ok(sendmsg(socket, runs, &mut SendAncillaryBuffer::default(), flags)?);
            match socket.try_io(Interest::WRITABLE, send) {
                Err(error) if is_passing(&error) => (),
                outcome => return Poll::Ready(outcome),
            }
        }
    }
}

/// Returns whether the call must be repeated when the socket is ready.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl AsyncRead for Splicing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, into)
    }
}

impl AsyncWrite for Splicing {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        runs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        if !this.pipes.are_off()
            && let Some(lent) = this.lent(runs)
            && this.has_pipe()
        {
            if lent.start > 0 {
                let outcome = this.poll_send_more(cx, &runs[..lent.start]);
                if outcome.is_pending() {
                    // Other connections can use the pipe in the meantime.
                    this.pipe = None;
                }
                return outcome;
            }
            let taken = this.pipe.as_mut().map_or(0, |pipe| pipe.refer_to(&runs[lent]));
            if taken > 0 {
                this.shared.counts.bytes_lent.add(taken as u64);
                // Bytes that the socket does not accept now are sent before anything else.
                return match this.poll_drain(cx) {
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(taken)),
                };
            }
        }
        Pin::new(&mut this.socket).poll_write_vectored(cx, runs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        self.pipe = None;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// The number of single-page runs that a pipe holds. The HTTP library hands over the same number at
/// a time.
const PIPE_PAGES: usize = 64;

/// The maximum number of pipes of a thread. If all of them contain bytes for slow clients, further
/// connections copy. The pipes of 4 threads reach the system's limit for an unprivileged user.
const PIPES_MAX: usize = 64;

/// The maximum number of descriptors that a thread uses for pipes.
pub const PIPE_DESCRIPTORS_MAX: usize = 2 * PIPES_MAX;

/// The pipes of a thread.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    /// Idle pipes.
    idle: Mutex<Idle>,
    /// Whether the system has refused one of the calls, or no bytes are lent.
    is_off: AtomicBool,
}

#[derive(Debug, Default)]
struct Idle {
    pipes: Vec<Ends>,
    /// The number of pipes, including those in use.
    count: usize,
}

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

/// A pipe in use.
#[derive(Debug)]
pub(crate) struct Pipe {
    /// The ends of the pipe, or `None` once it has been returned to the pool.
    ends: Option<Ends>,
    /// The number of bytes in the pipe.
    filled: usize,
    pipes: Arc<Pipes>,
}

impl Pipes {
    /// Returns an empty pool. If pipes are not wanted, the pool never creates any.
    pub(crate) fn new(are_wanted: bool) -> Pipes {
        Pipes { is_off: AtomicBool::new(!are_wanted), ..Pipes::default() }
    }

    /// Returns whether pipes will never be available.
    pub(crate) fn are_off(&self) -> bool {
        self.is_off.load(Ordering::Relaxed)
    }

    /// Returns an empty pipe, or `None` if no pipe is available now.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Pipe> {
        let in_use = |ends| Pipe { ends: Some(ends), filled: 0, pipes: Arc::clone(self) };
        let mut idle = self.idle.lock();
        if let Some(ends) = idle.pipes.pop() {
            return Some(in_use(ends));
        }
        if idle.count == PIPES_MAX || self.are_off() {
            return None;
        }
        match open() {
            Ok(ends) => {
                idle.count += 1;
                Some(in_use(ends))
            }
            // Pipes may become available later.
            Err(Errno::MFILE | Errno::NFILE | Errno::PERM | Errno::NOMEM) => None,
            Err(error) => {
                self.turn_off("pipe", error.into());
                None
            }
        }
    }

    fn turn_off(&self, call: &str, cause: io::Error) {
        if !self.is_off.swap(true, Ordering::Relaxed) {
            tracing::info!(call, %cause, "bodies of S3 objects are copied into sockets: the system refuses to take pages");
        }
    }
}

fn open() -> Result<Ends, Errno> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    fcntl_setpipe_size(&write, PIPE_PAGES * 4096)?;
    Ok(Ends { read, write })
}

impl Pipe {
    /// Puts references to as many of these bytes into the empty pipe as fit. Returns their number,
    /// or 0 if the system refuses. The bytes must never change again: they are lent.
    pub(crate) fn refer_to(&mut self, runs: &[IoSlice<'_>]) -> usize {
        debug_assert_eq!(self.filled, 0, "the pipe is not empty");
        let Some(ends) = &self.ends else { return 0 };
        let runs = runs.iter().take(PIPE_PAGES).map(|run| (run.as_ptr().cast_mut(), run.len()));
        // The system looks up the pages of one long run faster than those of many short ones.
        let iovec = |(start, len): (*mut u8, _)| libc::iovec { iov_base: start.cast(), iov_len: len };
        let runs: Vec<_> = join_adjacent(runs).map(iovec).collect();
        let (pipe, flags) = (ends.write.as_raw_fd(), libc::SPLICE_F_NONBLOCK);
        // SAFETY: the descriptor is open as long as `self` is borrowed. The kernel only reads the
        // bytes, and keeps references to their pages; and the bytes never change, as the caller
        // states.
        let taken = unsafe { libc::vmsplice(pipe, runs.as_ptr(), runs.len(), flags) };
        match usize::try_from(taken).map_err(|_| io::Error::last_os_error()) {
            Ok(taken) => self.filled = taken,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN | Errno::INTR | Errno::NOMEM) => (),
                _ => self.pipes.turn_off("vmsplice", error),
            },
        }
        self.filled
    }

    /// Moves as many bytes from the pipe, which is not empty, as the socket accepts. Returns their
    /// number.
    ///
    /// # Errors
    /// The socket's errors; `WouldBlock` if the socket accepts nothing now.
    pub(crate) fn send(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let Some(ends) = &self.ends else { return Ok(0) };
        let sent = splice(&ends.read, None, socket, None, self.filled, SpliceFlags::NONBLOCK)?;
        if sent == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.filled -= sent;
        Ok(sent)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else { return };
        let mut idle = self.pipes.idle.lock();
        if self.filled == 0 {
            idle.pipes.push(ends);
        } else {
            // The pipe's content belongs to a connection that has ended.
            idle.count -= 1;
        }
    }
}

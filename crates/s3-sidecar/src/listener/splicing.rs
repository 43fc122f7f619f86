//! A connection without TLS, to which pages of the cache go without a copy.
//!
//! Of what is written, runs of lent bytes go through a pipe; everything else, and runs that are too short, are copied into the
//! socket. Bytes in the pipe count as written, and a flush waits for them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::listener::pipes::{Pipe, Pipes};
use crate::listener::stall::Progress;
use crate::memory::pieces::LENT_BYTES_MIN;
use crate::shared::Shared;

/// The number of runs at the most before those that are lent: the head of an answer, and what is left of the one before.
const OTHERS_MAX: usize = 4;

/// The connection.
pub(crate) struct Splicing {
    socket: TcpStream,
    shared: Arc<Shared>,
    pipes: Arc<Pipes>,
    /// While there are bytes in it, and when some are about to follow.
    pipe: Option<Pipe>,
    /// The number of bytes that have left the pipe.
    sent: u64,
}

impl Splicing {
    pub(crate) fn new(socket: TcpStream, shared: Arc<Shared>, pipes: Arc<Pipes>) -> Self {
        Self { socket, shared, pipes, pipe: None, sent: 0 }
    }

    /// Makes sure that there is a pipe, if there can be one at present.
    fn has_pipe(&mut self) -> bool {
        if self.pipe.is_none() {
            self.pipe = self.pipes.take();
        }
        self.pipe.is_some()
    }

    /// Sends what is in the pipe.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(pipe) = self.pipe.as_mut().filter(|pipe| pipe.filled() > 0) {
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

    /// Returns which of these runs are lent, if they are worth a pipe.
    fn lent(&self, runs: &[IoSlice<'_>]) -> Option<std::ops::Range<usize>> {
        let is_lent = |run: &IoSlice<'_>| self.shared.pieces.has_lent(run);
        let first = runs.iter().take(OTHERS_MAX + 1).position(is_lent)?;
        let count = runs[first..].iter().take_while(|run| is_lent(run)).count();
        let bytes: usize = runs[first..first + count].iter().map(|run| run.len()).sum();
        (bytes >= LENT_BYTES_MIN).then_some(first..first + count)
    }

    /// Sends runs that are followed by others at once.
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

/// Returns whether a call is to be made again, when the socket is ready.
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
                    // Others can have it meanwhile.
                    this.pipe = None;
                }
                return outcome;
            }
            let taken = this.pipe.as_mut().map_or(0, |pipe| pipe.refer_to(&runs[lent]));
            if taken > 0 {
                this.shared.counts.bytes_lent.add(taken as u64);
                // What the socket does not take now is sent before anything else.
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

impl Progress for Splicing {
    fn sent(&self) -> u64 {
        self.sent
    }
}

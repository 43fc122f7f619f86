//! A time limit for clients that do not read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A socket with a time limit for writes without progress.
pub struct Stall<S> {
    socket: S,
    time_max: Duration,
    progress: fn(&S) -> u64,
    /// The progress at the time when the timer was started.
    progressed: u64,
    /// The timer, which runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> Stall<S> {
    /// Limits the time of a write without progress to `time_max`. `progress` returns a number that
    /// changes whenever the client receives bytes while a write waits: a full socket takes no more
    /// bytes before a large part of its buffer is empty, for which a slow client needs long.
    pub fn new(socket: S, time_max: Duration, progress: fn(&S) -> u64) -> Self {
        Self { socket, time_max, progress, progressed: 0, timer: None }
    }

    fn limit<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.timer = None;
            return outcome;
        }
        let progressed = (self.progress)(&self.socket);
        if std::mem::replace(&mut self.progressed, progressed) != progressed {
            self.timer = None;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.time_max)));
        match timer.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stall<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stall<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.limit(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        runs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(cx, runs);
        self.limit(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.socket).poll_flush(cx);
        self.limit(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.limit(cx, outcome)
    }
}

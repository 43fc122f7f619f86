//! The socket of a connection, which counts its bytes, and limits the time of a client that does not
//! read.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use cached_http::{Socket, Stall};
use connection::unreceived_bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Returns a socket that adds the bytes it transfers to `moved_bytes`, and whose writes fail after
/// `stall` without progress.
pub(crate) fn metered<S: Socket + AsRawFd + 'static>(
    socket: S,
    stall: Duration,
    moved_bytes: &Arc<AtomicU64>,
) -> Box<dyn Socket> {
    let socket = Metered { socket, moved_bytes: Arc::clone(moved_bytes) };
    Box::new(Stall::new(socket, stall, Metered::progress))
}

/// A socket that counts the bytes it transfers.
struct Metered<S> {
    socket: S,
    moved_bytes: Arc<AtomicU64>,
}

impl<S: AsRawFd> Metered<S> {
    /// Returns a number that changes when the client receives bytes.
    fn progress(&self) -> u64 {
        unreceived_bytes(&self.socket).unwrap_or_default()
    }
}

impl<S> Metered<S> {
    fn count(&self, moved: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = moved {
            self.moved_bytes.fetch_add(*count as u64, Ordering::Relaxed);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, into);
        self.moved_bytes.fetch_add((into.filled().len() - before) as u64, Ordering::Relaxed);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let moved = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.count(&moved);
        moved
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        runs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let moved = Pin::new(&mut self.socket).poll_write_vectored(cx, runs);
        self.count(&moved);
        moved
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream as StdUnixStream;
    use std::task::Waker;

    use tokio::net::UnixStream;
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_receives_slowly_does_not_stand_still() {
        const LEN: usize = 16 << 10;
        let (own, mut client) = StdUnixStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        let own = UnixStream::from_std(own).unwrap();
        own.writable().await.unwrap();
        let stall = Duration::from_secs(60);
        let mut socket = metered(own, stall, &Arc::default());
        let mut cx = Context::from_waker(Waker::noop());
        let mut write = || Pin::new(&mut socket).poll_write(&mut cx, &[0; LEN]);
        while let Poll::Ready(written) = write() {
            assert!(written.unwrap() > 0);
        }
        // The client takes a part that is too small for the socket to take more.
        for _ in 0..3 {
            client.read_exact(&mut [0; LEN]).unwrap();
            advance(stall + Duration::from_millis(10)).await;
            assert!(write().is_pending());
        }
        advance(stall + Duration::from_millis(10)).await;
        let Poll::Ready(Err(error)) = write() else { panic!("the client has received nothing since") };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}

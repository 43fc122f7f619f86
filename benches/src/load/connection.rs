//! One connection: a non-blocking socket, the bytes still to be sent, and the replies still
//! expected.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Result, bail};

use super::replies::{Done, ReplyReader};
use super::requests::RequestMaker;
use super::{LoadSpec, Stream};
use crate::keyspace::KeySpace;

/// The output capacity kept after a batch; more is freed.
const OUT_BYTES_KEPT: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    replies: ReplyReader,
    out: Vec<u8>,
    /// The number of sent bytes of `out`.
    out_sent: usize,
}

impl Connection {
    pub(super) fn open(spec: &LoadSpec) -> io::Result<Self> {
        let stream = Stream::connect(&spec.target)?;
        stream.set_nonblocking(true)?;
        let replies = ReplyReader::new(spec.protocol, spec.verify);
        Ok(Self { stream, replies, out: Vec::new(), out_sent: 0 })
    }

    /// Returns the number of requests, sent or queued, without a complete reply.
    pub(super) fn pending_count(&self) -> usize {
        self.replies.pending_count()
    }

    pub(super) fn pending_started_ns(&self) -> impl Iterator<Item = u64> {
        self.replies.pending_started_ns()
    }

    /// Queues `count` requests; [`Self::send`] sends them.
    pub(super) fn push(
        &mut self,
        requests: &mut RequestMaker,
        keys: &KeySpace,
        count: usize,
        started_ns: u64,
    ) {
        for _ in 0..count {
            requests.push_next(keys, started_ns, &mut self.out, &mut self.replies);
        }
    }

    /// Sends as much as the socket accepts. Returns whether anything remains.
    pub(super) fn send(&mut self) -> Result<bool> {
        while self.out_sent < self.out.len() {
            match self.stream.write(&self.out[self.out_sent..]) {
                Ok(sent_bytes) => self.out_sent += sent_bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.out.clear();
        self.out.shrink_to(OUT_BYTES_KEPT);
        self.out_sent = 0;
        Ok(false)
    }

    /// Reads once and passes complete replies to `on_done`. Returns the bytes read, 0 if none were
    /// available.
    pub(super) fn receive(
        &mut self,
        buffer: &mut [u8],
        keys: &KeySpace,
        on_done: &mut impl FnMut(Done),
    ) -> Result<usize> {
        match self.stream.read(buffer) {
            Ok(0) => bail!("the server closed the connection with {} requests open", self.pending_count()),
            Ok(bytes) => {
                self.replies.feed(&buffer[..bytes], keys, on_done)?;
                Ok(bytes)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

//! Puts streaming bodies into the cache: whole buckets, in runs that are long enough to be
//! worthwhile. Each run is put into the cache by a task of its own, so that the client gets the
//! bytes first.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use blocker::{BUCKET_BYTES, Segment, Segments};
use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::memory::generation::{GenerationId, Head};
use crate::memory::pieces::Pieces;
use crate::memory::tables::{Guard, InProgress};

/// The size of a run in bytes.
const RUN_BYTES: usize = 64 << 10;

/// A body that is being put into the cache. Dropping this value keeps the bytes received so far.
pub(crate) struct Filling {
    pieces: Arc<Pieces>,
    head: Arc<Head>,
    /// Shared by the current run, so that readers wait for the rest of a body that has ended.
    stream: Arc<Guard<GenerationId, Stream>>,
    /// The task that puts the current run into the cache. There is only one at a time.
    taking: Option<JoinHandle<()>>,
    /// The offset of the next byte in the object, and the end of the body.
    left: Range<u64>,
    /// Received bytes that are not in the cache yet; they end at `left.start`.
    waiting: Segments,
}

impl Filling {
    /// Begins to fill the cache with a body that has these bytes of an object. Readers find the
    /// body from now on.
    pub(crate) fn begin(
        pieces: &Arc<Pieces>,
        fills: &Arc<Fills>,
        head: &Arc<Head>,
        bytes: Range<u64>,
    ) -> Self {
        let stream = Arc::new(fills.enter(head.generation, Stream::new(kept(&bytes, head.size))));
        let (pieces, head) = (Arc::clone(pieces), Arc::clone(head));
        Self { pieces, head, stream, taking: None, left: bytes, waiting: Segments::new() }
    }

    /// Adds the next bytes.
    pub(crate) async fn push(&mut self, bytes: &Bytes) {
        let end = self.left.start.saturating_add(bytes.len() as u64);
        if end > self.left.end {
            // There are more bytes than announced, so their meaning is unknown.
            self.left.start = self.left.end;
            self.waiting = Segments::new();
            return;
        }
        let mut bytes = bytes.clone();
        if self.waiting.is_empty() {
            // A bucket without its beginning is not kept.
            let skipped = (next_bucket(self.left.start) - self.left.start).min(bytes.len() as u64);
            bytes = bytes.slice(skipped as usize..);
        }
        self.left.start = end;
        self.waiting.push(Segment::from(bytes));
        if self.waiting.len_bytes() >= RUN_BYTES || self.left.is_empty() {
            self.keep().await;
        }
    }

    async fn keep(&mut self) {
        let begin = self.left.start - self.waiting.len_bytes() as u64;
        let len = match self.left.start == self.head.size {
            true => self.waiting.len_bytes(),
            false => self.waiting.len_bytes() / BUCKET_BYTES as usize * BUCKET_BYTES as usize,
        };
        let whole = self.waiting.slice(0..len);
        self.waiting = self.waiting.slice(len..self.waiting.len_bytes());
        if let Some(taking) = self.taking.take() {
            // If a run has panicked, its bytes are missing.
            let _ = taking.await;
        }
        let (pieces, head) = (Arc::clone(&self.pieces), Arc::clone(&self.head));
        let stream = Arc::clone(&self.stream);
        self.taking = Some(connection::spawn(async move {
            pieces.fill(&head, begin, &whole).await;
            stream.value.position.send_replace(begin + len as u64);
        }));
    }
}

/// Returns the part of these bytes that lies in whole buckets.
fn kept(bytes: &Range<u64>, size: u64) -> Range<u64> {
    let end = if bytes.end == size { size } else { bytes.end / BUCKET_BYTES * BUCKET_BYTES };
    next_bucket(bytes.start).min(end)..end
}

/// Returns the offset of the first bucket at or after `at`; `u64::MAX` if there is none: the endpoint
/// may name any range.
fn next_bucket(at: u64) -> u64 {
    at.checked_next_multiple_of(BUCKET_BYTES).unwrap_or(u64::MAX)
}

/// The maximum distance that a reader may be ahead of a stream and still wait for it.
const AHEAD_BYTES_MAX: u64 = 4 << 20;

/// The streams in progress.
pub(crate) type Fills = InProgress<GenerationId, Stream>;

/// A stream that brings these bytes of an object.
#[derive(Debug)]
pub(crate) struct Stream {
    range: Range<u64>,
    /// The end of the bytes that have arrived.
    position: watch::Sender<u64>,
}

impl Stream {
    fn new(range: Range<u64>) -> Self {
        let position = watch::Sender::new(range.start);
        Self { range, position }
    }
}

impl Fills {
    /// Returns a stream that will soon bring the byte at `at`.
    pub(crate) fn coming(&self, generation: &GenerationId, at: u64) -> Option<Coming> {
        self.find(generation, |stream| {
            let position = *stream.position.borrow();
            let is_about_to =
                stream.range.contains(&at) && position <= at && at - position <= AHEAD_BYTES_MAX;
            is_about_to.then(|| Coming(stream.position.subscribe()))
        })
    }
}

/// Bytes that another reader's stream will soon bring.
#[derive(Debug)]
pub(crate) struct Coming(watch::Receiver<u64>);

impl Coming {
    /// Waits until the byte at `at` has arrived, and returns the end of the bytes that have
    /// arrived. Returns `None` if the stream has ended before that byte, or has made no progress
    /// for `wait_max` (its reader may be slow).
    pub(crate) async fn wait(mut self, at: u64, wait_max: Duration) -> Option<u64> {
        loop {
            let position = *self.0.borrow_and_update();
            if position > at {
                return Some(position);
            }
            timeout(wait_max, self.0.changed()).await.ok()?.ok()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_buckets_are_kept_and_the_last_offsets_are_in_none() {
        let whole = BUCKET_BYTES;
        assert_eq!(kept(&(1..3 * whole + 5), 9 * whole), whole..3 * whole);
        assert_eq!(kept(&(1..3 * whole + 5), 3 * whole + 5), whole..3 * whole + 5);
        let size = u64::MAX - 1;
        assert_eq!(kept(&(size - 10..size), size), size..size);
        assert!(next_bucket(size - 10) - (size - 10) >= 10, "nothing of it is kept");
    }

    #[test]
    fn a_reader_finds_the_stream_that_is_about_to_bring_its_byte() {
        let fills = Arc::new(Fills::default());
        let fill = fills.enter([1; 24], Stream::new(4096..100_000));
        fill.value.position.send_replace(8192);
        for (at, has) in [(8191, false), (8192, true), (99_999, true), (100_000, false)] {
            assert_eq!(fills.coming(&[1; 24], at).is_some(), has, "{at}");
        }
        assert!(fills.coming(&[2; 24], 8192).is_none());
        let far = fills.enter([3; 24], Stream::new(0..1 << 40));
        assert!(fills.coming(&[3; 24], AHEAD_BYTES_MAX).is_some());
        assert!(fills.coming(&[3; 24], AHEAD_BYTES_MAX + 1).is_none());
        drop((fill, far));
        assert!(fills.is_empty());
    }
}

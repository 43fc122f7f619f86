//! Takes what streams by into the cache: whole buckets, in runs that are worth the effort, each in a task of its own, so that the
//! client has the bytes before.

use std::ops::Range;
use std::sync::Arc;

use blocker::{BUCKET_BYTES, Segment, Segments};
use bytes::Bytes;
use tokio::task::JoinHandle;

use crate::memory::fills::{Fill, Fills};
use crate::memory::generation::Head;
use crate::memory::pieces::Pieces;

/// The size of a run in bytes.
const RUN_BYTES: usize = 64 << 10;

/// A body on its way into the cache. Dropped, it leaves what has come.
pub(crate) struct Filling {
    pieces: Arc<Pieces>,
    head: Arc<Head>,
    /// The run that is being taken has it too, so that readers wait for what is left of a body that has ended.
    fill: Arc<Fill>,
    /// The run that is being taken; one at a time.
    taking: Option<JoinHandle<()>>,
    /// Where the next byte that comes lies in the object, and where the body ends.
    left: Range<u64>,
    /// Bytes that have come and are not in the cache yet; they end at `left.start`.
    waiting: Segments,
}

impl Filling {
    /// Returns what takes a body with these bytes of an object; readers find it from now on.
    pub(crate) fn begin(
        pieces: &Arc<Pieces>,
        fills: &Arc<Fills>,
        head: &Arc<Head>,
        bytes: Range<u64>,
    ) -> Self {
        let fill = Arc::new(fills.begin(head.generation, kept(&bytes, head.size)));
        let (pieces, head) = (Arc::clone(pieces), Arc::clone(head));
        Self { pieces, head, fill, taking: None, left: bytes, waiting: Segments::new() }
    }

    /// Takes the next bytes.
    pub(crate) async fn push(&mut self, bytes: &Bytes) {
        let end = self.left.start.saturating_add(bytes.len() as u64);
        if end > self.left.end {
            // More than was announced: there is no knowing what they are.
            self.left.start = self.left.end;
            self.waiting = Segments::new();
            return;
        }
        let mut bytes = bytes.clone();
        if self.waiting.is_empty() {
            // A bucket of which the beginning is missing is not kept.
            let skipped =
                (self.left.start.next_multiple_of(BUCKET_BYTES) - self.left.start).min(bytes.len() as u64);
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
            // One that has panicked has left its bytes out.
            let _ = taking.await;
        }
        let (pieces, head, fill) = (Arc::clone(&self.pieces), Arc::clone(&self.head), Arc::clone(&self.fill));
        self.taking = Some(tokio::spawn(async move {
            pieces.fill(&head, begin, &whole).await;
            fill.advance(begin + len as u64);
        }));
    }
}

/// Returns which of these bytes lie in whole buckets.
fn kept(bytes: &Range<u64>, size: u64) -> Range<u64> {
    let end = if bytes.end == size { size } else { bytes.end / BUCKET_BYTES * BUCKET_BYTES };
    bytes.start.next_multiple_of(BUCKET_BYTES).min(end)..end
}

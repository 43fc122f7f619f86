//! Bodies that are streaming by, so that other readers wait for their bytes instead of asking for them again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::memory::generation::GenerationId;

/// How far ahead of a stream a reader may be and still wait for it.
const AHEAD_BYTES_MAX: u64 = 4 << 20;

/// The streams.
#[derive(Debug, Default)]
pub(crate) struct Fills {
    streams: Mutex<HashMap<GenerationId, Vec<Stream>>>,
    number: AtomicU64,
}

#[derive(Debug)]
struct Stream {
    number: u64,
    range: Range<u64>,
    position: watch::Receiver<u64>,
}

/// A stream's entry, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Fill {
    fills: Arc<Fills>,
    generation: GenerationId,
    number: u64,
    position: watch::Sender<u64>,
}

impl Fills {
    /// Enters a stream that is going to bring these bytes.
    pub(crate) fn begin(self: &Arc<Self>, generation: GenerationId, range: Range<u64>) -> Fill {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let (sender, position) = watch::channel(range.start);
        let stream = Stream { number, range, position };
        self.streams.lock().entry(generation).or_default().push(stream);
        Fill { fills: Arc::clone(self), generation, number, position: sender }
    }

    /// Returns a stream that is about to bring the byte at `at`.
    pub(crate) fn find(&self, generation: &GenerationId, at: u64) -> Option<Coming> {
        let streams = self.streams.lock();
        let is_about_to = |stream: &&Stream| {
            let position = *stream.position.borrow();
            stream.range.contains(&at) && position <= at && at - position <= AHEAD_BYTES_MAX
        };
        let found = streams.get(generation)?.iter().find(is_about_to)?;
        Some(Coming(found.position.clone()))
    }
}

impl Fill {
    /// States that everything before `position` has come.
    pub(crate) fn advance(&self, position: u64) {
        self.position.send_replace(position);
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        let mut streams = self.fills.streams.lock();
        if let Some(list) = streams.get_mut(&self.generation) {
            list.retain(|stream| stream.number != self.number);
            if list.is_empty() {
                streams.remove(&self.generation);
            }
        }
    }
}

/// Bytes that another reader's stream is about to bring.
#[derive(Debug)]
pub(crate) struct Coming(watch::Receiver<u64>);

impl Coming {
    /// Waits until the byte at `at` has come, and returns up to where bytes have. `None` if the stream has ended before, or
    /// has made no progress for `wait_max`: its reader may be slow.
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
    fn a_reader_finds_the_stream_that_is_about_to_bring_its_byte() {
        let fills = Arc::new(Fills::default());
        let fill = fills.begin([1; 24], 4096..100_000);
        fill.advance(8192);
        for (at, has) in [(8191, false), (8192, true), (99_999, true), (100_000, false)] {
            assert_eq!(fills.find(&[1; 24], at).is_some(), has, "{at}");
        }
        assert!(fills.find(&[2; 24], 8192).is_none());
        let far = fills.begin([3; 24], 0..1 << 40);
        assert!(fills.find(&[3; 24], AHEAD_BYTES_MAX).is_some());
        assert!(fills.find(&[3; 24], AHEAD_BYTES_MAX + 1).is_none());
        drop((fill, far));
        assert!(fills.streams.lock().is_empty());
    }
}

//! The queue between the serving threads and the sending one. Its size is limited, and the serving
//! threads never wait for it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use blocker::trace::FinishedSpan;
use cached_metrics::Counter;
use parking_lot::{Condvar, Mutex};

/// The maximum number of queued spans; further spans are dropped.
pub const QUEUE_MAX: usize = 4096;
/// The maximum number of spans in one request.
pub const BATCH_MAX: usize = 512;
/// The time for which a span waits for others that are sent in the same request.
const BATCH_WAIT: Duration = Duration::from_secs(1);

/// The queue of spans that have not been sent.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    pub(crate) dropped: Counter,
}

#[derive(Debug, Default)]
struct State {
    spans: VecDeque<FinishedSpan>,
    /// The time until which queued spans may be sent; `None` while the program runs.
    end: Option<Instant>,
    has_ended: bool,
}

impl Queue {
    /// Adds a span, or drops it if the queue is full.
    pub(crate) fn push(&self, span: FinishedSpan) {
        let mut state = self.state.lock();
        if state.spans.len() >= QUEUE_MAX {
            drop(state);
            return self.dropped.increment();
        }
        state.spans.push_back(span);
        // The first span starts the wait for further ones, and a full batch ends it.
        if state.spans.len() == 1 || state.spans.len() == BATCH_MAX {
            self.changed.notify_all();
        }
    }

    /// Waits for the next batch: a full one, or the spans that arrived within a second of its first
    /// span. Returns `None` at shutdown, once nothing remains.
    pub(crate) fn next(&self) -> Option<Vec<FinishedSpan>> {
        let mut state = self.state.lock();
        while state.spans.is_empty() && state.end.is_none() {
            self.changed.wait(&mut state);
        }
        let until = Instant::now() + BATCH_WAIT;
        while state.spans.len() < BATCH_MAX && state.end.is_none() {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        let count = state.spans.len().min(BATCH_MAX);
        (count > 0).then(|| state.spans.drain(..count).collect())
    }

    /// Waits for `pause`, or until the shutdown is requested. In the latter case, returns the time
    /// until which spans may be sent.
    pub(crate) fn pause(&self, pause: Duration) -> Option<Instant> {
        let mut state = self.state.lock();
        let until = Instant::now() + pause;
        while state.end.is_none() && !self.changed.wait_until(&mut state, until).timed_out() {}
        state.end
    }

    /// Requests the shutdown: queued spans may be sent until `end`.
    pub(crate) fn request_end(&self, end: Instant) {
        self.state.lock().end = Some(end);
        self.changed.notify_all();
    }

    /// Records that nothing more will be sent.
    pub(crate) fn set_ended(&self) {
        self.state.lock().has_ended = true;
        self.changed.notify_all();
    }

    /// Waits until nothing more will be sent, or until `end`.
    pub(crate) fn wait_for_end(&self, end: Instant) {
        let mut state = self.state.lock();
        while !state.has_ended && !self.changed.wait_until(&mut state, end).timed_out() {}
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use blocker::trace::{SpanKind, Tracer};
    use std::sync::Arc;

    /// Returns a span.
    pub(crate) fn span() -> FinishedSpan {
        let ended = Arc::new(Mutex::new(None));
        let sink = Arc::clone(&ended);
        let tracer = Tracer::new(1.0, move |span| *sink.lock() = Some(span));
        drop(tracer.sample("one", SpanKind::Server));
        let span = ended.lock().take();
        span.expect("it has ended")
    }

    #[test]
    fn what_does_not_fit_is_counted_and_the_rest_comes_in_batches() {
        let queue = Queue::default();
        let span = span();
        (0..QUEUE_MAX + 3).for_each(|_| queue.push(span.clone()));
        assert_eq!(queue.dropped.get(), 3);
        let first = queue.next().expect("a batch").len();
        queue.request_end(Instant::now());
        let mut rest = 0;
        while let Some(batch) = queue.next() {
            assert!(batch.len() <= BATCH_MAX);
            rest += batch.len();
        }
        assert_eq!((first, rest), (BATCH_MAX, QUEUE_MAX - BATCH_MAX));
    }
}

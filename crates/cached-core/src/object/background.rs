//! The background of a cache: it flushes when that is due, acts on the store's events, and finishes the work
//! of operations whose callers have given up.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use blocker::clock::Sleep;
use blocker::{Event, Scope, Subscription, Timestamp};
use futures_util::stream::{FuturesUnordered, Stream};

use super::background_queue::Task;
use super::claim::{check_epochs, note_claim_event};
use super::flush::flush_object;
use super::handle::Handle;
use super::invalidate::{drop_clean, log_failure};
use super::shared::Shared;
use super::store_pending::abandon;
use crate::sync::Arc;

/// The background work of one [`ObjectCache`](super::ObjectCache), as a future to be spawned on any executor.
///
/// It never blocks. It flushes by age and need, acts on the events of the store, and finishes what callers
/// have given up waiting for. It completes when the last handle of its cache is dropped and what was under
/// way is done; what is dirty then is lost, so [flush](blocker::Blocker::flush) before.
///
/// If it is dropped earlier, operations that need it fail with
/// [`Error::Unsupported`](blocker::Error::Unsupported): flushes of dirty data, changes that are to be stored,
/// and whatever waits for memory or for room in the dirty limit.
#[must_use = "a cache stores nothing while its background does not run: spawn this future on an executor"]
pub struct Background {
    shared: Arc<Shared>,
    events: Subscription,
    flushes: FuturesUnordered<Task>,
    flushes_max: usize,
    tasks: FuturesUnordered<Task>,
    timer: Option<(Timestamp, Sleep)>,
}

impl Background {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            events: shared.below.subscribe(),
            flushes: FuturesUnordered::new(),
            flushes_max: shared.config.flush_requests_max,
            tasks: FuturesUnordered::new(),
            timer: None,
            shared,
        }
    }

    /// Acts on an event of the store.
    fn handle_event(&mut self, event: Event) {
        let shared = Arc::clone(&self.shared);
        match event {
            Event::Changed(scope) => self.tasks.push(Box::pin(async move {
                log_failure(drop_clean(&shared, &scope).await);
                shared.hub.publish(&Event::Changed(scope));
            })),
            Event::Missed => self.tasks.push(Box::pin(async move {
                log_failure(drop_clean(&shared, &Scope::All).await);
                check_epochs(&shared).await;
                shared.hub.publish(&Event::Missed);
            })),
            // Copies of what other clients had written may be of writes that are gone below.
            Event::WritesLost(scope) => self.tasks.push(Box::pin(async move {
                log_failure(drop_clean(&shared, &scope).await);
                shared.hub.publish(&Event::WritesLost(scope));
            })),
            Event::Fenced(scope, epoch) => {
                note_claim_event(&shared, &scope, epoch);
                shared.hub.publish(&Event::Fenced(scope, epoch));
            }
            event => shared.hub.publish(&event),
        }
    }

    /// Begins the flushes that are due.
    fn begin_flushes(&mut self) {
        let shared = &self.shared;
        let now = shared.clock.now();
        let age = u64::try_from(shared.config.dirty_age_max.as_nanos()).unwrap_or(u64::MAX);
        // Nothing can be older than the clock.
        let since = now.0.checked_sub(age).map(Timestamp);
        while self.flushes.len() < self.flushes_max {
            let pressure = shared.is_under_pressure();
            let next = shared.dirty_queue.take_next(now, since, pressure);
            let Some((number, node)) = next else { return };
            self.flushes.push(Box::pin(flush_object(Arc::clone(shared), number, node)));
        }
    }

    /// Arranges to be woken when the next flush will be due; returns whether it is due now and can begin.
    fn set_timer(&mut self, cx: &mut Context<'_>) -> bool {
        let (oldest, retry) = self.shared.dirty_queue.next_due();
        let oldest = oldest.map(|since| since + self.shared.config.dirty_age_max);
        let Some(due) = oldest.into_iter().chain(retry).min() else {
            self.timer = None;
            return false;
        };
        if self.timer.as_ref().is_none_or(|(at, _)| *at != due) {
            self.timer = Some((due, self.shared.clock.sleep_until(due)));
        }
        let is_due = self.timer.as_mut().is_some_and(|(_, sleep)| sleep.as_mut().poll(cx).is_ready());
        if is_due {
            self.timer = None;
        }
        is_due && self.flushes.len() < self.flushes_max
    }
}

impl Future for Background {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            let (tasks, is_closed) = this.shared.background.take(cx.waker());
            this.tasks.extend(tasks);
            while let Poll::Ready(Some(event)) = this.events.poll_next(cx) {
                this.handle_event(event);
            }
            if !is_closed {
                this.begin_flushes();
            }
            let mut has_moved = false;
            while let Poll::Ready(Some(())) = Pin::new(&mut this.flushes).poll_next(cx) {
                has_moved = true;
            }
            while let Poll::Ready(Some(())) = Pin::new(&mut this.tasks).poll_next(cx) {
                has_moved = true;
            }
            if is_closed && this.flushes.is_empty() && this.tasks.is_empty() {
                return Poll::Ready(());
            }
            if has_moved || !is_closed && this.set_timer(cx) {
                continue;
            }
            return Poll::Pending;
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Operations that wait for a flush would wait for ever: they fail, and wake the next one in their
        // queue.
        let shared = &self.shared;
        shared.background.end();
        for node in shared.dirty_queue.nodes() {
            if let Some(handle) = Handle::of_node(shared, node) {
                abandon(&handle);
            }
        }
        shared.metrics.dirty_waiters.notify();
        shared.pool.waiters().notify();
        shared.node_waiters.notify();
    }
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Background")
            .field("flushes", &self.flushes.len())
            .field("tasks", &self.tasks.len())
            .finish_non_exhaustive()
    }
}

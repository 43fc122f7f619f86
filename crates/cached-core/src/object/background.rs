//! The background of a cache: it runs flushes that are due, handles the store's events, and
//! completes operations whose callers have given up.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use blocker::clock::Sleep;
use blocker::{Event, Scope, Subscription, Timestamp};
use cached_journal::Position;
use futures_util::stream::{FuturesUnordered, Stream};

use super::detach::detaching_task;
use super::journal::{ChangeLog, JournalState};
use super::read::list::count;
use super::read::load::{FETCHES_MAX, serve_read_ahead};
use super::shared::Shared;
use super::shared::calls::{abandon, count_limited_flush};
use super::shared::claim::{check_epochs, drop_clean, log_failure, note_claim_event};
use super::shared::handle::Handle;
use super::state::dirty_queue::Taken;
use super::tasks::Task;
use super::write::flush::flush_object;
use super::write::log_space::{crowded_before, lead_out, log_again};
use super::write::settling_tasks;
use crate::sync::{Arc, Ordering};

/// The background work of an [`ObjectCache`](super::ObjectCache), as a future to be spawned on any
/// executor.
///
/// The future never blocks. It flushes by age and need, handles the store's events, and completes
/// operations whose callers have given up. It completes when the last handle of its cache has been
/// dropped and all work in flight has ended; data that are still dirty are then lost, so
/// [flush](blocker::Blocker::flush) before.
///
/// If the background is dropped earlier, operations that need it fail with
/// [`Error::Unsupported`](blocker::Error::Unsupported): flushes of dirty data, changes that are to
/// be stored, and whatever waits for memory or for room in the dirty limit.
#[must_use = "a cache stores nothing while its background does not run: spawn this future on an executor"]
pub struct Background(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Background {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self(Box::pin(Work::new(shared)))
    }
}

impl Future for Background {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Background").finish_non_exhaustive()
    }
}

/// The work in flight.
struct Work {
    shared: Arc<Shared>,
    events: Subscription,
    flushes: FuturesUnordered<Task>,
    tasks: FuturesUnordered<Task>,
    /// Tasks that complete changes of write modes, or detach the cache; the end does not wait for
    /// them.
    settling: FuturesUnordered<Task>,
    /// Read-ahead tasks; the end does not wait for them.
    fetches: FuturesUnordered<Task>,
    timer: Option<(Timestamp, Sleep)>,
    /// Tasks that maintain the log; the end does not wait for them.
    log: LogTasks,
    /// The task that counts the usage of a namespace with a quota; the end does not wait for it.
    count: Option<Task>,
}

/// The due time of work that must wait for another event.
const NEVER: Timestamp = Timestamp(u64::MAX);

/// The tasks that maintain the log, at most one of each kind at a time.
#[derive(Default)]
struct LogTasks {
    trouble: Option<Task>,
    space: Option<Task>,
}

impl LogTasks {
    /// Returns whether the log works and no object is being logged again.
    fn is_idle(&self, shared: &Shared) -> bool {
        let is_ok = |log: &ChangeLog| log.events.condition.state() == JournalState::Ok;
        self.space.is_none() && shared.journal.log.as_ref().is_some_and(is_ok)
    }

    /// Starts due tasks, and continues the running ones. Returns whether any has ended.
    fn poll(&mut self, shared: &Arc<Shared>, cx: &mut Context<'_>) -> bool {
        let Some(log) = &shared.journal.log else { return false };
        log.events.register(cx.waker());
        if log.events.condition.state() != JournalState::Ok {
            self.trouble.get_or_insert_with(|| Box::pin(lead_out(Arc::clone(shared))));
        } else if self.space.is_none()
            && let Some(end) = crowded_before(log)
            && let Some((number, node)) = first_held_up(shared, end)
        {
            self.space = Some(Box::pin(log_again(Arc::clone(shared), number, node)));
        }
        let mut has_ended = false;
        for task in [&mut self.trouble, &mut self.space] {
            if task.as_mut().is_some_and(|task| task.as_mut().poll(cx).is_ready()) {
                *task = None;
                has_ended = true;
            }
        }
        has_ended
    }
}

/// Returns the object with the oldest record before `end`, among the objects that cannot be stored
/// for the time being: the store has refused them, or the gate limits their namespace and its
/// flushes in flight have reached their maximum.
fn first_held_up(shared: &Shared, end: Position) -> Option<(u64, u32)> {
    let is_limited = |namespace: u16| shared.control.namespaces.record(namespace).limited_flushes.is_full();
    let is_limited_urgent = |namespace: u16| !can_begin_urgent(shared, namespace);
    shared.objects.dirty_queue.first_held_up(end, is_limited, is_limited_urgent)
}

/// Returns whether an urgent flush of a namespace may begin.
fn can_begin_urgent(shared: &Shared, namespace: u16) -> bool {
    let of_it = &shared.control.namespaces.record(namespace).limited_flushes;
    !of_it.is_full_of_urgent(shared.control.live.flush_requests_max())
}

impl Work {
    fn new(shared: Arc<Shared>) -> Self {
        Self {
            events: shared.store.below.subscribe(),
            flushes: FuturesUnordered::new(),
            tasks: FuturesUnordered::new(),
            fetches: FuturesUnordered::new(),
            settling: FuturesUnordered::new(),
            timer: None,
            log: LogTasks::default(),
            count: None,
            shared,
        }
    }

    /// Handles an event of the store.
    fn handle_event(&mut self, event: Event) {
        let shared = Arc::clone(&self.shared);
        match event {
            // This is also necessary after lost writes: cached copies may be of other clients'
            // writes that are gone.
            Event::Changed(ref scope) | Event::WritesLost(ref scope) => {
                let scope = scope.clone();
                self.tasks.push(Box::pin(async move {
                    log_failure(drop_clean(&shared, &scope).await);
                    shared.hub.publish(&event);
                }));
            }
            Event::Missed | Event::Emptied => self.tasks.push(Box::pin(async move {
                log_failure(drop_clean(&shared, &Scope::All).await);
                check_epochs(&shared).await;
                shared.hub.publish(&event);
            })),
            Event::Fenced(scope, epoch) => {
                note_claim_event(&shared, &scope, epoch);
                shared.hub.publish(&Event::Fenced(scope, epoch));
            }
            event => shared.hub.publish(&event),
        }
    }

    /// Returns the age at which the next flush of a namespace is due: never while the namespace has
    /// its maximum of flushes in flight, whose ends wake this task.
    fn age_max(&self, namespace: u16) -> Duration {
        let record = self.shared.control.namespaces.record(namespace);
        match record.limited_flushes.is_full() {
            true => Duration::MAX,
            false => self.shared.control.live.dirty_age_max(record),
        }
    }

    /// Begins requested read-ahead, as far as there is room.
    fn begin_fetches(&mut self, cx: &mut Context<'_>) {
        while self.fetches.len() < FETCHES_MAX
            && let Some(request) = self.shared.read_ahead.requests.take(cx.waker())
        {
            self.fetches.push(Box::pin(serve_read_ahead(Arc::clone(&self.shared), request)));
        }
    }

    /// Begins the flushes that are due.
    fn begin_flushes(&mut self) {
        let shared = &self.shared;
        let now = shared.clock.now();
        let flushes_max = shared.control.live.flush_requests_max();
        let crowded = shared.journal.log.as_ref().and_then(crowded_before);
        while self.unlimited_flushes() < flushes_max {
            let is_memory_short = shared.is_memory_short();
            if let Some(end) = crowded {
                let can_begin = |namespace: u16| {
                    !shared.control.namespaces.record(namespace).limited_flushes.is_full()
                        && can_begin_urgent(shared, namespace)
                };
                shared.objects.dirty_queue.expedite_first_held(end, can_begin);
            }
            let is_due = |namespace: u16, since: Timestamp| {
                let record = shared.control.namespaces.record(namespace);
                !record.limited_flushes.is_full()
                    && (is_memory_short
                        || now.since(since) >= shared.control.live.dirty_age_max(record)
                        || shared.metrics.dirty_room.is_pressed(namespace))
            };
            let can_begin = |namespace: u16| can_begin_urgent(shared, namespace);
            let next = shared.objects.dirty_queue.take_next(now, can_begin, is_due);
            let Some(Taken { number, node, is_urgent }) = next else { break };
            let limited = count_limited_flush(shared, shared.objects.index.namespace_of(node), is_urgent);
            let flush = flush_object(Arc::clone(shared), number, node);
            self.flushes.push(Box::pin(async move {
                let _limited = limited;
                flush.await;
            }));
        }
        if let Some(end) = crowded
            && self.log.is_idle(shared)
            && first_held_up(shared, end).is_some()
        {
            // The namespace has just reached its maximum of flushes in flight: the rest is logged
            // again.
            shared.background.wake();
        }
    }

    /// Counts the usage of the next namespace that needs it; returns whether a count has ended.
    fn count_use(&mut self, cx: &mut Context<'_>) -> bool {
        if self.count.is_none()
            && let Some((number, namespace)) = self.shared.control.quotas.wanted()
        {
            self.count = Some(Box::pin(count(Arc::clone(&self.shared), number, namespace)));
        }
        let has_ended = self.count.as_mut().is_some_and(|count| count.as_mut().poll(cx).is_ready());
        if has_ended {
            self.count = None;
        }
        has_ended
    }

    /// Returns the number of flushes in flight of namespaces that are not limited: flushes of
    /// limited ones wait for their limits, and must not keep others from beginning.
    fn unlimited_flushes(&self) -> usize {
        self.flushes.len().saturating_sub(self.shared.store.limited_flushes.load(Ordering::SeqCst) as usize)
    }

    /// Arranges to be woken when the next flush will be due; returns whether it is due now and can begin.
    fn set_timer(&mut self, cx: &mut Context<'_>) -> bool {
        let due = self.shared.objects.dirty_queue.next_due(|namespace| self.age_max(namespace));
        let Some(due) = due.filter(|due| *due < NEVER) else {
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
        is_due && self.unlimited_flushes() < self.shared.control.live.flush_requests_max()
    }
}

/// Continues tasks; returns whether any has ended.
fn have_ended(tasks: &mut FuturesUnordered<Task>, cx: &mut Context<'_>) -> bool {
    let mut has_ended = false;
    while let Poll::Ready(Some(())) = Pin::new(&mut *tasks).poll_next(cx) {
        has_ended = true;
    }
    has_ended
}

impl Future for Work {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            let (tasks, is_closed) = this.shared.background.take(cx.waker());
            this.tasks.extend(tasks);
            while let Poll::Ready(Some(event)) = this.events.poll_next(cx) {
                this.handle_event(event);
            }
            let mut has_moved = false;
            if !is_closed {
                has_moved |= this.log.poll(&this.shared, cx);
                has_moved |= this.count_use(cx);
                this.begin_flushes();
                this.begin_fetches(cx);
                this.settling.extend(settling_tasks(&this.shared));
                this.settling.extend(detaching_task(&this.shared));
                has_moved |= have_ended(&mut this.settling, cx);
                has_moved |= have_ended(&mut this.fetches, cx);
            }
            has_moved |= have_ended(&mut this.flushes, cx);
            has_moved |= have_ended(&mut this.tasks, cx);
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

impl Drop for Work {
    fn drop(&mut self) {
        // Operations that wait for a flush would wait forever: they fail, and wake the next one in
        // their queue.
        let shared = &self.shared;
        shared.background.end();
        shared.control.attaching.end();
        for node in shared.objects.dirty_queue.nodes() {
            if let Some(handle) = Handle::of_node(shared, node) {
                abandon(&handle);
            }
        }
        shared.journal.recovery.abandon();
        shared.metrics.dirty_room.notify_all();
        shared.memory.pool.waiters().notify();
        shared.objects.node_waiters.notify();
    }
}

//! Work that an operation delegates: requests to the store through the gate, counted and timed by
//! namespace, and work that the background continues after the caller has given up.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use blocker::{Error, ReadReply, ReadRequest, Result, Timestamp};
use futures_channel::oneshot;

use super::Shared;
use super::handle::Handle;
use crate::object::control::records::StoreMetrics;
use crate::object::store::{Ask, Class, Lane, Number, Pass, enter};
use crate::object::tasks::deadline::{FlushTicket, Stored};
use crate::object::tasks::{Task, has_ended};
use crate::sync::{Arc, Ordering};

/// A request that the gate has admitted. If it is dropped, it ends without a response.
#[must_use = "the request is in flight while this is held"]
pub(crate) struct StoreCall {
    pass: Pass,
    namespace: u16,
    began: Timestamp,
}

/// Waits until the gate admits a request of a namespace that carries `bytes` bytes. A task that
/// holds an admitted request waits for no other.
///
/// # Errors
/// `Retryable` if too many requests are waiting.
pub(crate) async fn begin(
    shared: &Arc<Shared>,
    namespace: u16,
    (lane, class): (Lane, Class),
    bytes: u64,
) -> Result<StoreCall> {
    let ask = Ask { namespace: Number::from(namespace), lane, class, bytes };
    let pass = enter(Arc::clone(&shared.store.gate), ask).await?;
    if let Some(waited) = pass.waited {
        metrics(shared, namespace).count_wait(waited);
    }
    Ok(StoreCall { pass, namespace, began: shared.clock.now() })
}

fn metrics(shared: &Shared, namespace: u16) -> &StoreMetrics {
    &shared.control.namespaces.record(namespace).metrics.store
}

impl StoreCall {
    /// Reads from the store, and ends the request.
    pub(crate) async fn read(self, shared: &Shared, request: ReadRequest) -> Result<ReadReply> {
        let answer = shared.store.below.read(request).await;
        self.end(shared, &answer, answer.as_ref().map_or(0, |reply| reply.data.len_bytes() as u64));
        answer
    }

    /// Ends the request, which has carried `bytes` bytes. The time of a failed request says nothing
    /// about the store's load.
    pub(crate) fn end<T>(self, shared: &Shared, answer: &Result<T>, bytes: u64) {
        let latency = shared.clock.now().since(self.began);
        metrics(shared, self.namespace).count(bytes, latency);
        if matches!(answer, Ok(_) | Err(Error::Missing)) {
            self.pass.answered(bytes, latency);
        }
    }
}

/// Counts a flush of a namespace until the result is dropped, if the namespace is limited now.
pub(crate) fn count_limited_flush(
    shared: &Arc<Shared>,
    namespace: u16,
    is_urgent: bool,
) -> Option<impl Sized + use<>> {
    let flushes = &shared.control.namespaces.record(namespace).limited_flushes;
    flushes.is_limited().then(|| {
        flushes.begin(is_urgent);
        shared.store.limited_flushes.fetch_add(1, Ordering::SeqCst);
        scopeguard::guard(Arc::clone(shared), move |shared| {
            shared.control.namespaces.record(namespace).limited_flushes.end(is_urgent);
            shared.store.limited_flushes.fetch_sub(1, Ordering::SeqCst);
        })
    })
}

/// Returns a future of `work`; if that future is dropped, the background continues the work.
pub(crate) fn shielded<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl Future<Output = T> + Send + 'static,
) -> Shield<T> {
    let (sender, answer) = oneshot::channel();
    let task: Task = Box::pin(async move { drop(sender.send(work.await)) });
    Shield { task: Some(task), answer, shared: Arc::clone(shared) }
}

/// The future of [`shielded`].
pub(crate) struct Shield<T> {
    task: Option<Task>,
    answer: oneshot::Receiver<T>,
    shared: Arc<Shared>,
}

impl<T> Future for Shield<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let task = self.task.as_mut().expect("polled after completion");
        std::task::ready!(task.as_mut().poll(cx));
        self.task = None;
        let answer = self.answer.try_recv().ok().flatten();
        Poll::Ready(answer.expect("a task that has completed has sent its answer"))
    }
}

impl<T> Drop for Shield<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            self.shared.background.add(task);
        }
    }
}

/// Adds all pending changes of an object to `ticket`, and expedites its flush.
///
/// # Errors
/// `Unsupported` if the background of the cache has ended.
pub(crate) async fn expedite(handle: &Handle, ticket: &Arc<FlushTicket>, queue_number: u64) -> Result<()> {
    let own = Arc::clone(ticket);
    let shared = Arc::clone(&handle.shared);
    let entered = handle.enter(move |object, _| {
        if object.flushing.is_none() && !object.has_pending() {
            return false;
        }
        object.wait_until_stored(own);
        shared.objects.dirty_queue.expedite(object.pending.queue_number);
        true
    });
    if entered.await {
        return hurry(handle, queue_number);
    }
    handle.shared.objects.dirty_queue.expedite(queue_number);
    handle.shared.background.wake();
    Ok(())
}

/// Expedites the flush of an object for which a ticket waits.
///
/// # Errors
/// `Unsupported` if the background of the cache has ended.
pub(crate) fn hurry(handle: &Handle, queue_number: u64) -> Result<()> {
    handle.shared.objects.dirty_queue.expedite(queue_number);
    let woken = handle.shared.background.wake_for_waiter();
    if woken.is_err() {
        abandon(handle);
    }
    woken
}

/// Waits until all currently pending changes of an object are stored. The caller holds the object's
/// whole range, so no further change arrives.
pub(crate) async fn store_pending(handle: &Handle) -> Result<()> {
    let ticket = Arc::new(FlushTicket::default());
    expedite(handle, &ticket, 0).await?;
    Stored(ticket).await.map_err(|error| match error {
        // The error concerns earlier changes: the caller has changed nothing yet.
        Error::NotStored(why) => Error::Retryable(why),
        error => error,
    })
}

/// Fails every wait for the object's flush, because the background has ended.
pub(crate) fn abandon(handle: &Handle) {
    handle.post(|object, _| {
        let Some(activity) = object.activity_mut() else { return };
        let waiters = std::mem::take(&mut activity.flush_waiters);
        object.drop_if_idle();
        waiters.into_iter().for_each(|(_, ticket)| ticket.complete(Err(has_ended())));
    });
}

//! Waiting until what an object has pending is stored.

use blocker::{Error, Result};

use super::handle::Handle;
use crate::object::tasks::background_queue;
use crate::object::tasks::flush_ticket::{FlushTicket, Stored};
use crate::sync::Arc;

/// Adds all pending changes of an object to `ticket`, and expedites its flush.
///
/// # Errors
/// `Unsupported` if the background of the cache has ended.
pub(crate) async fn expedite(handle: &Handle, ticket: &Arc<FlushTicket>, queue_number: u64) -> Result<()> {
    let own = Arc::clone(ticket);
    let shared = Arc::clone(&handle.shared);
    let waits = handle
        .enter(move |object, _| {
            if object.flushing.is_none() && !object.has_pending() {
                return false;
            }
            own.add();
            let seq = object.pending.change_seq;
            object.activity().flush_waiters.push((seq, own));
            shared.dirty_queue.expedite(object.pending.queue_number);
            true
        })
        .await;
    handle.shared.dirty_queue.expedite(queue_number);
    if !waits {
        handle.shared.background.wake();
        return Ok(());
    }
    let woken = handle.shared.background.wake_for_waiter();
    if woken.is_err() {
        abandon(handle);
    }
    woken
}

/// Waits until everything of an object that is pending now is stored. The caller holds the object's whole
/// range, so no further change comes.
pub(crate) async fn store_pending(handle: &Handle) -> Result<()> {
    let ticket = Arc::new(FlushTicket::default());
    expedite(handle, &ticket, 0).await?;
    Stored(ticket).await.map_err(|error| match error {
        // It concerns earlier changes: the caller has changed nothing yet.
        Error::NotStored(why) => Error::Retryable(why),
        error => error,
    })
}

/// Fails every wait for the object's flush: the background has ended.
pub(crate) fn abandon(handle: &Handle) {
    handle.post(|object, _| {
        let Some(activity) = object.activity_mut() else { return };
        let waiters = std::mem::take(&mut activity.flush_waiters);
        object.drop_if_idle();
        waiters.into_iter().for_each(|(_, ticket)| ticket.complete(Err(background_queue::has_ended())));
    });
}

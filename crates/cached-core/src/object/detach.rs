//! Taking a cache out of the path of requests while it runs, and putting it back.
//!
//! The background does the work, so that it goes on whether or not the command is waited for; another command
//! ends it. Before anything changes for requests, everything is stored once: a store that is away is noticed
//! while the cache still answers for it.

use std::future::{Future, poll_fn};
use std::task::Poll;

use blocker::{Error, FlushRequest, Result, Scope, Timestamp};

use super::control::attach_state::AttachState;
use super::shared::Shared;
use super::shared::claim::drop_clean;
use super::shared::resources::flushed_meanwhile;
use super::tasks::background_queue::Task;
use super::tasks::deadline::until;
use super::write::modes::{settle, settle_in_background};
use super::write::scope_ops;
use crate::sync::{Arc, Ordering};

/// Begins to take the cache out of the path of requests, if it is in; returns the turn, to be finished.
pub(crate) fn begin(shared: &Shared) -> u64 {
    let turn = shared.control.attaching.begin_detach();
    shared.background.wake();
    turn
}

/// Lets the background take the cache out of the path of requests, or put it back, as the configuration has it.
pub(crate) fn put_in_force(shared: &Arc<Shared>, attached: bool) {
    if !attached {
        tracing::warn!("the configuration has the object cache detached (attached = false)");
        begin(shared);
        return;
    }
    let own = Arc::clone(shared);
    let task = async move {
        // What is left of the changes that went around the cache is waited for apart.
        let deadline = Some(own.clock.now());
        if let Err(error @ Error::Retryable(_)) = attach(&own, deadline).await {
            tracing::warn!(%error, "the object cache is not attached as the configuration has it");
        }
    };
    shared.background.add(Box::pin(task));
}

/// Waits until the cache is out of the path of requests.
///
/// # Errors
/// `NotStored` if the deadline passes before: it goes on in the background; `Retryable` if the cache is attached
/// again meanwhile, `Unsupported` if its background has ended.
pub(crate) async fn finish(shared: &Arc<Shared>, turn: u64, deadline: Option<Timestamp>) -> Result<()> {
    let late = || Error::NotStored(still_attached(shared).into());
    let detached = flushed_meanwhile(shared, poll_fn(|cx| shared.control.attaching.poll_detached(turn, cx)));
    until(&*shared.clock, deadline, late, detached).await
}

fn still_attached(shared: &Shared) -> String {
    let status = shared.control.attaching.status();
    let dirty = shared.metrics.dirty_room.dirty() * blocker::BUCKET_BYTES;
    let state = match status.state {
        AttachState::Storing => "the cache is attached as before",
        _ => "changes go to the store, and reads to the cache",
    };
    let failing = match shared.store.failing.load(Ordering::Relaxed) {
        0 => "",
        _ => "; flushes fail at present",
    };
    let why = status.why.map_or_else(String::new, |why| format!("; the last try: {why}"));
    format!(
        "the cache is not detached yet: {dirty} bytes are not stored{failing}{why}; {state}, and it goes on in the \
         background until the cache is attached again"
    )
}

/// Puts the cache back into the path of requests, which are answered from it when this returns or fails; it
/// returns when nothing is left of the changes that went around it.
///
/// # Errors
/// `Retryable` if what the cache had could not be dropped: then nothing has changed. `NotStored` if the deadline
/// passes while changes that began before are under way.
pub(crate) async fn attach(shared: &Arc<Shared>, deadline: Option<Timestamp>) -> Result<()> {
    loop {
        let (now, turn, is_direct) = shared.control.attaching.now();
        if now == AttachState::Attached {
            break;
        }
        if is_direct {
            // Other clients may have changed what is known of objects as a whole.
            drop_clean(shared, &Scope::All).await?;
        }
        if shared.control.attaching.put_back(turn, is_direct, &shared.control.namespaces) {
            tracing::info!("the object cache is attached");
        }
    }
    let settled = settle_all(shared, deadline).await;
    if settled.is_err() {
        settle_in_background(shared);
    }
    settled
}

/// Waits until nothing of an earlier write mode of any namespace is left. What the store refuses for good is
/// recorded as lost, and nothing of it is left.
async fn settle_all(shared: &Arc<Shared>, deadline: Option<Timestamp>) -> Result<()> {
    let changing: Vec<u16> = shared
        .control
        .namespaces
        .records()
        .filter(|record| record.write_phases.is_changing())
        .map(|record| record.number)
        .collect();
    for number in changing {
        match settle(shared, number, deadline).await {
            Ok(()) => (),
            Err(error @ Error::WritesLost(_)) => warn_of_losses(&error),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn warn_of_losses(error: &Error) {
    tracing::warn!(%error, "the object cache is being detached, and has lost writes");
}

/// Returns the task that the background is asked for, if it is.
pub(crate) fn detaching_task(shared: &Arc<Shared>) -> Option<Task> {
    let turn = shared.control.attaching.take_turn()?;
    let shared = Arc::clone(shared);
    Some(Box::pin(async move {
        let steps = detach_in_steps(&shared, turn);
        let over = poll_fn(|cx| shared.control.attaching.poll_over(turn, cx));
        unless(over, steps).await;
    }))
}

/// Runs `work` to its end, or until `over` is ready.
async fn unless(over: impl Future<Output = ()>, work: impl Future<Output = ()>) {
    let (mut over, mut work) = (std::pin::pin!(over), std::pin::pin!(work));
    poll_fn(|cx| match over.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => work.as_mut().poll(cx),
    })
    .await;
}

async fn detach_in_steps(shared: &Arc<Shared>, turn: u64) {
    tracing::info!("the object cache is being detached: what is dirty is stored");
    let stored = || scope_ops::flush(Arc::clone(shared), FlushRequest::new(Scope::All));
    until_done(shared, turn, || async { stored().await.map(|_| ()) }).await;
    if !shared.control.attaching.enter_transit(turn, &shared.control.namespaces) {
        return;
    }
    until_done(shared, turn, || settle_all(shared, None)).await;
    if !shared.control.attaching.begin_direct(turn) {
        return;
    }
    until_done(shared, turn, || async { drop_clean(shared, &Scope::All).await.map(|_| ()) }).await;
    if shared.control.attaching.end_detach(turn) {
        tracing::info!("the object cache is detached: requests go to the store");
    }
}

/// Tries until it succeeds, with the delays of failed flushes.
async fn until_done<F: Future<Output = Result<()>>>(shared: &Shared, turn: u64, work: impl Fn() -> F) {
    let mut delay = shared.control.live.retry_delays().0;
    let mut last = String::new();
    loop {
        let error = match work().await {
            Ok(()) => return,
            // Nothing is left that could be stored; what is lost stays listed.
            Err(error @ Error::WritesLost(_)) => return warn_of_losses(&error),
            Err(error) => error,
        };
        let text = error.to_string();
        if text != last {
            tracing::warn!(cause = %text, "the object cache cannot be detached yet");
            last = text;
        }
        if !shared.control.attaching.note_failure(turn, &error) {
            return;
        }
        shared.clock.sleep_until(shared.clock.now() + delay).await;
        delay = (delay * 2).min(shared.control.live.retry_delays().1);
    }
}

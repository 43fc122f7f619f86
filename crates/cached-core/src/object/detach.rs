//! Detaches a running cache from the request path, and reattaches it.
//!
//! The background does the work, so that it continues whether or not a caller waits for it; another
//! command ends it. Before anything changes for requests, all dirty data are stored once: so an
//! unreachable store is noticed while the cache still serves requests.

use std::future::{Future, poll_fn};
use std::pin::pin;

use blocker::{Error, FlushRequest, Result, Scope, Timestamp};
use futures_util::future::select;

use super::control::attach_state::AttachState;
use super::shared::Shared;
use super::shared::claim::drop_clean;
use super::shared::resources::flushed_meanwhile;
use super::tasks::Task;
use super::tasks::deadline::until;
use super::write::scope_ops;
use super::write::{settle, settle_in_background};
use crate::sync::{Arc, Ordering, lock};

/// Begins to detach the cache, if it is attached; returns the turn, to be passed to [`finish`].
pub(crate) fn begin(shared: &Shared) -> u64 {
    let turn = shared.control.attaching.begin_detach();
    shared.background.wake();
    turn
}

/// Makes the background detach or reattach the cache, as the configuration requires.
pub(crate) fn put_in_force(shared: &Arc<Shared>, attached: bool) {
    if !attached {
        tracing::warn!("the object cache starts to detach, because the configuration says attached = false");
        begin(shared);
        return;
    }
    let own = Arc::clone(shared);
    let task = async move {
        // The rest of the changes that bypassed the cache is waited for separately.
        let deadline = Some(own.clock.now());
        if let Err(error @ Error::Retryable(_)) = attach(&own, deadline).await {
            tracing::warn!(%error, "cannot attach the object cache yet, although the configuration says attached = true");
        }
        // A later configuration may have found the cache detached still.
        if !lock(&own.control.settings).file.attached {
            begin(&own);
        }
    };
    shared.background.add(Box::pin(task));
}

/// Waits until the cache is detached.
///
/// # Errors
/// `NotStored` if the deadline passes first, in which case detaching continues in the background;
/// `Retryable` if the cache is reattached meanwhile; `Unsupported` if its background has ended.
pub(crate) async fn finish(shared: &Arc<Shared>, turn: u64, deadline: Option<Timestamp>) -> Result<()> {
    let late = || Error::NotStored(still_attached(shared).into());
    let detached = flushed_meanwhile(shared, poll_fn(|cx| shared.control.attaching.poll_detached(turn, cx)));
    until(&*shared.clock, deadline, late, detached).await
}

fn still_attached(shared: &Shared) -> String {
    let status = shared.control.attaching.status();
    let dirty = shared.metrics.dirty_room.dirty() * blocker::BUCKET_BYTES;
    let state = match status.state {
        AttachState::Storing => "the cache is still attached",
        _ => "changes bypass the cache, and reads are served from it",
    };
    let failing = match shared.store.failing.load(Ordering::Relaxed) {
        0 => "",
        _ => "; flushes are failing",
    };
    let why = status.why.map_or_else(String::new, |why| format!("; the last attempt failed: {why}"));
    format!(
        "the cache is not detached yet: {dirty} bytes are not stored{failing}{why}; {state}, and detaching \
         continues in the background until the cache is attached again"
    )
}

/// Reattaches the cache. When this returns or fails, requests are served from the cache; it returns
/// only after all changes that bypassed the cache have ended.
///
/// # Errors
/// `Retryable` if the contents of the cache could not be dropped, in which case nothing has
/// changed. `NotStored` if the deadline passes while changes that began before are in flight.
pub(crate) async fn attach(shared: &Arc<Shared>, deadline: Option<Timestamp>) -> Result<()> {
    loop {
        let (now, turn, is_direct) = shared.control.attaching.now();
        if now == AttachState::Attached {
            break;
        }
        if is_direct {
            // Other clients may have changed the objects' sizes, versions and stamps, which the
            // cache may still hold.
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

/// Waits until nothing of an earlier write mode of any namespace is left. Data that the store
/// refuses permanently are recorded as lost, and count as settled.
async fn settle_all(shared: &Arc<Shared>, deadline: Option<Timestamp>) -> Result<()> {
    let records = shared.control.namespaces.records();
    let changing = records.filter(|record| record.write_phases.is_changing());
    let changing: Vec<u16> = changing.map(|record| record.number).collect();
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
    tracing::warn!(%error, "the object cache is being detached although it has lost writes");
}

/// Returns the detaching task, if the background must run one.
pub(crate) fn detaching_task(shared: &Arc<Shared>) -> Option<Task> {
    let turn = shared.control.attaching.take_turn()?;
    let shared = Arc::clone(shared);
    Some(Box::pin(async move {
        let over = poll_fn(|cx| shared.control.attaching.poll_over(turn, cx));
        select(over, pin!(detach_in_steps(&shared, turn))).await;
    }))
}

async fn detach_in_steps(shared: &Arc<Shared>, turn: u64) {
    tracing::info!("the object cache is being detached: storing the dirty data");
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

/// Retries `work` until it succeeds, with the delays of failed flushes.
async fn until_done<F: Future<Output = Result<()>>>(shared: &Shared, turn: u64, work: impl Fn() -> F) {
    let mut delay = shared.control.live.retry_delays().0;
    let mut last = String::new();
    loop {
        let error = match work().await {
            Ok(()) => return,
            // Nothing that could be stored is left; losses stay listed.
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

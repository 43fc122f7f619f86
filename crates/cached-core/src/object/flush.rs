//! Flushing one object: its plan is made, sent to the store, and completed.

use std::time::Duration;

use blocker::{Error, Event, Namespace, ObjectId, Scope};

use super::claim::note_refusal;
use super::flush_send::{Terms, send};
use super::handle::Handle;
use super::invalidate::{log_failure, narrow_rest};
use super::losses::Lost;
use super::metrics::add;
use super::pool::BUCKET;
use super::restore::restore;
use super::shared::Shared;
use super::state::{Ended, RunLimits};
use crate::sync::{Arc, Ordering};

/// Flushes the object in the node `node`, which has `number` in the dirty queue.
pub(crate) async fn flush_object(shared: Arc<Shared>, number: u64, node: u32) {
    let Some(handle) = Handle::of_node(&shared, node) else { return shared.dirty_queue.remove(number) };
    let bucket = BUCKET as u64;
    // The store's present limits: one that is reached over a network may come back with others.
    let can = shared.below.capabilities();
    let limits = RunLimits {
        run_bytes_max: (can.request_bytes_max / bucket * bucket).max(bucket),
        gap_bytes_max: gap_bytes_max(&shared, &handle.id().namespace),
        runs_max: can.runs_max as usize,
    };
    let begun = handle.enter(move |object, env| {
        let (domain, lost_below) = (object.pending.domain, object.pending.lost_below);
        Some((object.begin_flush(env, limits)?, domain, lost_below))
    });
    let result = match begun.await {
        None => None,
        Some((plan, domain, lost_below)) => {
            let terms = Terms { shared: &shared, id: handle.id(), domain };
            let result = match lost_below && plan.is_present && !plan.replace {
                true => restore(&terms, &plan, limits).await,
                false => send(&terms, &plan, limits).await,
            };
            if let Err(error) = &result {
                report_failure(&shared, handle.id(), error);
            }
            Some((plan, result))
        }
    };
    let (own, id) = (Arc::clone(&shared), handle.id().clone());
    let (loss, done, left) = handle
        .enter(move |object, env| {
            let (mut done, mut left) = (Vec::new(), 0);
            let (mut failure, mut loss) = (None, None);
            let result = result.map(|(plan, result)| {
                let result = object.outcome(&plan, result);
                (plan, result)
            });
            match result {
                None => (),
                Some((plan, Err(why @ Error::Fenced { epoch }))) => {
                    note_refusal(&own, &id, epoch);
                    let (lost, waiters) = object.lose(env, &plan);
                    // In the exclusive section: every later look at the object finds that its changes are
                    // lost.
                    loss = lost.map(|lost| (own.losses.record(&id, lost, &why), lost, why));
                    let is_lost = || Err(Error::WritesLost("another writer has taken over".into()));
                    done.extend(waiters.into_iter().map(|ticket| (ticket, is_lost())));
                }
                Some((plan, result)) => {
                    Ended { done, left } = object.end_flush(env, &plan, &result);
                    failure = result.err();
                    object.pending.lost_below = matches!(failure, Some(Error::WritesLost(_)))
                        || failure.is_some() && object.pending.lost_below;
                    let counter =
                        if failure.is_some() { &own.metrics.flush_failures } else { &own.metrics.flushes };
                    add(counter, 1);
                }
            }
            if let Some(error) = failure {
                let waiters = &mut object.activity().flush_waiters;
                waiters.iter().for_each(|(_, ticket)| ticket.note(&error));
                if is_hopeless(&error) {
                    let not_stored = || Err(Error::NotStored(error.to_string().into()));
                    done.extend(
                        std::mem::take(waiters).into_iter().map(|(_, ticket)| (ticket, not_stored())),
                    );
                }
                object.drop_if_idle();
                own.dirty_queue
                    .retry_at(number, env.clock.now() + retry_delay(&own, object.pending.failures));
            } else if object.has_pending() {
                let is_urgent = object.activity_ref().is_some_and(|it| !it.flush_waiters.is_empty());
                own.dirty_queue.requeue(number, object.pending.dirty_since, is_urgent);
            } else {
                object.pending.queue_number = 0;
                own.dirty_queue.remove(number);
                done.extend(object.take_stored_waiters());
            }
            (loss, done, left)
        })
        .await;
    done.into_iter().for_each(|(ticket, result)| ticket.complete(result));
    if let Some((is_first, lost, why)) = loss {
        report_loss(&shared, handle.id(), is_first, lost, &why);
    }
    if left > 0 {
        // In the background: a flush must not wait for memory.
        let handle = handle.clone();
        shared.background.add(Box::pin(async move { log_failure(narrow_rest(handle, left).await) }));
    }
    let node = handle.at();
    drop(handle);
    shared.finalize(node);
    // Clean buckets can be evicted.
    shared.pool.waiters().notify();
}

/// Whether trying again soon will not help. The flush is tried again all the same, later each time.
fn is_hopeless(error: &Error) -> bool {
    !matches!(
        error,
        Error::Retryable(_)
            | Error::OutOfSpace(_)
            | Error::OutcomeUnknown(_)
            | Error::NotStored(_)
            | Error::DeadlinePassed
            | Error::WritesLost(_)
    )
}

/// Reports a failure in the log and to subscribers.
fn report_failure(shared: &Shared, id: &ObjectId, error: &Error) {
    if matches!(error, Error::Fenced { .. }) {
        return;
    }
    let before = shared.failing.fetch_add(1, Ordering::Relaxed);
    if before.is_power_of_two() || before == 0 {
        tracing::warn!(object = %id, %error, failures = before + 1, "flush failed, will be tried again");
    }
    if before == 0 {
        let event = match error {
            Error::OutOfSpace(_) => Event::Full,
            _ => Event::Degraded(error.to_string().into()),
        };
        shared.hub.publish(&event);
    }
}

/// Reports a loss in the log and to subscribers; [`super::ObjectCache::lost`] lists it.
fn report_loss(shared: &Shared, object: &ObjectId, is_first: bool, lost: Lost, why: &Error) {
    let Lost { changes, bytes, .. } = lost;
    tracing::error!(%object, changes, bytes, %why, "acknowledged writes are lost: the store refuses them for good");
    if is_first {
        shared.hub.publish(&Event::WritesLost(Scope::Object(object.clone())));
    }
}

fn retry_delay(shared: &Shared, failures: u32) -> Duration {
    let doubled = shared.config.retry_delay_min.saturating_mul(1 << failures.saturating_sub(1).min(20));
    doubled.min(shared.config.retry_delay_max)
}

/// The most clean bytes between two dirty runs of an object that a flush may send along, to make one run of
/// two.
///
/// What is clean here may be old: another client of the store may have written there since it was read, and
/// sending it would undo that. So it is sent only where no other client can have written: in a namespace that
/// this cache has claimed, and of which it has read everything since (`claim.rs` drops what was read before).
fn gap_bytes_max(shared: &Shared, namespace: &Namespace) -> u64 {
    if shared.epochs.holds(namespace) { shared.config.flush_gap_bytes_max } else { 0 }
}

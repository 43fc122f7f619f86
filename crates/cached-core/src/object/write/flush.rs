//! Flushing an object: making the plan, sending it to the store, and completing it; and restoring
//! an object of which the store has lost writes.

use std::time::Duration;

use blocker::{
    Change, Condition, Error, Event, InvalidateRequest, Namespace, ObjectId, ReadRequest, Result, Run,
    RunContent, Scope, Segments,
};
use cached_journal::Position;

use super::flush_send::{Terms, send, succeeded};
use super::log_space::crowded_before;
use crate::object::config::Writer;
use crate::object::memory::pool::BUCKET;
use crate::object::shared::claim::{log_failure, narrow_rest, note_answer};
use crate::object::shared::handle::Handle;
use crate::object::shared::{Shared, log_waits};
use crate::object::state::losses::Lost;
use crate::object::state::{Ended, FlushPlan, RunLimits};
use crate::object::store::{Class, Lane};
use crate::object::tasks::wait_queue::Permits;
use crate::sync::{Arc, Ordering};

/// Flushes the object in the node `node`, whose number in the dirty queue is `number`.
pub(crate) async fn flush_object(shared: Arc<Shared>, number: u64, node: u32) {
    let Some(handle) = Handle::of_node(&shared, node) else {
        return drop(shared.objects.dirty_queue.remove(number));
    };
    let bucket = BUCKET as u64;
    // These are the store's current limits: a store on the network may have different ones after a
    // reconnect.
    let can = shared.store.below.capabilities();
    let limits = RunLimits {
        run_bytes_max: (can.request_bytes_max / bucket * bucket).max(bucket),
        gap_bytes_max: gap_bytes_max(&shared, &handle.id().namespace),
        runs_max: can.runs_max as usize,
    };
    let begun = handle.enter(move |object, env| {
        let (domain, lost_below) = (object.pending.domain, object.pending.lost_below);
        let logged_to = Position(object.pending.logged_to);
        let is_waited_for = object.activity_ref().is_some_and(|it| !it.flush_waiters.is_empty());
        let terms = (domain, lost_below, logged_to, is_waited_for);
        Some((object.begin_flush(env, limits)?, terms))
    });
    let record = shared.control.namespaces.record(handle.namespace());
    let is_discarded = record.discards_dirty.load(Ordering::SeqCst);
    let result = match begun.await {
        None => None,
        Some((plan, (domain, lost_below, logged_to, is_waited_for))) => {
            if let Some(log) = &shared.journal.log
                && logged_to != Position(0)
                && !is_discarded
            {
                // The store must not have changes that the log may lose: older records would be
                // replayed over them. If the log has failed, they are no longer replayed once the
                // log is void.
                log_waits::committed(log, logged_to).await;
            }
            let namespace = handle.namespace();
            let is_urgent = is_waited_for || logged_to != Position(0) && is_log_crowded(&shared);
            let class = class(&shared, namespace, is_urgent);
            let terms = Terms { shared: &shared, id: handle.id(), domain, namespace, class };
            let result = match lost_below && plan.is_present && !plan.replace {
                _ if is_discarded => Err(Error::Retryable("its namespace is being removed".into())),
                true => restore(&terms, &plan, limits).await,
                false => send(&terms, &plan, limits).await,
            };
            let result = note_answer(&shared, handle.id(), result);
            if let Err(error) = &result
                && !is_discarded
            {
                report_failure(&shared, handle.id(), error);
            }
            Some((plan, result))
        }
    };
    let (own, id) = (Arc::clone(&shared), handle.id().clone());
    let (loss, done, left, released) = handle
        .enter(move |object, env| {
            let (mut done, mut left) = (Vec::new(), 0);
            let (mut failure, mut loss) = (None, None);
            let mut released = Vec::new();
            // Once the removal has ended or was given up, new changes are kept.
            let record = own.control.namespaces.record(env.namespace);
            let is_discarded = is_discarded && record.discards_dirty.load(Ordering::SeqCst);
            let result = result.map(|(plan, result)| {
                let result = object.outcome(&plan, result);
                (plan, result)
            });
            match result {
                None => (),
                Some((plan, _)) if is_discarded => {
                    let (lost, waiters) = object.lose(env, &plan);
                    let discarded = lost.map_or(0, |lost| lost.bytes);
                    record.discarded_bytes.fetch_add(discarded, Ordering::Relaxed);
                    let why = "its namespace is being removed, and what is not stored of it is discarded";
                    done.extend(
                        waiters.into_iter().map(|ticket| (ticket, Err(Error::NotStored(why.into())))),
                    );
                    mark_lost(&own, &id);
                    object.pending.is_held = false;
                    released.push(own.objects.dirty_queue.release_all(number));
                }
                Some((plan, Err(why @ Error::Fenced { .. }))) => {
                    let (lost, waiters) = object.lose(env, &plan);
                    own.metrics.counts.lost_bytes.add(lost.map_or(0, |lost| lost.bytes));
                    // This is in the exclusive section, so that every later look-up of the object
                    // finds that its changes are lost.
                    loss = lost.map(|lost| (own.objects.losses.record(&id, lost, &why), lost, why));
                    let is_lost = || Err(Error::WritesLost("another writer has taken over".into()));
                    done.extend(waiters.into_iter().map(|ticket| (ticket, is_lost())));
                    mark_lost(&own, &id);
                    object.pending.is_held = false;
                    released.push(own.objects.dirty_queue.release_all(number));
                }
                Some((plan, result)) => {
                    Ended { done, left } = object.end_flush(env, &plan, &result);
                    failure = result.err();
                    let (old, is_held) = match failure {
                        None => own.objects.dirty_queue.release_stored(number),
                        Some(_) => own.objects.dirty_queue.release_newer(number),
                    };
                    released.push(old);
                    object.pending.is_held = is_held;
                    object.pending.lost_below = matches!(failure, Some(Error::WritesLost(_)))
                        || failure.is_some() && object.pending.lost_below;
                    let counts = &own.metrics.counts;
                    match failure {
                        Some(_) => counts.flush_failures.increment(),
                        None => counts.flushes.increment(),
                    }
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
                own.objects
                    .dirty_queue
                    .retry_at(number, env.clock.now() + retry_delay(&own, object.pending.failures));
            } else if object.has_pending() {
                let is_urgent = object.activity_ref().is_some_and(|it| !it.flush_waiters.is_empty());
                own.objects.dirty_queue.requeue(number, object.pending.dirty_since, is_urgent);
            } else {
                (object.pending.queue_number, object.pending.is_held) = (0, false);
                released.push(own.objects.dirty_queue.remove(number));
                done.extend(object.take_stored_waiters());
            }
            (loss, done, left, released)
        })
        .await;
    drop(released);
    done.into_iter().for_each(|(ticket, result)| ticket.complete(result));
    if let Some((is_first, lost, why)) = loss {
        report_loss(&shared, handle.id(), is_first, lost, &why);
    }
    if left > 0 {
        // This runs in the background, because a flush must not wait for memory.
        let handle = handle.clone();
        shared.background.add(Box::pin(async move { log_failure(narrow_rest(handle, left).await) }));
    }
    let node = handle.at();
    drop(handle);
    shared.finalize(node);
    // The buckets are clean now, and can be evicted.
    shared.memory.pool.waiters().notify();
}

fn is_log_crowded(shared: &Shared) -> bool {
    shared
        .journal
        .log
        .as_ref()
        .is_some_and(|log| log.events.room.has_waiters() || crowded_before(log).is_some())
}

/// Returns the urgency of a namespace's flush.
fn class(shared: &Shared, namespace: u16, is_urgent: bool) -> Class {
    if is_urgent {
        Class::Urgent
    } else if shared.is_memory_short() || shared.metrics.dirty_room.is_pressed(namespace) {
        Class::Demand
    } else {
        Class::Age
    }
}

/// Marks the lost changes of an object in the log, if that is possible at once: they cannot be
/// stored after a restart either.
fn mark_lost(shared: &Shared, object: &ObjectId) {
    let Some(log) = &shared.journal.log else { return };
    if let Some(namespace) = log.names.get(&object.namespace).filter(|it| it.has_unmarked()) {
        // If there is no room for the mark, the restart refuses to replay, because another writer
        // has taken over.
        let _ = log.mark_object(&namespace, object, log.last_position());
    }
}

/// Returns whether an early retry would not help. The flush is still retried, with increasing
/// delays.
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
    let before = shared.store.failing.fetch_add(1, Ordering::Relaxed);
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

/// Reports a loss in the log and to subscribers; [`crate::object::ObjectCache::lost`] lists it.
fn report_loss(shared: &Shared, object: &ObjectId, is_first: bool, lost: Lost, why: &Error) {
    let Lost { changes, bytes, .. } = lost;
    tracing::error!(%object, changes, bytes, %why, "acknowledged writes are lost: the store refuses them for good");
    if is_first {
        shared.hub.publish(&Event::WritesLost(Scope::Object(object.clone())));
    }
}

fn retry_delay(shared: &Shared, failures: u32) -> Duration {
    let (shortest, longest) = shared.control.live.retry_delays();
    shortest.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(longest)
}

/// Returns the maximum number of clean bytes between two dirty runs of an object that a flush may
/// send along to join the runs.
///
/// Clean data in the cache may be outdated: another client of the store may have written there
/// since, and sending them would undo that write. So they are sent only if no other client can have
/// written: in a namespace that this cache has claimed, and whose data it has all read since the
/// claim (`shared/claim.rs` drops older data).
fn gap_bytes_max(shared: &Shared, namespace: &Namespace) -> u64 {
    if shared.store.epochs.holds(namespace) { shared.control.live.flush_gap_bytes_max() } else { 0 }
}

// Storing an object of which the store has lost writes that it had not stored (for instance after a
// failed sync): the store treats no change of the object as stored until the whole object is
// written in a single request.
//
// Everything that this cache has acknowledged of the object is either stored or in the cache: in
// write-back mode, forwarded changes are requested as *stored*. So the cached data are laid over
// the store's data, and the whole object is written, on the condition that no other client has
// changed it since it was read. If the object is larger than a request, or the store has no
// conditions and other clients may write, the cache instead acknowledges the loss to the store
// (`invalidate`), and writes its data as usual.

/// Sends a plan to a store that has lost writes of the object; returns the store's version
/// afterwards, if it is certain.
pub(crate) async fn restore(terms: &Terms<'_>, plan: &FlushPlan, limits: RunLimits) -> Result<Option<u64>> {
    let shared = terms.shared;
    let is_alone = shared.control.config.writer == Writer::Cache;
    if plan.size > shared.store.can.request_bytes_max || !shared.store.can.conditions && !is_alone {
        tracing::warn!(object = %terms.id, "the store has lost writes of an object: the cache writes again what it has of it");
        let mut request = InvalidateRequest::new(Scope::Object(terms.id.clone()));
        request.call = terms.call();
        shared.store.below.invalidate(request).await?;
        return send(terms, plan, limits).await;
    }
    // Only one object is restored at a time, because it is in memory as a whole.
    let _alone = Permits::acquire(&shared.objects.restoring).await?;
    tracing::warn!(object = %terms.id, "the store has lost writes of an object: the cache writes all of it again");
    let kept = plan.size.min(plan.truncate_before);
    let mut request = ReadRequest::new(terms.id.clone(), 0, kept);
    request.call = terms.call();
    let (base, condition) = match shared.store.below.read(request).await {
        Ok(reply) => (reply.data, Condition::Version(reply.version)),
        Err(Error::Missing) => (Segments::new(), Condition::Absent),
        Err(error) => return Err(error),
    };
    let change = Change::WriteFull { data: overlaid(&base, &plan.runs, plan.size) };
    let condition = if shared.store.can.conditions { condition } else { Condition::None };
    let version = match terms.change(Lane::Change, change, condition).await {
        Ok(reply) => reply.version.0,
        Err(error @ (Error::ConditionFailed { .. } | Error::Exists | Error::Missing)) => {
            return Err(Error::Retryable(format!("changed while it was read back: {error}").into()));
        }
        Err(error) => return Err(error),
    };
    shared.metrics.counts.flush_bytes.add(plan.bytes());
    succeeded(shared);
    Ok(Some(version))
}

/// Returns the bytes of an object of `size`: the runs, in order, over `base`, which is extended
/// with zeros.
fn overlaid(base: &Segments, runs: &[Run], size: u64) -> Segments {
    let mut all = Segments::new();
    let from_base = |all: &mut Segments, from: u64, to: u64| {
        let len = base.len_bytes() as u64;
        let (low, high) = (from.min(len), to.min(len));
        all.append(base.slice(low as usize..high as usize));
        all.append(Segments::zeros((to - from - (high - low)) as usize));
    };
    let mut at = 0;
    for run in runs.iter().filter(|run| run.offset < size) {
        from_base(&mut all, at, run.offset);
        at = run.end().min(size);
        let len = (at - run.offset) as usize;
        all.append(match &run.content {
            RunContent::Data(data) => data.slice(0..len),
            RunContent::Zeroes(_) => Segments::zeros(len),
        });
    }
    from_base(&mut all, at, size);
    all
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn runs_lie_over_the_base_and_zeros_follow_it() {
        let base = Segments::from(vec![1; 6]);
        let runs = [Run::data(1, vec![2; 2]), Run::zeroes(4, 1), Run::data(8, vec![3; 4])];
        assert_eq!(overlaid(&base, &runs, 10).to_vec(), [1, 2, 2, 1, 0, 1, 0, 0, 3, 3]);
        assert_eq!(overlaid(&base, &runs, 3).to_vec(), [1, 2, 2]);
        assert_eq!(overlaid(&Segments::new(), &[], 3).to_vec(), [0; 3]);
    }
}

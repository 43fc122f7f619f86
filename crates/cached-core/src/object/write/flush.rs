//! Flushing an object: making the plan, sending it to the store, and completing it; and restoring
//! an object of which the store has lost writes.

use std::time::Duration;

use blocker::{
    Call, Change, ChangeReply, ChangeTerms, Condition, Durability, Error, Event, InvalidateRequest,
    Namespace, ObjectId, OrderDomain, ReadRequest, Result, Run, RunContent, Scope, Segments,
};
use cached_journal::Position;
use futures_util::future::join_all;

use super::log_space::crowded_before;
use crate::object::config::Writer;
use crate::object::journal::ChangeLog;
use crate::object::read::load::{ask_info, run_max};
use crate::object::shared::calls::begin;
use crate::object::shared::claim::{log_failure, narrow_rest, note_answer, own_epoch, own_stamp};
use crate::object::shared::handle::Handle;
use crate::object::shared::{Shared, log_waits};
use crate::object::state::losses::Lost;
use crate::object::state::{FlushPlan, RunLimits};
use crate::object::store::{Class, Lane};
use crate::object::tasks::wait_queue::Permits;
use crate::sync::{Arc, Ordering};

/// Flushes the object in the node `node`, whose number in the dirty queue is `number`.
pub(crate) async fn flush_object(shared: Arc<Shared>, number: u64, node: u32) {
    let Some(handle) = Handle::of_node(&shared, node) else {
        return drop(shared.objects.dirty_queue.remove(number));
    };
    let limits = RunLimits {
        run_bytes_max: run_max(&shared),
        gap_bytes_max: gap_bytes_max(&shared, &handle.id().namespace),
        runs_max: shared.store.below.capabilities().runs_max as usize,
    };
    let record = shared.control.namespaces.record(handle.namespace());
    let is_discarded = record.discards_dirty.load(Ordering::SeqCst);
    let begun = handle.enter(move |object, env| {
        let is_waited_for = object.has_flush_waiters();
        Some((object.begin_flush(env, limits)?, is_waited_for))
    });
    let result = match begun.await {
        None => None,
        Some((plan, is_waited_for)) => {
            let result = match is_discarded {
                true => Err(Error::NotStored(DISCARDED.into())),
                false => send_plan(&shared, &handle, &plan, limits, is_waited_for).await,
            };
            Some((plan, result))
        }
    };
    let is_refused = matches!(&result, Some((_, Err(Error::Fenced { .. }))));
    let is_overtaken = is_refused && is_overtaken(&shared, &handle.id().namespace).await;
    let (own, id) = (Arc::clone(&shared), handle.id().clone());
    let ended = handle.enter(move |object, env| {
        let (mut done, mut left, mut failure, mut loss) = (Vec::new(), 0, None, None);
        let mut released = Vec::new();
        let dirty_queue = &own.objects.dirty_queue;
        // Once the removal has ended or was given up, new changes are kept.
        let record = own.control.namespaces.record(env.namespace);
        let is_discarded = is_discarded && record.discards_dirty.load(Ordering::SeqCst);
        if let Some((plan, result)) = result {
            let result = object.outcome(&plan, result);
            let refusal = match result {
                _ if is_discarded => Some(Error::NotStored(DISCARDED.into())),
                Err(Error::Fenced { .. }) => Some(Error::WritesLost("another writer has taken over".into())),
                _ => None,
            };
            if let Some(refusal) = refusal {
                let (lost, waiters) = object.lose(env, &plan);
                let lost_bytes = lost.map_or(0, |lost| lost.bytes);
                if is_discarded {
                    record.discarded_bytes.fetch_add(lost_bytes, Ordering::Relaxed);
                } else {
                    own.metrics.counts.lost_bytes.add(lost_bytes);
                    // The loss is recorded in the exclusive section, so that every later look-up
                    // of the object finds it.
                    let list = |(lost, why)| (own.objects.losses.record(&id, lost, &why), lost, why);
                    loss = lost.zip(result.err()).map(list);
                }
                done.extend(waiters.into_iter().map(|ticket| (ticket, Err(refusal.clone()))));
                if !is_overtaken {
                    mark_lost(&own, &id);
                }
                object.pending.is_held = false;
                released.extend(dirty_queue.release_all(number));
            } else {
                left = object.end_flush(env, &plan, &result);
                failure = result.err();
                let (old, is_held) = dirty_queue.release(number, failure.is_none());
                released.push(old);
                object.pending.is_held = is_held;
                object.pending.lost_below = matches!(failure, Some(Error::WritesLost(_)))
                    || failure.is_some() && object.pending.lost_below;
                let counts = &own.metrics.counts;
                let counter = if failure.is_some() { &counts.flush_failures } else { &counts.flushes };
                counter.increment();
            }
        }
        done.extend(object.take_stored_waiters());
        if let Some(error) = failure {
            let waiters = &mut object.activity().flush_waiters;
            waiters.iter().for_each(|(_, ticket)| ticket.note(&error));
            if is_hopeless(&error) {
                let not_stored = || Err(Error::NotStored(error.to_string().into()));
                done.extend(waiters.drain(..).map(|(_, ticket)| (ticket, not_stored())));
            }
            object.drop_if_idle();
            dirty_queue.retry_at(number, env.clock.now() + retry_delay(&own, object.pending.failures));
        } else if object.has_pending() {
            dirty_queue.requeue(number, object.pending.dirty_since, object.has_flush_waiters());
        } else {
            (object.pending.queue_number, object.pending.is_held) = (0, false);
            released.extend(dirty_queue.remove(number));
        }
        (loss, done, left, released)
    });
    let (loss, done, left, released) = ended.await;
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
    let node = handle.at;
    drop(handle);
    shared.finalize(node);
    // The buckets are clean now, and can be evicted.
    shared.memory.pool.waiters().notify();
}

/// The reason why the dirty data of a namespace that is being removed are not stored.
const DISCARDED: &str = "its namespace is being removed, and its unstored data are discarded";

/// Sends a plan to the store once the records of its changes are durable; returns the store's
/// version afterwards, if it is certain.
async fn send_plan(
    shared: &Arc<Shared>,
    handle: &Handle,
    plan: &FlushPlan,
    limits: RunLimits,
    is_waited_for: bool,
) -> Result<Option<u64>> {
    let pending = &plan.pending;
    if let Some(log) = &shared.journal.log
        && pending.logged_to != 0
    {
        // The store must not have changes that the log may lose: older records would be replayed
        // over them. If the log has failed, they are no longer replayed once the log is void.
        log_waits::committed(log, Position(pending.logged_to)).await;
    }
    let is_crowded = |log: &ChangeLog| log.events.room.has_waiters() || crowded_before(log).is_some();
    let is_in_the_way = pending.logged_to != 0 && shared.journal.log.as_ref().is_some_and(is_crowded);
    let class = class(shared, handle.namespace(), is_waited_for || is_in_the_way);
    let terms = Terms { handle, domain: pending.domain, class };
    let result = match pending.lost_below && plan.is_present() && !pending.replace {
        true => restore(&terms, plan, limits).await,
        false => send(&terms, plan, limits).await,
    };
    let result = note_answer(shared, handle.id(), result);
    if let Err(error) = &result {
        report_failure(shared, handle.id(), error);
    }
    result
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

/// Returns whether there is a log and another writer holds the whole namespace: the next start then
/// sets the journal aside, and an operator can still save the changes that it contains.
async fn is_overtaken(shared: &Arc<Shared>, namespace: &Namespace) -> bool {
    shared.journal.log.is_some() && matches!(own_epoch(shared, namespace).await, Err(Error::Fenced { .. }))
}

/// Marks the lost changes of an object in the log, if that is possible at once: they must not be
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
        tracing::warn!(object = %id, %error, failures = before + 1, "flush failed and will be retried");
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
    tracing::error!(%object, changes, bytes, %why, "acknowledged writes are lost: the store refuses them permanently");
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

// Sending a plan to the store.

/// The common terms of all requests of a flush.
struct Terms<'a> {
    handle: &'a Handle,
    /// The order domain of all changes in the flush.
    domain: Option<OrderDomain>,
    class: Class,
}

impl Terms<'_> {
    /// Sends a change to the store once the gate admits it, counted as a flush request.
    async fn change(&self, lane: Lane, change: Change, condition: Condition) -> Result<ChangeReply> {
        let (shared, id, bytes) = (&self.handle.shared, self.handle.id(), change.payload_bytes());
        let asking = begin(shared, self.handle.namespace(), (lane, self.class), bytes).await?;
        let mut terms = ChangeTerms::default();
        terms.durability = Durability::Stored;
        terms.domain = self.domain;
        terms.condition = condition;
        // If there is a quota, it counted the change when the change was acknowledged.
        terms.settles = true;
        terms.stamp = own_stamp(shared, &id.namespace).await?;
        shared.metrics.counts.flush_requests.increment();
        shared.metrics.flush_sizes.observe(bytes as f64);
        let request = change.request(id.clone()).terms(terms).call(self.call());
        let answer = shared.store.below.change(request).await;
        asking.end(shared, &answer, bytes);
        answer
    }

    /// Returns a call with the deadline of a flush request: if the store does not respond in time,
    /// the flush fails and is retried, so a lost response does not block the object forever.
    fn call(&self) -> Call {
        let mut call = Call::default();
        let shared = &self.handle.shared;
        call.deadline = Some(shared.clock.now() + shared.control.config.flush_timeout);
        call
    }
}

/// Sends a plan; returns the store's version afterwards, if it is certain.
async fn send(terms: &Terms<'_>, plan: &FlushPlan, limits: RunLimits) -> Result<Option<u64>> {
    let shared = &terms.handle.shared;
    let replaces = plan.pending.replace;
    let change = |change| terms.change(Lane::Change, change, Condition::None);
    let mut exists = plan.head.store_exists;
    if plan.is_retry() {
        // A failed request may still have taken effect, or be in flight. The storage contract rules
        // out the latter once the store has replied with the object's head.
        let object = (terms.handle.id(), terms.handle.namespace());
        exists = ask_info(shared, object, terms.class, || terms.call()).await?.is_some();
    }
    if !plan.is_present() {
        if replaces {
            match change(Change::Delete).await {
                Ok(_) | Err(Error::Missing) => (),
                Err(error) => return Err(error),
            }
        }
        succeeded(shared);
        return Ok(None);
    }
    let mut version = None;
    if replaces {
        let data = match plan.runs.first().map(|run| &run.content) {
            Some(RunContent::Data(data)) => data.clone(),
            // All runs of the object are data here; no run means an empty object.
            _ => Segments::new(),
        };
        version = Some(change(Change::WriteFull { data }).await?.version.0);
    } else if let Some(size_bytes) = plan.truncate_to() {
        match change(Change::Truncate { size_bytes }).await {
            Ok(reply) => version = Some(reply.version.0),
            Err(Error::Missing) => (),
            Err(error) => return Err(error),
        }
    }
    let rest = plan.requests(usize::from(replaces), limits);
    if !replaces && !exists && rest.is_empty() {
        let empty = Change::Write { offset: 0, data: Segments::new() };
        version = Some(change(empty).await?.version.0);
    }
    if shared.control.config.writer != Writer::Callers {
        // Stamps must reach the store in order.
        for runs in rest {
            version = Some(send_runs(terms, runs).await?);
        }
    } else {
        // All responses are awaited, even after a failure: an abandoned request could reach the
        // store after newer ones.
        let sent = join_all(rest.into_iter().map(|runs| send_runs(terms, runs))).await;
        match sent.into_iter().collect::<Result<Vec<u64>>>()?[..] {
            [] => (),
            [only] => version = Some(only),
            // The order of the requests is unknown, so the resulting version is unknown too.
            _ => version = None,
        }
    }
    let size_bytes = plan.head.size;
    if plan.is_retry() || size_bytes > plan.end_of_runs() {
        version = Some(change(Change::Truncate { size_bytes }).await?.version.0);
    }
    shared.metrics.counts.flush_bytes.add(plan.bytes());
    succeeded(shared);
    Ok(version)
}

/// Sends a single request.
async fn send_runs(terms: &Terms<'_>, runs: &[Run]) -> Result<u64> {
    let change = match runs {
        [Run { offset, content: RunContent::Data(data), .. }] => {
            Change::Write { offset: *offset, data: data.clone() }
        }
        [Run { offset, content: RunContent::Zeroes(len_bytes), .. }] => {
            Change::WriteZeroes { offset: *offset, len_bytes: *len_bytes }
        }
        several => Change::WriteRuns { runs: several.to_vec() },
    };
    Ok(terms.change(Lane::Flush, change, Condition::None).await?.version.0)
}

fn succeeded(shared: &Shared) {
    if shared.store.failing.load(Ordering::Relaxed) > 0 && shared.store.failing.swap(0, Ordering::Relaxed) > 0
    {
        tracing::info!("the store accepts flushes again");
        shared.hub.publish(&Event::Recovered);
    }
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
async fn restore(terms: &Terms<'_>, plan: &FlushPlan, limits: RunLimits) -> Result<Option<u64>> {
    let (shared, id) = (&terms.handle.shared, terms.handle.id());
    let is_alone = shared.control.config.writer != Writer::Callers;
    let size = plan.head.size;
    if size > shared.store.can.request_bytes_max || !shared.store.can.conditions && !is_alone {
        tracing::warn!(object = %id, "the store has lost writes of an object: the cache rewrites the bytes that it has");
        let mut request = InvalidateRequest::new(Scope::Object(id.clone()));
        request.call = terms.call();
        shared.store.below.invalidate(request).await?;
        return send(terms, plan, limits).await;
    }
    // Only one object is restored at a time, because it is in memory as a whole.
    let _alone = Permits::acquire(&shared.objects.restoring).await?;
    tracing::warn!(object = %id, "the store has lost writes of an object: the cache rewrites the whole object");
    let kept = size.min(plan.pending.truncate_to);
    let mut request = ReadRequest::new(id.clone(), 0, kept);
    request.call = terms.call();
    let (base, condition) = match shared.store.below.read(request).await {
        Ok(reply) => (reply.data, Condition::Version(reply.version)),
        Err(Error::Missing) => (Segments::new(), Condition::Absent),
        Err(error) => return Err(error),
    };
    let change = Change::WriteFull { data: overlaid(&base, &plan.runs, size as usize) };
    let condition = if shared.store.can.conditions { condition } else { Condition::None };
    let version = match terms.change(Lane::Change, change, condition).await {
        Ok(reply) => reply.version.0,
        Err(error @ (Error::ConditionFailed { .. } | Error::Exists | Error::Missing)) => {
            let why = format!("the object changed while it was read back: {error}");
            return Err(Error::Retryable(why.into()));
        }
        Err(error) => return Err(error),
    };
    shared.metrics.counts.flush_bytes.add(plan.bytes());
    succeeded(shared);
    Ok(Some(version))
}

/// Returns the bytes of an object of `size`: the runs, in order, over `base`, which is extended
/// with zeros.
fn overlaid(base: &Segments, runs: &[Run], size: usize) -> Segments {
    let mut bytes = base.to_vec();
    bytes.resize(size, 0);
    for run in runs.iter().filter(|run| run.offset < size as u64) {
        let target = &mut bytes[run.offset as usize..size.min(run.end() as usize)];
        match &run.content {
            RunContent::Data(data) => data.slice(0..target.len()).copy_to(target),
            RunContent::Zeroes(_) => target.fill(0),
        }
    }
    bytes.into()
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

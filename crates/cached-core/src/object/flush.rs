//! Flushing one object: its plan sent to the store, and what became of it.

use blocker::{
    Change, DeleteRequest, Durability, Error, Event, InfoRequest, ObjectId, OrderDomain, Result, Run,
    RunContent, Segments, TruncateRequest, WriteFullRequest, WriteRequest, WriteRunsRequest,
    WriteZeroesRequest,
};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::flush_plan::{FlushPlan, RunLimits};
use super::gauges::add;
use super::handle::Handle;
use super::pool::BUCKET;
use super::shared::Shared;
use super::wait::Permits;
use crate::sync::{Arc, Ordering};

/// Flushes the object at `node`, which flies under `number` in the registry.
pub(crate) async fn flush_object(shared: Arc<Shared>, number: u64, node: u32) {
    let Some(handle) = Handle::of_node(&shared, node) else { return shared.registry.leave(number) };
    let bucket = BUCKET as u64;
    // As the store is now: one that is reached over a network may come back with other limits.
    let can = shared.below.capabilities();
    let limits = RunLimits {
        run_bytes_max: (can.request_bytes_max / bucket * bucket).max(bucket),
        gap_bytes_max: shared.config.flush_gap_bytes_max,
        runs_max: can.runs_max as usize,
    };
    let begun = handle.enter(move |object, env| {
        let pending = object.pending;
        let plan = object.begin_flush(env, limits)?;
        Some((plan, pending.domain.filter(|_| !pending.domains_mixed)))
    });
    let result = match begun.await {
        None => None,
        Some((plan, domain)) => {
            let result = send(&shared, handle.id(), &plan, limits, domain).await;
            if let Err(error) = &result {
                tell_failure(&shared, handle.id(), error);
            }
            Some((plan, result))
        }
    };
    let own = Arc::clone(&shared);
    handle
        .enter(move |object, env| {
            let mut done = Vec::new();
            let mut failure = None;
            if let Some((plan, result)) = result {
                done = object.end_flush(env, &plan, &result);
                failure = result.err().filter(|error| !matches!(error, Error::Fenced { .. }));
                add(if failure.is_some() { &own.gauges.flush_failures } else { &own.gauges.flushes }, 1);
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
                object.tidy();
                own.registry.failed(number, env.clock.now() + own.retry_delay(object.pending.failures));
            } else if object.has_pending() {
                let is_urgent = object.activity_ref().is_some_and(|it| !it.flush_waiters.is_empty());
                own.registry.again(number, object.pending.dirty_since, is_urgent);
            } else {
                object.pending.registered = 0;
                own.registry.leave(number);
                done.extend(object.settle());
            }
            done.into_iter().for_each(|(ticket, result)| ticket.settle(result));
        })
        .await;
    let node = handle.at();
    drop(handle);
    shared.finalize(node);
    // Clean buckets can be evicted.
    shared.pool.waiters().notify();
}

/// Whether trying again soon will not help; it is tried again all the same, later and later.
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

/// Failures are seen: in the log, in the figures, and by those who subscribe.
fn tell_failure(shared: &Shared, id: &ObjectId, error: &Error) {
    let before = shared.failing.fetch_add(1, Ordering::Relaxed);
    if matches!(error, Error::Fenced { .. }) {
        tracing::error!(object = %id, %error, "flush refused for good: another writer has taken over");
    } else if before.is_power_of_two() || before == 0 {
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

impl Shared {
    fn retry_delay(&self, failures: u32) -> std::time::Duration {
        let doubled = self.config.retry_delay_min.saturating_mul(1 << failures.saturating_sub(1).min(20));
        doubled.min(self.config.retry_delay_max)
    }

    /// The terms of one request of a flush.
    async fn flush_change(&self, id: &ObjectId, domain: Option<OrderDomain>) -> Result<Change> {
        let mut change = Change::default();
        change.durability = Durability::Stored;
        change.domain = domain;
        change.stamp = self.own_stamp(&id.namespace).await?;
        Ok(change)
    }
}

/// The permits for flushes, reached through the cache.
#[derive(Clone)]
struct SharedFlushes(Arc<Shared>);

impl std::ops::Deref for SharedFlushes {
    type Target = Permits;
    fn deref(&self) -> &Permits {
        &self.0.flush_permits
    }
}

/// Sends a plan; the store's version after it, if that is certain.
async fn send(
    shared: &Arc<Shared>,
    id: &ObjectId,
    plan: &FlushPlan,
    limits: RunLimits,
    domain: Option<OrderDomain>,
) -> Result<Option<u64>> {
    let below = &shared.below;
    let terms = || shared.flush_change(id, domain);
    let mut exists = plan.store_exists;
    if plan.is_retry {
        // What failed may have been done all the same, and be on its way still: the store owes that it is
        // not, once it has told what there is.
        exists = match below.info(InfoRequest::new(id.clone())).await {
            Ok(_) => true,
            Err(Error::Missing) => false,
            Err(error) => return Err(error),
        };
    }
    if !plan.is_present {
        if plan.replace {
            let request = DeleteRequest::new(id.clone()).change(terms().await?);
            match below.delete(request).await {
                Ok(_) | Err(Error::Missing) => (),
                Err(error) => return Err(error),
            }
        }
        succeeded(shared);
        return Ok(None);
    }
    let mut version = None;
    if plan.replace {
        let first = match plan.runs.first().map(|run| &run.content) {
            Some(RunContent::Data(data)) => data.clone(),
            // All of the object's runs are data here: none is an empty object.
            _ => Segments::new(),
        };
        let request = WriteFullRequest::new(id.clone(), first).change(terms().await?);
        version = Some(below.write_full(request).await?.version.0);
    } else if let Some(to) = plan.truncate_to {
        let request = TruncateRequest::new(id.clone(), to).change(terms().await?);
        match below.truncate(request).await {
            Ok(reply) => version = Some(reply.version.0),
            Err(Error::Missing) => (),
            Err(error) => return Err(error),
        }
    }
    let rest = plan.requests(usize::from(plan.replace), limits);
    if !plan.replace && !exists && rest.is_empty() {
        let request = WriteRequest::new(id.clone(), 0, Segments::new()).change(terms().await?);
        version = Some(below.write(request).await?.version.0);
    }
    let count = rest.len();
    if shared.config.writer == super::Writer::Cache {
        // Stamps must reach the store in their order.
        for runs in rest {
            version = Some(send_runs(shared, id, runs, terms().await?).await?);
        }
    } else {
        let mut sending: FuturesUnordered<_> = rest
            .into_iter()
            .map(|runs| async { send_runs(shared, id, runs, terms().await?).await })
            .collect();
        // All answers are waited for, even after a failure: a request that is left behind could reach the
        // store after newer ones.
        let mut failure = None;
        while let Some(sent) = sending.next().await {
            match sent {
                Ok(sent) => version = Some(sent).filter(|_| count == 1),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
    }
    if plan.is_retry || plan.size > plan.end_of_runs() {
        let request = TruncateRequest::new(id.clone(), plan.size).change(terms().await?);
        version = Some(below.truncate(request).await?.version.0);
    }
    add(&shared.gauges.flush_bytes, plan.bytes());
    succeeded(shared);
    Ok(version)
}

/// Sends what makes one request.
async fn send_runs(shared: &Arc<Shared>, id: &ObjectId, runs: &[Run], change: Change) -> Result<u64> {
    let _permit = Permits::acquire(SharedFlushes(Arc::clone(shared))).await?;
    add(&shared.gauges.flush_requests, 1);
    let reply = match runs {
        [Run { offset, content: RunContent::Data(data), .. }] => {
            let request = WriteRequest::new(id.clone(), *offset, data.clone());
            shared.below.write(request.change(change)).await?
        }
        [Run { offset, content: RunContent::Zeroes(len_bytes), .. }] => {
            let request = WriteZeroesRequest::new(id.clone(), *offset, *len_bytes);
            shared.below.write_zeroes(request.change(change)).await?
        }
        several => {
            let request = WriteRunsRequest::new(id.clone(), several.to_vec());
            shared.below.write_runs(request.change(change)).await?
        }
    };
    Ok(reply.version.0)
}

fn succeeded(shared: &Shared) {
    if shared.failing.load(Ordering::Relaxed) > 0 && shared.failing.swap(0, Ordering::Relaxed) > 0 {
        tracing::info!("the store takes flushes again");
        shared.hub.publish(&Event::Recovered);
    }
}

//! Flushing one object: its plan sent to the store, and what became of it.

use blocker::{
    Call, Change, DeleteRequest, Durability, Error, Event, InfoRequest, ObjectId, OrderDomain, Result, Run,
    RunContent, Scope, Segments, TruncateRequest, WriteFullRequest, WriteRequest, WriteRunsRequest,
    WriteZeroesRequest,
};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::bridging::gap_bytes_max;
use super::doubt::{doubt_rest, dropped};
use super::flush_plan::{Ended, FlushPlan, RunLimits};
use super::gauges::add;
use super::handle::Handle;
use super::losses::Lost;
use super::pool::BUCKET;
use super::restore::restore;
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
                tell_failure(&shared, handle.id(), error);
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
                    own.was_fenced(&id, epoch);
                    let (lost, waiters) = object.lose(env, &plan);
                    // In the turn: whoever looks for the object's changes from now on finds that they are lost.
                    loss = lost.map(|lost| (own.losses.record(&id, lost, &why), lost, why));
                    let is_lost = || Err(Error::WritesLost("another writer has taken over".into()));
                    done.extend(waiters.into_iter().map(|ticket| (ticket, is_lost())));
                }
                Some((plan, result)) => {
                    Ended { done, left } = object.end_flush(env, &plan, &result);
                    failure = result.err();
                    object.pending.lost_below = matches!(failure, Some(Error::WritesLost(_)))
                        || failure.is_some() && object.pending.lost_below;
                    let figure =
                        if failure.is_some() { &own.gauges.flush_failures } else { &own.gauges.flushes };
                    add(figure, 1);
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
            (loss, done, left)
        })
        .await;
    done.into_iter().for_each(|(ticket, result)| ticket.settle(result));
    if let Some((is_first, lost, why)) = loss {
        tell_loss(&shared, handle.id(), is_first, lost, &why);
    }
    if left > 0 {
        // Not here: a flush must not wait for memory.
        let handle = handle.clone();
        shared.background.adopt(Box::pin(async move { dropped(doubt_rest(handle, left).await) }));
    }
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

/// Losses are seen as well, and stay in [`super::ObjectCache::lost`].
fn tell_loss(shared: &Shared, object: &ObjectId, is_first: bool, lost: Lost, why: &Error) {
    let Lost { changes, bytes, .. } = lost;
    tracing::error!(%object, changes, bytes, %why, "acknowledged writes are lost: the store refuses them for good");
    if is_first {
        shared.hub.publish(&Event::WritesLost(Scope::Object(object.clone())));
    }
}

impl Shared {
    fn retry_delay(&self, failures: u32) -> std::time::Duration {
        let doubled = self.config.retry_delay_min.saturating_mul(1 << failures.saturating_sub(1).min(20));
        doubled.min(self.config.retry_delay_max)
    }
}

/// What all requests of one flush have in common.
pub(crate) struct Terms<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) id: &'a ObjectId,
    /// The order domain of all that it sends.
    domain: Option<OrderDomain>,
}

impl Terms<'_> {
    /// The terms of one change.
    pub(crate) async fn change(&self) -> Result<Change> {
        let mut change = Change::default();
        change.durability = Durability::Stored;
        change.domain = self.domain;
        change.stamp = self.shared.own_stamp(&self.id.namespace).await?;
        Ok(change)
    }

    /// What goes for one call: a store that does not answer in time is asked again, and does not keep the object
    /// for ever.
    pub(crate) fn call(&self) -> Call {
        let mut call = Call::default();
        call.deadline = Some(self.shared.clock.now() + self.shared.config.flush_timeout);
        call
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
pub(crate) async fn send(terms: &Terms<'_>, plan: &FlushPlan, limits: RunLimits) -> Result<Option<u64>> {
    let Terms { shared, id, .. } = *terms;
    let below = &shared.below;
    // A request on the terms of this flush.
    macro_rules! on_terms {
        ($request:expr) => {{
            let mut request = $request.change(terms.change().await?);
            request.call = terms.call();
            request
        }};
    }
    let mut exists = plan.store_exists;
    if plan.is_retry {
        // What failed may have been done all the same, and be on its way still: the store owes that it is
        // not, once it has told what there is.
        let mut request = InfoRequest::new(id.clone());
        request.call = terms.call();
        exists = match below.info(request).await {
            Ok(_) => true,
            Err(Error::Missing) => false,
            Err(error) => return Err(error),
        };
    }
    if !plan.is_present {
        if plan.replace {
            match below.delete(on_terms!(DeleteRequest::new(id.clone()))).await {
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
        let request = on_terms!(WriteFullRequest::new(id.clone(), first));
        version = Some(below.write_full(request).await?.version.0);
    } else if let Some(to) = plan.truncate_to {
        let request = on_terms!(TruncateRequest::new(id.clone(), to));
        match below.truncate(request).await {
            Ok(reply) => version = Some(reply.version.0),
            Err(Error::Missing) => (),
            Err(error) => return Err(error),
        }
    }
    let rest = plan.requests(usize::from(plan.replace), limits);
    if !plan.replace && !exists && rest.is_empty() {
        let request = on_terms!(WriteRequest::new(id.clone(), 0, Segments::new()));
        version = Some(below.write(request).await?.version.0);
    }
    let count = rest.len();
    if shared.config.writer == super::Writer::Cache {
        // Stamps must reach the store in their order.
        for runs in rest {
            version = Some(send_runs(terms, runs).await?);
        }
    } else {
        let mut sending: FuturesUnordered<_> = rest.into_iter().map(|runs| send_runs(terms, runs)).collect();
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
        let request = on_terms!(TruncateRequest::new(id.clone(), plan.size));
        version = Some(below.truncate(request).await?.version.0);
    }
    add(&shared.gauges.flush_bytes, plan.bytes());
    succeeded(shared);
    Ok(version)
}

/// Sends what makes one request.
async fn send_runs(terms: &Terms<'_>, runs: &[Run]) -> Result<u64> {
    let Terms { shared, id, .. } = *terms;
    let _permit = Permits::acquire(SharedFlushes(Arc::clone(shared))).await?;
    let (change, call) = (terms.change().await?, terms.call());
    add(&shared.gauges.flush_requests, 1);
    let reply = match runs {
        [Run { offset, content: RunContent::Data(data), .. }] => {
            let mut request = WriteRequest::new(id.clone(), *offset, data.clone()).change(change);
            request.call = call;
            shared.below.write(request).await?
        }
        [Run { offset, content: RunContent::Zeroes(len_bytes), .. }] => {
            let mut request = WriteZeroesRequest::new(id.clone(), *offset, *len_bytes).change(change);
            request.call = call;
            shared.below.write_zeroes(request).await?
        }
        several => {
            let mut request = WriteRunsRequest::new(id.clone(), several.to_vec()).change(change);
            request.call = call;
            shared.below.write_runs(request).await?
        }
    };
    Ok(reply.version.0)
}

pub(crate) fn succeeded(shared: &Shared) {
    if shared.failing.load(Ordering::Relaxed) > 0 && shared.failing.swap(0, Ordering::Relaxed) > 0 {
        tracing::info!("the store takes flushes again");
        shared.hub.publish(&Event::Recovered);
    }
}

//! Sending the plan of a flush.

use blocker::{
    Call, Change, ChangeReply, ChangeTerms, Condition, Durability, Error, Event, InfoRequest, ObjectId,
    OrderDomain, Reply, Result, Run, RunContent, Segments,
};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::object::config::Writer;
use crate::object::shared::Shared;
use crate::object::shared::calls::begin;
use crate::object::shared::claim::own_stamp;
use crate::object::state::{FlushPlan, RunLimits};
use crate::object::store::{Class, Lane};
use crate::sync::{Arc, Ordering};

/// The common terms of all requests of a flush.
pub(crate) struct Terms<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) id: &'a ObjectId,
    /// The order domain of all changes in the flush.
    pub(crate) domain: Option<OrderDomain>,
    /// The number of the object's namespace.
    pub(crate) namespace: u16,
    pub(crate) class: Class,
}

impl Terms<'_> {
    /// Returns the terms of a change.
    pub(crate) async fn of_change(&self) -> Result<ChangeTerms> {
        let mut terms = ChangeTerms::default();
        terms.durability = Durability::Stored;
        terms.domain = self.domain;
        // If there is a quota, it counted the change when the change was acknowledged.
        terms.settles = true;
        terms.stamp = own_stamp(self.shared, &self.id.namespace).await?;
        Ok(terms)
    }

    /// Sends a change to the store, counted as a flush request.
    pub(crate) async fn change(
        &self,
        lane: Lane,
        change: Change,
        condition: Condition,
    ) -> Result<ChangeReply> {
        let bytes = change.payload_bytes();
        let counted = |mut terms: ChangeTerms, call| {
            terms.condition = condition;
            let metrics = &self.shared.metrics;
            metrics.counts.flush_requests.increment();
            metrics.flush_sizes.observe(bytes as f64);
            self.shared.store.below.change(change.request(self.id.clone()).terms(terms).call(call))
        };
        self.ask((lane, bytes), counted).await
    }

    /// Sends a request to the store once the gate admits it.
    async fn ask<T: Send + Unpin + 'static>(
        &self,
        (lane, bytes): (Lane, u64),
        send: impl FnOnce(ChangeTerms, Call) -> Reply<T>,
    ) -> Result<T> {
        let asking = begin(self.shared, self.namespace, (lane, self.class), bytes).await?;
        let terms = self.of_change().await?;
        let answer = send(terms, self.call()).await;
        asking.end(self.shared, &answer, bytes);
        answer
    }

    /// Returns a call with the deadline of a flush request: a store that does not respond in time
    /// is asked again, and cannot keep the object from being flushed.
    pub(crate) fn call(&self) -> Call {
        let mut call = Call::default();
        call.deadline = Some(self.shared.clock.now() + self.shared.control.config.flush_timeout);
        call
    }
}

/// Sends a plan; returns the store's version afterwards, if it is certain.
pub(crate) async fn send(terms: &Terms<'_>, plan: &FlushPlan, limits: RunLimits) -> Result<Option<u64>> {
    let Terms { shared, id, .. } = *terms;
    let change = |change| terms.change(Lane::Change, change, Condition::None);
    let mut exists = plan.store_exists;
    if plan.is_retry {
        // A failed request may still have taken effect, or be in flight. The storage contract rules
        // out the latter once the store has replied with the object's head.
        let info = |_, call| {
            let mut request = InfoRequest::new(id.clone());
            request.call = call;
            shared.store.below.info(request)
        };
        exists = match terms.ask((Lane::Change, 0), info).await {
            Ok(_) => true,
            Err(Error::Missing) => false,
            Err(error) => return Err(error),
        };
    }
    if !plan.is_present {
        if plan.replace {
            match change(Change::Delete).await {
                Ok(_) | Err(Error::Missing) => (),
                Err(error) => return Err(error),
            }
        }
        succeeded(shared);
        return Ok(None);
    }
    let mut version = None;
    if plan.replace {
        let data = match plan.runs.first().map(|run| &run.content) {
            Some(RunContent::Data(data)) => data.clone(),
            // All runs of the object are data here; no run means an empty object.
            _ => Segments::new(),
        };
        version = Some(change(Change::WriteFull { data }).await?.version.0);
    } else if let Some(size_bytes) = plan.truncate_to {
        match change(Change::Truncate { size_bytes }).await {
            Ok(reply) => version = Some(reply.version.0),
            Err(Error::Missing) => (),
            Err(error) => return Err(error),
        }
    }
    let rest = plan.requests(usize::from(plan.replace), limits);
    if !plan.replace && !exists && rest.is_empty() {
        let empty = Change::Write { offset: 0, data: Segments::new() };
        version = Some(change(empty).await?.version.0);
    }
    let count = rest.len();
    if shared.control.config.writer == Writer::Cache {
        // Stamps must reach the store in order.
        for runs in rest {
            version = Some(send_runs(terms, runs).await?);
        }
    } else {
        let mut sending: FuturesUnordered<_> = rest.into_iter().map(|runs| send_runs(terms, runs)).collect();
        // All responses are awaited, even after a failure: an abandoned request could reach the
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
        version = Some(change(Change::Truncate { size_bytes: plan.size }).await?.version.0);
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

pub(crate) fn succeeded(shared: &Shared) {
    if shared.store.failing.load(Ordering::Relaxed) > 0 && shared.store.failing.swap(0, Ordering::Relaxed) > 0
    {
        tracing::info!("the store takes flushes again");
        shared.hub.publish(&Event::Recovered);
    }
}

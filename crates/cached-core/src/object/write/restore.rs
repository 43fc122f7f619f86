//! Storing an object of which the store has lost writes that it had not stored (after a failed sync, say):
//! the store takes no change of it as stored until all of it is written in one request.
//!
//! Everything that this cache has acknowledged of the object is stored, or is here: in write-back mode, what
//! is forwarded is forwarded as *stored*. So what is here is laid over what the store reads, and all of it is
//! written in full, on the condition that no other client has changed the object since it was read. Where an
//! object is larger than a request, or the store has no conditions and other clients may write, the cache
//! instead acknowledges the loss to the store (`invalidate`), and writes what is here as always.

use blocker::{
    Condition, Error, InvalidateRequest, ReadRequest, Result, Run, RunContent, Scope, Segments,
    WriteFullRequest,
};

use super::flush_send::{Terms, send, succeeded};
use crate::object::config::Writer;
use crate::object::control::metrics::add;
use crate::object::state::{FlushPlan, RunLimits};
use crate::object::store::Lane;
use crate::object::tasks::wait_queue::Permits;

/// Sends a plan to a store that has lost writes of the object; returns the store's version after it, if that
/// is certain.
pub(crate) async fn restore(terms: &Terms<'_>, plan: &FlushPlan, limits: RunLimits) -> Result<Option<u64>> {
    let shared = terms.shared;
    let is_alone = shared.config.writer == Writer::Cache;
    if plan.size > shared.can.request_bytes_max || !shared.can.conditions && !is_alone {
        tracing::warn!(object = %terms.id, "the store has lost writes of an object: the cache writes again what it has of it");
        let mut request = InvalidateRequest::new(Scope::Object(terms.id.clone()));
        request.call = terms.call();
        shared.below.invalidate(request).await?;
        return send(terms, plan, limits).await;
    }
    // One at a time: it is in memory as a whole.
    let _alone = Permits::acquire(&shared.restoring).await?;
    tracing::warn!(object = %terms.id, "the store has lost writes of an object: the cache writes all of it again");
    let kept = plan.size.min(plan.truncate_before);
    let mut request = ReadRequest::new(terms.id.clone(), 0, kept);
    request.call = terms.call();
    let (base, condition) = match shared.below.read(request).await {
        Ok(reply) => (reply.data, Condition::Version(reply.version)),
        Err(Error::Missing) => (Segments::new(), Condition::Absent),
        Err(error) => return Err(error),
    };
    let mut request = WriteFullRequest::new(terms.id.clone(), overlaid(&base, &plan.runs, plan.size));
    let send = |change, call| {
        (request.change, request.call) = (change, call);
        if shared.can.conditions {
            request.change.condition = condition;
        }
        shared.below.write_full(request)
    };
    let version = match terms.ask_to_change((Lane::Change, plan.size), send).await {
        Ok(reply) => reply.version.0,
        Err(error @ (Error::ConditionFailed { .. } | Error::Exists | Error::Missing)) => {
            return Err(Error::Retryable(format!("changed while it was read back: {error}").into()));
        }
        Err(error) => return Err(error),
    };
    add(&shared.metrics.flush_bytes, plan.bytes());
    succeeded(shared);
    Ok(Some(version))
}

/// The bytes of an object of `size`: runs, in order, over a base that zeros follow.
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

//! Write-through and write-around: a change is forwarded to the store as it came, then taken over into the
//! cache, or forgotten there.
//!
//! The range is held from before the store is asked until the cache has the answer. So a load cannot bring
//! back what was there before, and two changes of one range reach store and cache in the same order, while
//! changes of other ranges proceed. Once the store has been asked, the work runs to its end even if its
//! caller gives up.

use blocker::{
    Call, Change, ChangeReply, CompareAndWriteRequest, Condition, CopyRequest, DeleteRequest, DiscardRequest,
    Error, ObjectId, Result, Stamp, TruncateRequest, Version, WriteFullRequest, WriteMode, WriteRequest,
    WriteRunsRequest, WriteZeroesRequest,
};

use super::claim::{note_refusal, own_stamp};
use super::config::Writer;
use super::deadline::{StoreAsked, until_forwarded};
use super::forward::{forwarded_durability, store_condition, with_durability};
use super::handle::{Handle, RangeGuard};
use super::metrics::add;
use super::mutation::Mutation;
use super::owned_resources::OwnedResources;
use super::ranges::{Kind, WHOLE};
use super::shared::Shared;
use super::shield::shielded;
use super::store_pending::store_pending;
use crate::sync::Arc;

/// One change by way of the store, on the terms with which it began.
struct Forward {
    mutation: Mutation,
    change: Change,
    call: Call,
    /// The write mode of the namespace when the change began.
    mode: WriteMode,
}

/// Makes a change by way of the store.
pub(crate) async fn change(
    shared: Arc<Shared>,
    id: ObjectId,
    hash: u64,
    mutation: Mutation,
    change: Change,
    call: Call,
    mode: WriteMode,
) -> Result<ChangeReply> {
    let it = Forward { mutation, change, call, mode };
    until_forwarded(&*shared.clock, call, |asked| forward(&shared, &id, hash, it, asked)).await
}

async fn forward(
    shared: &Arc<Shared>,
    id: &ObjectId,
    hash: u64,
    mut it: Forward,
    store_asked: StoreAsked,
) -> Result<ChangeReply> {
    let handle = Handle::acquire(shared, id, hash).await?;
    let needs_version = matches!(it.change.condition, Condition::Version(_));
    let is_whole = it.mode == WriteMode::Back || needs_version;
    let buckets = if is_whole { WHOLE } else { it.mutation.buckets() };
    let kind = match shared.config.writer {
        Writer::Callers => Kind::Forward,
        Writer::Cache => Kind::Stamped,
    };
    let mut guard = handle.lock_range(buckets, kind).await?;
    if handle.enter(|object, _| object.has_pending() || object.flushing.is_some()).await {
        if !is_whole {
            drop(guard);
            guard = handle.lock_range(WHOLE, kind).await?;
        }
        store_pending(&handle).await?;
    }
    if needs_version {
        it.change.condition = store_condition(&handle, it.change.condition, it.call).await?;
    }
    let own_stamp = own_stamp(shared, &id.namespace).await?;
    store_asked.begin(&*shared.clock, it.call)?;
    let asked = it.change.durability;
    let work = {
        let shared = Arc::clone(shared);
        async move { send(&shared, &handle, guard, it, own_stamp).await }
    };
    let reply = shielded(shared, work).await?;
    let durability = reply.durability.max(asked);
    Ok(with_durability(reply, durability))
}

/// Asks the store for the change, and brings the cache up to date with the answer.
async fn send(
    shared: &Arc<Shared>,
    handle: &Handle,
    guard: RangeGuard,
    it: Forward,
    own_stamp: Option<Stamp>,
) -> Result<ChangeReply> {
    let Forward { mutation, change, call, mode } = it;
    let ticket = guard.ticket();
    let started = handle.enter(move |object, _| object.begin_change(ticket)).await;
    let id = handle.id().clone();
    let mut terms = change;
    terms.stamp = own_stamp.or(change.stamp);
    terms.durability = forwarded_durability(mode, change.durability);
    let answer = ask(shared, id, &mutation, terms, call).await;
    if let Err(Error::Fenced { epoch }) = &answer {
        note_refusal(shared, handle.id(), *epoch);
    }
    let keeps = mode != WriteMode::Around && answer.is_ok();
    let received = if keeps { mutation.received_buckets(&shared.pool) } else { 0 };
    let most = if keeps { mutation.buckets_kept().saturating_sub(received) } else { 0 };
    let mut resources = OwnedResources::at_hand(shared, most);
    let (hash, own, id) = (handle.in_use().node.hash(), Arc::clone(shared), handle.id().clone());
    let answer = handle
        .enter(move |object, env| {
            let is_exact = object.end_change(&started);
            match &answer {
                Ok(_) if object.is_stale(ticket) => object.forget(env, mutation.buckets()),
                Ok(_) => {
                    resources
                        .with(None, |resources| object.take_over_change(env, &mutation, mode, resources));
                }
                Err(error) => object.perhaps_changed(env, &mutation, error),
            }
            if let Ok(reply) = &answer {
                object.changed_below(&mutation, &change, reply, is_exact, || own.next_version(hash));
                own.losses.repaired_by(&id, &mutation);
                object.take_stored_waiters().into_iter().for_each(|(ticket, result)| ticket.complete(result));
            }
            let (version, size) = (Version(object.head.version), object.head.size);
            if object.is_stale(ticket) {
                // Another client may have changed the object after us, before we knew of our own change.
                object.invalidate_head(env);
            }
            answer.map(|reply| ChangeReply::new(version, size, reply.durability))
        })
        .await;
    drop(guard);
    add(&shared.metrics.writes_through, 1);
    answer
}

async fn ask(
    shared: &Shared,
    id: ObjectId,
    mutation: &Mutation,
    change: Change,
    call: Call,
) -> Result<ChangeReply> {
    macro_rules! send {
        ($operation:ident, $request:expr) => {{
            let mut request = $request.change(change);
            request.call = call;
            shared.below.$operation(request).await
        }};
    }
    match mutation.clone() {
        Mutation::Write { offset, data } => send!(write, WriteRequest::new(id, offset, data)),
        Mutation::WriteZeroes { offset, len } => {
            send!(write_zeroes, WriteZeroesRequest::new(id, offset, len))
        }
        Mutation::WriteRuns { runs } => send!(write_runs, WriteRunsRequest::new(id, runs)),
        Mutation::Discard { offset, len } => send!(discard, DiscardRequest::new(id, offset, len)),
        Mutation::CompareAndWrite { offset, expected, data } => {
            send!(compare_and_write, CompareAndWriteRequest::new(id, offset, expected, data))
        }
        Mutation::WriteFull { data } => send!(write_full, WriteFullRequest::new(id, data)),
        Mutation::Truncate { size } => send!(truncate, TruncateRequest::new(id, size)),
        Mutation::Adopt(_) => Err(Error::Invalid("what is copied in memory is not forwarded".into())),
        Mutation::Touch => send!(copy, CopyRequest::new(id.clone(), id)),
        Mutation::Delete => {
            let reply = send!(delete, DeleteRequest::new(id))?;
            Ok(ChangeReply::new(Version(0), 0, reply.durability))
        }
    }
}

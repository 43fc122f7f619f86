//! Write-through and write-around: a change is forwarded to the store as it is, then applied to the
//! cache, or its range is forgotten there.
//!
//! The range is held from before the request to the store until the cache has the response. So a
//! load cannot bring back older data, and two changes of the same range reach the store and the
//! cache in the same order, while changes of other ranges proceed. Once the store has been asked,
//! the work runs to completion even if its caller gives up.

use blocker::{
    Change, ChangeReply, ChangeRequest, ChangeTerms, Condition, Durability, Result, Stamp, Version, WriteMode,
};

use super::TakenMode;
use crate::object::config::Writer;
use crate::object::control::namespaces::rank;
use crate::object::memory::WHOLE;
use crate::object::mutation::Mutation;
use crate::object::read::list::Resize;
use crate::object::read::load::{forwarded_durability, sizes, store_condition, with_durability};
use crate::object::shared::calls::{StoreCall, begin, shielded, store_pending};
use crate::object::shared::claim::{note_answer, own_epoch, own_stamp};
use crate::object::shared::handle::{Handle, RangeGuard};
use crate::object::shared::resources::OwnedResources;
use crate::object::shared::{Shared, log_waits};
use crate::object::state::Known;
use crate::object::state::ranges::{Kind, Ticket};
use crate::object::store::{Class, Lane};
use crate::object::tasks::deadline::{StoreAsked, until_forwarded};
use crate::sync::Arc;

/// Requests *stored* if the caller requests *journaled*: this cache has no record of a change that
/// it forwards to the store, and the store may not have a log.
pub(crate) fn store_if_journaled(shared: &Shared, terms: &mut ChangeTerms) {
    if shared.journal.log.is_some() && terms.durability == Durability::Journaled {
        terms.durability = Durability::Stored;
    }
}

/// Forwards a change to the store.
pub(crate) async fn change(
    shared: Arc<Shared>,
    request: ChangeRequest,
    hash: u64,
    taken: TakenMode,
) -> Result<ChangeReply> {
    let call = request.call;
    until_forwarded(&*shared.clock, call, |asked| forward(&shared, request, hash, taken, asked)).await
}

async fn forward(
    shared: &Arc<Shared>,
    mut request: ChangeRequest,
    hash: u64,
    taken: TakenMode,
    store_asked: StoreAsked,
) -> Result<ChangeReply> {
    let (id, call) = (request.object.clone(), request.call);
    let handle = Handle::acquire(shared, &id, hash).await?;
    forget_head_if_direct(&handle).await;
    let needs_version = matches!(request.terms.condition, Condition::Version(_));
    let has_quota = shared.control.quotas.has(handle.namespace());
    let kind = match shared.control.config.writer {
        Writer::Callers => Kind::Forward,
        Writer::Cache | Writer::Elected => Kind::Stamped,
    };
    let mut is_whole = taken.keeping() == WriteMode::Back || needs_version;
    let guard = loop {
        let buckets = if is_whole { WHOLE } else { Mutation::from(&request.change).buckets() };
        let guard = handle.lock_range(buckets, kind).await?;
        let is_dirty = handle.enter(|object, _| object.has_pending() || object.flushing.is_some()).await;
        if is_whole {
            if is_dirty {
                store_pending(&handle).await?;
            }
            // From here on no change of the object is logged, because the whole object is held.
            log_waits::mark_object(shared, &id).await?;
            break guard;
        }
        // Two changes that extend an object must not count the same bytes twice.
        let counts_size = has_quota && changes_size(&handle, &request.change).await;
        is_whole = is_dirty || counts_size || log_waits::has_records(&shared.journal, &id.namespace);
        if !is_whole {
            break guard;
        }
    };
    if needs_version {
        request.terms.condition = store_condition(&handle, request.terms.condition, call).await?;
    }
    // The quota is checked before the change waits at the gate: a refused change takes no turn. If
    // less than the whole object is held, the change leaves the size as it is.
    let resize = match has_quota && is_whole {
        true => {
            let after = |before: Option<u64>| request.change.size_after(before.unwrap_or(0));
            let sizes = sizes(&handle, call, after).await?;
            Some(Resize::begin(&handle, sizes, request.terms.settles)?)
        }
        false => None,
    };
    send(handle, (guard, None), request, taken, resize, store_asked).await
}

/// Sends a change to the store once the gate admits it, and updates the cache with the response.
/// `guards` hold the range of the change and, for a copy, the source.
pub(super) async fn send(
    handle: Handle,
    guards: (RangeGuard, Option<RangeGuard>),
    request: ChangeRequest,
    taken: TakenMode,
    resize: Option<Resize>,
    store_asked: StoreAsked,
) -> Result<ChangeReply> {
    let shared = &Arc::clone(&handle.shared);
    let (namespace, call) = (request.object.namespace.clone(), request.call);
    let lane = (Lane::Change, Class::of(call.priority));
    if shared.control.config.writer != Writer::Callers {
        // A first claim may wait for room in the log, which flushes make: it keeps none of them from
        // passing the gate.
        own_epoch(shared, &namespace).await?;
    }
    let asking = begin(shared, handle.namespace(), lane, request.change.payload_bytes()).await?;
    let own_stamp = own_stamp(shared, &namespace).await?;
    store_asked.begin(&*shared.clock, call)?;
    let asked = request.terms.durability;
    let work = async move {
        let ticket = guards.0.ticket();
        let answer = make(&handle, ticket, request, &taken, (own_stamp, asking, resize)).await;
        drop((guards, taken));
        answer
    };
    let reply = shielded(shared, work).await?;
    let durability = log_waits::acknowledged(&shared.journal, &namespace, asked, reply.durability).await?;
    Ok(with_durability(reply, durability))
}

/// Makes a change in the store, under the entry `ticket`, and then in the cache.
async fn make(
    handle: &Handle,
    ticket: Ticket,
    request: ChangeRequest,
    taken: &TakenMode,
    (own_stamp, asking, resize): (Option<Stamp>, StoreCall, Option<Resize>),
) -> Result<ChangeReply> {
    let shared = &handle.shared;
    let started = handle.enter(move |object, _| object.begin_change(ticket)).await;
    let mut sent = request.clone();
    sent.terms.stamp = own_stamp.or(request.terms.stamp);
    sent.terms.durability = forwarded_durability(taken.mode, request.terms.durability);
    let asked = sent.terms.durability;
    let answer = shared.store.below.change(sent).await;
    let ChangeRequest { object: id, change, terms, .. } = request;
    asking.end(shared, &answer, change.payload_bytes());
    resize.into_iter().for_each(|resize| resize.end(&answer));
    let made = answer.as_ref().map(|reply| reply.durability);
    if asked < Durability::Stored {
        log_waits::note_forwarded(&shared.journal, &id.namespace, made);
    }
    shared.metrics.of(handle.namespace()).count_forwarded(made.ok().map(rank));
    let answer = note_answer(shared, &id, answer);
    let mode = taken.keeping();
    let keeps = mode != WriteMode::Around && answer.is_ok();
    let mutation = Mutation::from(&change);
    let received = if keeps { mutation.received_buckets(&shared.memory.pool) } else { 0 };
    let most = if keeps { mutation.buckets_kept().saturating_sub(received) } else { 0 };
    let mut resources = OwnedResources::at_hand(shared, most);
    let (hash, own) = (handle.in_use().node.hash(), Arc::clone(shared));
    let answer = handle.enter(move |object, env| {
        let (is_exact, mutation) = (object.end_change(&started), Mutation::from(&change));
        let is_copy = matches!(&change, Change::Copy { from, .. } if *from != id);
        match &answer {
            Ok(_) if is_copy || object.ranges().is_stale(ticket) => object.forget(env, mutation.buckets()),
            Ok(_) => {
                resources.with(None, |resources| object.take_over_change(env, mutation, mode, resources));
            }
            Err(error) => object.perhaps_changed(env, mutation.buckets(), error),
        }
        if let Ok(reply) = &answer {
            if is_copy {
                // The size is that of the source, whatever it was before.
                object.head.known = Known::Unknown;
            }
            object.changed_below(&change, &terms, reply, is_exact, || own.objects.next_version(hash));
            own.objects.losses.repaired_by(&id, is_copy || mutation.replaces_content());
            object.take_stored_waiters().into_iter().for_each(|(ticket, result)| ticket.complete(result));
        }
        let (version, size) = (Version(object.head.version), object.head.size);
        if object.ranges().is_stale(ticket) || own.control.attaching.is_direct() {
            // Another client may have changed the object after us, before we learnt of our own
            // change; and while the cache is detached, the head is always requested from the store.
            object.invalidate_head(env);
        }
        answer.map(|reply| ChangeReply::new(version, size, reply.durability))
    });
    answer.await
}

/// Forgets an object's head while the cache is detached: reads do not use it, so a caller that
/// finds it outdated could not correct it by reading again.
pub(crate) async fn forget_head_if_direct(handle: &Handle) {
    if handle.shared.control.attaching.is_direct() {
        handle.enter(|object, env| object.invalidate_head(env)).await;
    }
}

/// Returns whether a change can change the size of its object, of which the caller holds the range.
async fn changes_size(handle: &Handle, change: &Change) -> bool {
    let known = handle.enter(|object, _| (object.head.known == Known::Present).then_some(object.head.size));
    let size = known.await;
    size.is_none_or(|size| change.size_after(size) != size)
}

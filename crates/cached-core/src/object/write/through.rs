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

use super::modes::TakenMode;
use crate::object::config::Writer;
use crate::object::control::namespaces::rank;
use crate::object::memory::geometry::WHOLE;
use crate::object::mutation::Mutation;
use crate::object::read::list::Resize;
use crate::object::read::load;
use crate::object::read::load::{forwarded_durability, store_condition, with_durability};
use crate::object::shared::calls::{StoreCall, begin, shielded, store_pending};
use crate::object::shared::claim::{note_answer, own_stamp};
use crate::object::shared::handle::{Handle, RangeGuard};
use crate::object::shared::resources::OwnedResources;
use crate::object::shared::{Shared, log_waits};
use crate::object::state::Known;
use crate::object::state::ranges::Kind;
use crate::object::store::{Class, Lane};
use crate::object::tasks::deadline::{StoreAsked, until_forwarded};
use crate::sync::Arc;

/// A change that is forwarded to the store, with the terms with which it began.
struct Forward {
    request: ChangeRequest,
    route: Route,
}

/// The path of a change to the store.
pub(crate) struct Route {
    /// The write mode of the namespace when the change began, held until the change has ended.
    pub(crate) taken: TakenMode,
    /// Whether the change bypasses the cache regardless of the mode.
    pub(crate) is_passing: bool,
}

impl Route {
    /// Returns the mode that determines how the cache is updated.
    fn keeping(&self) -> WriteMode {
        if self.is_passing { WriteMode::Around } else { self.taken.mode }
    }
}

/// Asks for *stored* where the caller asks for *journaled*: this cache has no record of a change that
/// goes to the store, and the store may not have a log.
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
    route: Route,
) -> Result<ChangeReply> {
    let (call, it) = (request.call, Forward { request, route });
    until_forwarded(&*shared.clock, call, |asked| forward(&shared, hash, it, asked)).await
}

async fn forward(
    shared: &Arc<Shared>,
    hash: u64,
    mut it: Forward,
    store_asked: StoreAsked,
) -> Result<ChangeReply> {
    let (id, call) = (it.request.object.clone(), it.request.call);
    let handle = Handle::acquire(shared, &id, hash).await?;
    forget_head_if_direct(&handle).await;
    let needs_version = matches!(it.request.terms.condition, Condition::Version(_));
    let mut is_whole = it.route.keeping() == WriteMode::Back || needs_version;
    let buckets = if is_whole { WHOLE } else { Mutation::from(&it.request.change).buckets() };
    let kind = match shared.control.config.writer {
        Writer::Callers => Kind::Forward,
        Writer::Cache => Kind::Stamped,
    };
    let mut guard = handle.lock_range(buckets, kind).await?;
    let namespace = handle.namespace();
    let has_quota = shared.control.quotas.has(namespace);
    if !is_whole && has_quota && changes_size(&handle, &it.request.change).await {
        // Two changes that extend an object must not count the same bytes twice.
        drop(guard);
        guard = handle.lock_range(WHOLE, kind).await?;
        is_whole = true;
    }
    if handle.enter(|object, _| object.has_pending() || object.flushing.is_some()).await {
        if !is_whole {
            drop(guard);
            guard = handle.lock_range(WHOLE, kind).await?;
            is_whole = true;
        }
        store_pending(&handle).await?;
    }
    if log_waits::has_records(&shared.journal, &id.namespace) {
        // From here on no change of the object is logged, because the whole object is held.
        if !is_whole {
            drop(guard);
            guard = handle.lock_range(WHOLE, kind).await?;
            is_whole = true;
            store_pending(&handle).await?;
        }
        log_waits::mark_object(shared, &id).await?;
    }
    // If less than the whole object is held, the change leaves the size as it is.
    let sizes = match has_quota && is_whole {
        true => Some(
            load::sizes(&handle, call, |before| it.request.change.size_after(before.unwrap_or(0))).await?,
        ),
        false => None,
    };
    if needs_version {
        it.request.terms.condition = store_condition(&handle, it.request.terms.condition, call).await?;
    }
    // The quota is checked before the change waits at the gate: a refused change takes no turn.
    let settles = it.request.terms.settles;
    let resize = sizes.map(|sizes| Resize::begin(shared, &handle, sizes, settles)).transpose()?;
    let class = Class::of(call.priority);
    let asking = begin(shared, namespace, (Lane::Change, class), it.request.change.payload_bytes()).await?;
    let own_stamp = own_stamp(shared, &id.namespace).await?;
    store_asked.begin(&*shared.clock, call)?;
    let asked = it.request.terms.durability;
    let work = {
        let shared = Arc::clone(shared);
        async move { send(&shared, &handle, guard, it, (own_stamp, asking, resize)).await }
    };
    let reply = shielded(shared, work).await?;
    let durability = log_waits::acknowledged(&shared.journal, &id.namespace, asked, reply.durability).await?;
    Ok(with_durability(reply, durability))
}

/// Sends the change to the store, and updates the cache with the response.
async fn send(
    shared: &Arc<Shared>,
    handle: &Handle,
    guard: RangeGuard,
    it: Forward,
    (own_stamp, asking, resize): (Option<Stamp>, StoreCall, Option<Resize>),
) -> Result<ChangeReply> {
    let Forward { request, route } = it;
    let ticket = guard.ticket();
    let started = handle.enter(move |object, _| object.begin_change(ticket)).await;
    let mut sent = request.clone();
    sent.terms.stamp = own_stamp.or(request.terms.stamp);
    sent.terms.durability = forwarded_durability(route.taken.mode, request.terms.durability);
    let asked = sent.terms.durability;
    let answer = shared.store.below.change(sent).await;
    let ChangeRequest { object: id, change, terms, .. } = request;
    asking.end(shared, &answer, change.payload_bytes());
    let answer = answered(handle, asked, resize, answer);
    let mode = route.keeping();
    let keeps = mode != WriteMode::Around && answer.is_ok();
    let mutation = Mutation::from(&change);
    let received = if keeps { mutation.received_buckets(&shared.memory.pool) } else { 0 };
    let most = if keeps { mutation.buckets_kept().saturating_sub(received) } else { 0 };
    let mut resources = OwnedResources::at_hand(shared, most);
    let (hash, own) = (handle.in_use().node.hash(), Arc::clone(shared));
    let answer = handle
        .enter(move |object, env| {
            let (is_exact, mutation) = (object.end_change(&started), Mutation::from(&change));
            match &answer {
                Ok(_) if object.is_stale(ticket) => object.forget(env, mutation.buckets()),
                Ok(_) => {
                    resources.with(None, |resources| object.take_over_change(env, mutation, mode, resources));
                }
                Err(error) => object.perhaps_changed(env, mutation.buckets(), error),
            }
            if let Ok(reply) = &answer {
                object.changed_below(&change, &terms, reply, is_exact, || own.objects.next_version(hash));
                own.objects.losses.repaired_by(&id, mutation);
                object.take_stored_waiters().into_iter().for_each(|(ticket, result)| ticket.complete(result));
            }
            let (version, size) = (Version(object.head.version), object.head.size);
            if object.is_stale(ticket) || own.control.attaching.is_direct() {
                // Another client may have changed the object after us, before we learnt of our own
                // change; and while the cache is detached, the head is always requested from the
                // store.
                object.invalidate_head(env);
            }
            answer.map(|reply| ChangeReply::new(version, size, reply.durability))
        })
        .await;
    drop((guard, route));
    answer
}

/// Records the store's response to a change that was forwarded with the durability `asked`.
pub(super) fn answered(
    handle: &Handle,
    asked: Durability,
    resize: Option<Resize>,
    answer: Result<ChangeReply>,
) -> Result<ChangeReply> {
    let (shared, id) = (&handle.shared, handle.id());
    resize.into_iter().for_each(|resize| resize.end(&answer));
    let made = answer.as_ref().map(|reply| reply.durability);
    if asked < Durability::Stored {
        log_waits::note_forwarded(&shared.journal, &id.namespace, made);
    }
    shared.metrics.of(handle.namespace()).count_forwarded(made.ok().map(rank));
    note_answer(shared, id, answer)
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

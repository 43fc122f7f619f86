//! Write-through and write-around: a change is forwarded to the store as it came, then taken over into the
//! cache, or forgotten there.
//!
//! The range is held from before the store is asked until the cache has the answer. So a load cannot bring
//! back what was there before, and two changes of one range reach store and cache in the same order, while
//! changes of other ranges proceed. Once the store has been asked, the work runs to its end even if its
//! caller gives up.

use blocker::{
    Call, Change, ChangeReply, CompareAndWriteRequest, Condition, CopyRequest, DeleteRequest, DiscardRequest,
    Durability, Error, ObjectId, Result, Stamp, TruncateRequest, Version, WriteFullRequest, WriteMode,
    WriteRequest, WriteRunsRequest, WriteZeroesRequest,
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

/// One change by way of the store, on the terms with which it began.
struct Forward {
    mutation: Mutation,
    change: Change,
    call: Call,
    route: Route,
}

/// How a change goes to the store.
pub(crate) struct Route {
    /// The write mode of the namespace when the change began, taken until the change has ended.
    pub(crate) taken: TakenMode,
    /// Whether it goes around the cache all the same.
    pub(crate) is_passing: bool,
}

impl Route {
    /// Returns the mode by which the cache is brought up to date.
    fn keeping(&self) -> WriteMode {
        if self.is_passing { WriteMode::Around } else { self.taken.mode }
    }
}

/// Makes a change by way of the store.
pub(crate) async fn change(
    shared: Arc<Shared>,
    id: ObjectId,
    hash: u64,
    mutation: Mutation,
    change: Change,
    call: Call,
    route: Route,
) -> Result<ChangeReply> {
    let it = Forward { mutation, change, call, route };
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
    forget_head_if_direct(&handle).await;
    let needs_version = matches!(it.change.condition, Condition::Version(_));
    let mut is_whole = it.route.keeping() == WriteMode::Back || needs_version;
    let buckets = if is_whole { WHOLE } else { it.mutation.buckets() };
    let kind = match shared.control.config.writer {
        Writer::Callers => Kind::Forward,
        Writer::Cache => Kind::Stamped,
    };
    let mut guard = handle.lock_range(buckets, kind).await?;
    let namespace = handle.namespace();
    let has_quota = shared.control.quotas.has(namespace);
    if !is_whole && has_quota && changes_size(&handle, &it.mutation).await {
        // Two changes that make an object larger must not count the same bytes twice.
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
        // From here on nothing is logged of the object: all of it is held.
        if !is_whole {
            drop(guard);
            guard = handle.lock_range(WHOLE, kind).await?;
            is_whole = true;
            store_pending(&handle).await?;
        }
        log_waits::mark_object(shared, id).await?;
    }
    // A change for which less is held leaves the size as it is.
    let sizes = match has_quota && is_whole {
        true => Some(load::sizes(&handle, it.call, |before| it.mutation.size_after(before)).await?),
        false => None,
    };
    if needs_version {
        it.change.condition = store_condition(&handle, it.change.condition, it.call).await?;
    }
    // Before its turn is waited for: what is refused takes none.
    let settles = it.change.settles;
    let resize = sizes.map(|sizes| Resize::begin(shared, &handle, sizes, settles)).transpose()?;
    let class = Class::of(it.call.priority);
    let asking = begin(shared, namespace, (Lane::Change, class), it.mutation.sent_bytes()).await?;
    let own_stamp = own_stamp(shared, &id.namespace).await?;
    store_asked.begin(&*shared.clock, it.call)?;
    let asked = it.change.durability;
    let work = {
        let shared = Arc::clone(shared);
        async move { send(&shared, &handle, guard, it, (own_stamp, asking, resize)).await }
    };
    let reply = shielded(shared, work).await?;
    let durability = log_waits::acknowledged(&shared.journal, &id.namespace, asked, reply.durability).await?;
    Ok(with_durability(reply, durability))
}

/// Asks the store for the change, and brings the cache up to date with the answer.
async fn send(
    shared: &Arc<Shared>,
    handle: &Handle,
    guard: RangeGuard,
    it: Forward,
    (own_stamp, asking, resize): (Option<Stamp>, StoreCall, Option<Resize>),
) -> Result<ChangeReply> {
    let Forward { mutation, change, call, route } = it;
    let ticket = guard.ticket();
    let started = handle.enter(move |object, _| object.begin_change(ticket)).await;
    let id = handle.id().clone();
    let mut terms = change;
    terms.stamp = own_stamp.or(change.stamp);
    terms.durability = forwarded_durability(route.taken.mode, change.durability);
    let answer = ask(shared, id, &mutation, terms, call).await;
    asking.end(shared, &answer, mutation.sent_bytes());
    let answer = answered(handle, terms.durability, resize, answer);
    let mode = route.keeping();
    let keeps = mode != WriteMode::Around && answer.is_ok();
    let received = if keeps { mutation.received_buckets(&shared.memory.pool) } else { 0 };
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
                object.changed_below(&mutation, &change, reply, is_exact, || own.objects.next_version(hash));
                own.objects.losses.repaired_by(&id, &mutation);
                object.take_stored_waiters().into_iter().for_each(|(ticket, result)| ticket.complete(result));
            }
            let (version, size) = (Version(object.head.version), object.head.size);
            if object.is_stale(ticket) || own.control.attaching.is_direct() {
                // Another client may have changed the object after us, before we knew of our own change; while
                // the cache is detached the store is asked for all there is to know.
                object.invalidate_head(env);
            }
            answer.map(|reply| ChangeReply::new(version, size, reply.durability))
        })
        .await;
    drop((guard, route));
    answer
}

/// Takes note of the store's answer to a change that was forwarded with a durability.
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

/// Forgets what is known of an object as a whole while the cache is detached: reads do not use it, so a caller
/// that finds it wrong could not get it right by reading again.
pub(crate) async fn forget_head_if_direct(handle: &Handle) {
    if handle.shared.control.attaching.is_direct() {
        handle.enter(|object, env| object.invalidate_head(env)).await;
    }
}

/// Whether a change can change the size of its object, of which the caller holds the range.
async fn changes_size(handle: &Handle, mutation: &Mutation) -> bool {
    let known = handle.enter(|object, _| (object.head.known == Known::Present).then_some(object.head.size));
    let size = known.await;
    size.is_none_or(|size| mutation.size_after(Some(size)) != size)
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
            shared.store.below.$operation(request).await
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

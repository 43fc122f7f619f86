//! Copying an object to another. In write-back mode, if the source has changes that the store lacks
//! and is cached completely, the two objects share its buckets until either is written, and the
//! store is not asked. Otherwise the pending changes of the source are stored first, and the store
//! makes the copy: if it copied the old bytes, a crash could leave the target with neither its old
//! content nor its new.

use blocker::admission::check_condition;
use blocker::{Change, ChangeReply, ChangeRequest, Condition, Error, ObjectId, Result, Version, WriteMode};

use super::TakenMode;
use super::back as write_back;
use super::through::{forget_head_if_direct, send, store_if_journaled};
use crate::object::memory::WHOLE;
use crate::object::memory::pool::BUCKET;
use crate::object::mutation::{Content, CopiedContent};
use crate::object::read::list::Resize;
use crate::object::read::load::{sizes, store_condition};
use crate::object::shared::calls::store_pending;
use crate::object::shared::handle::Handle;
use crate::object::shared::{Shared, log_waits};
use crate::object::state::Known;
use crate::object::state::ranges::Kind;
use crate::object::tasks::deadline::{StoreAsked, until, until_forwarded};
use crate::object::tasks::wait_queue::Permits;
use crate::sync::Arc;

/// The maximum size of an object, in bytes, whose copy is logged by its bytes. The store copies
/// larger objects.
const COPY_BYTES_MAX: u64 = 256 << 10;

/// The source of a copy.
pub(crate) struct Source {
    pub(crate) id: ObjectId,
    pub(crate) hash: u64,
    pub(crate) condition: Condition,
}

/// Copies an object's content to another, in the write mode of the target's namespace.
pub(crate) async fn copy(
    shared: Arc<Shared>,
    request: ChangeRequest,
    source: Source,
    hash: u64,
    taken_mode: TakenMode,
) -> Result<ChangeReply> {
    let call = request.call;
    if taken_mode.mode == WriteMode::Back && request.terms.stamp.is_none() {
        let taking = take(&shared, &source, (&request.object, hash));
        let taken = until(&*shared.clock, call.deadline, || Error::DeadlinePassed, taking).await?;
        if let Some((taken, _target)) = taken {
            return write_back::change(shared, request, Some(taken), hash, taken_mode).await;
        }
    }
    let below = |asked| copy_below(&shared, request, source, hash, taken_mode, asked);
    until_forwarded(&*shared.clock, call, below).await
}

/// Has the store make the copy. Both objects are held as a whole, in the order of their nodes, so that two
/// copies in opposite directions cannot deadlock.
async fn copy_below(
    shared: &Arc<Shared>,
    request: ChangeRequest,
    copied: Source,
    hash: u64,
    taken_mode: TakenMode,
    store_asked: StoreAsked,
) -> Result<ChangeReply> {
    let ChangeRequest { object: to, mut terms, call, .. } = request;
    store_if_journaled(shared, &mut terms);
    let (source, target) = acquire_both(shared, (&copied.id, copied.hash), (&to, hash)).await?;
    forget_head_if_direct(&source).await;
    forget_head_if_direct(&target).await;
    let is_source_first = source.at < target.at;
    let (first, second) = if is_source_first { (&source, &target) } else { (&target, &source) };
    let mut guards =
        (first.lock_range(WHOLE, Kind::Change).await?, second.lock_range(WHOLE, Kind::Change).await?);
    if is_source_first {
        guards = (guards.1, guards.0);
    }
    store_pending(&target).await?;
    store_pending(&source).await?;
    log_waits::mark_object(shared, &to).await?;
    let from_condition = store_condition(&source, copied.condition, call).await?;
    terms.condition = store_condition(&target, terms.condition, call).await?;
    let resize = match shared.control.quotas.has(target.namespace()) {
        true => {
            let (_, from) = sizes(&source, call, |size| size.unwrap_or(0)).await?;
            let sizes = sizes(&target, call, |_| from).await?;
            Some(Resize::begin(&target, sizes, terms.settles)?)
        }
        false => None,
    };
    let change = Change::Copy { from: copied.id, from_condition };
    let request = change.request(to).terms(terms).call(call);
    send(target, (guards.0, Some(guards.1)), request, taken_mode, resize, store_asked).await
}

/// Returns both objects, in use. Only a single copy may hold the node of one object while it waits
/// for a node for the other, so among all tasks that wait for nodes there is always one that can
/// proceed.
async fn acquire_both(
    shared: &Arc<Shared>,
    (from, from_hash): (&ObjectId, u64),
    (to, to_hash): (&ObjectId, u64),
) -> Result<(Handle, Handle)> {
    if shared.journal.recovery.is_active() {
        // This wait comes before a node is held, because a recovery needs nodes.
        log_waits::object_recovered(shared, from_hash).await?;
        log_waits::object_recovered(shared, to_hash).await?;
    }
    let find = |hash, id| shared.find(hash, id).map(|in_use| Handle::of(shared, in_use));
    if let (Some(source), Some(target)) = (find(from_hash, from), find(to_hash, to)) {
        return Ok((source, target));
    }
    let _alone = Permits::acquire(&shared.objects.pairing).await?;
    let source = Handle::acquire(shared, from, from_hash).await?;
    let target = Handle::acquire(shared, to, to_hash).await?;
    Ok((source, target))
}

/// Takes the whole content of the source, if the store lacks some of it (or cannot copy by itself),
/// all of it is cached, and there is room for as many more dirty buckets. Also returns the target,
/// in use: if a copy held room while it waited for a node, the tasks that hold the nodes might need
/// that room.
async fn take(
    shared: &Arc<Shared>,
    copied: &Source,
    (to, hash): (&ObjectId, u64),
) -> Result<Option<(CopiedContent, Handle)>> {
    let (source, target) = acquire_both(shared, (&copied.id, copied.hash), (to, hash)).await?;
    let (own, condition) = (Arc::clone(shared), copied.condition);
    // A copy is logged by its bytes.
    let log = shared.journal.log.as_ref().filter(|log| log.names.is_journaled(&to.namespace));
    let logged_bytes_max = log.map_or(u64::MAX, |log| log.options.journaled_bytes_max.min(COPY_BYTES_MAX));
    let namespace = target.namespace();
    let taken = source.enter(move |object, env| {
        // If storing the copy took several requests, an incomplete copy could be seen in the store.
        let is_wanted = (object.has_pending() || object.flushing.is_some() || !own.store.can.copy_native)
            && object.head.size <= own.store.can.request_bytes_max / BUCKET as u64 * BUCKET as u64;
        let is_wanted = is_wanted && object.head.size <= logged_bytes_max;
        if object.head.known != Known::Present || !is_wanted || object.ranges().is_changing(&WHOLE) {
            return Ok(None);
        }
        check_condition(Some(Version(object.head.version)), condition)?;
        if !object.is_whole(env) {
            return Ok(None);
        }
        let bucketless = object.zeros_known() + 1;
        let credits = object.slots.held_count() + bucketless;
        if !own.metrics.dirty_room.take(namespace, credits) {
            return Ok(None);
        }
        let (slots, size) = (object.share(env), object.head.size);
        let content = Content { owner: own, namespace, slots, size, credits, bucketless };
        Ok(Some(CopiedContent::new(content)))
    });
    Ok(taken.await?.map(|taken| (taken, target)))
}

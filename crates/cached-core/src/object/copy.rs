//! Copying one object to another. Where the cache may answer first (write-back) and has all of a source
//! that the store does not have yet, the two objects share its buckets until either is written, and
//! nothing is asked of the store. Otherwise what waits of the source is stored first and the store copies:
//! had it copied the old bytes, a crash could leave the target with neither its old content nor its new.

use blocker::admission::check_condition;
use blocker::{ChangeReply, CopyRequest, Error, ObjectId, Result, Scope, Version, WriteMode};

use super::back::{self, Mutation};
use super::handle::{Handle, shielded};
use super::pool::BUCKET;
use super::ranges::{Kind, WHOLE};
use super::shared::Shared;
use super::slots::Slot;
use super::state::{Env, Known, Object};
use super::through::{forwarded_durability, store_condition, store_pending};
use super::wait::Permits;
use crate::sync::{Arc, AtomicU32, Mutex, Ordering, lock};

/// Copies one object's content to another.
pub(crate) async fn copy(
    shared: Arc<Shared>,
    request: CopyRequest,
    hashes: (u64, u64),
) -> Result<ChangeReply> {
    let deadline = request.call.deadline;
    let is_back = shared.write_policy(&request.to.namespace) == WriteMode::Back;
    if is_back && request.change.stamp.is_none() {
        let taking = take(&shared, &request, hashes);
        if let Some((taken, _target)) = shared.until(deadline, || Error::DeadlinePassed, taking).await? {
            let CopyRequest { to, change, call, .. } = request;
            return back::change(shared, to, hashes.1, Mutation::Adopt(taken), change, call).await;
        }
    }
    let begun = Arc::new(AtomicU32::new(0));
    let own = Arc::clone(&begun);
    let late = move || match own.load(Ordering::Acquire) {
        0 => Error::DeadlinePassed,
        _ => Error::OutcomeUnknown("the deadline passed while the store was at work".into()),
    };
    shared.until(deadline, late, copy_below(&shared, request, hashes, begun)).await
}

/// By the store. Both objects are spoken for as a whole, in the order of their places, so that two copies
/// in opposite directions cannot wait for each other.
async fn copy_below(
    shared: &Arc<Shared>,
    request: CopyRequest,
    hashes: (u64, u64),
    begun: Arc<AtomicU32>,
) -> Result<ChangeReply> {
    let CopyRequest { from, from_condition, to, mut change, call, .. } = request;
    let (source, target) = acquire_both(shared, (&from, hashes.0), (&to, hashes.1)).await?;
    let is_source_first = source.at() < target.at();
    let (first, second) = if is_source_first { (&source, &target) } else { (&target, &source) };
    let guards =
        (first.lock_range(WHOLE, Kind::Change).await?, second.lock_range(WHOLE, Kind::Change).await?);
    let ticket = if is_source_first { guards.1.ticket() } else { guards.0.ticket() };
    store_pending(&target).await?;
    store_pending(&source).await?;
    let policy = shared.write_policy(&to.namespace);
    let from_condition = store_condition(&source, from_condition, call).await?;
    change.condition = store_condition(&target, change.condition, call).await?;
    let own_stamp = shared.own_stamp(&to.namespace).await?;
    if call.deadline.is_some_and(|deadline| shared.clock.now() >= deadline) {
        return Err(Error::DeadlinePassed);
    }
    begun.store(1, Ordering::Release);
    let (own, handle) = (Arc::clone(shared), target.clone());
    let work = async move {
        let started = handle.enter(move |object, _| object.begin_change(ticket)).await;
        let mut request = CopyRequest::new(from, to).change(change);
        request.change.stamp = own_stamp.or(change.stamp);
        request.change.durability = forwarded_durability(policy, change.durability);
        (request.from_condition, request.call) = (from_condition, call);
        let answer = own.below.copy(request).await;
        let hash = handle.in_use().node.hash();
        let (shared, target) = (Arc::clone(&own), handle.id().clone());
        let done = handle.enter(move |object, env| {
            let is_exact = object.end_change(&started);
            match answer {
                Ok(reply) => {
                    object.forget(env, WHOLE);
                    object.set_head(Some((reply.size_bytes, reply.version.0)));
                    object.head.store_version = is_exact.then_some(reply.version.0);
                    if change.stamp.is_some() {
                        object.head.stamp = change.stamp;
                    }
                    shared.losses.repair(&Scope::Object(target));
                    if !is_exact {
                        object.head.version = shared.next_version(hash);
                    }
                    let (version, size) = (Version(object.head.version), object.head.size);
                    if object.is_stale(ticket) {
                        // Others may have changed the target after the copy.
                        object.doubt_head(env);
                    }
                    Ok(ChangeReply::new(version, size, reply.durability.max(change.durability)))
                }
                Err(error) => {
                    object.perhaps_changed(env, &Mutation::WriteFull { data: Default::default() }, &error);
                    Err(error)
                }
            }
        });
        let done = done.await;
        drop(guards);
        done
    };
    shielded(shared, work).await
}

/// Both objects, in use. Only one copy at a time may have the place of one in the index while it waits for the place of
/// the other; so of all who wait for places there is always one that can be served.
async fn acquire_both(
    shared: &Arc<Shared>,
    (from, from_hash): (&ObjectId, u64),
    (to, to_hash): (&ObjectId, u64),
) -> Result<(Handle, Handle)> {
    let find = |hash, id| shared.find(hash, id).map(|in_use| Handle::of(shared, in_use));
    if let (Some(source), Some(target)) = (find(from_hash, from), find(to_hash, to)) {
        return Ok((source, target));
    }
    let _alone = Permits::acquire(&shared.pairing).await?;
    let source = Handle::acquire(shared, from, from_hash).await?;
    let target = Handle::acquire(shared, to, to_hash).await?;
    Ok((source, target))
}

/// All of an object's content, until another object has it.
#[derive(Clone)]
pub(crate) struct Adoption(Arc<Mutex<Option<Taken>>>);

impl std::fmt::Debug for Adoption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the content of another object")
    }
}

/// Buckets with one more count each, and room for as many dirty ones.
struct Taken {
    shared: Arc<Shared>,
    slots: Vec<(u32, Slot)>,
    size: u64,
    credits: u32,
    /// Of those, the ones for what has no bucket: zeros, and the change itself.
    room: u32,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let buckets = self.slots.iter().filter(|(_, slot)| slot.state().has_bucket());
        buckets.for_each(|(_, slot)| self.shared.pool.release(slot.bucket()));
        self.shared.gauges.give_back(self.credits);
    }
}

impl Object {
    /// Becomes what was taken of another; nothing the second time.
    pub(crate) fn become_copy(&mut self, env: &Env<'_>, adoption: &Adoption) {
        let Some(mut taken) = lock(&adoption.0).take() else { return };
        self.replace(env, Known::Present);
        self.head.size = taken.size;
        taken.credits = 0;
        env.gauges.hold_room(taken.room);
        self.pending.room += taken.room;
        self.adopt(env, std::mem::take(&mut taken.slots));
    }
}

/// Takes all of the source, if the store lacks some of it (or cannot copy by itself), all of it is here,
/// and there is room for so much more dirty data. With it comes the target, in use: room that is held while a place is
/// waited for could be what those wait for who have the places.
async fn take(
    shared: &Arc<Shared>,
    request: &CopyRequest,
    hashes: (u64, u64),
) -> Result<Option<(Adoption, Handle)>> {
    let (source, target) = acquire_both(shared, (&request.from, hashes.0), (&request.to, hashes.1)).await?;
    let (own, condition) = (Arc::clone(shared), request.from_condition);
    let taken = source.enter(move |object, env| {
        // What takes several requests to be stored would be seen in the store half done.
        let is_wanted = (object.has_pending() || object.flushing.is_some() || !own.can.copy_native)
            && object.head.size <= own.can.request_bytes_max / BUCKET as u64 * BUCKET as u64;
        if object.head.known != Known::Present || !is_wanted || object.is_changing(&WHOLE) {
            return Ok(None);
        }
        check_condition(Some(Version(object.head.version)), condition)?;
        if !object.is_whole(env) {
            return Ok(None);
        }
        let room = object.zeros_known() + 1;
        let credits = object.buckets_held() + room;
        if !own.gauges.take_credits(credits) {
            return Ok(None);
        }
        let (slots, size) = (object.share(env), object.head.size);
        Ok(Some(Adoption(Arc::new(Mutex::new(Some(Taken { shared: own, slots, size, credits, room }))))))
    });
    Ok(taken.await?.map(|taken| (taken, target)))
}

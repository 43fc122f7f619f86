//! Copying one object to another: the store copies what it has, and what it does not have yet the two
//! objects share, until either is written.

use blocker::{
    ChangeReply, Condition, CopyRequest, Durability, Error, OrderDomain, Result, Version, WritePolicy,
};

use super::back::{Mutation, safe_as};
use super::handle::{Handle, shielded};
use super::ranges::{Kind, WHOLE};
use super::shared::Shared;
use super::slots::Slot;
use super::state::{Env, Known, Object};
use super::through::{forwarded_durability, store_condition, store_pending};
use super::waiter::{FlushTicket, Stored};
use crate::sync::{Arc, AtomicU32, Ordering};

/// Copies one object's content to another.
pub(crate) async fn copy(
    shared: Arc<Shared>,
    request: CopyRequest,
    hashes: (u64, u64),
) -> Result<ChangeReply> {
    let begun = Arc::new(AtomicU32::new(0));
    let own = Arc::clone(&begun);
    let late = move || match own.load(Ordering::Acquire) {
        0 => Error::DeadlinePassed,
        _ => Error::OutcomeUnknown("the deadline passed while the store was at work".into()),
    };
    let deadline = request.call.deadline;
    let asked = request.change.durability;
    let (to, pending) = shared.until(deadline, late, copy_objects(&shared, request, hashes, begun)).await?;
    let Pending { reply, is_pending } = pending;
    if asked == Durability::Cached || !is_pending {
        let durability = if is_pending { Durability::Cached } else { reply.durability.max(asked) };
        return Ok(safe_as(reply, durability));
    }
    let ticket = Arc::new(FlushTicket::default());
    shared.wait_stored(&to, &ticket, 0).await;
    let late = || Error::NotStored(ticket.why());
    shared.until(deadline, late, Stored(Arc::clone(&ticket))).await?;
    Ok(safe_as(reply, Durability::Stored))
}

struct Pending {
    reply: ChangeReply,
    is_pending: bool,
}

/// Both objects are spoken for as a whole, in the order of their places, so that two copies in opposite
/// directions cannot wait for each other. The source's dirty buckets become the target's as well, shared
/// until either is written; the rest the store copies.
async fn copy_objects(
    shared: &Arc<Shared>,
    request: CopyRequest,
    hashes: (u64, u64),
    begun: Arc<AtomicU32>,
) -> Result<(Handle, Pending)> {
    let CopyRequest { from, from_condition, to, mut change, call, .. } = request;
    let source = Handle::acquire(shared, &from, hashes.0).await?;
    let target = Handle::acquire(shared, &to, hashes.1).await?;
    let (first, second) = if source.at() < target.at() { (&source, &target) } else { (&target, &source) };
    let guards =
        (first.lock_range(WHOLE, Kind::Change).await?, second.lock_range(WHOLE, Kind::Change).await?);
    store_pending(&target).await?;
    let policy = shared.write_policy(&to.namespace);
    let shares = policy == WritePolicy::Back && change.stamp.is_none();
    let can_share = source
        .enter(move |object, _| {
            !object.pending.replace
                && object.pending.truncate_to == u64::MAX
                && object.flushing.as_ref().is_none_or(|it| !it.replace && it.truncate_to == u64::MAX)
                && object.head.store_exists
                // After a failure that is a guess.
                && object.pending.failures == 0
        })
        .await;
    if !(shares && can_share) {
        store_pending(&source).await?;
    }
    let mut from_condition = from_condition;
    if matches!(from_condition, Condition::Version(_)) {
        from_condition = store_condition(&source, from_condition, call).await?;
        // The store's version moves with a flush under way; nobody else changes it while we hold it.
        if shares && can_share {
            from_condition = Condition::Present;
        }
    }
    change.condition = store_condition(&target, change.condition, call).await?;
    let own_stamp = shared.own_stamp(&to.namespace).await?;
    let mut taken = take_shared(shared, &source, shares && can_share).await;
    if taken.is_none() {
        store_pending(&source).await?;
        taken = take_shared(shared, &source, false).await;
    }
    let taken = taken.unwrap_or_else(|| Taken::nothing(shared));
    if call.deadline.is_some_and(|deadline| shared.clock.now() >= deadline) {
        return Err(Error::DeadlinePassed);
    }
    begun.store(1, Ordering::Release);
    let (own, handle) = (Arc::clone(shared), target.clone());
    let work = async move {
        let started = handle.enter(|object, _| object.begin_change()).await;
        let mut request = CopyRequest::new(from, to).change(change);
        request.change.stamp = own_stamp.or(change.stamp);
        request.change.durability = forwarded_durability(policy, change.durability);
        (request.from_condition, request.call) = (from_condition, call);
        let answer = own.below.copy(request).await;
        let hash = handle.in_use().node.hash();
        let shared = Arc::clone(&own);
        let done = handle.enter(move |object, env| {
            let is_exact = object.end_change(&started);
            match answer {
                Ok(reply) => {
                    object.spoil_loads(0);
                    object.forget(env, WHOLE);
                    object.set_head(Some((reply.size_bytes, reply.version.0)));
                    object.head.store_version = is_exact.then_some(reply.version.0);
                    if change.stamp.is_some() {
                        object.head.stamp = change.stamp;
                    }
                    object.pending.is_lost = false;
                    let is_pending = taken.give(&shared, object, env, change.domain);
                    if is_pending || !is_exact {
                        object.head.version = shared.next_version(hash);
                    }
                    let version = Version(object.head.version);
                    let reply = ChangeReply::new(version, object.head.size, reply.durability);
                    Ok(Pending { reply, is_pending })
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
    let pending = shielded(shared, work).await?;
    Ok((target, pending))
}

/// Buckets that a copy has taken over from its source, until its target has them.
struct Taken {
    shared: Arc<Shared>,
    slots: Vec<(u32, Slot)>,
    size: u64,
    credits: u32,
}

impl Taken {
    fn nothing(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), slots: Vec::new(), size: 0, credits: 0 }
    }

    /// The target's from now on; whether there is anything for the store in it.
    fn give(
        mut self,
        shared: &Shared,
        object: &mut Object,
        env: &Env<'_>,
        domain: Option<OrderDomain>,
    ) -> bool {
        let slots = std::mem::take(&mut self.slots);
        self.credits = 0;
        if slots.is_empty() && self.size <= object.head.size {
            return false;
        }
        object.head.size = object.head.size.max(self.size);
        object.pending.size_dirty = true;
        object.adopt(env, slots);
        let version = object.head.version;
        object.note_change(shared.clock.now(), version, domain);
        shared.register(object, env)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let buckets = self.slots.iter().filter(|(_, slot)| slot.state().has_bucket());
        buckets.for_each(|(_, slot)| self.shared.pool.release(slot.bucket()));
        self.shared.gauges.give_back(self.credits);
    }
}

/// Shares what waits to be stored of the source; `None` if there is no room for so much more dirty data.
async fn take_shared(shared: &Arc<Shared>, source: &Handle, shares: bool) -> Option<Taken> {
    let own = Arc::clone(shared);
    let taken = source.enter(move |object, env| {
        let slots = if shares { object.share(env, false) } else { Vec::new() };
        let credits = slots.iter().filter(|(_, slot)| slot.state().has_bucket()).count() as u32;
        // What is not known to be there has nothing that the store lacks, and an old size.
        let size = if shares && object.head.known == Known::Present { object.head.size } else { 0 };
        let has_room = own.gauges.take_credits(credits);
        let taken = Taken { shared: own, slots, size, credits: if has_room { credits } else { 0 } };
        has_room.then_some(taken)
    });
    taken.await
}

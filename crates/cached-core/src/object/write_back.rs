//! Write-back: a change is applied in memory and acknowledged as *cached*, or, if the caller asks for
//! *stored*, once it has been flushed.
//!
//! A change obtains what it needs in this order: what the object is, then room for dirty data, then buckets,
//! then (only if the store must be asked, or has a change of its own under way) the range. So no change holds
//! a range or a bucket while it waits for what the holder of another one needs.

use blocker::admission::{Head as StoreHead, admit};
use blocker::{
    Call, Change, ChangeReply, Durability, Epoch, Error, ObjectId, OrderDomain, Result, Scope, Timestamp,
    Version,
};

use super::claim::{ask_epoch, own_epoch};
use super::deadline::{until, until_given_up};
use super::evict::reserve;
use super::flush_ticket::{FlushTicket, Stored};
use super::forward::with_durability;
use super::handle::{Handle, RangeGuard};
use super::load::{load, load_head};
use super::mutation::Mutation;
use super::owned_resources::OwnedResources;
use super::pool::Reserved;
use super::ranges::{Kind, WHOLE};
use super::read::{LOADS_MAX, changes_too_fast};
use super::shared::Shared;
use super::state::{Env, Known, LINES_WRITTEN, Missing, Object, Resources};
use super::store_pending::{expedite, store_pending};
use crate::sync::{Arc, AtomicU32, Ordering};

/// Why a change was not applied.
enum Blocked {
    /// It never will be.
    Failed(Error),
    /// The store must be asked what the object is.
    Head,
    /// The store must be asked for the epoch of the order domain.
    Domain(OrderDomain),
    /// The namespace's epoch must be claimed, or looked up.
    Owner,
    /// Changes of another order domain must be stored first: one flush is sent under one domain's epoch.
    OtherDomain,
    /// A change is on its way to the store: of the same range, or, if the write mode of the namespace has
    /// just been changed, of another range of the object.
    Changing,
    /// Buckets, room or bytes of the store are missing.
    Missing(Missing),
}

/// The part of the object that the maker of a change holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Nothing,
    /// The range of the change.
    Range,
    Whole,
}

/// A change to be applied.
#[derive(Clone, Copy)]
struct ChangeRequest<'a> {
    id: &'a ObjectId,
    mutation: &'a Mutation,
    change: &'a Change,
    holds: Holds,
}

/// A change that was applied.
struct Applied {
    reply: ChangeReply,
    /// The object's number in the dirty queue.
    queue_number: u64,
    /// Whether anything is left to store.
    is_pending: bool,
}

/// Applies a change in the object's exclusive section, or returns what it lacks.
fn apply(
    shared: &Shared,
    object: &mut Object,
    env: &Env<'_>,
    request: &ChangeRequest<'_>,
    resources: &mut Resources<'_>,
) -> Result<Applied, Blocked> {
    let ChangeRequest { id, mutation, change, holds } = *request;
    let fences = shared.fences_callers();
    if !shared.owns(object) {
        return Err(Blocked::Owner);
    }
    if object.head.known == Known::Unknown || fences && !object.head.is_full {
        return Err(Blocked::Head);
    }
    if fences && let Some(domain) = change.domain.filter(|it| object.head.domain_asked != Some(*it)) {
        return Err(Blocked::Domain(domain));
    }
    if holds == Holds::Nothing && object.is_changing(&mutation.buckets())
        || holds != Holds::Whole && object.is_forwarding()
    {
        return Err(Blocked::Changing);
    }
    if object.has_other_domain(change.domain) {
        return Err(Blocked::OtherDomain);
    }
    let is_present = object.head.known == Known::Present;
    let version = is_present.then_some(Version(object.head.version));
    let claimed = shared.claims.in_force(id, change.domain).0.max(object.head.claimed);
    let head = StoreHead { version, stamp: object.head.stamp };
    admit(head, Epoch(claimed), change).map_err(Blocked::Failed)?;
    if mutation.needs_present() && !is_present {
        return Err(Blocked::Failed(Error::Missing));
    }
    let credits = resources.credits;
    let is_rewrite = is_present
        && matches!(mutation, Mutation::Write { offset, data } if object.rewrite(env, *offset, data));
    if !is_rewrite {
        let mut missing = object.missing_for(env, mutation, resources).map_err(Blocked::Failed)?;
        let bucketless = object.bucketless_for(mutation);
        missing.credits += bucketless;
        if missing.load.is_some()
            || missing.buckets > resources.reserved.count()
            || missing.credits > resources.credits
        {
            return Err(Blocked::Missing(missing));
        }
        object.mutate(env, mutation, resources);
        object.hold_bucketless(env, bucketless, resources);
        shared.losses.repaired_by(id, mutation);
    }
    let now = if object.asks_for_time() { shared.clock.now() } else { Timestamp(0) };
    let version = shared.next_version(env.hash);
    object.note_change(now, version, change.domain);
    object.pending.is_acknowledged |= change.durability == Durability::Cached;
    let is_pending = enqueue(shared, object, env);
    if resources.credits < credits && shared.metrics.pressure_has_begun() {
        shared.background.wake();
    }
    shared.metrics.count_write(env.hash);
    let reply = ChangeReply::new(Version(version), object.head.size, Durability::Cached);
    Ok(Applied { reply, queue_number: object.pending.queue_number, is_pending })
}

/// Puts the object into the dirty queue if something waits to be stored, and completes its waiters if nothing
/// does. Returns whether anything is left to store.
fn enqueue(shared: &Shared, object: &mut Object, env: &Env<'_>) -> bool {
    let is_pending = object.has_pending() || object.flushing.is_some();
    if object.has_pending() && object.pending.queue_number == 0 {
        object.pending.queue_number = shared.dirty_queue.insert(env.node, object.pending.dirty_since);
        if shared.is_under_pressure() || shared.dirty_queue.has_one() {
            shared.background.wake();
        }
    } else if !is_pending {
        object.take_stored_waiters().into_iter().for_each(|(ticket, result)| ticket.complete(result));
    }
    is_pending
}

/// Applies a change at once, if everything it needs is at hand.
#[inline]
pub(crate) fn apply_at_once(
    shared: &Shared,
    id: &ObjectId,
    hash: u64,
    mutation: &Mutation,
    change: &Change,
) -> Option<Result<ChangeReply>> {
    let mut resources = Resources { reserved: Reserved::none(&shared.pool), credits: 0, loaded: None };
    let request = ChangeRequest { id, mutation, change, holds: Holds::Nothing };
    let mut answer = None;
    for is_last in [false, true] {
        let ahead = |object: &Object, env: &Env<'_>| {
            if let Mutation::Write { offset, .. } = mutation {
                object.prefetch(env, *offset, LINES_WRITTEN);
            }
        };
        let job = |object: &mut Object, env: &Env<'_>| apply(shared, object, env, &request, &mut resources);
        match shared.at_once(hash, id, ahead, job) {
            Some(Ok(applied)) => answer = Some(Ok(applied.reply)),
            Some(Err(Blocked::Failed(error))) => answer = Some(Err(error)),
            Some(Err(Blocked::Missing(missing))) if !is_last && missing.load.is_none() => {
                let metrics = &shared.metrics;
                let has_room = || metrics.take_credits(missing.credits).then_some(());
                if metrics.dirty_waiters.try_take(has_room).is_some() {
                    resources.credits = missing.credits;
                    let taking = || reserve(shared, missing.buckets);
                    if let Some(reserved) = shared.pool.waiters().try_take(taking) {
                        resources.reserved = reserved;
                        continue;
                    }
                }
            }
            _ => (),
        }
        break;
    }
    shared.metrics.return_credits(resources.credits);
    answer
}

/// Whether a change is still to be made: it is made in the object's exclusive section, perhaps on another
/// thread, while its caller watches the clock. Exactly one of the two decides.
#[derive(Default)]
struct Decision(AtomicU32);

impl Decision {
    const OPEN: u32 = 0;
    const GIVEN_UP: u32 = 1;
    const MADE: u32 = 2;

    fn decide(&self, to: u32) -> bool {
        self.0.compare_exchange(Self::OPEN, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Gives the change up; returns false if it is being made, or found to be impossible yet, at this moment.
    fn give_up(&self) -> bool {
        self.decide(Self::GIVEN_UP)
    }

    /// Makes the change, unless it was given up.
    fn make<T>(&self, make: impl FnOnce() -> Result<T, Blocked>) -> Result<T, Blocked> {
        if !self.decide(Self::MADE) {
            return Err(Blocked::Failed(Error::DeadlinePassed));
        }
        let made = make();
        if made.is_err() {
            self.0.store(Self::OPEN, Ordering::SeqCst);
        }
        made
    }
}

/// Makes a change that could not be applied at once, or that is to be stored.
pub(crate) async fn change(
    shared: Arc<Shared>,
    id: ObjectId,
    hash: u64,
    mutation: Mutation,
    change: Change,
    call: Call,
) -> Result<ChangeReply> {
    let deadline = call.deadline;
    let decision = Arc::new(Decision::default());
    let work = apply_when_possible(&shared, &id, hash, mutation, change, call, Arc::clone(&decision));
    let give_up = || decision.give_up();
    let late = || Error::DeadlinePassed;
    let (handle, applied) = until_given_up(&*shared.clock, deadline, give_up, late, work).await?;
    if change.durability == Durability::Cached || !applied.is_pending {
        let durability = if applied.is_pending { Durability::Cached } else { change.durability };
        return Ok(with_durability(applied.reply, durability));
    }
    let ticket = Arc::new(FlushTicket::default());
    expedite(&handle, &ticket, applied.queue_number).await?;
    let late = || Error::NotStored(ticket.why());
    until(&*shared.clock, deadline, late, Stored(Arc::clone(&ticket))).await?;
    shared.losses.check(&Scope::Object(id))?;
    Ok(with_durability(applied.reply, Durability::Stored))
}

async fn apply_when_possible(
    shared: &Arc<Shared>,
    id: &ObjectId,
    hash: u64,
    mutation: Mutation,
    change: Change,
    call: Call,
    decision: Arc<Decision>,
) -> Result<(Handle, Applied)> {
    let handle = Handle::acquire(shared, id, hash).await?;
    let mutation = Arc::new(mutation);
    let most = mutation.buckets_max();
    let mut resources = None;
    let mut guard: Option<(RangeGuard, Holds)> = None;
    let mut loaded = None;
    let mut loads = 0;
    loop {
        let mut lent = resources.take().unwrap_or_else(|| OwnedResources::none(shared));
        let (own, mutated, bytes, decision) =
            (handle.clone(), Arc::clone(&mutation), loaded.take(), Arc::clone(&decision));
        let ticket = guard.as_ref().map(|(guard, _)| guard.ticket());
        let holds = guard.as_ref().map_or(Holds::Nothing, |(_, holds)| *holds);
        let (applied, back, bytes) = handle
            .enter(move |object, env| {
                let is_void = ticket.is_some_and(|ticket| object.take_stale(ticket));
                let bytes = bytes.filter(|_| !is_void);
                let applied = lent.with(bytes.as_ref(), |resources| {
                    let request = ChangeRequest { id: own.id(), mutation: &mutated, change: &change, holds };
                    decision.make(|| apply(&own.shared, object, env, &request, resources))
                });
                (applied, lent, bytes)
            })
            .await;
        match applied {
            Ok(applied) => return Ok((handle, applied)),
            Err(Blocked::Failed(error)) => return Err(error),
            Err(Blocked::Head) => {
                (guard, resources) = (None, Some(back));
                load_head(&handle, call).await?;
            }
            Err(Blocked::Owner) => {
                drop(back);
                (guard, resources) = (None, None);
                let generation = shared.epochs.generation();
                own_epoch(shared, &id.namespace).await?;
                handle.enter(move |object, _| object.head.owned = generation).await;
            }
            Err(Blocked::Domain(domain)) => {
                let scope = Scope::Domain(id.namespace.clone(), domain);
                let epoch = ask_epoch(shared, scope.clone()).await?;
                shared.claims.note(&scope, epoch);
                handle.enter(move |object, _| object.head.domain_asked = Some(domain)).await;
                resources = Some(back);
            }
            Err(Blocked::OtherDomain) => {
                (guard, resources) = (None, Some(back));
                match store_pending(&handle).await {
                    // What was lost is recorded, and nothing of it is left.
                    Ok(()) | Err(Error::WritesLost(_)) => (),
                    Err(error) => return Err(error),
                }
            }
            Err(Blocked::Changing) => {
                resources = Some(back);
                // The range is not enough if it is held already.
                let (range, holds) = match guard.take() {
                    None => (mutation.buckets(), Holds::Range),
                    Some(_) => (WHOLE, Holds::Whole),
                };
                guard = Some((handle.lock_range(range, Kind::Change).await?, holds));
            }
            // Before the store is asked: what it gives is good only as long as the range is held.
            Err(Blocked::Missing(missing)) if back.lacks(&missing) => {
                drop(back);
                guard = None;
                let (buckets, credits) = (most.max(missing.buckets), most.max(missing.credits));
                resources = Some(OwnedResources::acquire(shared, buckets, credits).await?);
            }
            Err(Blocked::Missing(missing)) => {
                resources = Some(back);
                let Some((guard, _)) = &guard else {
                    let held = handle.lock_range(mutation.buckets(), Kind::Change).await?;
                    guard = Some((held, Holds::Range));
                    continue;
                };
                loads += 1;
                if loads > LOADS_MAX {
                    return Err(changes_too_fast());
                }
                // The range is held, so the bytes stay true until they are used, or are void; so do the
                // earlier ones.
                let (range, earlier) = (missing.load.unwrap_or_default(), bytes.unwrap_or_default());
                loaded = load(&handle, guard, range, call, false, earlier).await?;
            }
        }
    }
}

/// Whether a change is too large for the cache, and must go to the store at once.
pub(crate) fn is_too_large(shared: &Shared, mutation: &Mutation) -> bool {
    let (quarter, dirty_max) = (u64::from(shared.pool.count() / 4), shared.metrics.dirty_max());
    u64::from(mutation.buckets_max()) > quarter || mutation.dirty_buckets_max() > dirty_max
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::task::{Context, Poll, Waker};

    use blocker::clock::Sleep;
    use blocker::executor::block_on;
    use blocker::{Clock, Memory, Name, Namespace, WriteMode};

    use super::super::config::{MEMORY_BYTES_MIN, ObjectCacheConfig};
    use super::super::{ObjectCache, read};
    use super::*;

    /// A clock whose timers fire when they are first polled, and call a function just before.
    #[derive(Default)]
    struct FiringClock(Arc<Mutex<Option<Before>>>);

    /// Called just before a timer fires.
    type Before = Box<dyn FnOnce() + Send>;

    struct Timer(Arc<Mutex<Option<Before>>>);

    impl Future for Timer {
        type Output = ();
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            let first = self.0.lock().unwrap().take();
            first.into_iter().for_each(|first| first());
            Poll::Ready(())
        }
    }

    impl Clock for FiringClock {
        fn now(&self) -> Timestamp {
            Timestamp(0)
        }
        fn sleep_until(&self, _: Timestamp) -> Sleep {
            Box::pin(Timer(Arc::clone(&self.0)))
        }
    }

    /// If the exclusive section begins between the poll of the change and the poll of the timer, the change
    /// is made, and its caller learns that. If the section begins later, nothing is changed.
    #[test]
    fn at_its_deadline_a_change_is_made_or_given_up_and_not_both() {
        for section_comes_first in [true, false] {
            let clock = Arc::new(FiringClock::default());
            let config = ObjectCacheConfig {
                memory_bytes_max: MEMORY_BYTES_MIN,
                dirty_bytes_max: MEMORY_BYTES_MIN / 2,
                write: WriteMode::Back,
                hash_seed: Some(1),
                ..ObjectCacheConfig::default()
            };
            let (cache, _background) =
                ObjectCache::new(Arc::new(Memory::default()), config, Arc::clone(&clock) as _).unwrap();
            let id = ObjectId::new(Namespace::new("n").unwrap(), Name::new("o").unwrap());
            let write = |byte: u8| blocker::WriteRequest::new(id.clone(), 0, vec![byte; 4096]);
            block_on(blocker::Blocker::write(&cache, write(1))).unwrap();
            let shared = Arc::clone(cache.shared());
            let hash = shared.hash(&id);
            // Another thread is inside, and stays there until it is released.
            let handle = block_on(Handle::acquire(&shared, &id, hash)).unwrap();
            let (entered, inside) = std::sync::mpsc::channel();
            let (release, wait) = std::sync::mpsc::channel::<()>();
            let other = handle.clone();
            let thread = std::thread::spawn(move || {
                block_on(other.enter(move |_, _| {
                    entered.send(()).unwrap();
                    wait.recv().unwrap();
                }));
            });
            inside.recv().unwrap();
            let end = move || {
                release.send(()).unwrap();
                thread.join().unwrap();
            };
            let mut end = Some(end);
            if section_comes_first {
                *clock.0.lock().unwrap() = Some(Box::new(end.take().unwrap()));
            }
            let late = blocker::Blocker::write(&cache, write(2).deadline(Timestamp(1)));
            let mut late = Box::pin(std::future::IntoFuture::into_future(late));
            let mut cx = Context::from_waker(Waker::noop());
            let mut answer = late.as_mut().poll(&mut cx);
            if answer.is_pending() {
                answer = late.as_mut().poll(&mut cx);
            }
            let Poll::Ready(answer) = answer else { panic!("an answer at the deadline") };
            drop(late);
            end.into_iter().for_each(|end| end());
            let request = Arc::new(blocker::ReadRequest::new(id.clone(), 0, 1));
            let found = block_on(read::read(Arc::clone(&shared), (*request).clone(), hash)).unwrap();
            let is_made = found.data.to_vec() == [2];
            assert_eq!(is_made, section_comes_first);
            match is_made {
                true => assert!(answer.is_ok(), "{answer:?}"),
                false => assert_eq!(answer.unwrap_err(), Error::DeadlinePassed),
            }
        }
    }
}

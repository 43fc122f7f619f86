//! Write-back: a change is applied in memory and acknowledged as *cached*, or, if the caller asks for
//! *stored*, once it has been flushed.
//!
//! A change obtains its resources in this order: the object's head, room for dirty data, buckets,
//! and finally the range (only if the store must be asked, or has a change in flight). So no change
//! holds a range or a bucket while it waits for a resource whose holder may need that range or
//! bucket.

use blocker::{ChangeReply, ChangeRequest, Durability, Error, ObjectId, Result, Scope, Timestamp};

use super::TakenMode;
use super::apply::{Again, Applied, Asked, Blocked, Holds, LogTerms, apply};
use crate::object::journal::Room;
use crate::object::journal::records::payload_bytes;
use crate::object::memory::WHOLE;
use crate::object::mutation::{CopiedContent, Mutation};
use crate::object::read::load::{load, load_head, with_durability};
use crate::object::read::{LOADS_MAX, changes_too_fast};
use crate::object::shared::calls::{expedite, hurry, store_pending};
use crate::object::shared::claim::{ask_epoch, own_epoch};
use crate::object::shared::handle::{Handle, RangeGuard};
use crate::object::shared::resources::OwnedResources;
use crate::object::shared::{Shared, log_waits};
use crate::object::state::ranges::Kind;
use crate::object::tasks::deadline::{Stored, until, until_given_up};
use crate::sync::{Arc, AtomicU32, Ordering};

/// Decides whether a change is made or given up: the change is made in the object's exclusive
/// section, perhaps on another thread, while its caller watches the clock. Exactly one of the two
/// decides.
#[derive(Default)]
struct Decision(AtomicU32);

impl Decision {
    const OPEN: u32 = 0;
    const GIVEN_UP: u32 = 1;
    const MADE: u32 = 2;

    fn decide(&self, to: u32) -> bool {
        self.0.compare_exchange(Self::OPEN, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Gives up the change; returns false if the change is being made, or is being tried, at this
    /// moment.
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

/// Makes a change that could not be applied at once, or that must be stored. The change keeps its
/// write mode until it has been acknowledged.
pub(crate) async fn change(
    shared: Arc<Shared>,
    request: ChangeRequest,
    copied: Option<CopiedContent>,
    hash: u64,
    _taken: TakenMode,
) -> Result<ChangeReply> {
    let (deadline, durability) = (request.call.deadline, request.terms.durability);
    let object = request.object.clone();
    let decision = Arc::new(Decision::default());
    let own = Arc::clone(&decision);
    let work = async {
        let handle = Handle::acquire(&shared, &object, hash).await?;
        apply_when_possible(&handle, request, copied, own, None).await
    };
    let give_up = || decision.give_up();
    let late = || Error::DeadlinePassed;
    let applied = until_given_up(&*shared.clock, deadline, give_up, late, work).await?;
    acknowledge(shared, object, hash, applied, durability, deadline).await
}

/// Waits until an applied change has the requested durability.
pub(crate) async fn acknowledge(
    shared: Arc<Shared>,
    object: ObjectId,
    hash: u64,
    applied: Applied,
    asked: Durability,
    deadline: Option<Timestamp>,
) -> Result<ChangeReply> {
    let Applied { reply, queue_number, is_pending, position, ticket } = applied;
    if asked == Durability::Cached {
        return Ok(with_durability(reply, Durability::Cached));
    }
    let mut must_store = is_pending;
    if let Some(position) = position
        && (asked == Durability::Journaled || !is_pending)
    {
        // This is also necessary if nothing is left to store: without the record, older records of
        // the object could be replayed.
        if log_waits::durable(&shared, position, deadline).await? {
            return Ok(with_durability(reply, asked));
        }
        must_store = true;
    }
    let is_waiting = ticket.is_some();
    let ticket = ticket.unwrap_or_default();
    let late = || Error::NotStored(ticket.why());
    let stored = async {
        if must_store {
            // If the object has left the index, all of its changes are stored or lost.
            if let Some(found) = shared.find(hash, &object) {
                let handle = Handle::of(&shared, found);
                match is_waiting {
                    true => hurry(&handle, queue_number)?,
                    false => expedite(&handle, &ticket, queue_number).await?,
                }
            }
            Stored(Arc::clone(&ticket)).await?;
        }
        log_waits::not_draining(&shared.journal, Some(&object.namespace)).await
    };
    // Boxed, because hardly any change waits for the store, but the future of every change would be larger.
    until(&*shared.clock, deadline, late, Box::pin(stored)).await?;
    if must_store {
        shared.objects.losses.check(&Scope::Object(object))?;
    }
    let durability = if must_store { Durability::Stored } else { asked };
    Ok(with_durability(reply, durability))
}

/// Repeats a change that a recovery has found.
///
/// # Errors
/// Errors of the change; `Missing` if the object to be changed does not exist.
pub(crate) async fn change_again(
    shared: &Arc<Shared>,
    request: ChangeRequest,
    hash: u64,
    again: Again,
) -> Result<()> {
    let handle = Handle::acquire_unrecovered(shared, &request.object, hash).await?;
    let decision = Arc::default();
    apply_when_possible(&handle, request, None, decision, Some(again)).await?;
    Ok(())
}

/// Applies a change once it has its resources; a copy is applied with the content that it takes
/// over. A recovery passes `again`.
async fn apply_when_possible(
    handle: &Handle,
    request: ChangeRequest,
    copied: Option<CopiedContent>,
    decision: Arc<Decision>,
    again: Option<Again>,
) -> Result<Applied> {
    let (shared, id, call) = (&handle.shared, handle.id(), request.call);
    let request = Arc::new((request, copied));
    let mutation = Mutation { change: &request.0.change, copied: request.1.as_ref() };
    let most = mutation.buckets_max();
    let mut resources = None;
    let mut guard: Option<(RangeGuard, Holds)> = None;
    let mut loaded = None;
    let mut loads = 0;
    // Room in the log. The task never waits while it holds this room.
    let mut room: Option<Room> = None;
    loop {
        let mut own_room = room.take();
        let known = shared.journal.log.as_ref().and_then(|log| log.names.get(&id.namespace));
        let mut lent = resources.take().unwrap_or_else(|| OwnedResources::none(shared));
        let (own, asked, bytes, decision) =
            (handle.clone(), Arc::clone(&request), loaded.take(), Arc::clone(&decision));
        let ticket = guard.as_ref().map(|(guard, _)| guard.ticket());
        let holds = guard.as_ref().map_or(Holds::Nothing, |(_, holds)| *holds);
        let entered = handle.enter(move |object, env| {
            let is_void = ticket.is_some_and(|ticket| object.take_stale(ticket));
            let bytes = bytes.filter(|_| !is_void);
            let applied = lent.with(bytes.as_ref(), |resources| {
                let log = match (again, own.shared.journal.log.as_ref()) {
                    (Some(again), Some(log)) => LogTerms::Again(log, again),
                    (_, log) => LogTerms::new(log, &own.id().namespace, known.as_deref()),
                };
                let (request, copied) = &*asked;
                let mutation = Mutation { change: &request.change, copied: copied.as_ref() };
                let asked = Asked { id: own.id(), mutation, terms: &request.terms, holds, log };
                decision.make(|| apply(&own.shared, object, env, &asked, resources, own_room.as_mut()))
            });
            (applied, lent, bytes)
        });
        let (applied, back, bytes) = entered.await;
        match applied {
            Ok((applied, _released)) => return Ok(applied),
            Err(Blocked::Failed(error)) => return Err(error),
            Err(Blocked::Log) => {
                (resources, loaded) = (Some(back), bytes);
                room = log_waits::room(shared, payload_bytes(mutation)).await?;
            }
            Err(Blocked::Head) => {
                (guard, resources) = (None, Some(back));
                load_head(handle, call).await?;
            }
            Err(Blocked::Owner) => {
                drop(back);
                (guard, resources) = (None, None);
                let generation = shared.store.epochs.generation();
                own_epoch(shared, &id.namespace).await?;
                handle.enter(move |object, _| object.head.owned = generation).await;
            }
            Err(Blocked::Forwarded) => {
                drop(back);
                (guard, resources) = (None, None);
                log_waits::store_forwarded(shared, &id.namespace).await?;
            }
            Err(Blocked::Domain(domain)) => {
                let scope = Scope::Domain(id.namespace.clone(), domain);
                let epoch = ask_epoch(&shared.store, scope.clone()).await?;
                shared.store.claims.note(&scope, epoch);
                handle.enter(move |object, _| object.head.domain_asked = Some(domain)).await;
                resources = Some(back);
            }
            Err(Blocked::OtherDomain) => {
                (guard, resources) = (None, Some(back));
                match store_pending(handle).await {
                    // Losses are recorded, and nothing of them is left.
                    Ok(()) | Err(Error::WritesLost(_)) => (),
                    Err(error) => return Err(error),
                }
            }
            Err(Blocked::Changing) => {
                resources = Some(back);
                // If the range is already held, the whole object must be held.
                let (range, holds) = match guard.take() {
                    None => (mutation.buckets(), Holds::Range),
                    Some(_) => (WHOLE, Holds::Whole),
                };
                guard = Some((handle.lock_range(range, Kind::Change).await?, holds));
            }
            // Resources are acquired before the store is asked: loaded data are valid only while
            // the range is held.
            Err(Blocked::Missing(missing)) if back.lacks(&missing) => {
                drop(back);
                guard = None;
                let (buckets, credits) = (most.max(missing.buckets), most.max(missing.credits));
                let namespace = handle.namespace();
                resources = Some(OwnedResources::acquire(shared, namespace, buckets, credits).await?);
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
                // The range is held, so the loaded bytes stay valid until they are used or become
                // void; the same applies to earlier ones.
                let (range, earlier) = (missing.load.unwrap_or_default(), bytes.unwrap_or_default());
                loaded = load(handle, guard, range, call, earlier).await?;
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::task::{Context, Poll, Waker};

    use blocker::clock::Sleep;
    use blocker::executor::block_on;
    use blocker::{
        Blocker, BlockerExt, ClaimRequest, Clock, Epoch, FlushRequest, InfoRequest, Memory, Name, Namespace,
        ReadRequest, SystemClock, WriteMode, WriteRequest, WriterId,
    };

    use super::*;
    use crate::object::config::{MEMORY_BYTES_MIN, ObjectCacheConfig};
    use crate::object::tasks::serial::tests::jobs_run;
    use crate::object::{ObjectCache, read};

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

    fn config() -> ObjectCacheConfig {
        ObjectCacheConfig {
            memory_bytes_max: MEMORY_BYTES_MIN,
            dirty_bytes_max: MEMORY_BYTES_MIN / 2,
            write: WriteMode::Back,
            hash_seed: Some(1),
            ..ObjectCacheConfig::default()
        }
    }

    /// Lets another thread enter an object's section. Returns a function that ends the section and
    /// the thread, which does the work that has been queued meanwhile.
    fn enter(handle: &Handle) -> impl FnOnce() + Send + use<> {
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
        move || {
            release.send(()).unwrap();
            thread.join().unwrap();
        }
    }

    /// If the exclusive section begins between the poll of the change and the poll of the timer,
    /// the change is made, and its caller gets the reply. If the section begins later, nothing is
    /// changed.
    #[test]
    fn at_its_deadline_a_change_is_made_or_given_up_and_not_both() {
        for section_comes_first in [true, false] {
            let clock = Arc::new(FiringClock::default());
            let (cache, _background) =
                ObjectCache::new(Arc::new(Memory::default()), config(), Arc::clone(&clock) as _).unwrap();
            let id = ObjectId::new(Namespace::new("n").unwrap(), Name::new("o").unwrap());
            let write = |byte: u8| WriteRequest::new(id.clone(), 0, vec![byte; 4096]);
            block_on(cache.write(write(1))).unwrap();
            let shared = Arc::clone(cache.shared());
            let hash = shared.hash(&id);
            // Another thread is inside, and stays there until it is released.
            let handle = block_on(Handle::acquire(&shared, &id, hash)).unwrap();
            let mut end = Some(enter(&handle));
            if section_comes_first {
                *clock.0.lock().unwrap() = Some(Box::new(end.take().unwrap()));
            }
            let late = cache.write(write(2).deadline(Timestamp(1)));
            let mut late = Box::pin(late.into_future());
            let mut cx = Context::from_waker(Waker::noop());
            let mut answer = late.as_mut().poll(&mut cx);
            if answer.is_pending() {
                answer = late.as_mut().poll(&mut cx);
            }
            let Poll::Ready(answer) = answer else { panic!("an answer at the deadline") };
            drop(late);
            end.into_iter().for_each(|end| end());
            let request = Arc::new(ReadRequest::new(id.clone(), 0, 1));
            let found = block_on(read::read(Arc::clone(&shared), (*request).clone(), hash)).unwrap();
            let is_made = found.data.to_vec() == [2];
            assert_eq!(is_made, section_comes_first);
            match is_made {
                true => assert!(answer.is_ok(), "{answer:?}"),
                false => assert_eq!(answer.unwrap_err(), Error::DeadlinePassed),
            }
        }
    }

    /// The change is made by another thread. Before its task is polled again, the store refuses it.
    #[test]
    fn a_change_that_is_lost_at_once_is_not_acknowledged_as_stored() {
        let store = Arc::new(Memory::default());
        let id = ObjectId::new(Namespace::new("n").unwrap(), Name::new("o").unwrap());
        block_on(store.write(WriteRequest::new(id.clone(), 0, vec![1; 4096]))).unwrap();
        let (cache, mut background) =
            ObjectCache::new(Arc::clone(&store) as _, config(), Arc::new(SystemClock)).unwrap();
        block_on(cache.read(ReadRequest::new(id.clone(), 0, 4096))).unwrap();
        block_on(cache.info(InfoRequest::new(id.clone()))).unwrap();
        let shared = Arc::clone(cache.shared());
        let handle = block_on(Handle::acquire(&shared, &id, shared.hash(&id))).unwrap();
        let end = enter(&handle);
        let mut cx = Context::from_waker(Waker::noop());
        let write = WriteRequest::new(id.clone(), 0, vec![2; 4096]).durability(Durability::Stored);
        let mut write = Box::pin(cache.write(write).into_future());
        assert!(write.as_mut().poll(&mut cx).is_pending());
        end();
        let claim = ClaimRequest::new(Scope::Namespace(id.namespace.clone()), Epoch(7), WriterId(1));
        block_on(store.claim(claim)).unwrap();
        let mut flush = Box::pin(cache.flush(FlushRequest::new(Scope::All)).into_future());
        assert!(flush.as_mut().poll(&mut cx).is_pending());
        assert!(Pin::new(&mut background).poll(&mut cx).is_pending());
        assert!(matches!(flush.as_mut().poll(&mut cx), Poll::Ready(Ok(_))), "nothing is dirty");
        let Poll::Ready(answer) = write.as_mut().poll(&mut cx) else { panic!("it is lost") };
        assert!(matches!(answer, Err(Error::WritesLost(_))), "{answer:?}");
    }

    /// The room for the dirty bucket is taken in the same section.
    #[test]
    fn a_write_over_stored_data_enters_its_object_once() {
        let store = Arc::new(Memory::default());
        let id = ObjectId::new(Namespace::new("n").unwrap(), Name::new("o").unwrap());
        block_on(store.write(WriteRequest::new(id.clone(), 0, vec![7; 8192]))).unwrap();
        let (cache, _background) = ObjectCache::new(store, config(), Arc::new(SystemClock)).unwrap();
        let read = || block_on(cache.read(ReadRequest::new(id.clone(), 0, 8192))).unwrap().data.to_vec();
        assert_eq!(read(), [7; 8192]);
        let jobs_of_write = |offset| {
            let before = jobs_run();
            block_on(cache.write(WriteRequest::new(id.clone(), offset, vec![8; 4096]))).unwrap();
            jobs_run() - before
        };
        // The first write of the object may ask the store for more than a read needs.
        jobs_of_write(0);
        assert_eq!(jobs_of_write(4096), 1);
        assert_eq!(read(), [8; 8192]);
        assert_eq!(cache.shared().metrics.dirty_room.dirty(), 2);
        cache.validate().unwrap();
    }
}

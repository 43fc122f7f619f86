//! Holding on to things across waits: an object in use, a range spoken for, memory and room taken. Each
//! gives back what it holds when it is dropped, wherever its task was.

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};

use blocker::{Error, ObjectId, Result};

use super::gauges::add;
use super::index::{Entered, InUse};
use super::pool::{Detached, Reserved};
use super::ranges::{Buckets, Kind, Ticket};
use super::serial::Serial;
use super::shared::{Shared, Task};
use super::state::{Env, Loaded, Means, Need, Object};
use super::wait::{WaitQueue, wait};
use crate::sync::{Arc, Mutex, lock};

/// An object in use.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    at: u32,
    /// Its name, once somebody has asked for it.
    id: OnceLock<ObjectId>,
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        self.shared.index.use_again(self.at);
        Self { shared: Arc::clone(&self.shared), at: self.at, id: OnceLock::new() }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.unuse(self.in_use());
    }
}

impl Deref for Handle {
    type Target = Serial<Object>;
    fn deref(&self) -> &Serial<Object> {
        &self.shared.index.node(self.at).serial
    }
}

impl Handle {
    /// Takes over a use.
    pub(crate) fn of(shared: &Arc<Shared>, in_use: InUse<'_>) -> Self {
        Self { shared: Arc::clone(shared), at: in_use.at, id: OnceLock::new() }
    }

    /// A use of the object at `at`, if there is one.
    pub(crate) fn of_node(shared: &Arc<Shared>, at: u32) -> Option<Self> {
        shared.index.use_placed(at).map(|in_use| Self::of(shared, in_use))
    }

    /// The object called `id`; waits for a place in the index if need be.
    pub(crate) async fn acquire(shared: &Arc<Shared>, id: &ObjectId, hash: u64) -> Result<Self> {
        if let Some(in_use) = shared.find(hash, id) {
            return Ok(Self::of(shared, in_use));
        }
        let queue = NodeQueue(Arc::clone(shared));
        wait(queue, || shared.enter_index(hash, id).map(|in_use| Self::of(shared, in_use))).await
    }

    pub(crate) fn at(&self) -> u32 {
        self.at
    }

    pub(crate) fn in_use(&self) -> InUse<'_> {
        InUse { node: self.shared.index.node(self.at), at: self.at }
    }

    pub(crate) fn id(&self) -> &ObjectId {
        self.id.get_or_init(|| self.shared.index.id(self.in_use()))
    }

    /// Runs `job` in the object's turn.
    ///
    /// # Cancel safety
    /// Dropped before its turn, the job never runs.
    pub(crate) async fn enter<R, F>(&self, job: F) -> R
    where
        R: Send + Unpin + 'static,
        F: FnOnce(&mut Object, &Env<'_>) -> R + Send + 'static,
    {
        let (own, hash) = (self.clone(), self.in_use().node.hash());
        let run = Serial::run(self.clone(), move |object| job(object, &own.shared.env(own.at, hash)));
        run.await
    }

    /// Leaves a job that is to run in the object's turn, whoever waits.
    pub(crate) fn post(&self, job: impl FnOnce(&mut Object, &Env<'_>) + Send + 'static) {
        let (own, hash) = (self.clone(), self.in_use().node.hash());
        Serial::post(self, move |object| job(object, &own.shared.env(own.at, hash)));
    }

    /// Speaks for a range and waits until it is granted.
    pub(crate) async fn lock_range(&self, buckets: Buckets, kind: Kind) -> Result<RangeGuard> {
        let own = self.clone();
        // The guard is made in the turn itself: should the caller give up between the turn and hearing of
        // it, the guard is dropped with the answer, and the range let go.
        let entered = self.enter(move |object, _| {
            let ranges = &mut object.activity().ranges;
            let entered = (!ranges.is_full()).then(|| ranges.enter(buckets, kind));
            object.tidy();
            let (ticket, is_granted) = entered?;
            Some((RangeGuard { handle: own, ticket }, is_granted))
        });
        let full = || Error::Retryable("too many requests wait for one object".into());
        let (guard, is_granted) = entered.await.ok_or_else(full)?;
        if !is_granted {
            guard.granted().await;
        }
        Ok(guard)
    }

    /// Waits until another's load of the same range is over.
    pub(crate) async fn follow(&self, ticket: Ticket) {
        let mut first = true;
        poll_fn(|cx| {
            if !std::mem::take(&mut first) {
                // Woken; or polled for another reason: then the caller looks again, and follows again.
                return Poll::Ready(());
            }
            let waker = cx.waker().clone();
            let own = cx.waker().clone();
            self.post(move |object, _| {
                let follows = object.activity_mut().is_some_and(|it| it.ranges.follow(ticket, &waker));
                if !follows {
                    own.wake();
                }
            });
            Poll::Pending
        })
        .await;
    }
}

/// Where tasks wait for a place in the index.
struct NodeQueue(Arc<Shared>);

impl Deref for NodeQueue {
    type Target = WaitQueue;
    fn deref(&self) -> &WaitQueue {
        &self.0.node_waiters
    }
}

impl Shared {
    /// Ends a use; who waits for a place may find one.
    #[inline]
    pub(crate) fn unuse(&self, in_use: InUse<'_>) {
        self.index.unuse(in_use);
        self.node_waiters.notify();
        self.left_turn();
    }

    /// Finds the object or gives it a place; `None` if nothing can go for it now.
    fn enter_index(&self, hash: u64, id: &ObjectId) -> Option<InUse<'_>> {
        let clear = |at, hash, object: &mut Object| self.clear_to_leave(at, hash, object);
        let entered = self.index.enter(hash, id, clear);
        self.left_turn();
        match entered {
            Entered::Found { in_use, reinserted } => {
                if reinserted {
                    self.hooks.on_reinsert(id);
                }
                Some(in_use)
            }
            Entered::Placed { in_use, evicted } => {
                if let Some(evicted) = evicted {
                    self.told_evicted(&evicted, false);
                }
                self.hooks.on_init(id);
                Some(in_use)
            }
            Entered::Full { leaving } => {
                for at in leaving {
                    let Some(in_use) = self.index.use_placed(at) else { continue };
                    self.hooks.on_evict(&self.index.id(in_use));
                    let number = self.try_enter(in_use, |object, _| object.pending.registered);
                    self.index.unuse(in_use);
                    self.registry.hurry(number.unwrap_or(0));
                }
                self.background.wake();
                None
            }
        }
    }
}

/// A range spoken for, until this is dropped.
pub(crate) struct RangeGuard {
    handle: Handle,
    ticket: Ticket,
}

impl RangeGuard {
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    async fn granted(&self) {
        let ticket = self.ticket;
        let answer = Arc::new(Mutex::new(false));
        poll_fn(|cx| {
            if *lock(&answer) {
                return Poll::Ready(());
            }
            let (waker, answer) = (cx.waker().clone(), Arc::clone(&answer));
            self.handle.post(move |object, _| {
                let granted = object.activity().ranges.poll(ticket, &waker);
                if granted {
                    *lock(&answer) = true;
                    waker.wake();
                }
            });
            Poll::Pending
        })
        .await;
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let (ticket, shared) = (self.ticket, Arc::clone(&self.handle.shared));
        self.handle.post(move |object, _| {
            let (woken, kept_buckets) = object.leave_range(ticket);
            woken.into_iter().for_each(std::task::Waker::wake);
            if kept_buckets {
                shared.note_missed_eviction();
            }
        });
    }
}

/// What a change will use: buckets and room for dirty data.
pub(crate) struct OwnedMeans {
    shared: Arc<Shared>,
    reserved: Option<Detached>,
    credits: u32,
}

impl OwnedMeans {
    pub(crate) fn none(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), reserved: None, credits: 0 }
    }

    /// Waits for so many of each. Nothing is held while it waits for the first of them, and of the second
    /// only room, which is no use to others but for the same.
    pub(crate) async fn acquire(shared: &Arc<Shared>, buckets: u32, credits: u32) -> Result<Self> {
        let mut means = Self::none(shared);
        let has_room = || shared.gauges.take_credits(credits).then_some(());
        if shared.gauges.dirty_waiters.try_take(has_room).is_none() {
            add(&shared.gauges.throttled, 1);
            let queue = DirtyQueue(Arc::clone(shared));
            // Who waits is seen by the background, which flushes for it.
            let taking = wait(queue, has_room);
            woken_while(shared, taking).await?;
        }
        means.credits = credits;
        let queue = BucketQueue(Arc::clone(shared));
        let taking = wait(queue, || shared.reserve(buckets).map(Reserved::detach));
        means.reserved = Some(woken_while(shared, taking).await?);
        Ok(means)
    }

    /// Buckets that are there, up to so many.
    pub(crate) fn at_hand(shared: &Arc<Shared>, buckets: u32) -> Self {
        let reserved = shared.reserve_up_to(buckets).detach();
        // Whoever waits may have found in use what we have looked at.
        shared.pool.waiters().notify();
        Self { shared: Arc::clone(shared), reserved: Some(reserved), credits: 0 }
    }

    /// Whether it takes more than these.
    pub(crate) fn lack(&self, need: &Need) -> bool {
        need.buckets > self.reserved.as_ref().map_or(0, Detached::count) || need.credits > self.credits
    }

    /// Lets `job` use them.
    pub(crate) fn lend<R>(&mut self, loaded: Option<&Loaded>, job: impl FnOnce(&mut Means<'_>) -> R) -> R {
        let pool = &self.shared.pool;
        let reserved = self.reserved.take().map(|detached| Reserved::attach(pool, detached));
        let reserved = reserved.unwrap_or_else(|| Reserved::none(pool));
        let mut means = Means { reserved, credits: self.credits, loaded };
        let result = job(&mut means);
        self.credits = means.credits;
        self.reserved = Some(means.reserved.detach());
        result
    }
}

impl Drop for OwnedMeans {
    fn drop(&mut self) {
        drop(self.reserved.take().map(|detached| Reserved::attach(&self.shared.pool, detached)));
        self.shared.gauges.give_back(self.credits);
    }
}

/// Wakes the background once the wait has begun: it flushes when somebody waits.
async fn woken_while<T>(shared: &Shared, wait: impl Future<Output = T>) -> T {
    let mut wait = std::pin::pin!(wait);
    poll_fn(|cx| {
        let poll = wait.as_mut().poll(cx);
        if poll.is_pending() {
            shared.background.wake();
        }
        poll
    })
    .await
}

struct DirtyQueue(Arc<Shared>);

impl Deref for DirtyQueue {
    type Target = WaitQueue;
    fn deref(&self) -> &WaitQueue {
        &self.0.gauges.dirty_waiters
    }
}

struct BucketQueue(Arc<Shared>);

impl Deref for BucketQueue {
    type Target = WaitQueue;
    fn deref(&self) -> &WaitQueue {
        self.0.pool.waiters()
    }
}

/// Runs `work` to its end even if nobody waits for it any more: then the background goes on with it.
pub(crate) fn shielded<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl Future<Output = T> + Send + 'static,
) -> Shield<T> {
    let answer = Arc::new(Mutex::new(None));
    let own = Arc::clone(&answer);
    let task: Task = Box::pin(async move {
        let result = work.await;
        *lock(&own) = Some(result);
    });
    Shield { task: Some(task), answer, shared: Arc::clone(shared) }
}

/// See [`shielded`].
pub(crate) struct Shield<T> {
    task: Option<Task>,
    answer: Arc<Mutex<Option<T>>>,
    shared: Arc<Shared>,
}

impl<T> Future for Shield<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let task = self.task.as_mut().expect("polled after completion");
        std::task::ready!(task.as_mut().poll(cx));
        self.task = None;
        let answer = lock(&self.answer).take();
        Poll::Ready(answer.expect("a task that is over has left its answer"))
    }
}

impl<T> Drop for Shield<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            self.shared.background.adopt(task);
        }
    }
}

#[cfg(all(test, shuttle))]
mod shuttle_tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Waker;

    use blocker::{Memory, Name, Namespace, SystemClock};
    use shuttle::future::block_on;
    use shuttle::thread::{spawn, yield_now};

    use super::super::config::{MEMORY_BYTES_MIN, ObjectCacheConfig};
    use super::super::{ObjectCache, shared::Shared};
    use super::*;

    fn id(name: &'static str) -> ObjectId {
        ObjectId::new(Namespace::new("n").unwrap(), Name::new(name).unwrap())
    }

    /// A cache of two objects, which may have two dirty buckets.
    fn shared() -> Arc<Shared> {
        let config = ObjectCacheConfig {
            memory_bytes_max: MEMORY_BYTES_MIN,
            objects_count_max: 2,
            dirty_bytes_max: 2 * 4096,
            hash_seed: Some(1),
            ..ObjectCacheConfig::default()
        };
        let cache = ObjectCache::new(Arc::new(Memory::default()), config, Arc::new(SystemClock)).unwrap();
        Arc::clone(cache.shared())
    }

    fn acquire(shared: &Arc<Shared>, id: &ObjectId) -> Handle {
        block_on(Handle::acquire(shared, id, shared.hash(id))).unwrap()
    }

    /// Polls once, and gives up.
    fn give_up<T>(work: impl Future<Output = T>) -> Option<T> {
        match std::pin::pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    /// Ranges that overlap are held by one at a time, by all who ask, though some give up; and nothing is left.
    #[test]
    fn a_range_has_one_holder_and_nobody_waits_for_ever() {
        shuttle::check_random(
            || {
                let shared = shared();
                let handle = acquire(&shared, &id("a"));
                let inside = Arc::new(AtomicU32::new(0));
                let threads: Vec<_> = (0..3u32)
                    .map(|n| {
                        let (handle, inside) = (handle.clone(), Arc::clone(&inside));
                        spawn(move || {
                            let guard = handle.lock_range(n..n + 3, Kind::Change);
                            let guard = if n == 1 { give_up(guard) } else { Some(block_on(guard)) };
                            if let Some(guard) = guard {
                                let guard = guard.unwrap();
                                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                                yield_now();
                                inside.fetch_sub(1, Ordering::SeqCst);
                                drop(guard);
                            }
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                let is_idle = block_on(handle.enter(|object, _| object.activity_ref().is_none()));
                assert!(is_idle, "something is left of a range");
            },
            1_000,
        );
    }

    /// An object in use keeps its place, and its name; whoever needs the place gets it once nobody uses it, also
    /// when a short look at the object was all that stood in the way.
    #[test]
    fn an_object_in_use_stays_and_its_place_is_handed_on() {
        shuttle::check_random(
            || {
                let shared = shared();
                // One of the two places is taken throughout.
                let _other = acquire(&shared, &id("c"));
                let first = acquire(&shared, &id("a"));
                let other = Arc::clone(&shared);
                let second = spawn(move || {
                    let handle = acquire(&other, &id("b"));
                    assert_eq!(*handle.id(), id("b"));
                    yield_now();
                    assert_eq!(other.index.id(handle.in_use()), id("b"));
                });
                let other = Arc::clone(&shared);
                let looker = spawn(move || {
                    for name in ["a", "b"] {
                        let id = id(name);
                        other.at_once(other.hash(&id), &id, |_, _| yield_now(), |_, _| yield_now());
                    }
                });
                yield_now();
                assert_eq!(shared.index.id(first.in_use()), id("a"));
                drop(first.clone());
                yield_now();
                assert_eq!(shared.index.id(first.in_use()), id("a"));
                drop(first);
                second.join().unwrap();
                looker.join().unwrap();
                assert_eq!(shared.index.count(), 2);
                shared.index.validate().unwrap();
                assert!(!shared.node_waiters.has_waiters());
            },
            1_000,
        );
    }

    /// Room and buckets that were taken come back, and reach whoever waits, though some give up.
    #[test]
    fn what_is_taken_comes_back_to_those_who_wait() {
        shuttle::check_random(
            || {
                let shared = shared();
                let buckets = shared.pool.count();
                let threads: Vec<_> = (0..3u32)
                    .map(|n| {
                        let shared = Arc::clone(&shared);
                        spawn(move || {
                            // Each needs all the room, and most of the buckets.
                            let taking = OwnedMeans::acquire(&shared, buckets - 2, 2);
                            let means = if n == 1 { give_up(taking) } else { Some(block_on(taking)) };
                            if let Some(means) = means {
                                yield_now();
                                drop(means.unwrap());
                            }
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                assert_eq!((shared.pool.free(), shared.gauges.dirty()), (buckets, 0));
                assert!(!shared.pool.waiters().has_waiters() && !shared.gauges.dirty_waiters.has_waiters());
            },
            300,
        );
    }
}

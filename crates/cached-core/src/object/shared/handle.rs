//! Guards that keep an object across waits: its use, and a locked range of its bytes. Each is
//! released on drop, at whatever point its task ends.

use std::future::poll_fn;
use std::ops::Deref;
use std::sync::OnceLock;
use std::task::Poll;

use blocker::{Error, ObjectId, Result};

use super::resources::flushed_meanwhile;
use super::{Shared, log_waits};
use crate::object::memory::Buckets;
use crate::object::state::index::{Entered, InUse};
use crate::object::state::ranges::{Kind, Ticket};
use crate::object::state::{Env, Object};
use crate::object::tasks::serial::{Run, Serial};
use crate::object::tasks::wait_queue::wait;
use crate::sync::{Arc, Mutex, lock};

/// An object in use: the handle keeps the object's node in the index.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) at: u32,
    /// The object's name, once it has been requested.
    id: OnceLock<ObjectId>,
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        self.shared.objects.index.use_again(self.at);
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
        &self.shared.objects.index.node(self.at).serial
    }
}

impl Handle {
    /// Turns a use of an object into a handle.
    pub(crate) fn of(shared: &Arc<Shared>, in_use: InUse<'_>) -> Self {
        Self { shared: Arc::clone(shared), at: in_use.at, id: OnceLock::new() }
    }

    /// Returns a handle of the object in the node `at`, if there is one.
    pub(crate) fn of_node(shared: &Arc<Shared>, at: u32) -> Option<Self> {
        shared.objects.index.use_placed(at).map(|in_use| Self::of(shared, in_use))
    }

    /// Returns a handle of the object called `id`; waits until the object is recovered, and for a
    /// node of the index if necessary.
    ///
    /// # Errors
    /// `Retryable` if too many tasks are waiting, `Unsupported` if the background of the cache has
    /// ended; the reason why the object cannot be recovered.
    pub(crate) async fn acquire(shared: &Arc<Shared>, id: &ObjectId, hash: u64) -> Result<Self> {
        if shared.journal.recovery.is_active() {
            log_waits::object_recovered(shared, hash).await?;
        }
        Self::acquire_unrecovered(shared, id, hash).await
    }

    /// Does the same as [`Self::acquire`], whether or not the object is recovered.
    pub(crate) async fn acquire_unrecovered(shared: &Arc<Shared>, id: &ObjectId, hash: u64) -> Result<Self> {
        if let Some(in_use) = shared.find(hash, id) {
            return Ok(Self::of(shared, in_use));
        }
        let entering = wait(&shared.objects.node_waiters, || {
            enter_index(shared, hash, id).map(|in_use| Self::of(shared, in_use))
        });
        flushed_meanwhile(shared, entering).await
    }

    /// Returns the number of the object's namespace.
    pub(crate) fn namespace(&self) -> u16 {
        self.shared.objects.index.namespace_of(self.at)
    }

    pub(crate) fn in_use(&self) -> InUse<'_> {
        InUse { node: self.shared.objects.index.node(self.at), at: self.at }
    }

    pub(crate) fn id(&self) -> &ObjectId {
        self.id.get_or_init(|| self.shared.objects.index.id(self.in_use()))
    }

    /// Runs `job` in the object's exclusive section: before this returns, if no thread is inside.
    ///
    /// # Cancel safety
    /// A job whose future is dropped before it has run never runs.
    pub(crate) fn enter<R, F>(&self, job: F) -> Run<Self, Object, R>
    where
        R: Send + Unpin + 'static,
        F: FnOnce(&mut Object, &Env<'_>) -> R + Send + 'static,
    {
        let (own, hash) = (self.clone(), self.in_use().node.hash());
        Serial::run(self.clone(), move |object| job(object, &own.shared.env(own.at, hash)))
    }

    /// Queues a job for the object's exclusive section; the job runs whether or not a task waits
    /// for it.
    pub(crate) fn post(&self, job: impl FnOnce(&mut Object, &Env<'_>) + Send + 'static) {
        let (own, hash) = (self.clone(), self.in_use().node.hash());
        Serial::post(self, move |object| job(object, &own.shared.env(own.at, hash)));
    }

    /// Queues for a range of the object, and waits until it is granted.
    ///
    /// # Errors
    /// `Retryable` if too many requests are waiting for the object.
    pub(crate) async fn lock_range(&self, buckets: Buckets, kind: Kind) -> Result<RangeGuard> {
        let own = self.clone();
        let (guard, is_granted) =
            self.enter(move |object, _| RangeGuard::queue(own, object, buckets, kind)).await?;
        if !is_granted {
            guard.granted().await;
        }
        Ok(guard)
    }

    /// Waits until another request's load of the same range is over.
    pub(crate) async fn follow(&self, ticket: Ticket) {
        let mut first = true;
        poll_fn(|cx| {
            if !std::mem::take(&mut first) {
                // The task was woken, or polled for another reason: the caller checks again, and
                // follows again if necessary.
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

/// Looks up the object or adds it to the index; `None` if no other object can be evicted at
/// present.
fn enter_index<'a>(shared: &'a Shared, hash: u64, id: &ObjectId) -> Option<InUse<'a>> {
    let clear = |at, hash, object: &mut Object| shared.clear_for_eviction(at, hash, object);
    let entered = shared.objects.index.enter(hash, id, shared.control.namespaces.of(&id.namespace), clear);
    shared.memory.section_ended();
    match entered {
        Entered::Found(in_use) => Some(in_use),
        Entered::Placed { in_use, evicted } => {
            if evicted.is_some() {
                shared.metrics.counts.object_evictions.increment();
            }
            Some(in_use)
        }
        Entered::Full { leaving } => {
            for at in leaving {
                let Some(in_use) = shared.objects.index.use_placed(at) else { continue };
                let number = shared.try_enter(in_use, |object, _| object.pending.queue_number);
                shared.objects.index.unuse(in_use);
                shared.objects.dirty_queue.expedite(number.unwrap_or(0));
            }
            shared.background.wake();
            None
        }
    }
}

/// A range of an object, held until this is dropped.
pub(crate) struct RangeGuard {
    handle: Handle,
    ticket: Ticket,
    is_released: bool,
}

impl RangeGuard {
    /// Queues for a range, in the object's exclusive section; also returns whether the range is
    /// granted. If the task that waits for the section gives up, the guard is dropped with the
    /// section's result.
    ///
    /// # Errors
    /// `Retryable` if too many requests are waiting for the object.
    pub(crate) fn queue(
        handle: Handle,
        object: &mut Object,
        buckets: Buckets,
        kind: Kind,
    ) -> Result<(Self, bool)> {
        let ranges = &mut object.activity().ranges;
        if ranges.is_full() {
            return Err(Error::Retryable("too many requests are waiting for the object".into()));
        }
        let (ticket, is_granted) = ranges.enter(buckets, kind);
        Ok((Self { handle, ticket, is_released: false }, is_granted))
    }

    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Releases the range, in the object's exclusive section.
    pub(crate) fn release(mut self, object: &mut Object) {
        self.is_released = true;
        release(&self.handle.shared, object, self.ticket);
    }

    /// Waits until the range is granted.
    pub(crate) async fn granted(&self) {
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
        if !self.is_released {
            let (ticket, shared) = (self.ticket, Arc::clone(&self.handle.shared));
            self.handle.post(move |object, _| release(&shared, object, ticket));
        }
    }
}

fn release(shared: &Shared, object: &mut Object, ticket: Ticket) {
    let (woken, kept_buckets) = object.release_range(ticket);
    woken.into_iter().for_each(std::task::Waker::wake);
    if kept_buckets {
        shared.memory.note_missed_eviction();
    }
}

#[cfg(all(test, shuttle))]
mod shuttle_tests {
    use std::future::Future;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Waker};

    use blocker::{Memory, Name, Namespace, SystemClock};
    use shuttle::future::block_on;
    use shuttle::thread::{spawn, yield_now};

    use super::super::Shared;
    use super::super::resources::OwnedResources;
    use super::*;
    use crate::object::ObjectCache;
    use crate::object::config::{MEMORY_BYTES_MIN, ObjectCacheConfig};

    fn id(name: &'static str) -> ObjectId {
        ObjectId::new(Namespace::new("n").unwrap(), Name::new(name).unwrap())
    }

    /// Returns a cache for two objects and at most two dirty buckets.
    fn shared() -> Arc<Shared> {
        let config = ObjectCacheConfig {
            memory_bytes_max: MEMORY_BYTES_MIN,
            objects_count_max: 2,
            dirty_bytes_max: 2 * 4096,
            hash_seed: Some(1),
            ..ObjectCacheConfig::default()
        };
        let (cache, background) =
            ObjectCache::new(Arc::new(Memory::default()), config, Arc::new(SystemClock)).unwrap();
        // Dropping the background would fail the waits that these tests are about.
        std::mem::forget(background);
        Arc::clone(cache.shared())
    }

    fn acquire(shared: &Arc<Shared>, id: &ObjectId) -> Handle {
        block_on(Handle::acquire(shared, id, shared.hash(id))).unwrap()
    }

    /// Polls `work` once, then gives up.
    fn give_up<T>(work: impl Future<Output = T>) -> Option<T> {
        match std::pin::pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    /// Overlapping ranges are held by one task at a time, and by every task that asks and does not
    /// give up; nothing is left of them afterwards.
    #[test]
    fn a_range_has_one_holder_and_every_waiter_is_granted_it() {
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
                let is_idle = block_on(handle.enter(|object, _| object.is_idle()));
                assert!(is_idle, "something is left of a range");
            },
            1_000,
        );
    }

    /// An object in use keeps its node and its name; a task that needs the node gets it once the
    /// object is no longer in use, even if only a short exclusive section was in the way.
    #[test]
    fn an_object_in_use_keeps_its_node_until_it_is_released() {
        shuttle::check_random(
            || {
                let shared = shared();
                // One of the two nodes is in use throughout.
                let _other = acquire(&shared, &id("c"));
                let first = acquire(&shared, &id("a"));
                let other = Arc::clone(&shared);
                let second = spawn(move || {
                    let handle = acquire(&other, &id("b"));
                    assert_eq!(*handle.id(), id("b"));
                    yield_now();
                    assert_eq!(other.objects.index.id(handle.in_use()), id("b"));
                });
                let other = Arc::clone(&shared);
                let looker = spawn(move || {
                    for name in ["a", "b"] {
                        let id = id(name);
                        other.at_once(other.hash(&id), &id, |_, _| yield_now(), |_, _| yield_now());
                    }
                });
                yield_now();
                assert_eq!(shared.objects.index.id(first.in_use()), id("a"));
                drop(first.clone());
                yield_now();
                assert_eq!(shared.objects.index.id(first.in_use()), id("a"));
                drop(first);
                second.join().unwrap();
                looker.join().unwrap();
                assert_eq!(shared.objects.index.count(), 2);
                shared.objects.index.validate().unwrap();
                assert!(!shared.objects.node_waiters.has_waiters());
            },
            1_000,
        );
    }

    /// Room and buckets that were taken are returned and reach the waiting tasks, even if some give
    /// up.
    #[test]
    fn returned_resources_reach_waiting_tasks() {
        shuttle::check_random(
            || {
                let shared = shared();
                let buckets = shared.memory.pool.count();
                let threads: Vec<_> = (0..3u32)
                    .map(|n| {
                        let shared = Arc::clone(&shared);
                        spawn(move || {
                            // Each task needs all of the room, and most of the buckets.
                            let taking = OwnedResources::acquire(&shared, 1, buckets - 2, 2);
                            let resources = if n == 1 { give_up(taking) } else { Some(block_on(taking)) };
                            if let Some(resources) = resources {
                                yield_now();
                                drop(resources.unwrap());
                            }
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                assert_eq!((shared.memory.pool.free(), shared.metrics.dirty_room.dirty()), (buckets, 0));
                assert!(
                    !shared.memory.pool.waiters().has_waiters()
                        && !shared.metrics.dirty_room.is_any_pressed()
                );
            },
            300,
        );
    }
}

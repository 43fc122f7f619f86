//! The wait queue: tasks that are parked until a resource is available, first come, first served.
//!
//! A task waits with a closure that takes the resource, or returns `None` if it is not available
//! yet. A new task does not overtake waiting ones; only the first in the queue tries. A task tries
//! again after it has queued, so no wake-up is lost; a task that gives up leaves no trace and wakes
//! the next. The queue is bounded.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use blocker::{Error, Result};

use crate::object::lock_ranks;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// The maximum number of tasks in a queue.
const WAITERS_MAX: usize = 64 * 1024;

/// A queue of tasks that wait for a kind of resource.
pub(crate) struct WaitQueue {
    /// The number of waiting tasks; written under the lock.
    waiting: AtomicU32,
    queue: Mutex<Queue>,
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self { waiting: AtomicU32::new(0), queue: Mutex::ranked(Queue::default(), &lock_ranks::WAITERS) }
    }
}

#[derive(Default)]
struct Queue {
    next_id: u64,
    /// The waiting tasks by increasing number: the first has waited longest.
    waiters: BTreeMap<u64, Waker>,
}

impl Queue {
    fn is_first(&self, id: u64) -> bool {
        self.waiters.first_key_value().is_some_and(|(first, _)| *first == id)
    }

    fn first_waker(&self) -> Option<Waker> {
        self.waiters.first_key_value().map(|(_, waker)| waker.clone())
    }
}

impl WaitQueue {
    /// Takes the resource now, unless other tasks wait for it or it is not available.
    #[inline]
    pub(crate) fn try_take<R>(&self, take: impl FnOnce() -> Option<R>) -> Option<R> {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return None;
        }
        let taken = take();
        // A task that has queued in the meantime may have found the resource in use because of
        // `take`.
        self.notify();
        taken
    }

    /// Returns whether tasks are waiting.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Wakes the first waiting task. Called after a resource was returned.
    #[inline]
    pub(crate) fn notify(&self) {
        if self.has_waiters() {
            self.wake_first();
        }
    }

    #[cold]
    fn wake_first(&self) {
        let first = lock(&self.queue).first_waker();
        first.into_iter().for_each(Waker::wake);
    }

    fn set_waiting(&self, queue: &Queue) {
        // Bounded by `WAITERS_MAX`.
        self.waiting.store(queue.waiters.len() as u32, Ordering::SeqCst);
    }
}

/// Waits in `queue` until `take` succeeds.
///
/// # Errors
/// `Retryable` if too many tasks are waiting.
pub(crate) fn wait<R, F>(queue: &WaitQueue, take: F) -> Wait<'_, F>
where
    F: FnMut() -> Option<R> + Unpin,
{
    Wait { queue, take, id: None }
}

/// The future of [`wait`]. Cancel safe: when dropped, the task no longer waits, and has taken
/// nothing.
pub(crate) struct Wait<'a, F> {
    queue: &'a WaitQueue,
    take: F,
    id: Option<u64>,
}

impl<R, F> Future for Wait<'_, F>
where
    F: FnMut() -> Option<R> + Unpin,
{
    type Output = Result<R>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<R>> {
        let this = self.get_mut();
        let is_first = match this.id {
            None => {
                if let Some(taken) = this.queue.try_take(&mut this.take) {
                    return Poll::Ready(Ok(taken));
                }
                let mut queue = lock(&this.queue.queue);
                if queue.waiters.len() >= WAITERS_MAX {
                    let why = "too many requests are waiting for memory";
                    return Poll::Ready(Err(Error::Retryable(why.into())));
                }
                let id = queue.next_id;
                queue.next_id += 1;
                queue.waiters.insert(id, cx.waker().clone());
                this.queue.set_waiting(&queue);
                this.id = Some(id);
                queue.waiters.len() == 1
            }
            Some(id) => {
                let mut queue = lock(&this.queue.queue);
                if let Some(waker) = queue.waiters.get_mut(&id) {
                    waker.clone_from(cx.waker());
                }
                queue.is_first(id)
            }
        };
        if !is_first {
            return Poll::Pending;
        }
        match (this.take)() {
            Some(taken) => {
                this.leave();
                Poll::Ready(Ok(taken))
            }
            None => Poll::Pending,
        }
    }
}

impl<F> Wait<'_, F> {
    /// Leaves the queue; the next task may succeed too.
    fn leave(&mut self) {
        let Some(id) = self.id.take() else { return };
        let next = {
            let mut queue = lock(&self.queue.queue);
            let was_first = queue.is_first(id);
            queue.waiters.remove(&id);
            self.queue.set_waiting(&queue);
            was_first.then(|| queue.first_waker()).flatten()
        };
        next.into_iter().for_each(Waker::wake);
    }
}

impl<F> Drop for Wait<'_, F> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A number of permits, and the tasks that wait for them.
pub(crate) struct Permits {
    taken: AtomicU32,
    count: u32,
    queue: WaitQueue,
}

impl Permits {
    pub(crate) fn new(count: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Self { taken: AtomicU32::new(0), count, queue: WaitQueue::default() }
    }

    /// Waits for a permit, which is returned when it is dropped.
    pub(crate) async fn acquire<H>(permits: H) -> Result<Permit<H>>
    where
        H: Deref<Target = Self> + Clone + Unpin,
    {
        wait(&permits.queue, || {
            let up = |taken: u32| (taken < permits.count).then(|| taken + 1);
            permits.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, up).ok()
        })
        .await?;
        Ok(Permit(permits.clone()))
    }
}

/// A permit of [`Permits`].
pub(crate) struct Permit<H: Deref<Target = Permits>>(H);

impl<H: Deref<Target = Permits>> Drop for Permit<H> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::SeqCst);
        self.0.queue.notify();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn first_come_first_served_and_no_overtaking() {
        let permits = Arc::new(Permits::new(1));
        let mut cx = Context::from_waker(Waker::noop());
        let take = |permits: &Arc<Permits>| Box::pin(Permits::acquire(Arc::clone(permits)));
        let mut first = take(&permits);
        let Poll::Ready(Ok(held)) = first.as_mut().poll(&mut cx) else { panic!("one is there") };
        let (mut second, mut third) = (take(&permits), take(&permits));
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(third.as_mut().poll(&mut cx).is_pending());
        drop(held);
        assert!(third.as_mut().poll(&mut cx).is_pending(), "not before the second");
        drop(second);
        assert!(third.as_mut().poll(&mut cx).is_ready(), "the second gave up");
        assert!(!permits.queue.has_waiters());
    }

    /// A poll, or the end, of a wait costs the same however many others wait: otherwise this test
    /// takes minutes.
    #[test]
    fn as_many_wait_as_may_and_each_gives_up() {
        let permits = Arc::new(Permits::new(0));
        let mut cx = Context::from_waker(Waker::noop());
        let take = || Box::pin(Permits::acquire(Arc::clone(&permits)));
        let mut waiting: Vec<_> = (0..WAITERS_MAX).map(|_| take()).collect();
        for _ in 0..3 {
            for each in waiting.iter_mut().rev() {
                assert!(each.as_mut().poll(&mut cx).is_pending());
            }
        }
        assert!(matches!(take().as_mut().poll(&mut cx), Poll::Ready(Err(Error::Retryable(_)))));
        // Drop waits from the middle, the end and the front.
        while !waiting.is_empty() {
            drop(waiting.swap_remove(waiting.len() / 2));
        }
        assert!(!permits.queue.has_waiters());
    }
}

#[cfg(all(test, shuttle))]
mod shuttle_tests {
    use super::*;
    use crate::sync::Arc;

    /// All tasks get a permit, even if some give up; none is left waiting.
    #[test]
    fn no_wake_up_is_lost() {
        shuttle::check_random(
            || {
                let permits = Arc::new(Permits::new(1));
                let threads: Vec<_> = (0..3)
                    .map(|n| {
                        let permits = Arc::clone(&permits);
                        shuttle::thread::spawn(move || {
                            let mut taking = Box::pin(Permits::acquire(permits));
                            let mut cx = Context::from_waker(Waker::noop());
                            if n > 0 {
                                drop(shuttle::future::block_on(taking));
                            } else if let Poll::Ready(permit) = taking.as_mut().poll(&mut cx) {
                                drop(permit);
                            }
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                assert!(!permits.queue.has_waiters());
            },
            2_000,
        );
    }
}

//! What a change will use, held across waits: buckets, and room for dirty data.

use std::future::{Future, poll_fn};
use std::task::Poll;

use blocker::Result;

use super::Shared;
use super::evict::{reserve, reserve_up_to};
use crate::object::memory::pool::{Detached, Reserved};
use crate::object::namespace_numbers::OTHERS;
use crate::object::state::{Loaded, Missing, Resources};
use crate::object::tasks::wait_queue::wait;
use crate::sync::Arc;

/// See the module. Dropped, it gives back what is left.
pub(crate) struct OwnedResources {
    shared: Arc<Shared>,
    reserved: Option<Detached>,
    credits: u32,
    /// The number of the namespace that the credits are taken for.
    namespace: u16,
}

impl OwnedResources {
    pub(crate) fn none(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), reserved: None, credits: 0, namespace: OTHERS }
    }

    /// Waits for `buckets` free buckets, and room for `credits` dirty ones of the namespace with this number.
    /// While it waits for room it holds nothing, and while it waits for buckets only room, which other waiters
    /// need in the same order.
    ///
    /// # Errors
    /// `Retryable` if too many tasks wait already, `Unsupported` if the background of the cache has ended.
    pub(crate) async fn acquire(
        shared: &Arc<Shared>,
        namespace: u16,
        buckets: u32,
        credits: u32,
    ) -> Result<Self> {
        let mut resources = Self::none(shared);
        resources.namespace = namespace;
        if !take_room_at_once(shared, namespace, credits) {
            shared.metrics.count_throttled(namespace);
            flushed_meanwhile(shared, wait_for_room(shared, namespace, credits)).await?;
        }
        resources.credits = credits;
        let taking = wait(shared.pool.waiters(), || reserve(shared, buckets).map(Reserved::detach));
        resources.reserved = Some(flushed_meanwhile(shared, taking).await?);
        Ok(resources)
    }

    /// Takes up to `buckets` buckets that can be had at once.
    pub(crate) fn at_hand(shared: &Arc<Shared>, buckets: u32) -> Self {
        let reserved = reserve_up_to(shared, buckets).detach();
        // A waiting task may have found the buckets in use that the call above looked at.
        shared.pool.waiters().notify();
        let mut resources = Self::none(shared);
        resources.reserved = Some(reserved);
        resources
    }

    /// Whether `missing` is more than what is held.
    pub(crate) fn lacks(&self, missing: &Missing) -> bool {
        missing.buckets > self.reserved.as_ref().map_or(0, Detached::count) || missing.credits > self.credits
    }

    /// Calls `job` with the resources, and keeps what it leaves.
    pub(crate) fn with<R>(
        &mut self,
        loaded: Option<&Loaded>,
        job: impl FnOnce(&mut Resources<'_>) -> R,
    ) -> R {
        let pool = &self.shared.pool;
        let reserved = self.reserved.take().map(|detached| Reserved::attach(pool, detached));
        let reserved = reserved.unwrap_or_else(|| Reserved::none(pool));
        let mut resources = Resources { reserved, credits: self.credits, loaded };
        let result = job(&mut resources);
        self.credits = resources.credits;
        self.reserved = Some(resources.reserved.detach());
        result
    }
}

impl Drop for OwnedResources {
    fn drop(&mut self) {
        drop(self.reserved.take().map(|detached| Reserved::attach(&self.shared.pool, detached)));
        self.shared.metrics.dirty_room.give_back(self.namespace, self.credits);
    }
}

/// Waits, and wakes the background once the wait has begun: it flushes while tasks wait.
///
/// # Errors
/// As the wait, or `Unsupported` if the background has ended.
pub(crate) async fn flushed_meanwhile<T>(
    shared: &Shared,
    wait: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut wait = std::pin::pin!(wait);
    poll_fn(|cx| {
        let poll = wait.as_mut().poll(cx);
        match poll.is_pending().then(|| shared.background.wake_for_waiter()) {
            Some(Err(error)) => Poll::Ready(Err(error)),
            _ => poll,
        }
    })
    .await
}

/// Takes room for `credits` dirty buckets of a namespace, unless there is none or other tasks wait for it.
pub(crate) fn take_room_at_once(shared: &Shared, namespace: u16, credits: u32) -> bool {
    let room = &shared.metrics.dirty_room;
    let taking = || room.take(namespace, credits).then_some(());
    room.waiters(room.pool_of(namespace)).try_take(taking).is_some()
}

/// Waits for room for `credits` dirty buckets of a namespace.
///
/// # Errors
/// `Retryable` if too many tasks wait already.
async fn wait_for_room(shared: &Arc<Shared>, namespace: u16, credits: u32) -> Result<()> {
    let room = &shared.metrics.dirty_room;
    let _waits = room.begin_wait();
    loop {
        let pool = room.pool_of(namespace);
        let taking = || {
            // Its room may come from another pool by now: then this is the wrong place to wait.
            let has_moved = room.pool_of(namespace) != pool;
            (has_moved || room.take(namespace, credits)).then_some(has_moved)
        };
        if !wait(room.waiters(pool), taking).await? {
            return Ok(());
        }
    }
}

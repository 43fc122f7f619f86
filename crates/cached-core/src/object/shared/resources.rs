//! The resources of a change or a load, held across waits: free buckets, obtained by evicting clean
//! ones, and room for dirty data.

use std::future::{Future, poll_fn};
use std::task::Poll;

use blocker::Result;

use super::Shared;
use crate::object::config::{OTHERS, Share};
use crate::object::memory::pool::{Detached, Reserved};
use crate::object::memory::queue::bucket_hash;
use crate::object::state::{Loaded, Missing, Object, Resources};
use crate::object::tasks::wait_queue::wait;
use crate::sync::{Arc, Ordering};

/// The resources of a change, held across waits: buckets, and room for dirty data. When dropped,
/// the unused rest is returned.
pub(crate) struct OwnedResources {
    shared: Arc<Shared>,
    reserved: Option<Detached>,
    credits: u32,
    /// The number of the namespace for which the credits are taken.
    namespace: u16,
}

impl OwnedResources {
    pub(crate) fn none(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), reserved: None, credits: 0, namespace: OTHERS }
    }

    /// Waits for `buckets` free buckets, and room for `credits` dirty buckets of a namespace. While
    /// waiting for room it holds nothing; while waiting for buckets it holds only room, which other
    /// waiters acquire in the same order.
    ///
    /// # Errors
    /// `Retryable` if too many tasks are waiting, `Unsupported` if the background of the cache has
    /// ended.
    pub(crate) async fn acquire(
        shared: &Arc<Shared>,
        namespace: u16,
        buckets: u32,
        credits: u32,
    ) -> Result<Self> {
        let mut resources = Self::none(shared);
        resources.namespace = namespace;
        if !shared.metrics.dirty_room.take_at_once(namespace, credits) {
            shared.metrics.of(namespace).throttled.increment();
            flushed_meanwhile(shared, wait_for_room(shared, namespace, credits)).await?;
        }
        resources.credits = credits;
        let taking = wait(shared.memory.pool.waiters(), || reserve(shared, buckets).map(Reserved::detach));
        resources.reserved = Some(flushed_meanwhile(shared, taking).await?);
        Ok(resources)
    }

    /// Takes up to `buckets` buckets that are available at once.
    pub(crate) fn at_hand(shared: &Arc<Shared>, buckets: u32) -> Self {
        let reserved = reserve_up_to(shared, buckets).detach();
        // A waiting task may have missed the buckets that the call above was examining.
        shared.memory.pool.waiters().notify();
        let mut resources = Self::none(shared);
        resources.reserved = Some(reserved);
        resources
    }

    /// Returns whether `missing` exceeds the held resources.
    pub(crate) fn lacks(&self, missing: &Missing) -> bool {
        let reserved = self.reserved.as_ref().map_or(0, |reserved| reserved.count);
        missing.buckets > reserved || missing.credits > self.credits
    }

    /// Calls `job` with the resources, and keeps the rest.
    pub(crate) fn with<R>(
        &mut self,
        loaded: Option<&Loaded>,
        job: impl FnOnce(&mut Resources<'_>) -> R,
    ) -> R {
        let pool = &self.shared.memory.pool;
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
        drop(self.reserved.take().map(|detached| Reserved::attach(&self.shared.memory.pool, detached)));
        self.shared.metrics.dirty_room.give_back(self.namespace, self.credits);
    }
}

/// Waits, and wakes the background once the wait has begun: it flushes while tasks wait.
///
/// # Errors
/// Errors of the wait, or `Unsupported` if the background has ended.
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
            // The namespace may use another pool by now: then this is the wrong queue.
            let has_moved = room.pool_of(namespace) != pool;
            (has_moved || room.take(namespace, credits)).then_some(has_moved)
        };
        if !wait(room.waiters(pool), taking).await? {
            return Ok(());
        }
    }
}

/// The number of buckets that are evicted beyond the need, so that the next few changes find free
/// ones.
const EVICT_AHEAD: u32 = 4;

/// Takes `count` buckets, evicting clean ones if too few are free; takes fewer if none can be
/// evicted.
pub(crate) fn reserve_up_to(shared: &Shared, count: u32) -> Reserved<'_> {
    if !shared.memory.shares.is_common_only() {
        keep_maxima(shared, count);
    }
    let mut reserved = shared.memory.pool.reserve_up_to(count);
    let mut tries = 0;
    while reserved.count() < count && tries < 2 * count + 64 {
        tries += 1;
        if !evict_one(shared) {
            break;
        }
        if shared.memory.pool.free() > 0 {
            reserved.merge(shared.memory.pool.reserve_up_to(count - reserved.count()));
        }
    }
    if tries > 0 && reserved.count() == count && shared.memory.pool.free() < EVICT_AHEAD {
        (0..EVICT_AHEAD).all(|_| evict_one(shared));
    }
    reserved
}

/// Takes exactly `count` buckets, or none. Called only by
/// [`WaitQueue`](crate::object::tasks::wait_queue::WaitQueue), which then lets other waiters try.
pub(crate) fn reserve(shared: &Shared, count: u32) -> Option<Reserved<'_>> {
    let reserved = reserve_up_to(shared, count);
    if reserved.count() == count {
        return Some(reserved);
    }
    reserved.put_back();
    None
}

/// Evicts from namespaces that exceed their maximum: a little more than the `count` buckets wanted
/// now, so that the namespaces return to their maxima while they are used.
fn keep_maxima(shared: &Shared, count: u32) {
    for _ in 0..u64::from(count) + u64::from(EVICT_AHEAD) {
        // A namespace that has no clean bucket to evict does not hinder the others.
        if !evict_from(shared, shared.memory.shares.above_maximum(&shared.control.namespaces)) {
            return;
        }
    }
}

/// Evicts a clean bucket, or finds that the policy's choice cannot be evicted at present. Returns
/// false if there is no clean bucket.
fn evict_one(shared: &Shared) -> bool {
    match shared.memory.shares.is_common_only() {
        true => evict_from(shared, std::iter::once(Share::COMMON)),
        false => evict_from(
            shared,
            shared.memory.shares.by_excess(&shared.memory.pool, &shared.control.namespaces),
        ),
    }
}

/// Evicts one bucket as [`evict_one`] does, from the first of these shares that has a bucket in a
/// queue.
fn evict_from(shared: &Shared, mut shares: impl Iterator<Item = Share>) -> bool {
    // A bucket in a queue has an owner; if that changes this moment, any name will do.
    let hash_of = |bucket: u32| {
        let owner = shared.memory.pool.meta(bucket).owner();
        owner.map_or(0, |(node, at)| bucket_hash(shared.objects.index.node(node).hash(), at))
    };
    let first_shard = shared.memory.next_shard.fetch_add(1, Ordering::Relaxed) as usize;
    let victim =
        |share| Some((share, shared.memory.queues.victim(&shared.memory.pool, share, first_shard, hash_of)?));
    let Some((share, bucket)) = shares.find_map(victim) else { return false };
    let Some((node, at)) = shared.memory.pool.meta(bucket).owner() else { return true };
    let owner = shared.objects.index.node(node);
    let env = shared.env(node, owner.hash());
    // The owner's section is only tried: another thread may be inside, and may be waiting for us.
    let evict = |object: &mut Object| {
        let goes = object.evict(&env, at, bucket);
        if !goes {
            object.note_kept();
        }
        goes
    };
    let tried = match owner.serial.try_run(evict) {
        Ok(goes) => Some(goes),
        Err(evict) => {
            // The miss is recorded first, then the section is tried again: a thread inside either
            // leaves before that or sees the record.
            shared.memory.note_missed_eviction();
            owner.serial.try_run(evict).ok()
        }
    };
    if tried == Some(true) {
        shared.metrics.counts.bucket_evictions.increment();
        shared.memory.shares.count_eviction(
            &shared.memory.pool,
            &shared.memory.queues,
            &shared.control.namespaces,
        );
    } else {
        shared.memory.queues.put_back(&shared.memory.pool, share, bucket, hash_of);
    }
    if tried.is_some() {
        shared.section_ended();
    }
    true
}

/// Moves the clean buckets of a namespace that has got its own share to the share's queues. Buckets
/// of objects that a thread is using at that moment, and buckets that an evicting thread has taken
/// out, stay where they are until they leave by themselves.
pub(crate) fn move_buckets(shared: &Shared, namespace: u16) {
    let share = shared.memory.queues.share_of(namespace);
    for bucket in shared.memory.pool.numbers() {
        let meta = shared.memory.pool.meta(bucket);
        if !shared.memory.queues.is_elsewhere(meta, share) {
            continue;
        }
        let Some((node, at)) = meta.owner() else { continue };
        if shared.objects.index.namespace_of(node) != namespace {
            continue;
        }
        let owner = shared.objects.index.node(node);
        let env = shared.env(node, owner.hash());
        let moved = owner.serial.try_run(|object| {
            if object.has_clean(at, bucket) && env.namespace == namespace {
                shared.memory.queues.move_to(&shared.memory.pool, bucket, bucket_hash(env.hash, at), share);
            }
        });
        if moved.is_ok() {
            shared.section_ended();
        }
    }
}

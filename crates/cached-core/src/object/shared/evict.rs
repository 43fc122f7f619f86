//! Making room: free buckets for a change or a load, by evicting clean ones.

use super::Shared;
use crate::object::control::metrics::add;
use crate::object::memory::pool::Reserved;
use crate::object::memory::queue::bucket_hash;
use crate::object::share::Share;
use crate::object::state::Object;

/// Buckets that are evicted beyond what is needed, so that the next few changes find free ones.
const EVICT_AHEAD: u32 = 4;

/// Takes `count` buckets, evicting clean ones if too few are free; fewer if none can be evicted.
pub(crate) fn reserve_up_to(shared: &Shared, count: u32) -> Reserved<'_> {
    if !shared.shares.is_common_only() {
        keep_maxima(shared, count);
    }
    let mut reserved = shared.pool.reserve_up_to(count);
    let mut tries = 0;
    while reserved.count() < count && tries < 2 * count + 64 {
        tries += 1;
        if !evict_one(shared) {
            break;
        }
        if shared.pool.free() > 0 {
            reserved.merge(shared.pool.reserve_up_to(count - reserved.count()));
        }
    }
    if tries > 0 && reserved.count() == count && shared.pool.free() < EVICT_AHEAD {
        (0..EVICT_AHEAD).all(|_| evict_one(shared));
    }
    reserved
}

/// Takes exactly `count` buckets, or none. Called by [`WaitQueue`](crate::object::tasks::wait_queue::WaitQueue) alone, which
/// lets other waiters try afterwards.
pub(crate) fn reserve(shared: &Shared, count: u32) -> Option<Reserved<'_>> {
    let reserved = reserve_up_to(shared, count);
    if reserved.count() == count {
        return Some(reserved);
    }
    reserved.put_back();
    None
}

/// Evicts from namespaces that have more memory than they may have: a little more than the `count` buckets
/// that are wanted now, so that they come back to their maxima while they are used.
fn keep_maxima(shared: &Shared, count: u32) {
    for _ in 0..u64::from(count) + u64::from(EVICT_AHEAD) {
        // One that has nothing clean to evict is not in the way of the others.
        if !evict_from(shared, shared.shares.above_maximum(&shared.namespaces)) {
            return;
        }
    }
}

/// Evicts a clean bucket, or finds that the policy's choice cannot go at present. Returns false if there is
/// none.
fn evict_one(shared: &Shared) -> bool {
    match shared.shares.is_common_only() {
        true => evict_from(shared, std::iter::once(Share::COMMON)),
        false => evict_from(shared, shared.shares.by_excess(&shared.pool, &shared.namespaces)),
    }
}

/// As [`evict_one`], from the first of these shares that has a bucket in a queue.
fn evict_from(shared: &Shared, mut shares: impl Iterator<Item = Share>) -> bool {
    // A bucket in a queue has an owner; if that changes this moment, any name will do.
    let hash_of = |bucket: u32| {
        let owner = shared.pool.meta(bucket).owner();
        owner.map_or(0, |(node, at)| bucket_hash(shared.index.node(node).hash(), at))
    };
    let first_shard = shared.next_queue_shard();
    let victim = |share| Some((share, shared.queues.victim(&shared.pool, share, first_shard, hash_of)?));
    let Some((share, bucket)) = shares.find_map(victim) else { return false };
    let Some((node, at)) = shared.pool.meta(bucket).owner() else { return true };
    let owner = shared.index.node(node);
    let env = shared.env(node, owner.hash());
    // The owner is only tried: another thread may be in its exclusive section, and may be waiting for us.
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
            // Noted first, and tried once more: a thread inside either leaves before that, or sees the note.
            shared.note_missed_eviction();
            owner.serial.try_run(evict).ok()
        }
    };
    if tried == Some(true) {
        add(&shared.metrics.bucket_evictions, 1);
        shared.shares.count_eviction(&shared.pool, &shared.queues, &shared.namespaces);
    } else {
        shared.queues.put_back(&shared.pool, share, bucket, hash_of);
    }
    if tried.is_some() {
        shared.section_ended();
    }
    true
}

//! Making room: free buckets for a change or a load, by evicting clean ones.

use super::metrics::add;
use super::pool::Reserved;
use super::queue::bucket_hash;
use super::shared::Shared;
use super::state::Object;

/// Buckets that are evicted beyond what is needed, so that the next few changes find free ones.
const EVICT_AHEAD: u32 = 4;

/// Takes `count` buckets, evicting clean ones if too few are free; fewer if none can be evicted.
pub(crate) fn reserve_up_to(shared: &Shared, count: u32) -> Reserved<'_> {
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

/// Takes exactly `count` buckets, or none. Called by [`WaitQueue`](super::wait_queue::WaitQueue) alone, which
/// lets other waiters try afterwards.
pub(crate) fn reserve(shared: &Shared, count: u32) -> Option<Reserved<'_>> {
    let reserved = reserve_up_to(shared, count);
    if reserved.count() == count {
        return Some(reserved);
    }
    reserved.put_back();
    None
}

/// Evicts a clean bucket, or finds that the policy's choice cannot go at present. Returns false if there is
/// none.
fn evict_one(shared: &Shared) -> bool {
    // A bucket in a queue has an owner; if that changes this moment, any name will do.
    let hash_of = |bucket: u32| {
        let owner = shared.pool.meta(bucket).owner();
        owner.map_or(0, |(node, at)| bucket_hash(shared.index.node(node).hash(), at))
    };
    let first_shard = shared.next_queue_shard();
    let Some(bucket) = shared.queues.victim(&shared.pool, first_shard, hash_of) else { return false };
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
    } else {
        shared.queues.put_back(&shared.pool, bucket, hash_of);
    }
    if tried.is_some() {
        shared.section_ended();
    }
    true
}

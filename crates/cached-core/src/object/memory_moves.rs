//! The cache as one half of a memory that it shares with a byte-keyed store: what the arbiter sees of it, and
//! how buckets go and come.
//!
//! The buckets that go are those that the eviction policy would evict next. What is dirty or pinned is in no
//! queue, so it stays: the least memory of a cache is sized so that it has room for all that may be dirty.

use blocker::BUCKET_BYTES;

use super::cache::ObjectCache;
use super::shared::Shared;
use super::shared::evict::reserve_up_to;
use crate::sync::Ordering;

/// What an arbiter sees of a cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectNeeds {
    /// The memory of all buckets, in bytes.
    pub(crate) bytes: u64,
    /// Of that, what is free.
    pub(crate) spare_bytes: u64,
    /// The number of buckets loaded again that a quarter more of the most memory would have kept, since the
    /// start.
    pub(crate) ghost_hits: u64,
    /// About how many buckets have been filled since the start.
    pub(crate) stored: u64,
    /// What the load of a bucket takes, lately; 0 before the first.
    pub(crate) load_nanos: u64,
}

impl ObjectCache {
    /// Returns what an arbiter needs to know.
    pub(crate) fn needs(&self) -> ObjectNeeds {
        let shared = self.shared();
        let pool = &shared.pool;
        let used = pool.count().saturating_sub(pool.free());
        ObjectNeeds {
            bytes: self.bytes(),
            spare_bytes: u64::from(pool.free()) * BUCKET_BYTES,
            ghost_hits: shared.shares.ghost_hits(&shared.queues),
            stored: shared.metrics.bucket_evictions.load(Ordering::Relaxed) + u64::from(used),
            load_nanos: shared.shares.load_nanos(),
        }
    }

    /// Returns the memory of all buckets, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.shared().pool.count()) * BUCKET_BYTES
    }

    /// Returns the least that this can be.
    pub(crate) fn bytes_min(&self) -> u64 {
        u64::from(self.shared().pool.count_min()) * BUCKET_BYTES
    }

    /// Returns the most that this can be.
    pub(crate) fn bytes_max(&self) -> u64 {
        u64::from(self.shared().pool.count_max()) * BUCKET_BYTES
    }

    /// Gives the memory of up to `count` buckets up; returns how many. Never takes a bucket for which a task
    /// waits, and never waits.
    ///
    /// # Errors
    /// If the system does not take some of the memory back; those buckets are free.
    pub(crate) fn give_buckets(&self, count: u32) -> std::io::Result<u32> {
        let shared = self.shared();
        let given = give(shared, count);
        shared.shares.resize(shared.pool.count());
        given
    }

    /// Takes the memory of up to `count` buckets; returns how many, less if the cache has the most then.
    pub(crate) fn take_buckets(&self, count: u32) -> u32 {
        let shared = self.shared();
        let taken = shared.pool.take_back(count);
        shared.shares.resize(shared.pool.count());
        taken
    }
}

fn give(shared: &Shared, count: u32) -> std::io::Result<u32> {
    let fresh = shared.pool.give_fresh(count);
    if fresh == count || shared.pool.waiters().has_waiters() {
        return Ok(fresh);
    }
    let reserved = reserve_up_to(shared, count - fresh);
    if shared.pool.waiters().has_waiters() {
        // A task has found nothing meanwhile: it gets them, by the drop.
        return Ok(fresh);
    }
    Ok(fresh + shared.pool.give_up(reserved)?)
}

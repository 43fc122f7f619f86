//! The choice of the bucket to evict: queues of clean buckets, under the same policies as the
//! regions of the byte-keyed store.
//!
//! Only evictable buckets are in a queue: a bucket leaves it when it becomes dirty and re-enters
//! when it is stored, so dirty data never evict data that are read. Queues are linked through
//! [`Meta`](super::pool::Meta), O(1) each way, and divided into shards by the bucket's identity
//! (object and slot), each with its own policy, ghosts and lock. A hit only sets bits in the
//! bucket's metadata.
//!
//! A namespace with its own share of the memory has its own queues; all others use the common ones
//! (`control/shares.rs` decides which share gives up a bucket).

use super::pool::{Meta, Pool};
use crate::arena::prefetch;
use crate::ensure;
use crate::insight::{Event, Insight, Sample, Sampling};
use crate::object::config::{NAMESPACES_MAX, SHARES, Share};
use crate::object::lock_ranks;
use crate::policy;
use crate::policy::{Candidate, Insertion, Policy, QUEUES_MAX, QueueId, Verdict};
use crate::sync::{AtomicU8, AtomicU64, Mutex, Ordering, lock};

/// The minimum number of buckets per shard: with fewer, a policy sees too little.
const SHARD_BUCKETS_MIN: u32 = 8192;
const SHARDS_MAX: u32 = 16;
/// The number of sample queues; threads share them if there are more threads.
const SAMPLE_QUEUES: usize = 8;
/// A flag in `Meta::bits`, next to the policy's bits, for clean buckets only: the bucket was read
/// ahead and has not been read.
pub(crate) const UNREAD: u8 = 1 << 3;
/// The first read of the bucket triggers the next read-ahead.
pub(crate) const MARKED: u8 = 1 << 4;
/// The bucket bypasses the cache: once it has been read to its end, it is the next to be evicted.
pub(crate) const PASSING: u8 = 1 << 5;

/// All queues.
pub(crate) struct Queues {
    /// The shards of the common share, then those of the next, and so on.
    shards: Box<[Mutex<Shard>]>,
    /// The number of shards of each share, a power of two.
    shards_each: usize,
    /// The share of each namespace, by its number.
    shares: Box<[AtomicU8]>,
    /// For each shard, the result of a hit for each of the eight values of a bucket's policy bits,
    /// a byte each. Updated whenever the shard's policy has chosen a victim or reports a change.
    hits: Box<[AtomicU64]>,
    /// The memory for the history of a share's policies, in bytes.
    pub(crate) policy_bytes_each: usize,
    pub(crate) insight: Insight,
}

/// Returns the hash that identifies a bucket's content; it is always the same for the same object
/// and slot.
#[inline]
pub(crate) fn bucket_hash(object_hash: u64, slot: u32) -> u64 {
    (object_hash ^ u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

impl Queues {
    /// Creates queues for `buckets` buckets under the policy called `name`; `None` if there is no
    /// such policy.
    pub(crate) fn new(name: &str, buckets: u32) -> Option<Self> {
        let count = (buckets / SHARD_BUCKETS_MIN).clamp(1, SHARDS_MAX);
        let count = 1 << count.ilog2();
        let shard_of = |share: u8| {
            let policy = policy::by_name(name)?;
            let shard = Shard { policy, lists: Default::default(), share: Share(share) };
            Some(Mutex::ranked(shard, &lock_ranks::QUEUE))
        };
        let shards = (0..SHARES * count as usize).map(|at| shard_of((at / count as usize) as u8));
        let shards = shards.collect::<Option<Box<[_]>>>()?;
        let mut queues = Self {
            hits: shards.iter().map(|_| AtomicU64::new(0)).collect(),
            shards_each: count as usize,
            shares: (0..=NAMESPACES_MAX).map(|_| AtomicU8::new(Share::COMMON.0)).collect(),
            shards,
            policy_bytes_each: 0,
            insight: Insight::off(),
        };
        let memory_bytes = u64::from(buckets / count) * POLICY_BYTES;
        queues.policy_bytes_each = queues.prepare(Share::COMMON, memory_bytes as usize);
        Some(queues)
    }

    /// Prepares the policies of a share for `memory_bytes` per shard; returns how much memory they
    /// take.
    fn prepare(&self, share: Share, memory_bytes: usize) -> usize {
        let own = self.shards_of(share);
        let attach = |at: usize| {
            let mut shard = lock(&self.shards[at]);
            let bytes = shard.policy.attach(memory_bytes, POLICY_BYTES as usize);
            self.hits[at].store(tabulated(&*shard.policy), Ordering::Relaxed);
            bytes
        };
        own.map(attach).sum()
    }

    /// Prepares the queues of a share, still empty, for use in a cache of `buckets`.
    ///
    /// The policies of each share remember as much as if the whole memory were theirs, so that the
    /// benefits of more memory are comparable between shares.
    pub(crate) fn open(&self, share: Share, buckets: u32) {
        self.prepare(share, buckets as usize / self.shards_each * POLICY_BYTES as usize);
    }

    /// Assigns a share to a namespace; buckets of the namespace that enter a queue from now on go
    /// there.
    pub(crate) fn set_share(&self, namespace: u16, share: Share) {
        self.shares[usize::from(namespace)].store(share.0, Ordering::SeqCst);
    }

    /// Returns the share of the namespace with this number.
    pub(crate) fn share_of(&self, namespace: u16) -> Share {
        Share(self.shares[usize::from(namespace)].load(Ordering::Relaxed))
    }

    /// Returns whether the bucket is in a queue of a share other than `share`.
    pub(crate) fn is_elsewhere(&self, meta: &Meta, share: Share) -> bool {
        let place = meta.place.load(Ordering::Relaxed);
        is_linked(place) && share_of(place) != share
    }

    /// Moves a bucket to the queues of `share` with its bits, if it is in a queue. A bucket that an
    /// evicting thread has taken out is evicted, or put back where it was. The caller is in the
    /// exclusive section of the bucket's object.
    pub(crate) fn move_to(&self, pool: &Pool, bucket: u32, hash: u64, share: Share) {
        let meta = pool.meta(bucket);
        let mut shard = lock(self.shard_in(meta, hash));
        if !is_linked(meta.place.load(Ordering::Relaxed)) {
            return;
        }
        shard.remove(pool, bucket);
        drop(shard);
        lock(self.shard(share, hash)).push(pool, bucket, QueueId::ENTRY);
    }

    /// Returns the number of ghost hits of a share since the start: buckets that re-entered its
    /// queues so soon after their eviction that a quarter more of all memory would have kept them.
    pub(crate) fn ghost_hits(&self, share: Share) -> u64 {
        let hits = |at: usize| lock(&self.shards[at]).policy.ghost_hits().unwrap_or(0);
        self.shards_of(share).map(hits).sum()
    }

    fn shards_of(&self, share: Share) -> std::ops::Range<usize> {
        let first = usize::from(share.0) * self.shards_each;
        first..first + self.shards_each
    }

    /// Enables the simulation of memory sizes other than `memory_bytes` under the policy called
    /// `name`.
    pub(crate) fn with_insight(self, name: &str, memory_bytes: u64, sampling: Sampling) -> Self {
        Self { insight: Insight::new(name, memory_bytes, SAMPLE_QUEUES, sampling), ..self }
    }

    /// Samples an event of the bucket with the hash `hash` of the object in this node.
    #[cold]
    #[inline(never)]
    fn sample(&self, hash: u64, node: u32, event: Event) {
        self.insight.sampler.push(Sample::new(hash, event).entry(POLICY_BYTES, 0).owner(node));
    }

    /// Samples a miss: the bucket with the hash `hash` is loaded from the store.
    pub(crate) fn missed(&self, hash: u64, node: u32) {
        if self.insight.sampler.takes(hash) {
            self.sample(hash, node, Event::Absent);
        }
    }

    /// Samples that the content with the hash `hash` is gone.
    pub(crate) fn removed(&self, hash: u64, node: u32) {
        if self.insight.sampler.takes(hash) {
            self.sample(hash, node, Event::Delete);
        }
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn policy_name(&self) -> &'static str {
        lock(&self.shards[0]).policy.name()
    }

    /// Returns the shard of a hash, by its upper bits; the policy's ghosts mix the hash again.
    #[inline]
    fn shard_of(&self, share: Share, hash: u64) -> usize {
        usize::from(share.0) * self.shards_each + ((hash >> 48) as usize & (self.shards_each - 1))
    }

    fn shard(&self, share: Share, hash: u64) -> &Mutex<Shard> {
        &self.shards[self.shard_of(share, hash)]
    }

    /// Returns the shard that has a bucket, or had it last. The caller is in the exclusive section
    /// of the bucket's object: only there a bucket changes its share.
    fn shard_in(&self, meta: &Meta, hash: u64) -> &Mutex<Shard> {
        self.shard(share_of(meta.place.load(Ordering::Relaxed)), hash)
    }

    /// Records a read of the bucket with the hash `hash`. Returns true if the bucket has flags: in
    /// this case its policy was not notified.
    #[inline]
    pub(crate) fn hit(&self, meta: &Meta, hash: u64) -> bool {
        if self.insight.sampler.takes(hash) {
            self.sample(hash, node_of(meta), Event::Hit);
        }
        let bits = meta.bits.load(Ordering::Relaxed);
        let share = share_of(meta.place.load(Ordering::Relaxed));
        let table = self.hits[self.shard_of(share, hash)].load(Ordering::Relaxed).to_le_bytes();
        let after = table[usize::from(bits & 7)];
        if after != bits {
            if bits > 7 {
                return true;
            }
            meta.bits.store(after, Ordering::Relaxed);
        }
        false
    }

    /// Records the first read of the bucket with the hash `hash`, which was read ahead.
    pub(crate) fn read_first(&self, meta: &Meta, hash: u64) {
        let shard = lock(self.shard_in(meta, hash));
        let insertion = Insertion { hash, bytes: POLICY_BYTES, replaces: None };
        set_policy_bits(meta, shard.policy.insert(&insertion));
    }

    /// Adds a clean bucket of an object in `namespace`. `is_new`: its content was not in the cache
    /// before. The caller is in the object's exclusive section.
    pub(crate) fn link(&self, pool: &Pool, bucket: u32, hash: u64, is_new: bool, namespace: u16) {
        let share = self.share_of(namespace);
        let at = self.shard_of(share, hash);
        let mut shard = lock(&self.shards[at]);
        let meta = pool.meta(bucket);
        if is_new {
            let insertion = Insertion { hash, bytes: POLICY_BYTES, replaces: None };
            if shard.policy.advance(POLICY_BYTES) {
                self.hits[at].store(tabulated(&*shard.policy), Ordering::Relaxed);
            }
            meta.bits.store(shard.policy.insert(&insertion) & 7, Ordering::Relaxed);
        }
        shard.push(pool, bucket, QueueId::ENTRY);
        if self.insight.sampler.takes(hash) {
            self.sample(hash, node_of(meta), if is_new { Event::Store } else { Event::Return });
        }
    }

    /// Adds a clean bucket of an object in `namespace` that was read ahead, with these flags. No
    /// client has read the bucket yet, so the bucket is not reported to the policy, and is among the
    /// first to be evicted.
    pub(crate) fn link_ahead(&self, pool: &Pool, bucket: u32, hash: u64, flags: u8, namespace: u16) {
        let at = self.shard_of(self.share_of(namespace), hash);
        let mut shard = lock(&self.shards[at]);
        if shard.policy.advance(POLICY_BYTES) {
            self.hits[at].store(tabulated(&*shard.policy), Ordering::Relaxed);
        }
        pool.meta(bucket).bits.store(flags, Ordering::Relaxed);
        shard.push(pool, bucket, QueueId::ENTRY);
    }

    /// Sets flags of a clean bucket that has just been added.
    pub(crate) fn flag(&self, meta: &Meta, hash: u64, flags: u8) {
        let _shard = lock(self.shard_in(meta, hash));
        meta.bits.fetch_or(flags, Ordering::Relaxed);
    }

    /// Makes a bucket that will not be needed again the next victim, if it is in a queue.
    pub(crate) fn expire(&self, pool: &Pool, bucket: u32, hash: u64) {
        let meta = pool.meta(bucket);
        let mut shard = lock(self.shard_in(meta, hash));
        if is_linked(meta.place.load(Ordering::Relaxed)) {
            shard.remove(pool, bucket);
            set_policy_bits(meta, 0);
            let tail = shard.lists[usize::from(QueueId::ENTRY.0)].tail;
            shard.insert(pool, bucket, QueueId::ENTRY, (0, tail));
        }
    }

    /// Prefetches the neighbours of a bucket, which [`Self::unlink`] will change if it is in a queue.
    #[inline]
    pub(crate) fn prefetch_neighbours(&self, pool: &Pool, meta: &Meta) {
        for link in [&meta.next, &meta.prev] {
            if let Some(neighbour) = link.load(Ordering::Relaxed).checked_sub(1) {
                prefetch(pool.meta(neighbour));
            }
        }
    }

    /// Removes the bucket from its queue; returns whether it was in one. The caller is in the
    /// exclusive section of the bucket's object.
    pub(crate) fn unlink(&self, pool: &Pool, bucket: u32, hash: u64) -> bool {
        let place = &pool.meta(bucket).place;
        let mut shard = lock(self.shard_in(pool.meta(bucket), hash));
        let was_linked = is_linked(place.load(Ordering::Relaxed));
        if was_linked {
            shard.remove(pool, bucket);
        }
        // An evicting thread that has taken out the bucket will find that it must not be put back.
        place.store(0, Ordering::Relaxed);
        was_linked
    }

    /// Removes and returns the next victim of a share, beginning with the shard `first_shard`. The
    /// caller evicts the bucket, or returns it with [`Self::put_back`]. `hash_of` returns the hash
    /// of a bucket.
    pub(crate) fn victim(
        &self,
        pool: &Pool,
        share: Share,
        first_shard: usize,
        hash_of: impl Fn(u32) -> u64,
    ) -> Option<u32> {
        let own = self.shards_of(share);
        (0..own.len()).find_map(|each| {
            let at = own.start + (first_shard + each) % own.len();
            let mut shard = lock(&self.shards[at]);
            let victim = shard.victim(pool, &hash_of);
            self.hits[at].store(tabulated(&*shard.policy), Ordering::Relaxed);
            let bucket = victim?;
            pool.meta(bucket).place.store(popped_from(share), Ordering::Relaxed);
            Some(bucket)
        })
    }

    /// Returns a bucket that came from [`Self::victim`] of `share` and could not be evicted: it
    /// becomes the youngest again, unless it has left the queues in the meantime.
    ///
    /// A bucket leaves only by [`Self::unlink`], under the lock of the shard that its share and
    /// hash determine. So if both are still the same under that lock, the bucket has not left, or
    /// has come back to the same shard.
    pub(crate) fn put_back(&self, pool: &Pool, share: Share, bucket: u32, hash_of: impl Fn(u32) -> u64) {
        let hash = hash_of(bucket);
        let mut shard = lock(self.shard(share, hash));
        let place = pool.meta(bucket).place.load(Ordering::Relaxed);
        if place == popped_from(share) && hash_of(bucket) == hash {
            shard.push(pool, bucket, QueueId::ENTRY);
        }
    }

    /// Returns the number of buckets in queues.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).lists.iter().map(|list| list.len).sum::<usize>()).sum()
    }

    /// Returns every bucket in a queue, once each, for [`crate::object::ObjectCache::validate`].
    #[inline]
    pub(crate) fn all(&self, pool: &Pool) -> Result<Vec<u32>, String> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            for list in shard.lists {
                let (mut at, mut before) = (list.head, 0);
                for _ in 0..list.len {
                    let bucket = at.checked_sub(1).ok_or("a queue is shorter than its length")?;
                    let meta = pool.meta(bucket);
                    let is_next = meta.prev.load(Ordering::Relaxed) == before;
                    ensure(is_next, || format!("bucket {bucket} does not know its neighbour"))?;
                    let is_own = share_of(meta.place.load(Ordering::Relaxed)) == shard.share;
                    ensure(is_own, || format!("bucket {bucket} is in a queue of another share"))?;
                    all.push(bucket);
                    (before, at) = (at, meta.next.load(Ordering::Relaxed));
                }
                let is_end = at == 0 && list.tail == before;
                ensure(is_end, || "a queue does not end where it should".into())?;
            }
        }
        Ok(all)
    }
}

/// Returns the node of the object that owns a bucket; `u32::MAX`, which no node has, if there is
/// none.
fn node_of(meta: &Meta) -> u32 {
    meta.owner().map_or(u32::MAX, |(node, _)| node)
}

/// Returns the result of a hit for each value of the policy bits, a byte each.
fn tabulated(policy: &dyn Policy) -> u64 {
    u64::from_le_bytes(policy::hits(policy))
}

// A shard of the eviction queues: the lists of a policy, linked through
// [`Meta`](super::pool::Meta).

/// The size of a bucket as a policy sees it.
pub(crate) const POLICY_BYTES: u64 = super::pool::BUCKET as u64;
/// The maximum number of buckets examined for a single eviction.
const JUDGED_MAX: usize = 256;
/// The bits of `Meta::place`: whether the bucket is in a queue (and, one bit up, in which one);
/// whether an evicting thread has taken it out and not decided yet; and, in the upper half, the
/// share in whose queues it is or was.
///
/// ```text
///   7          4   3   2        1       0
///  ┌────────────┬─────┬────────┬───────┬────────┐
///  │ share      │  –  │ popped │ queue │ linked │
///  └────────────┴─────┴────────┴───────┴────────┘
/// ```
const LINKED: u8 = 1;
const POPPED: u8 = 4;
const SHARE_SHIFT: u32 = 4;

/// Returns the place of a bucket that was taken out of the queues of `share`.
pub(crate) fn popped_from(share: Share) -> u8 {
    POPPED | share.0 << SHARE_SHIFT
}

/// Returns the share of a bucket with this place; the common one for a bucket in no queue.
#[inline]
pub(crate) fn share_of(place: u8) -> Share {
    Share(place >> SHARE_SHIFT)
}

/// Returns whether a bucket with this place is in a queue.
pub(crate) fn is_linked(place: u8) -> bool {
    place & LINKED != 0
}

/// Sets the policy's bits and keeps the flags. The caller holds the shard's lock.
pub(crate) fn set_policy_bits(meta: &Meta, bits: u8) {
    let with = |before: u8| Some(before & !7 | bits & 7);
    // Never fails: `with` always returns bits.
    let _ = meta.bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
}

pub(crate) struct Shard {
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) lists: [List; QUEUES_MAX],
    pub(crate) share: Share,
}

/// The ends of a list; links are bucket numbers plus one.
#[derive(Clone, Copy, Default)]
pub(crate) struct List {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) len: usize,
}

impl Shard {
    fn push(&mut self, pool: &Pool, bucket: u32, queue: QueueId) {
        let head = self.lists[usize::from(queue.0)].head;
        self.insert(pool, bucket, queue, (head, 0));
    }

    /// Adds a bucket between two neighbours; 0 for the end of the list.
    fn insert(&mut self, pool: &Pool, bucket: u32, queue: QueueId, (next, prev): (u32, u32)) {
        let list = &mut self.lists[usize::from(queue.0)];
        let meta = pool.meta(bucket);
        meta.place.store(LINKED | queue.0 << 1 | self.share.0 << SHARE_SHIFT, Ordering::Relaxed);
        meta.next.store(next, Ordering::Relaxed);
        meta.prev.store(prev, Ordering::Relaxed);
        match next.checked_sub(1) {
            Some(next) => pool.meta(next).prev.store(bucket + 1, Ordering::Relaxed),
            None => list.tail = bucket + 1,
        }
        match prev.checked_sub(1) {
            Some(prev) => pool.meta(prev).next.store(bucket + 1, Ordering::Relaxed),
            None => list.head = bucket + 1,
        }
        list.len += 1;
    }

    pub(crate) fn remove(&mut self, pool: &Pool, bucket: u32) -> QueueId {
        let meta = pool.meta(bucket);
        let queue = QueueId(meta.place.swap(0, Ordering::Relaxed) >> 1 & 1);
        let list = &mut self.lists[usize::from(queue.0)];
        let (next, prev) = (meta.next.load(Ordering::Relaxed), meta.prev.load(Ordering::Relaxed));
        match prev.checked_sub(1) {
            Some(prev) => pool.meta(prev).next.store(next, Ordering::Relaxed),
            None => list.head = next,
        }
        match next.checked_sub(1) {
            Some(next) => pool.meta(next).prev.store(prev, Ordering::Relaxed),
            None => list.tail = prev,
        }
        list.len -= 1;
        queue
    }

    pub(crate) fn victim(&mut self, pool: &Pool, hash_of: &impl Fn(u32) -> u64) -> Option<u32> {
        let mut last = None;
        for _ in 0..JUDGED_MAX {
            let lens = [self.lists[0].len, self.lists[1].len];
            if lens == [0, 0] {
                return None;
            }
            let mut queue = self.policy.victim(lens.map(|buckets| buckets as u64 * POLICY_BYTES));
            if self.lists[usize::from(queue.0)].len == 0 {
                queue = QueueId(1 - queue.0);
            }
            let bucket = self.lists[usize::from(queue.0)].tail.checked_sub(1)?;
            self.remove(pool, bucket);
            let bits = pool.meta(bucket).bits.load(Ordering::Relaxed) & 7;
            let hash = hash_of(bucket);
            let candidate = Candidate { hash, bits, queue, idle_secs: 0, bytes: POLICY_BYTES };
            match self.policy.decide(&candidate) {
                Verdict::Evict => {
                    self.policy.record_evicted(queue, POLICY_BYTES, &[hash]);
                    return Some(bucket);
                }
                Verdict::Keep { queue, bits } => {
                    set_policy_bits(pool.meta(bucket), bits);
                    self.push(pool, bucket, queue);
                    last = Some(queue);
                }
            }
        }
        // Every bucket was spared, so the oldest is evicted anyway.
        let queue = last?;
        let bucket = self.lists[usize::from(queue.0)].tail.checked_sub(1)?;
        self.remove(pool, bucket);
        Some(bucket)
    }
}

const _: () = assert!(QUEUES_MAX == 2);

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::pool::PoolMemory;
    use super::*;

    #[test]
    fn buckets_enter_leave_and_go_in_order() {
        let pool = Pool::new(PoolMemory::fixed(1 << 20)).unwrap();
        let queues = Queues::new("lru", pool.count()).unwrap();
        let mut reserved = pool.reserve_up_to(4);
        let taken: Vec<u32> = std::iter::from_fn(|| reserved.take(|_| ())).collect();
        let hash = |bucket: u32| bucket_hash(1, bucket);
        taken.iter().for_each(|bucket| queues.link(&pool, *bucket, hash(*bucket), true, 0));
        queues.unlink(&pool, taken[1], hash(taken[1]));
        queues.unlink(&pool, taken[1], hash(taken[1]));
        assert_eq!(queues.all(&pool).unwrap(), [taken[3], taken[2], taken[0]]);
        assert_eq!(queues.victim(&pool, Share::COMMON, 0, hash), Some(taken[0]));
        queues.put_back(&pool, Share::COMMON, taken[0], hash);
        queues.put_back(&pool, Share::COMMON, taken[0], hash);
        assert_eq!(queues.victim(&pool, Share::COMMON, 5, hash), Some(taken[2]));
        assert_eq!(queues.len(), 2);
        assert!(Queues::new("best", 1).is_none());
        assert_eq!((queues.policy_name(), queues.policy_bytes_each), ("lru", 0));
    }

    #[test]
    fn a_bucket_that_an_evicting_thread_has_is_not_moved_and_returns_to_its_queue() {
        let pool = Pool::new(PoolMemory::fixed(1 << 20)).unwrap();
        let queues = Queues::new("lru", pool.count()).unwrap();
        let own = Share(1);
        queues.open(own, pool.count());
        let mut reserved = pool.reserve_up_to(2);
        let taken: Vec<u32> = std::iter::from_fn(|| reserved.take(|_| ())).collect();
        let hash = |bucket: u32| bucket_hash(1, bucket);
        taken.iter().for_each(|bucket| queues.link(&pool, *bucket, hash(*bucket), true, 0));
        assert_eq!(queues.victim(&pool, Share::COMMON, 0, hash), Some(taken[0]));
        taken.iter().for_each(|bucket| queues.move_to(&pool, *bucket, hash(*bucket), own));
        queues.put_back(&pool, Share::COMMON, taken[0], hash);
        assert_eq!(queues.len(), 2);
        let is_elsewhere = |bucket: u32| queues.is_elsewhere(pool.meta(bucket), own);
        assert!(is_elsewhere(taken[0]) && !is_elsewhere(taken[1]));
        queues.all(&pool).unwrap();
    }
}

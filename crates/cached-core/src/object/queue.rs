//! Which bucket is evicted when one is needed: queues of clean buckets under the same policies as the
//! byte-keyed store's regions.
//!
//! Only evictable buckets are in a queue: a bucket leaves it when it becomes dirty and enters again when it
//! is stored, so dirty data evict nothing that is read. Queues are linked through
//! [`Meta`](super::pool::Meta), O(1) each way, and divided into shards by the bucket's name (object and
//! slot), each with its own policy, ghosts and lock. A hit sets bits in the bucket, and no more.

use super::lock_ranks;
use super::pool::{Meta, Pool};
use crate::policy::{self, Candidate, Insertion, Policy, QUEUES_MAX, QueueId, Verdict};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// Buckets of one shard, at least: below, a policy sees too little.
const SHARD_BUCKETS_MIN: u32 = 8192;
const SHARDS_MAX: u32 = 16;
/// The size of a bucket as a policy sees it.
const POLICY_BYTES: u64 = super::pool::BUCKET as u64;
/// Buckets that are judged at most for one that goes.
const JUDGED_MAX: usize = 256;
/// Bits of `Meta::place`: in a queue (and, one bit up, in which); taken out by an evicting thread that has
/// not decided yet.
const LINKED: u8 = 1;
const POPPED: u8 = 4;

/// All queues.
pub(crate) struct Queues {
    shards: Box<[Mutex<Shard>]>,
    /// What a hit makes of each of the eight values of a bucket's bits, a byte each, for each shard. Renewed
    /// whenever the shard's policy has been asked for a victim, or reports that it has changed.
    hits: Box<[AtomicU64]>,
    policy_bytes: usize,
}

struct Shard {
    policy: Box<dyn Policy>,
    lists: [List; QUEUES_MAX],
}

/// Ends of a list; links are bucket numbers plus one.
#[derive(Clone, Copy, Default)]
struct List {
    head: u32,
    tail: u32,
    len: usize,
}

/// The name of a bucket's content, the same every time.
#[inline]
pub(crate) fn bucket_hash(object_hash: u64, slot: u32) -> u64 {
    (object_hash ^ u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

impl Queues {
    /// Queues for `buckets` buckets under the policy called `name`; `None` if there is none of that name.
    pub(crate) fn new(name: &str, buckets: u32) -> Option<Self> {
        let count = (buckets / SHARD_BUCKETS_MIN).clamp(1, SHARDS_MAX);
        let count = 1 << count.ilog2();
        let memory = u64::from(buckets / count) * POLICY_BYTES;
        let mut policy_bytes = 0;
        let shards = (0..count).map(|_| {
            let mut policy = policy::by_name(name)?;
            policy_bytes += policy.attach(memory as usize, POLICY_BYTES as usize);
            Some(Mutex::ranked(Shard { policy, lists: Default::default() }, &lock_ranks::QUEUE))
        });
        let shards = shards.collect::<Option<Box<[_]>>>()?;
        let hits = shards.iter().map(|shard| AtomicU64::new(tabulated(&*lock(shard).policy))).collect();
        Some(Self { shards, hits, policy_bytes })
    }

    /// Returns the memory for what the policies remember, in bytes.
    pub(crate) fn policy_bytes(&self) -> usize {
        self.policy_bytes
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn policy_name(&self) -> &'static str {
        lock(&self.shards[0]).policy.name()
    }

    /// Which shard a name leads to: by the upper bits; the policy's ghosts mix the hash once more.
    #[inline]
    fn shard_of(&self, hash: u64) -> usize {
        (hash >> 48) as usize & (self.shards.len() - 1)
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.shards[self.shard_of(hash)]
    }

    /// The bucket called `hash` was read.
    #[inline]
    pub(crate) fn hit(&self, meta: &Meta, hash: u64) {
        let bits = meta.bits.load(Ordering::Relaxed) & 7;
        let table = self.hits[self.shard_of(hash)].load(Ordering::Relaxed).to_le_bytes();
        let after = table[usize::from(bits)];
        if after != bits {
            meta.bits.store(after, Ordering::Relaxed);
        }
    }

    /// A clean bucket enters. `is_new`: its content was not in the cache until now.
    pub(crate) fn link(&self, pool: &Pool, bucket: u32, hash: u64, is_new: bool) {
        let mut shard = lock(self.shard(hash));
        let meta = pool.meta(bucket);
        if is_new {
            let insertion = Insertion { hash, bytes: POLICY_BYTES, replaces: None };
            if shard.policy.advance(POLICY_BYTES) {
                self.hits[self.shard_of(hash)].store(tabulated(&*shard.policy), Ordering::Relaxed);
            }
            meta.bits.store(shard.policy.insert(&insertion) & 7, Ordering::Relaxed);
        }
        shard.push(pool, bucket, QueueId::ENTRY);
    }

    /// The bucket leaves, if it is in a queue.
    pub(crate) fn unlink(&self, pool: &Pool, bucket: u32, hash: u64) {
        let mut shard = lock(self.shard(hash));
        let place = &pool.meta(bucket).place;
        if place.load(Ordering::Relaxed) & LINKED != 0 {
            shard.remove(pool, bucket);
        }
        // An evicting thread that has taken it out will find that it is not to be put back.
        place.store(0, Ordering::Relaxed);
    }

    /// Takes the next bucket to be evicted out of its queue, from the shards from `first_shard` on. The
    /// caller drops it, or returns it by [`Self::put_back`]. `hash_of` returns the hash of a bucket's name.
    pub(crate) fn victim(
        &self,
        pool: &Pool,
        first_shard: usize,
        hash_of: impl Fn(u32) -> u64,
    ) -> Option<u32> {
        let count = self.shards.len();
        (0..count).find_map(|each| {
            let at = (first_shard + each) % count;
            let mut shard = lock(&self.shards[at]);
            let victim = shard.victim(pool, &hash_of);
            self.hits[at].store(tabulated(&*shard.policy), Ordering::Relaxed);
            let bucket = victim?;
            pool.meta(bucket).place.store(POPPED, Ordering::Relaxed);
            Some(bucket)
        })
    }

    /// The bucket, got from [`Self::victim`], could not go now: it is the youngest again, unless it has left
    /// the queues meanwhile.
    ///
    /// It leaves only by [`Self::unlink`], under the lock of the shard that its name leads to. So if it has
    /// the same name still, under that lock, it has not left, or has come back to the same shard.
    pub(crate) fn put_back(&self, pool: &Pool, bucket: u32, hash_of: impl Fn(u32) -> u64) {
        let hash = hash_of(bucket);
        let mut shard = lock(self.shard(hash));
        if pool.meta(bucket).place.load(Ordering::Relaxed) == POPPED && hash_of(bucket) == hash {
            shard.push(pool, bucket, QueueId::ENTRY);
        }
    }

    /// How many buckets are in queues.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).lists.iter().map(|list| list.len).sum::<usize>()).sum()
    }

    /// Every bucket in a queue, once each, for [`super::ObjectCache::validate`].
    pub(crate) fn all(&self, pool: &Pool) -> Result<Vec<u32>, String> {
        let mut all = Vec::new();
        for shard in &self.shards {
            for list in lock(shard).lists {
                let (mut at, mut before) = (list.head, 0);
                for _ in 0..list.len {
                    let bucket = at.checked_sub(1).ok_or("a queue is shorter than its length")?;
                    let meta = pool.meta(bucket);
                    if meta.prev.load(Ordering::Relaxed) != before {
                        return Err(format!("bucket {bucket} does not know its neighbour"));
                    }
                    all.push(bucket);
                    (before, at) = (at, meta.next.load(Ordering::Relaxed));
                }
                if at != 0 || list.tail != before {
                    return Err("a queue does not end where it should".into());
                }
            }
        }
        Ok(all)
    }
}

/// What a hit makes of each value of the bits, a byte each.
fn tabulated(policy: &dyn Policy) -> u64 {
    u64::from_le_bytes(policy::hits(policy))
}

impl Shard {
    fn push(&mut self, pool: &Pool, bucket: u32, queue: QueueId) {
        let list = &mut self.lists[usize::from(queue.0)];
        let meta = pool.meta(bucket);
        meta.place.store(LINKED | queue.0 << 1, Ordering::Relaxed);
        meta.prev.store(0, Ordering::Relaxed);
        meta.next.store(list.head, Ordering::Relaxed);
        match list.head.checked_sub(1) {
            Some(head) => pool.meta(head).prev.store(bucket + 1, Ordering::Relaxed),
            None => list.tail = bucket + 1,
        }
        list.head = bucket + 1;
        list.len += 1;
    }

    fn remove(&mut self, pool: &Pool, bucket: u32) -> QueueId {
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

    fn victim(&mut self, pool: &Pool, hash_of: &impl Fn(u32) -> u64) -> Option<u32> {
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
                    pool.meta(bucket).bits.store(bits, Ordering::Relaxed);
                    self.push(pool, bucket, queue);
                    last = Some(queue);
                }
            }
        }
        // Everything is wanted: then the oldest goes all the same.
        let queue = last?;
        let bucket = self.lists[usize::from(queue.0)].tail.checked_sub(1)?;
        self.remove(pool, bucket);
        Some(bucket)
    }
}

const _: () = assert!(QUEUES_MAX == 2);

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn buckets_enter_leave_and_go_in_order() {
        let pool = Pool::new(1 << 20, false).unwrap();
        let queues = Queues::new("lru", pool.count()).unwrap();
        let mut reserved = pool.reserve_up_to(4);
        let taken: Vec<u32> = std::iter::from_fn(|| reserved.take(|_| ())).collect();
        let hash = |bucket: u32| bucket_hash(1, bucket);
        taken.iter().for_each(|bucket| queues.link(&pool, *bucket, hash(*bucket), true));
        queues.unlink(&pool, taken[1], hash(taken[1]));
        queues.unlink(&pool, taken[1], hash(taken[1]));
        assert_eq!(queues.all(&pool).unwrap(), [taken[3], taken[2], taken[0]]);
        assert_eq!(queues.victim(&pool, 0, hash), Some(taken[0]));
        queues.put_back(&pool, taken[0], hash);
        queues.put_back(&pool, taken[0], hash);
        assert_eq!(queues.victim(&pool, 5, hash), Some(taken[2]));
        assert_eq!(queues.len(), 2);
        assert!(Queues::new("best", 1).is_none());
        assert_eq!((queues.policy_name(), queues.policy_bytes()), ("lru", 0));
    }
}

//! One shard of the eviction queues: the lists of one policy, linked through
//! [`Meta`](crate::object::memory::pool::Meta).

use crate::object::memory::pool::{Meta, Pool};
use crate::object::share::Share;
use crate::policy::{Candidate, Policy, QUEUES_MAX, QueueId, Verdict};
use crate::sync::Ordering;

/// The size of a bucket as a policy sees it.
pub(super) const POLICY_BYTES: u64 = crate::object::memory::pool::BUCKET as u64;
/// Buckets that are judged at most for one that goes.
const JUDGED_MAX: usize = 256;
/// `Meta::place`: in a queue (and, one bit up, in which); taken out by an evicting thread that has not
/// decided yet; and, in the upper half, the share whose queues it is in or was taken from.
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
pub(super) fn popped_from(share: Share) -> u8 {
    POPPED | share.0 << SHARE_SHIFT
}

/// Returns the share of a bucket with this place; the common one for a bucket in no queue.
#[inline]
pub(super) fn share_of(place: u8) -> Share {
    Share(place >> SHARE_SHIFT)
}

/// Whether a bucket with this place is in a queue.
pub(super) fn is_linked(place: u8) -> bool {
    place & LINKED != 0
}

/// Sets the policy's bits and leaves the flags as they are. The shard is locked.
pub(super) fn set_policy_bits(meta: &Meta, bits: u8) {
    let with = |before: u8| Some(before & !7 | bits & 7);
    // Never fails: `with` always returns bits.
    let _ = meta.bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
}

pub(super) struct Shard {
    pub(super) policy: Box<dyn Policy>,
    pub(super) lists: [List; QUEUES_MAX],
    pub(super) share: Share,
}

/// Ends of a list; links are bucket numbers plus one.
#[derive(Clone, Copy, Default)]
pub(super) struct List {
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) len: usize,
}

impl Shard {
    pub(super) fn push(&mut self, pool: &Pool, bucket: u32, queue: QueueId) {
        let list = &mut self.lists[usize::from(queue.0)];
        let meta = pool.meta(bucket);
        meta.place.store(LINKED | queue.0 << 1 | self.share.0 << SHARE_SHIFT, Ordering::Relaxed);
        meta.prev.store(0, Ordering::Relaxed);
        meta.next.store(list.head, Ordering::Relaxed);
        match list.head.checked_sub(1) {
            Some(head) => pool.meta(head).prev.store(bucket + 1, Ordering::Relaxed),
            None => list.tail = bucket + 1,
        }
        list.head = bucket + 1;
        list.len += 1;
    }

    /// Puts a bucket where the next victim of the queue of newcomers is taken.
    pub(super) fn push_last(&mut self, pool: &Pool, bucket: u32) {
        let list = &mut self.lists[usize::from(QueueId::ENTRY.0)];
        let meta = pool.meta(bucket);
        meta.place.store(LINKED | QueueId::ENTRY.0 << 1 | self.share.0 << SHARE_SHIFT, Ordering::Relaxed);
        meta.next.store(0, Ordering::Relaxed);
        meta.prev.store(list.tail, Ordering::Relaxed);
        match list.tail.checked_sub(1) {
            Some(tail) => pool.meta(tail).next.store(bucket + 1, Ordering::Relaxed),
            None => list.head = bucket + 1,
        }
        list.tail = bucket + 1;
        list.len += 1;
    }

    pub(super) fn remove(&mut self, pool: &Pool, bucket: u32) -> QueueId {
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

    pub(super) fn victim(&mut self, pool: &Pool, hash_of: &impl Fn(u32) -> u64) -> Option<u32> {
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
        // Everything is wanted: then the oldest goes all the same.
        let queue = last?;
        let bucket = self.lists[usize::from(queue.0)].tail.checked_sub(1)?;
        self.remove(pool, bucket);
        Some(bucket)
    }
}

const _: () = assert!(QUEUES_MAX == 2);

//! Which items stay when memory is needed: a small trait over queues of regions.
//!
//! Items are appended to the region at the head of a queue; memory comes back by walking the region
//! at a queue's tail and asking the policy about every item that is still alive in it. *Keep* copies
//! the item to the head of a queue, *evict* drops it. So promotion is lazy, costs nothing on a hit
//! but a bit in the item, and reclaiming a region compacts it at the same time.
//!
//! A policy has three bits in each item, and nothing else per item.

/// A queue of regions. A policy with fewer queues leaves the others empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueId(pub u8);

/// How many queues a policy may use.
pub const QUEUES_MAX: usize = 2;

/// What a policy hears about an item at the tail.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// The policy's three bits.
    pub bits: u8,
    /// The queue that is being reclaimed.
    pub queue: QueueId,
    /// Seconds since the item was read or stored.
    pub idle_secs: u32,
    /// Memory that its eviction frees.
    pub bytes: u64,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is dropped.
    Evict,
    /// It moves to the head of a queue, with these bits.
    Keep {
        /// Where to.
        queue: QueueId,
        /// The item's new bits.
        bits: u8,
    },
}

/// An eviction policy.
///
/// The caller owes: one call at a time for `victim` and `judge`; bits below 8. The implementor owes:
/// O(1), no allocation, and progress: an item that is judged again and again without a hit in
/// between is evicted at last.
pub trait Policy: Send + Sync + 'static {
    /// The name used in settings and statistics.
    fn name(&self) -> &'static str;
    /// Queue and bits of a new item.
    fn insert(&self) -> (QueueId, u8) {
        (QueueId(0), 0)
    }
    /// The bits after a hit on an item with `bits`. Must depend on `bits` only: it is tabulated.
    fn hit(&self, bits: u8) -> u8;
    /// The queue to reclaim from, given the regions in each. At least one is not empty.
    fn victim(&self, regions: [usize; QUEUES_MAX]) -> QueueId;
    /// What becomes of an item at the tail.
    fn judge(&self, candidate: &Candidate) -> Verdict;
}

/// Least recently used, approximated by a second chance: an item read since it was last (re)placed
/// goes round once more. One bit, set once per round.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lru;

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn hit(&self, bits: u8) -> u8 {
        bits | 1
    }

    fn victim(&self, _regions: [usize; QUEUES_MAX]) -> QueueId {
        QueueId(0)
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        if candidate.bits & 1 == 0 { Verdict::Evict } else { Verdict::Keep { queue: QueueId(0), bits: 0 } }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn lru_gives_one_second_chance() {
        let at = |bits| Candidate { bits, queue: QueueId(0), idle_secs: 0, bytes: 1 };
        assert_eq!(Lru.judge(&at(0)), Verdict::Evict);
        assert_eq!(Lru.judge(&at(Lru.hit(0))), Verdict::Keep { queue: QueueId(0), bits: 0 });
    }
}

//! Which items or buckets stay when memory is needed: a small trait over queues.
//!
//! The byte-keyed store has queues of regions full of items, the object cache has queues of buckets;
//! both are *entries* here. Entries join the head of a queue; memory comes back from a queue's tail,
//! where the policy is asked about every entry that is still alive. *Keep* moves the entry to
//! the head of a queue, *evict* drops it. So promotion is lazy and costs nothing on a hit but a bit
//! or two in the entry; and where entries lie in regions, reclaiming a region compacts it.
//!
//! A policy has three bits in each entry. What else it remembers (ghosts: names of what was evicted)
//! is taken out of the memory that it is given. Nothing here knows of regions, items or buckets:
//! whoever has queues of anything can use the same policies.

mod ghosts;
mod lru;
mod mru;
mod s3fifo;

pub use lru::Lru;
pub use mru::Mru;
pub use s3fifo::S3Fifo;

/// A queue of entries. A policy with fewer queues leaves the others empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueId(pub u8);

impl QueueId {
    /// The queue that every new entry joins.
    pub const ENTRY: QueueId = QueueId(0);
    /// The other one.
    pub const MAIN: QueueId = QueueId(1);
}

/// How many queues a policy may use.
pub const QUEUES_MAX: usize = 2;

/// What a policy hears about an item or bucket that is stored.
#[derive(Debug, Clone, Copy)]
pub struct Insertion {
    /// The hash of its name (an item's key; a bucket's object and position), the same every time.
    pub hash: u64,
    /// Memory that it takes, the same when it is evicted.
    pub bytes: u64,
    /// The bits of the entry of the same name whose place it takes.
    pub replaces: Option<u8>,
}

/// What a policy hears about an item or bucket at the tail.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// The hash of its name, as in [`Insertion::hash`].
    pub hash: u64,
    /// The policy's three bits.
    pub bits: u8,
    /// The queue that is being reclaimed.
    pub queue: QueueId,
    /// Seconds since it was read or stored; 0 where nobody notes that.
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
        /// Its new bits.
        bits: u8,
    },
}

/// An eviction policy.
///
/// The caller owes: `attach` before anything else; one call at a time for `victim`, `decide` and
/// `record_evicted` (`advance` and `insert` may come from any thread at any time); every new entry in [`QueueId::ENTRY`].
/// It may evict what was to be kept, when too much is kept, and keep what was to be evicted, where it
/// is (pinned or dirty, say): then it does not call `record_evicted`. The implementor owes: bits below 8, O(1),
/// no allocation after `attach`, and progress: an entry that is judged again and again without a hit
/// in between is evicted at last.
pub trait Policy: Send + Sync + 'static {
    /// The name used in settings and statistics.
    fn name(&self) -> &'static str;
    /// Gets ready to look after so much memory, in entries that usually take `entry_bytes` or more
    /// (what is remembered is sized by it); tells how much of the memory the policy itself will take.
    fn attach(&mut self, memory_bytes: usize, entry_bytes: usize) -> usize {
        let _ = (memory_bytes, entry_bytes);
        0
    }
    /// So many bytes more are about to be stored: time passes. Bytes may be told in portions, up to a region
    /// at a time, as long as all are. True: [`hit`](Policy::hit) answers otherwise from now on.
    fn advance(&self, bytes: u64) -> bool {
        let _ = bytes;
        false
    }
    /// The bits of an entry that has just been stored.
    fn insert(&self, insertion: &Insertion) -> u8 {
        let _ = insertion;
        0
    }
    /// The bits after a hit on an entry with `bits`. It may be tabulated: a table need not be newer than the last
    /// `victim`, or the last `advance` that returned true.
    fn hit(&self, bits: u8) -> u8;
    /// The queue to reclaim from, given the bytes in each. At least one is not empty; if the one named is, another
    /// is taken.
    fn victim(&self, lengths: [u64; QUEUES_MAX]) -> QueueId;
    /// What becomes of an entry at the tail.
    fn decide(&self, candidate: &Candidate) -> Verdict;
    /// Entries of one queue that were judged have been evicted in this order, whatever the verdicts were: the
    /// hashes of their names, and the bytes of all. They may be told together, a few at a time, which costs less
    /// than one by one.
    fn record_evicted(&self, queue: QueueId, bytes: u64, hashes: &[u64]) {
        let _ = (queue, bytes, hashes);
    }
}

/// What a hit makes of each value of the three bits, for now.
pub(crate) fn hits(policy: &dyn Policy) -> [u8; 8] {
    std::array::from_fn(|bits| policy.hit(bits as u8) & 7)
}

/// The names that [`by_name`] knows, the default first.
pub const NAMES: &[&str] = &["balanced", "lru", "s3fifo", "mru"];

/// A policy by its name in settings, as listed in [`NAMES`].
pub fn by_name(name: &str) -> Option<Box<dyn Policy>> {
    Some(match name {
        "balanced" => Box::new(S3Fifo::balanced()),
        "lru" => Box::new(Lru::default()),
        "s3fifo" => Box::new(S3Fifo::fixed()),
        "mru" => Box::new(Mru::default()),
        _ => return None,
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_policies() {
        for name in NAMES {
            assert_eq!(by_name(name).unwrap().name(), *name);
        }
        assert!(by_name("best").is_none());
    }

    #[test]
    fn bits_stay_bits_and_what_is_not_hit_goes_at_last() {
        for name in NAMES {
            let mut policy = by_name(name).unwrap();
            policy.attach(1 << 20, 256);
            for bits in 0..8 {
                assert!(policy.hit(bits) < 8, "{name}");
                let replaces = (bits != 0).then_some(bits);
                assert!(policy.insert(&Insertion { hash: 1, bytes: 1, replaces }) < 8, "{name}");
                let (mut bits, mut queue) = (bits, QueueId::ENTRY);
                let rounds = (0..20).take_while(|_| {
                    let candidate = Candidate { hash: 1, bits, queue, idle_secs: 0, bytes: 100 };
                    policy.victim([8, 8]);
                    match policy.decide(&candidate) {
                        Verdict::Evict => false,
                        Verdict::Keep { queue: to, bits: with } => {
                            assert!(with < 8 && usize::from(to.0) < QUEUES_MAX);
                            (queue, bits) = (to, with);
                            true
                        }
                    }
                });
                assert!(rounds.count() < 10, "{name} keeps what is never hit");
            }
        }
    }
}

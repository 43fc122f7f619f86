//! Eviction policies, which choose the items or buckets that stay when memory is needed.
//!
//! The byte-keyed store has queues of regions full of items, and the object cache has queues of
//! buckets; both are *entries* here. Entries join the head of a queue. Memory is reclaimed at a
//! queue's tail, where the policy decides about every entry that is in use: *keep* moves the entry
//! to the head of a queue, *evict* drops it. So promotion is lazy: a hit costs a bit or two in the
//! entry, and if entries are in regions, reclaiming a region compacts it.
//!
//! A policy has three bits in each entry. The memory for its other records (*ghosts*: hashes of
//! evicted entries) is part of the memory that it manages. Nothing here depends on regions, items
//! or buckets: anything with queues of entries can use these policies.
//!
//! ```
//! use cached_core::kv::{Kv, KvConfig};
//! use cached_core::policy;
//!
//! let policy = policy::by_name("lru").expect("one of policy::NAMES");
//! let kv = Kv::new(KvConfig { policy, ..KvConfig::default() })?;
//! # Ok::<(), cached_core::kv::KvConfigError>(())
//! ```

mod ghosts;
mod lru;
mod s3fifo;

pub use lru::{Lru, Mru};
pub use s3fifo::S3Fifo;

/// The number of a queue. A policy that needs fewer queues leaves the others empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueId(pub u8);

impl QueueId {
    /// The queue that every new entry joins.
    pub const ENTRY: QueueId = QueueId(0);
    /// The second queue.
    pub const MAIN: QueueId = QueueId(1);
}

/// The number of queues that a policy may use.
pub const QUEUES_MAX: usize = 2;

/// An entry that is being stored.
#[derive(Debug, Clone, Copy)]
pub struct Insertion {
    /// The hash of the entry's name (an item's key; a bucket's object and position). It is always
    /// the same.
    pub hash: u64,
    /// The entry's memory. It is the same when the entry is evicted.
    pub bytes: u64,
    /// The policy's bits of the entry with the same name that this one replaces.
    pub replaces: Option<u8>,
}

/// An entry at the tail of a queue.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// The hash of the entry's name, as in [`Insertion::hash`].
    pub hash: u64,
    /// The policy's three bits.
    pub bits: u8,
    /// The queue that is being reclaimed.
    pub queue: QueueId,
    /// Seconds since the entry was read or stored; 0 if unknown.
    pub idle_secs: u32,
    /// The memory that the entry's eviction frees.
    pub bytes: u64,
}

/// A policy's decision about a [`Candidate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Drop the entry.
    Evict,
    /// Move the entry to the head of a queue.
    Keep {
        /// The queue.
        queue: QueueId,
        /// The entry's new bits.
        bits: u8,
    },
}

/// An eviction policy.
///
/// The caller guarantees that `attach` is called before anything else; that `victim`, `decide` and
/// `record_evicted` are called by one thread at a time (`advance` and `insert` by any thread at any
/// time); and that every new entry joins [`QueueId::ENTRY`]. It may evict an entry that the policy
/// keeps, if too much is kept. It may also leave an entry that the policy evicts in place (because
/// it is pinned or dirty, for instance), and then does not call `record_evicted`.
///
/// The implementor guarantees bits below 8, O(1) per call, no allocation after `attach`, and
/// progress: it eventually evicts an entry that is not hit between decisions.
pub trait Policy: Send + Sync + 'static {
    /// Returns the name used in settings and statistics.
    fn name(&self) -> &'static str;

    /// Prepares the policy for `memory_bytes` of memory, in entries that usually have `entry_bytes`
    /// or more, which determines the size of its records. Returns how much of the memory the policy
    /// uses for these records.
    fn attach(&mut self, memory_bytes: usize, entry_bytes: usize) -> usize {
        let _ = (memory_bytes, entry_bytes);
        0
    }

    /// Advances the policy's time. The caller calls this before `bytes` more are stored, and may
    /// report bytes in portions of up to a region. Returns true if [`hit`](Policy::hit) returns
    /// other results from now on.
    fn advance(&self, bytes: u64) -> bool {
        let _ = bytes;
        false
    }

    /// Returns the bits of an entry that is being stored.
    fn insert(&self, insertion: &Insertion) -> u8 {
        let _ = insertion;
        0
    }

    /// Returns the new bits after a hit on an entry with `bits`. The caller may keep the results in
    /// a table, which it refreshes after each `victim`, and after each `advance` that returned
    /// true.
    fn hit(&self, bits: u8) -> u8;

    /// Returns the bits of a new entry that comes from another store, in which it was hit. It is kept as
    /// one that was hit here.
    fn hit_elsewhere(&self) -> u8 {
        self.hit(0)
    }

    /// Returns whether what was not used for longest is evicted before other items.
    fn evicts_idle(&self) -> bool {
        true
    }

    /// Returns the queue to reclaim from, given the bytes in each queue. At least one queue is not
    /// empty. If the returned queue is empty, the caller uses another one.
    fn victim(&self, lengths: [u64; QUEUES_MAX]) -> QueueId;

    /// Decides about an entry at the tail of a queue.
    fn decide(&self, candidate: &Candidate) -> Verdict;

    /// Records evictions: entries of one queue, whose names have these hashes, have been evicted in
    /// this order, regardless of the verdicts. `bytes` is the sum of their sizes. Reporting several
    /// evictions in one call is cheaper than one at a time.
    fn record_evicted(&self, queue: QueueId, bytes: u64, hashes: &[u64]) {
        let _ = (queue, bytes, hashes);
    }

    /// Returns how many entries since the start were stored again so soon after their eviction that
    /// a quarter more of the memory given to [`attach`](Policy::attach) would have kept them;
    /// `None` for a policy that does not remember evicted entries.
    fn ghost_hits(&self) -> Option<u64> {
        None
    }
}

impl std::fmt::Debug for dyn Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Policy({})", self.name())
    }
}

/// Returns the present results of [`Policy::hit`] for each value of the three bits.
pub(crate) fn hits(policy: &dyn Policy) -> [u8; 8] {
    std::array::from_fn(|bits| policy.hit(bits as u8) & 7)
}

/// The names that [`by_name`] accepts, the default first.
pub const NAMES: &[&str] = &["balanced", "lru", "s3fifo", "mru"];

/// Returns the policy with one of the [`NAMES`]; `None` for other names.
#[must_use]
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
    fn every_name_finds_its_policy() {
        for name in NAMES {
            assert_eq!(by_name(name).unwrap().name(), *name);
        }
        assert!(by_name("best").is_none());
    }

    #[test]
    fn bits_stay_below_eight_and_entries_without_hits_are_evicted() {
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

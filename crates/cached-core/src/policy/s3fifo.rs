//! S3-FIFO (Yang et al., SOSP'23) for a log: new entries must be hit in a separate queue in order
//! to stay; and a variant that adapts the size of that queue.
//!
//! ```text
//!               hit when no longer young,   ┌──────────────┐ hit
//!               or a ghost was there        │     MAIN     │──┐
//!  store ──> ENTRY ────────────────────────>│              │<─┘
//!              │ neither                    └──────┬───────┘
//!              v                                   v not hit
//!        ghosts: evicted early               ghosts: evicted late
//! ```
//! Most entries are never read again, and should not displace others: they are evicted from the
//! entry queue without having been copied. A new entry whose ghost is still remembered was evicted
//! too early: it counts as hit, so it moves to the main queue when it reaches the tail. The same
//! applies to an entry that was evicted from the main queue and is stored again soon; one that is
//! stored again later counts as new. (The paper puts both into the main queue immediately. Here
//! every entry joins the same queue, which saves an open region per thread, and the traces show no
//! difference.)
//!
//! *Uses just after the first* carry little information: they belong to the first (one page view,
//! one transaction), and an entry that has only those is not used again more often than others
//! (correlated references: LRU-K, SIGMOD'93; 2Q, VLDB'94). So once memory is full, a new entry is
//! *young* until a sixth to a third of the entry queue has been stored after it, and hits on young
//! entries do not count. That closes 5 points more of the gap between LRU and the optimum on the
//! traces, and saves a third of the copies.
//!
//! *Fixed*: a fifth of the memory is for new entries.
//!
//! *Balanced* measures the benefit of a little more memory to each queue: an entry that is stored
//! again before a quarter of the memory has been evicted from its queue would have been a hit if
//! that queue had been a little longer. So each such entry moves the balance by its size towards
//! its queue, and the balance rests where both queues would gain the same (ARC, FAST'03, counts all
//! of its ghosts, however old; older ones carry little information about the marginal benefit).
//!
//! The bits mean: 0 to 5: a new entry not hit yet, and the phase in which it was stored, modulo
//! six. A phase is a sixth of what the entry queue holds. 6: in the main queue, not hit in this
//! round. 7: hit.

use super::ghosts::{Ghost, Ghosts};
use super::{Candidate, Insertion, Policy, QUEUES_MAX, QueueId, Verdict};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The number of phases that a new entry's bits distinguish. An entry reaches the tail of the entry
/// queue within this number of phases, so that no entry looks young again.
const PHASES: u8 = 6;
/// An entry is young in the phase in which it was stored and in the next one.
const YOUNG_PHASES: u8 = 2;
const UNHIT: u8 = PHASES;
const HIT: u8 = PHASES + 1;

/// Returns a share of the memory, in units of 2^-32.
const fn share(percent: u64) -> u32 {
    ((percent << 32) / 100) as u32
}
/// The fixed share of the entry queue. A tenth, as in the paper, is far worse than LRU if uses are
/// a little farther apart.
const SHARE_FIXED: u32 = share(20);
/// The bounds of the balanced share.
const SHARE_MIN: u32 = share(10);
const SHARE_MAX: u32 = share(80);
/// The shift by which a ghost hit counts more: only the ghosts of a quarter of the memory count, so
/// each counts four times.
const STEP_SHIFT: u32 = 2;

/// A small queue of new entries, a large one of entries that were hit, and the ghosts of both.
#[derive(Debug)]
pub struct S3Fifo {
    name: &'static str,
    is_balanced: bool,
    ghosts: Ghosts,
    memory_bytes: u64,
    /// A byte's share of the memory, in units of 2^-63, which saves a division for each entry that
    /// is stored again.
    byte_share: u64,
    /// The share of the memory that the entry queue should have.
    entry_share: AtomicU32,
    /// The entry queue's present size in bytes; 0 until memory has been full.
    entry_bytes: AtomicU64,
    phase: AtomicU32,
    /// The bytes to be stored before the next phase.
    phase_left: AtomicI64,
    /// See [`Policy::ghost_hits`].
    ghost_hits: AtomicU64,
}

impl S3Fifo {
    /// Returns the policy with a fifth of the memory for new entries.
    pub fn fixed() -> S3Fifo {
        S3Fifo {
            name: "s3fifo",
            is_balanced: false,
            ghosts: Ghosts::default(),
            memory_bytes: 1,
            byte_share: 0,
            entry_share: AtomicU32::new(SHARE_FIXED),
            entry_bytes: AtomicU64::new(0),
            phase: AtomicU32::new(0),
            phase_left: AtomicI64::new(0),
            ghost_hits: AtomicU64::new(0),
        }
    }

    /// Returns the policy with a tenth of the memory or more for new entries. The share adapts,
    /// depending on which evicted entries are stored again.
    pub fn balanced() -> S3Fifo {
        S3Fifo {
            name: "balanced",
            is_balanced: true,
            entry_share: AtomicU32::new(SHARE_MIN),
            ..S3Fifo::fixed()
        }
    }

    /// Moves the share towards the queue from which the entry of `bytes` that is stored again had
    /// been evicted.
    fn balance(&self, from: QueueId, bytes: u64) {
        let step = ((bytes.min(self.memory_bytes) * self.byte_share) >> (31 - STEP_SHIFT)) as u32;
        let share = self.entry_share.load(Relaxed);
        let share = match from {
            QueueId::ENTRY => share.saturating_add(step).min(SHARE_MAX),
            _ => share.saturating_sub(step).max(SHARE_MIN),
        };
        // If two threads do this at the same time, one update may be lost, which is harmless.
        self.entry_share.store(share, Relaxed);
    }

    /// Returns the bits of a new entry.
    fn bits_of_new(&self) -> u8 {
        self.phase.load(Relaxed) as u8
    }

    /// Returns the number of phases since a new entry was stored, modulo their number.
    fn age(&self, bits: u8) -> u8 {
        (self.bits_of_new() + PHASES - bits) % PHASES
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        self.name
    }

    fn attach(&mut self, memory_bytes: usize, entry_bytes: usize) -> usize {
        self.ghosts = Ghosts::new(memory_bytes, entry_bytes);
        self.memory_bytes = memory_bytes.max(1) as u64;
        self.byte_share = (1 << 63) / self.memory_bytes;
        self.ghosts.bytes()
    }

    fn advance(&self, bytes: u64) -> bool {
        let left = self.phase_left.load(Relaxed) - bytes.min(self.memory_bytes) as i64;
        if left >= 0 {
            self.phase_left.store(left, Relaxed);
            return false;
        }
        let entry_bytes = match self.entry_bytes.load(Relaxed) {
            0 => self.memory_bytes,
            bytes => bytes,
        };
        let phase_bytes = (entry_bytes / u64::from(PHASES)).max(1) as i64;
        // A portion larger than the queue ages all earlier entries, and does not make any of them
        // look young again.
        let passed = (-left / phase_bytes + 1).min(i64::from(PHASES / 2));
        self.phase_left.store((left + passed * phase_bytes).max(0), Relaxed);
        // If two threads do this at the same time, one update may be lost, which is harmless.
        self.phase.store((i64::from(self.bits_of_new()) + passed) as u32 % u32::from(PHASES), Relaxed);
        true
    }

    fn insert(&self, insertion: &Insertion) -> u8 {
        if let Some(bits) = insertion.replaces {
            return if self.hit(bits) == HIT { HIT } else { self.bits_of_new() };
        }
        let Some(Ghost { queue, is_recent }) = self.ghosts.take(insertion.hash) else {
            return self.bits_of_new();
        };
        if is_recent {
            // If two threads do this at the same time, one update may be lost, which is harmless.
            self.ghost_hits.store(self.ghost_hits.load(Relaxed).wrapping_add(1), Relaxed);
            if self.is_balanced {
                self.balance(queue, insertion.bytes);
            }
        }
        if is_recent || queue == QueueId::ENTRY { HIT } else { self.bits_of_new() }
    }

    fn hit(&self, bits: u8) -> u8 {
        // Before memory is full for the first time, hits on young entries count. Otherwise, if all
        // items fit and none is stored, the policy's time would stand still and they would stay
        // young forever.
        if self.entry_bytes.load(Relaxed) == 0 {
            return HIT;
        }
        if bits < PHASES && self.age(bits) < YOUNG_PHASES { bits } else { HIT }
    }

    fn hit_elsewhere(&self) -> u8 {
        HIT
    }

    fn victim(&self, lengths: [u64; QUEUES_MAX]) -> QueueId {
        let [entry, main] = lengths;
        let share = self.entry_share.load(Relaxed);
        self.entry_bytes.store(entry.max(1), Relaxed);
        let has_its_share = u128::from(entry) << 32 >= u128::from(entry + main) * u128::from(share);
        if main == 0 || has_its_share { QueueId::ENTRY } else { QueueId::MAIN }
    }

    fn decide(&self, candidate: &Candidate) -> Verdict {
        if candidate.bits == HIT {
            Verdict::Keep { queue: QueueId::MAIN, bits: UNHIT }
        } else {
            Verdict::Evict
        }
    }

    fn record_evicted(&self, queue: QueueId, bytes: u64, hashes: &[u64]) {
        if self.is_balanced || queue == QueueId::ENTRY {
            self.ghosts.add_all(queue, bytes, hashes);
        }
    }

    fn ghost_hits(&self) -> Option<u64> {
        Some(self.ghost_hits.load(Relaxed))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const MEMORY: u64 = 1 << 20;
    const ENTRY_BYTES: u64 = 1 << 10;

    fn at(bits: u8, queue: QueueId) -> Candidate {
        Candidate { hash: 7, bits, queue, idle_secs: 0, bytes: ENTRY_BYTES }
    }

    fn new(hash: u64) -> Insertion {
        Insertion { hash, bytes: ENTRY_BYTES, replaces: None }
    }

    fn attached(mut policy: S3Fifo) -> S3Fifo {
        assert_eq!(policy.attach(MEMORY as usize, 256), 16 << 10);
        policy
    }

    fn evict(policy: &S3Fifo, queue: QueueId) {
        policy.record_evicted(queue, ENTRY_BYTES, &[7]);
    }

    fn store_again(policy: &S3Fifo, queue: QueueId, times: usize) {
        for _ in 0..times {
            evict(policy, queue);
            assert_eq!(policy.insert(&new(7)), HIT);
        }
    }

    #[test]
    fn a_hit_moves_an_entry_to_the_main_queue_or_keeps_it_for_a_round() {
        let policy = attached(S3Fifo::balanced());
        let keep = Verdict::Keep { queue: QueueId::MAIN, bits: UNHIT };
        for queue in [QueueId::ENTRY, QueueId::MAIN] {
            assert_eq!(policy.decide(&at(HIT, queue)), keep);
            (0..HIT).for_each(|bits| assert_eq!(policy.decide(&at(bits, queue)), Verdict::Evict));
        }
        assert_eq!([UNHIT, HIT].map(|bits| policy.hit(bits)), [HIT; 2]);
        assert_eq!(policy.insert(&Insertion { replaces: Some(UNHIT), ..new(1) }), HIT);
    }

    #[test]
    fn hits_on_young_entries_do_not_count() {
        let policy = attached(S3Fifo::balanced());
        // The entry queue is half of the memory.
        policy.victim([MEMORY / 2, MEMORY / 2]);
        let phase_bytes = MEMORY / 2 / u64::from(PHASES);
        while !policy.advance(ENTRY_BYTES) {}
        for _ in 0..PHASES {
            let new_bits = policy.insert(&new(1));
            let mut entered = 0;
            while policy.hit(new_bits) != HIT {
                assert_eq!(policy.hit(new_bits), new_bits);
                assert_eq!(
                    policy.insert(&Insertion { replaces: Some(new_bits), ..new(1) }),
                    policy.bits_of_new()
                );
                policy.advance(ENTRY_BYTES);
                entered += ENTRY_BYTES;
            }
            assert!(entered > phase_bytes && entered <= phase_bytes * 2 + ENTRY_BYTES, "{entered}");
            // The entry does not look young again before it reaches the tail.
            while entered + phase_bytes < MEMORY / 2 {
                assert_eq!(policy.hit(new_bits), HIT);
                policy.advance(ENTRY_BYTES);
                entered += ENTRY_BYTES;
            }
        }
    }

    #[test]
    fn large_portions_age_earlier_entries() {
        let policy = attached(S3Fifo::balanced());
        for entry in [0, MEMORY / 16, MEMORY / 8] {
            policy.victim([entry, MEMORY - entry]);
            for _ in 0..20 {
                let new_bits = policy.insert(&new(1));
                assert_eq!(policy.hit(new_bits), new_bits);
                assert!(policy.advance(MEMORY / 16));
                assert_eq!(policy.hit(new_bits), HIT, "{entry}");
            }
        }
    }

    #[test]
    fn new_entries_have_their_share() {
        for (policy, share) in [(S3Fifo::fixed(), 20), (S3Fifo::balanced(), 10)] {
            let policy = attached(policy);
            assert_eq!(policy.victim([10, 0]), QueueId::ENTRY);
            assert_eq!(policy.victim([share, 100 - share]), QueueId::ENTRY);
            assert_eq!(policy.victim([share - 1, 101 - share]), QueueId::MAIN);
            assert_eq!(policy.victim([0, 5]), QueueId::MAIN);
        }
    }

    #[test]
    fn an_entry_stored_again_counts_as_hit() {
        let policy = attached(S3Fifo::fixed());
        assert_eq!(policy.insert(&new(7)), 0);
        store_again(&policy, QueueId::ENTRY, 1);
        assert_eq!(policy.insert(&new(7)), 0, "a ghost counts once");
        evict(&policy, QueueId::MAIN);
        assert_eq!(policy.insert(&new(7)), 0, "the fixed policy has ghosts of the entry queue only");
        store_again(&attached(S3Fifo::balanced()), QueueId::MAIN, 1);
    }

    #[test]
    fn the_balance_follows_entries_stored_again() {
        let policy = attached(S3Fifo::balanced());
        // 4 KiB more each time: a recent ghost counts for four.
        store_again(&policy, QueueId::ENTRY, 51);
        assert_eq!(policy.ghost_hits(), Some(51));
        assert_eq!((policy.victim([29, 71]), policy.victim([31, 69])), (QueueId::MAIN, QueueId::ENTRY));
        store_again(&policy, QueueId::ENTRY, 10_000);
        assert_eq!((policy.victim([79, 21]), policy.victim([81, 19])), (QueueId::MAIN, QueueId::ENTRY));
        store_again(&policy, QueueId::MAIN, 10_000);
        assert_eq!((policy.victim([9, 91]), policy.victim([11, 89])), (QueueId::MAIN, QueueId::ENTRY));
    }

    #[test]
    fn an_entry_stored_again_late_does_not_move_the_balance() {
        let policy = attached(S3Fifo::balanced());
        for n in 0..100 {
            evict(&policy, QueueId::ENTRY);
            // After half of the memory has been evicted, the ghost is remembered but no longer
            // recent.
            policy.record_evicted(QueueId::ENTRY, MEMORY / 2, &[n + 100]);
            assert_eq!(policy.insert(&new(7)), HIT);
            evict(&policy, QueueId::MAIN);
            policy.record_evicted(QueueId::MAIN, MEMORY / 2, &[n + 200]);
            assert_eq!(policy.insert(&new(7)), 0, "from the main queue it counts as new");
        }
        assert_eq!(policy.ghost_hits(), Some(0));
        assert_eq!((policy.victim([9, 91]), policy.victim([11, 89])), (QueueId::MAIN, QueueId::ENTRY));
    }
}

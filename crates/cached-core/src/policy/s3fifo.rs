//! S3-FIFO for a log: newcomers prove themselves in a queue of their own; and a variant that watches
//! how large that queue should be.
//!
//! ```text
//!                 hit, or a ghost       ┌──────────────┐ hit: once more, one hit less
//!  store ──> ENTRY ────────────────────>│     MAIN     │──┐
//!              │ not hit                └──────┬───────┘<─┘
//!              v                               v not hit
//!        ghosts: evicted early           ghosts: evicted late
//! ```
//! Most of what is stored is never read again, and should not cost the rest its place: it leaves from
//! the entry queue, a fifth of the memory, without having been copied. A newcomer whose ghost is
//! still there was evicted too early: it counts as hit, and so moves on when it comes to the tail.
//! (The paper puts it into the main queue at once. Here everything enters at one place, which
//! needs one open region less per thread; the traces do not tell the difference.)
//!
//! *Balanced*: where uses of an item lie a little farther apart than the entry queue is long, a fixed
//! fifth would lose to LRU all that LRU keeps. So ghosts evicted early that come back make the entry
//! queue longer, ghosts evicted late make it shorter, and one of those weighs as much as two of the
//! former; it never gets shorter than a fifth. Nearly all of the memory in the entry queue is a FIFO
//! whose hits are kept: about LRU.
//!
//! Bits: hits since the item was stored or last went round, up to three.

use super::ghosts::Ghosts;
use super::{Candidate, Newcomer, Policy, QUEUES_MAX, QueueId, Verdict};
use std::sync::atomic::{AtomicU32, Ordering};

const HITS_MAX: u8 = 3;
/// Shares of the memory, in 2^-32.
const fn share(percent: u64) -> u32 {
    ((percent << 32) / 100) as u32
}
const SHARE_MIN: u32 = share(20);
const SHARE_MAX: u32 = share(95);
/// The entry queue grows by half of what comes back from it, and shrinks by all of what comes back
/// from the main queue.
const GROW_SHIFT: u32 = 1;

/// Newcomers in a small queue, the proven in a large one, ghosts of both.
#[derive(Debug)]
pub struct S3Fifo {
    name: &'static str,
    is_balanced: bool,
    ghosts: Ghosts,
    memory_bytes: u64,
    /// A byte's share of the memory, in 2^-63: so that nothing is divided when something comes back.
    byte_share: u64,
    /// What part of the regions the entry queue should have.
    entry_share: AtomicU32,
}

impl S3Fifo {
    /// With a fifth for newcomers.
    pub fn fixed() -> S3Fifo {
        S3Fifo {
            name: "s3fifo",
            is_balanced: false,
            ghosts: Ghosts::default(),
            memory_bytes: 1,
            byte_share: 0,
            entry_share: AtomicU32::new(SHARE_MIN),
        }
    }

    /// With a fifth and more for newcomers, as what comes back tells.
    pub fn balanced() -> S3Fifo {
        S3Fifo { name: "balanced", is_balanced: true, ..S3Fifo::fixed() }
    }

    /// Moves the share by what an item of so many bytes that came back from a queue tells.
    fn balance(&self, from: QueueId, bytes: u64) {
        let step = ((bytes.min(self.memory_bytes) * self.byte_share) >> 31).min(u64::from(SHARE_MIN)) as u32;
        let share = self.entry_share.load(Ordering::Relaxed);
        let share = match from {
            QueueId::ENTRY => share.saturating_add(step >> GROW_SHIFT).min(SHARE_MAX),
            _ => share.saturating_sub(step).max(SHARE_MIN),
        };
        // Of two threads at the same time one is not heard: no matter.
        self.entry_share.store(share, Ordering::Relaxed);
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

    fn insert(&self, newcomer: &Newcomer) -> u8 {
        if let Some(bits) = newcomer.replaces {
            return self.hit(bits);
        }
        let Some(from) = self.ghosts.take(newcomer.hash) else { return 0 };
        if self.is_balanced {
            self.balance(from, newcomer.bytes);
        }
        // Evicted late, it had its time, and must prove itself again.
        u8::from(from == QueueId::ENTRY)
    }

    fn hit(&self, bits: u8) -> u8 {
        (bits + 1).min(HITS_MAX)
    }

    fn victim(&self, lengths: [usize; QUEUES_MAX]) -> QueueId {
        let [entry, main] = lengths.map(|count| count as u64);
        let share = u64::from(self.entry_share.load(Ordering::Relaxed));
        if main == 0 || entry << 32 >= (entry + main) * share { QueueId::ENTRY } else { QueueId::MAIN }
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        match (candidate.bits.min(HITS_MAX), candidate.queue) {
            (0, _) => Verdict::Evict,
            (_, QueueId::ENTRY) => Verdict::Keep { queue: QueueId::MAIN, bits: 0 },
            (hits, _) => Verdict::Keep { queue: QueueId::MAIN, bits: hits - 1 },
        }
    }

    fn evicted(&self, candidate: &Candidate) {
        if candidate.queue == QueueId::ENTRY || self.is_balanced {
            self.ghosts.add(candidate.hash, candidate.queue, candidate.bytes);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn at(bits: u8, queue: QueueId) -> Candidate {
        Candidate { hash: 7, bits, queue, idle_secs: 0, bytes: 1 << 10 }
    }

    fn new(hash: u64) -> Newcomer {
        Newcomer { hash, bytes: 1 << 10, replaces: None }
    }

    fn attached(mut policy: S3Fifo) -> S3Fifo {
        assert_eq!(policy.attach(1 << 20, 256), 16 << 10);
        policy
    }

    #[test]
    fn hits_move_on_and_buy_rounds() {
        let policy = attached(S3Fifo::fixed());
        assert_eq!(policy.judge(&at(0, QueueId::ENTRY)), Verdict::Evict);
        assert_eq!(policy.judge(&at(3, QueueId::ENTRY)), Verdict::Keep { queue: QueueId::MAIN, bits: 0 });
        assert_eq!(policy.judge(&at(3, QueueId::MAIN)), Verdict::Keep { queue: QueueId::MAIN, bits: 2 });
        assert_eq!(policy.judge(&at(0, QueueId::MAIN)), Verdict::Evict);
        assert_eq!((0..9).fold(0, |bits, _| policy.hit(bits)), 3);
        assert_eq!(policy.insert(&Newcomer { replaces: Some(1), ..new(1) }), 2);
    }

    #[test]
    fn a_fifth_is_for_newcomers() {
        let policy = attached(S3Fifo::fixed());
        assert_eq!(policy.victim([10, 0]), QueueId::ENTRY);
        assert_eq!(policy.victim([20, 80]), QueueId::ENTRY);
        assert_eq!(policy.victim([19, 81]), QueueId::MAIN);
        assert_eq!(policy.victim([0, 5]), QueueId::MAIN);
    }

    #[test]
    fn who_comes_back_from_the_entry_queue_counts_as_hit() {
        let policy = attached(S3Fifo::fixed());
        assert_eq!(policy.insert(&new(7)), 0);
        policy.evicted(&at(0, QueueId::ENTRY));
        assert_eq!(policy.insert(&new(7)), 1);
        assert_eq!(policy.insert(&new(7)), 0, "a ghost is told once");
        policy.evicted(&at(0, QueueId::MAIN));
        assert_eq!(policy.insert(&new(7)), 0);
    }

    #[test]
    fn the_balance_follows_what_comes_back() {
        let policy = attached(S3Fifo::balanced());
        let come_back = |queue, times| {
            for _ in 0..times {
                policy.evicted(&at(0, queue));
                policy.insert(&new(7));
            }
        };
        // Half a KiB more each time, of 1 MiB.
        come_back(QueueId::ENTRY, 205);
        assert_eq!((policy.victim([29, 71]), policy.victim([31, 69])), (QueueId::MAIN, QueueId::ENTRY));
        come_back(QueueId::ENTRY, 10_000);
        assert_eq!((policy.victim([94, 6]), policy.victim([96, 4])), (QueueId::MAIN, QueueId::ENTRY));
        come_back(QueueId::MAIN, 10_000);
        assert_eq!((policy.victim([19, 81]), policy.victim([21, 79])), (QueueId::MAIN, QueueId::ENTRY));
    }
}

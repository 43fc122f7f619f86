//! Least recently used, approximated: within one per cent of exact on the traces of docs/eviction.md.
//!
//! ```text
//!              ┌──────────────────────┐ hit lately      Time passes as memory is placed anew. Its epochs
//!  store ──┬──>│        ENTRY         │──> ENTRY        are fifths of the memory; a hit notes the epoch
//!          │   └──────────┬───────────┘                 in the bits (modulo seven). What comes to the
//!          │   not hit,   │ hit longer ago              tail was hit lately or some time ago, and goes
//!          │   or too long│ ┌──────────┐                to the head, or in at the middle: MAIN is half
//!          │   ago: out   └>│   MAIN   │──> as above    as long, in time, as ENTRY.
//!          │                └──────────┘
//! ```
//! One bit, as in CLOCK, gives a whole round to whatever was hit at any time in the last: what leaves
//! has not been used for one to two rounds. Here it is one to one and a half, and what was hit only
//! at the very beginning of its round is not copied at all.

use super::{Candidate, Policy, QUEUES_MAX, QueueId, Verdict};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Epochs that the bits tell apart; 0 is *not hit*.
const EPOCHS: u64 = 7;
/// Epochs in which as much is placed as the memory holds.
const EPOCHS_PER_MEMORY: u64 = 5;
/// A hit so many epochs ago is recent, one so many ago is as old as what was not hit.
const RECENT: u64 = 3;
const OLD: u64 = 5;
/// ENTRY is so many times as long as MAIN, in time.
const MAIN_LENGTHS: u64 = 2;

/// Least recently used, approximated by the epoch of the last hit: see the module's head.
#[derive(Debug)]
pub struct Lru {
    memory_bytes: u64,
    epoch: AtomicU64,
    /// Bytes to be placed before the next epoch; written by who judges only, like the rest.
    epoch_left: AtomicU64,
    /// Bytes that lately went into each queue: with its length they tell how long its entries stay.
    placed: [AtomicU64; QUEUES_MAX],
}

impl Default for Lru {
    fn default() -> Lru {
        Lru {
            memory_bytes: EPOCHS_PER_MEMORY,
            epoch: AtomicU64::new(0),
            epoch_left: AtomicU64::new(1),
            placed: [const { AtomicU64::new(1) }; QUEUES_MAX],
        }
    }
}

impl Lru {
    /// Something goes into a queue: time passes.
    fn place(&self, queue: QueueId, bytes: u64) {
        let placed = &self.placed[usize::from(queue.0)];
        placed.store(placed.load(Relaxed) + bytes, Relaxed);
        let left = self.epoch_left.load(Relaxed);
        if bytes < left {
            self.epoch_left.store(left - bytes, Relaxed);
        } else {
            self.epoch_left.store(self.memory_bytes / EPOCHS_PER_MEMORY, Relaxed);
            self.epoch.store((self.epoch.load(Relaxed) + 1) % EPOCHS, Relaxed);
            // What was placed a memory ago counts a quarter of what is placed now.
            for placed in &self.placed {
                placed.store((placed.load(Relaxed) * 3 / 4).max(1), Relaxed);
            }
        }
    }
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn attach(&mut self, memory_bytes: usize, _entry_bytes: usize) -> usize {
        self.memory_bytes = (memory_bytes as u64).max(EPOCHS_PER_MEMORY);
        *self.epoch_left.get_mut() = self.memory_bytes / EPOCHS_PER_MEMORY;
        0
    }

    fn hit(&self, _bits: u8) -> u8 {
        self.epoch.load(Relaxed) as u8 + 1
    }

    fn victim(&self, lengths: [u64; QUEUES_MAX]) -> QueueId {
        let [entry, main] = lengths.map(u128::from);
        let [to_entry, to_main] = [0, 1].map(|queue: usize| u128::from(self.placed[queue].load(Relaxed)));
        // Entries stay for the queue's length divided by what goes into it.
        if main == 0 || entry * to_main >= main * to_entry * u128::from(MAIN_LENGTHS) {
            QueueId::ENTRY
        } else {
            QueueId::MAIN
        }
    }

    fn decide(&self, candidate: &Candidate) -> Verdict {
        let age = match u64::from(candidate.bits) {
            0 => OLD,
            hit => (self.epoch.load(Relaxed) + EPOCHS - (hit - 1)) % EPOCHS,
        };
        // What is evicted gives its place to a newcomer.
        let queue = if (RECENT..OLD).contains(&age) { QueueId::MAIN } else { QueueId::ENTRY };
        self.place(queue, candidate.bytes);
        if age >= OLD { Verdict::Evict } else { Verdict::Keep { queue, bits: 0 } }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const EPOCH_BYTES: u64 = 1000;

    fn attached() -> Lru {
        let mut lru = Lru::default();
        assert_eq!(lru.attach(5 * EPOCH_BYTES as usize, 256), 0);
        lru
    }

    fn at(bits: u8, bytes: u64) -> Candidate {
        Candidate { hash: 0, bits, queue: QueueId::ENTRY, idle_secs: 0, bytes }
    }

    #[test]
    fn the_later_the_hit_the_longer_it_stays() {
        let keep = |queue| Verdict::Keep { queue, bits: 0 };
        let (entry, main) = (keep(QueueId::ENTRY), keep(QueueId::MAIN));
        for first in 0..7 {
            let lru = attached();
            (0..first).for_each(|_| assert_eq!(lru.decide(&at(0, EPOCH_BYTES)), Verdict::Evict));
            let bits = lru.hit(0);
            assert!((1..8).contains(&bits));
            assert_eq!(lru.hit(7), bits, "the last hit counts");
            for expected in [entry, entry, entry, main, main, Verdict::Evict] {
                assert_eq!(lru.decide(&at(bits, 0)), expected);
                lru.decide(&at(0, EPOCH_BYTES));
            }
        }
    }

    #[test]
    fn the_middle_is_half_as_long_in_time() {
        let lru = attached();
        assert_eq!(lru.victim([1, 0]), QueueId::ENTRY);
        // As much goes into one queue as into the other.
        for _ in 0..50 {
            lru.place(QueueId::ENTRY, EPOCH_BYTES / 2);
            lru.place(QueueId::MAIN, EPOCH_BYTES / 2);
        }
        assert_eq!((lru.victim([70, 30]), lru.victim([63, 37])), (QueueId::ENTRY, QueueId::MAIN));
        // Less and less goes into the middle: its share shrinks.
        (0..50).for_each(|_| lru.place(QueueId::ENTRY, EPOCH_BYTES));
        assert_eq!(lru.victim([95, 5]), QueueId::MAIN);
    }
}

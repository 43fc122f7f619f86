//! Least recently used, approximated: within one per cent of exact LRU on the traces of docs/eviction.md.
//!
//! ```text
//!              ┌──────────────────────┐ hit recently    Time is the number of bytes placed in queues. An epoch
//!  store ──┬──>│        ENTRY         │──> ENTRY        is a fifth of the memory; a hit writes the epoch into
//!          │   └──────────┬───────────┘                 the bits (modulo seven). An entry at the tail that
//!          │   not hit,   │ hit longer ago              was hit recently moves to the head, one that was hit
//!          │   or too long│ ┌──────────┐                longer ago to the middle: MAIN is half as long, in
//!          │   ago: out   └>│   MAIN   │──> as above    time, as ENTRY.
//!          │                └──────────┘
//! ```
//! One bit, as in CLOCK, gives a whole round to every entry that was hit at any time in the last one: an
//! entry that is evicted has not been used for one to two rounds. Here it is one to one and a half, and an
//! entry that was hit only at the very beginning of its round is not copied at all.

use super::{Candidate, Policy, QUEUES_MAX, QueueId, Verdict};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of epochs that the bits distinguish; 0 is *not hit*.
const EPOCHS: u64 = 7;
/// The number of epochs in which as many bytes are placed as the memory holds.
const EPOCHS_PER_MEMORY: u64 = 5;
/// A hit fewer epochs ago than this is recent.
const RECENT: u64 = 3;
/// A hit this many epochs ago counts as none.
const OLD: u64 = 5;
/// ENTRY is this many times as long as MAIN, in time.
const MAIN_LENGTHS: u64 = 2;

/// Least recently used, approximated by the epoch of the last hit.
#[derive(Debug)]
pub struct Lru {
    memory_bytes: u64,
    epoch: AtomicU64,
    /// Bytes to be placed before the next epoch; written only by the thread that decides, like the other
    /// fields.
    epoch_left: AtomicU64,
    /// Bytes recently placed in each queue: with its length they give the time that its entries stay.
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
    /// Records that bytes are placed in a queue, and advances the time.
    fn place(&self, queue: QueueId, bytes: u64) {
        let placed = &self.placed[usize::from(queue.0)];
        placed.store(placed.load(Relaxed) + bytes, Relaxed);
        let left = self.epoch_left.load(Relaxed);
        if bytes < left {
            self.epoch_left.store(left - bytes, Relaxed);
        } else {
            self.epoch_left.store(self.memory_bytes / EPOCHS_PER_MEMORY, Relaxed);
            self.epoch.store((self.epoch.load(Relaxed) + 1) % EPOCHS, Relaxed);
            // Bytes placed one memory's worth ago count a quarter.
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
        // Entries stay for the queue's length divided by what is placed in it.
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
        // A new entry takes the room of one that is evicted.
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
    fn the_more_recent_the_hit_the_longer_an_entry_stays() {
        let keep = |queue| Verdict::Keep { queue, bits: 0 };
        let (entry, main) = (keep(QueueId::ENTRY), keep(QueueId::MAIN));
        for first in 0..7 {
            let lru = attached();
            (0..first).for_each(|_| assert_eq!(lru.decide(&at(0, EPOCH_BYTES)), Verdict::Evict));
            let bits = lru.hit(0);
            assert!((1..8).contains(&bits));
            assert_eq!(lru.hit(7), bits, "only the last hit counts");
            for expected in [entry, entry, entry, main, main, Verdict::Evict] {
                assert_eq!(lru.decide(&at(bits, 0)), expected);
                lru.decide(&at(0, EPOCH_BYTES));
            }
        }
    }

    #[test]
    fn the_main_queue_is_half_as_long_in_time() {
        let lru = attached();
        assert_eq!(lru.victim([1, 0]), QueueId::ENTRY);
        // Both queues get the same number of bytes.
        for _ in 0..50 {
            lru.place(QueueId::ENTRY, EPOCH_BYTES / 2);
            lru.place(QueueId::MAIN, EPOCH_BYTES / 2);
        }
        assert_eq!((lru.victim([70, 30]), lru.victim([63, 37])), (QueueId::ENTRY, QueueId::MAIN));
        // Fewer and fewer go into the main queue: its share shrinks.
        (0..50).for_each(|_| lru.place(QueueId::ENTRY, EPOCH_BYTES));
        assert_eq!(lru.victim([95, 5]), QueueId::MAIN);
    }
}

//! Least recently used, approximated: within one per cent of exact LRU on the traces of
//! docs/eviction.md; and most recently used.
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
//! In CLOCK, with one bit, every entry that was hit at any time in the last round stays for a whole
//! further round, so an evicted entry has not been used for one to two rounds. Here this time is
//! one to one and a half rounds, and an entry that was hit only at the start of its round is not
//! copied at all.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Candidate, Policy, QUEUES_MAX, QueueId, Verdict};

/// The number of epochs that the bits distinguish; 0 means *not hit*.
const EPOCHS: u64 = 7;
/// The number of epochs in which as many bytes are placed as the memory holds.
const EPOCHS_PER_MEMORY: u64 = 5;
/// A hit is recent if it is fewer epochs old than this.
const RECENT: u64 = 3;
/// A hit that is this many epochs old no longer counts.
const OLD: u64 = 5;
/// The length of ENTRY in units of MAIN's length, in time.
const MAIN_LENGTHS: u64 = 2;

/// Least recently used, approximated by the epoch of the last hit.
#[derive(Debug)]
pub struct Lru {
    memory_bytes: u64,
    epoch: AtomicU64,
    /// The bytes to be placed before the next epoch. Like the other fields, it is written only by
    /// the thread that decides.
    epoch_left: AtomicU64,
    /// The bytes recently placed in each queue, which together with the queue's length give the
    /// time that its entries stay.
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
            // Bytes that were placed one memory size ago have a quarter of the weight.
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
        // Entries stay in a queue for its length divided by the bytes placed in it.
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
        // A new entry replaces an evicted one.
        let queue = if (RECENT..OLD).contains(&age) { QueueId::MAIN } else { QueueId::ENTRY };
        self.place(queue, candidate.bytes);
        if age >= OLD { Verdict::Evict } else { Verdict::Keep { queue, bits: 0 } }
    }
}

// The opposite policy, which evicts the most recently used entry: for workloads in which a recently
// used entry will not be used again soon.

/// Evicts entries that were read first, then those that were stored last. This is for swap,
/// prefetched data and loops longer than the memory, where a second read is far away or never
/// comes.
///
/// New entries pass through a short entry queue. At its end they move to the main queue if that has
/// space; otherwise they are evicted, and the main queue stays as it is. The main queue is walked
/// for entries that have been read, as often as a walk finds some.
#[derive(Debug, Default)]
pub struct Mru {
    /// Whether the main queue occupies all of the memory.
    main_is_full: std::sync::atomic::AtomicBool,
    /// The number of walks of the entry queue between two walks of the main queue. It is doubled by
    /// each walk that finds too few entries.
    pause: AtomicU32,
    /// The number of walks of the entry queue since the last one of the main queue.
    walks: AtomicU32,
    /// Candidates of the main queue since the start of its walk, and how many of them had been
    /// read.
    candidates: AtomicU32,
    read: AtomicU32,
}

/// The entry queue's share of all regions: 1/16.
const ENTRY_SHARE: u64 = 16;
const PAUSE_MAX: u32 = 64;
/// A walk of the main queue is worthwhile if one of this many entries is evicted.
const YIELD: u32 = 4;
/// Bit 0: read. Bits 1 and 2: rounds in the main queue.
const READ: u8 = 1;

impl Policy for Mru {
    fn name(&self) -> &'static str {
        "mru"
    }

    fn hit(&self, bits: u8) -> u8 {
        bits | READ
    }

    fn evicts_idle(&self) -> bool {
        false
    }

    fn victim(&self, lengths: [u64; QUEUES_MAX]) -> QueueId {
        let [entry, main] = lengths;
        let full = entry <= (entry + main).div_ceil(ENTRY_SHARE) + 1;
        self.main_is_full.store(full, Ordering::Relaxed);
        let candidates = self.candidates.swap(0, Ordering::Relaxed);
        if candidates > 0 {
            let in_vain = self.read.swap(0, Ordering::Relaxed) * YIELD < candidates;
            let pause = self.pause.load(Ordering::Relaxed).max(1);
            let next = if in_vain { (pause * 2).min(PAUSE_MAX) } else { pause / 2 };
            self.pause.store(next, Ordering::Relaxed);
        }
        let walks = self.walks.load(Ordering::Relaxed);
        let is_time = walks >= self.pause.load(Ordering::Relaxed);
        if main > 0 && (entry == 0 || full && is_time) {
            self.walks.store(0, Ordering::Relaxed);
            return QueueId::MAIN;
        }
        self.walks.store(walks.saturating_add(1), Ordering::Relaxed);
        QueueId::ENTRY
    }

    fn decide(&self, candidate: &Candidate) -> Verdict {
        let is_main = candidate.queue == QueueId::MAIN;
        if is_main {
            self.candidates.fetch_add(1, Ordering::Relaxed);
        }
        if candidate.bits & READ != 0 {
            if is_main {
                self.read.fetch_add(1, Ordering::Relaxed);
            }
            return Verdict::Evict;
        }
        if !is_main && self.main_is_full.load(Ordering::Relaxed) {
            return Verdict::Evict;
        }
        // The rounds are counted, so that an entry that is never read does not stay forever.
        match candidate.bits >> 1 {
            3 => Verdict::Evict,
            rounds => Verdict::Keep { queue: QueueId::MAIN, bits: (rounds + 1) << 1 },
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod lru_tests {
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
        // Fewer and fewer entries go into the main queue, so its share shrinks.
        (0..50).for_each(|_| lru.place(QueueId::ENTRY, EPOCH_BYTES));
        assert_eq!(lru.victim([95, 5]), QueueId::MAIN);
    }
}

#[cfg(all(test, not(shuttle)))]
mod mru_tests {
    use super::*;

    #[test]
    fn entries_that_were_read_are_evicted_first() {
        let mru = Mru::default();
        let at = |bits, queue| Candidate { hash: 0, bits, queue, idle_secs: 0, bytes: 1 };
        assert_eq!(mru.victim([16, 0]), QueueId::ENTRY);
        assert_eq!(mru.decide(&at(0, QueueId::ENTRY)), Verdict::Keep { queue: QueueId::MAIN, bits: 2 });
        assert_eq!(mru.decide(&at(mru.hit(0), QueueId::ENTRY)), Verdict::Evict);
        assert_eq!(
            mru.victim([2, 30]),
            QueueId::MAIN,
            "full: the main queue is walked for entries that were read"
        );
        assert_eq!(mru.decide(&at(2, QueueId::MAIN)), Verdict::Keep { queue: QueueId::MAIN, bits: 4 });
        assert_eq!(mru.victim([2, 30]), QueueId::ENTRY, "that walk found none");
        assert_eq!(mru.decide(&at(0, QueueId::ENTRY)), Verdict::Evict, "the main queue has no room");
        assert_eq!(mru.decide(&at(mru.hit(2), QueueId::MAIN)), Verdict::Evict);
    }
}

//! Most recently used: for loads in which an entry that has just been used will not be used again soon.

use super::{Candidate, Policy, QUEUES_MAX, QueueId, Verdict};
use std::sync::atomic::{AtomicU32, Ordering};

/// Evicts entries that were read first, then those that were stored last: for swap, prefetched data and loops
/// longer than the memory, where a second read is far away or never comes.
///
/// New entries pass through a short entry queue. At its end they move to the main queue while there is room;
/// otherwise they are evicted, and the main queue stays as it is. The main queue is walked for entries that
/// have been read, as often as that finds some.
#[derive(Debug, Default)]
pub struct Mru {
    /// Whether the main queue has all the room there is.
    main_is_full: std::sync::atomic::AtomicBool,
    /// Walks of the entry queue between two of the main queue; doubled by each that finds too little.
    pause: AtomicU32,
    /// Walks of the entry queue since the last of the main queue.
    walks: AtomicU32,
    /// Candidates of the main queue since its walk began, and how many of them had been read.
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
        // Rounds are counted, so that an entry that is never read does not stay for ever.
        match candidate.bits >> 1 {
            3 => Verdict::Evict,
            rounds => Verdict::Keep { queue: QueueId::MAIN, bits: (rounds + 1) << 1 },
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
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

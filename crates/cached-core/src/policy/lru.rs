//! Least recently used, approximated.

use super::{Candidate, Policy, QUEUES_MAX, QueueId, Verdict};

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

    fn victim(&self, _lengths: [usize; QUEUES_MAX]) -> QueueId {
        QueueId::ENTRY
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        if candidate.bits & 1 == 0 {
            Verdict::Evict
        } else {
            Verdict::Keep { queue: QueueId::ENTRY, bits: 0 }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn lru_gives_one_second_chance() {
        let at = |bits| Candidate { hash: 0, bits, queue: QueueId::ENTRY, idle_secs: 0, bytes: 1 };
        assert_eq!(Lru.judge(&at(0)), Verdict::Evict);
        assert_eq!(Lru.judge(&at(Lru.hit(0))), Verdict::Keep { queue: QueueId::ENTRY, bits: 0 });
    }
}

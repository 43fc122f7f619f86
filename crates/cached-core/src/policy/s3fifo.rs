//! S3-FIFO (Yang et al., SOSP'23) for a log: newcomers prove themselves in a queue of their own; and
//! a variant that watches how large that queue should be, and how long the proven should stay.
//!
//! ```text
//!                 hit, or a ghost       ┌──────────────┐ hit; or not, but on credit
//!  store ──> ENTRY ────────────────────>│     MAIN     │──┐
//!              │ not hit                └──────┬───────┘<─┘
//!              v                               v not hit
//!        ghosts: evicted early           ghosts: evicted late
//! ```
//! Most of what is stored is never read again, and should not cost the rest its place: it leaves from
//! the entry queue without having been copied. A newcomer whose ghost is still there was evicted too
//! early: it counts as hit, and so moves on when it comes to the tail. (The paper puts it into the
//! main queue at once. Here everything enters at one place, which needs one open region less per
//! thread; the traces do not tell the difference.) In the main queue every further hit buys a round
//! on credit.
//!
//! *Fixed*: a fifth of the memory is for newcomers, and credit is always given.
//!
//! *Balanced* measures what the last bit of memory is worth to each queue: a ghost that comes back soon,
//! before a quarter of the memory has been evicted from its queue, would have been a hit had that queue
//! been a little longer. So each of them moves the balance by its weight towards its queue, which
//! comes to rest where both would gain the same (ARC, FAST'03, weighs all of its ghosts, however
//! old; those tell little about the margin). Credit is given only while it pays: while entries in their
//! last round on credit are hit more often than those that were evicted come back. Where uses
//! follow recency alone it does not, and without it the two queues are about a CLOCK.
//!
//! Bits: 0 to 3: hits since the entry was stored or last went round. 4, 5: not hit in this round, with
//! one or two rounds of credit. 6: in its last round on credit. 7: hit in that.

use super::ghosts::{Ghost, Ghosts};
use super::{Candidate, Newcomer, Policy, QUEUES_MAX, QueueId, Verdict};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What a hit makes of the bits.
const AFTER_HIT: [u8; 8] = [1, 2, 3, 3, 2, 3, PAID, PAID];
/// The states beyond the counts of hits.
const CREDIT_1: u8 = 4;
const CREDIT_2: u8 = 5;
const LAST_CREDIT: u8 = 6;
const PAID: u8 = 7;

/// Shares of the memory, in 2^-32.
const fn share(percent: u64) -> u32 {
    ((percent << 32) / 100) as u32
}
/// Of the fixed one: a tenth, as in the paper, is far behind LRU where uses lie a little farther apart.
const SHARE_FIXED: u32 = share(20);
/// The bounds of the balanced one.
const SHARE_MIN: u32 = share(10);
const SHARE_MAX: u32 = share(80);
/// The ghosts that count are those of a quarter of the memory: each stands for four.
const STEP_SHIFT: u32 = 2;

/// Newcomers in a small queue, the proven in a large one, ghosts of both.
#[derive(Debug)]
pub struct S3Fifo {
    name: &'static str,
    is_balanced: bool,
    ghosts: Ghosts,
    memory_bytes: u64,
    /// A byte's share of the memory, in 2^-63: so that nothing is divided when something comes back.
    byte_share: u64,
    /// What part of the memory the entry queue should have.
    entry_share: AtomicU32,
    /// Of the entries in their last round on credit, those that were hit.
    credit: Rate,
    /// Of those evicted from the main queue, those that came back soon.
    back: Rate,
}

impl S3Fifo {
    /// With a fifth for newcomers, and credit for all.
    pub fn fixed() -> S3Fifo {
        S3Fifo {
            name: "s3fifo",
            is_balanced: false,
            ghosts: Ghosts::default(),
            memory_bytes: 1,
            byte_share: 0,
            entry_share: AtomicU32::new(SHARE_FIXED),
            credit: Rate::of(1, 1),
            back: Rate::of(0, 1),
        }
    }

    /// With a tenth and more for newcomers, and credit for some, as what comes back tells.
    pub fn balanced() -> S3Fifo {
        S3Fifo {
            name: "balanced",
            is_balanced: true,
            entry_share: AtomicU32::new(SHARE_MIN),
            ..S3Fifo::fixed()
        }
    }

    /// Moves the share by what an entry of so many bytes that came back from a queue tells.
    fn balance(&self, from: QueueId, bytes: u64) {
        let step = ((bytes.min(self.memory_bytes) * self.byte_share) >> (31 - STEP_SHIFT)) as u32;
        let share = self.entry_share.load(Relaxed);
        let share = match from {
            QueueId::ENTRY => share.saturating_add(step).min(SHARE_MAX),
            _ => share.saturating_sub(step).max(SHARE_MIN),
        };
        // Of two threads at the same time one is not heard: no matter.
        self.entry_share.store(share, Relaxed);
    }

    /// Whether this entry of the main queue may stay for another round though it was not hit.
    fn gives_credit(&self, hash: u64) -> bool {
        /// One in so many gets it in any case: else nobody would learn when it pays again.
        const TRIED: u64 = 32;
        if !self.is_balanced || (hash >> 20).is_multiple_of(TRIED) {
            return true;
        }
        // What would come back in a whole round, were the evicted still there: what came back while a
        // quarter of the memory was evicted, times the rounds' length in such quarters, which is half
        // of the queue's own, as about half of what is walked is evicted.
        let main_share = u64::from(!self.entry_share.load(Relaxed));
        let (paid, credits) = self.credit.get();
        let (back, evicted) = self.back.get();
        paid * evicted >= (back * credits * main_share) >> 31
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
        let Some(Ghost { queue, is_recent }) = self.ghosts.take(newcomer.hash) else { return 0 };
        if self.is_balanced && is_recent {
            self.balance(queue, newcomer.bytes);
            if queue == QueueId::MAIN {
                self.back.hit();
            }
        }
        1
    }

    fn hit(&self, bits: u8) -> u8 {
        AFTER_HIT[usize::from(bits & 7)]
    }

    fn victim(&self, lengths: [usize; QUEUES_MAX]) -> QueueId {
        let [entry, main] = lengths.map(|length| length as u64);
        let share = u64::from(self.entry_share.load(Relaxed));
        if main == 0 || entry << 32 >= (entry + main) * share { QueueId::ENTRY } else { QueueId::MAIN }
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        let keep = |bits| Verdict::Keep { queue: QueueId::MAIN, bits };
        if candidate.queue == QueueId::ENTRY {
            return if candidate.bits == 0 { Verdict::Evict } else { keep(0) };
        }
        match candidate.bits {
            0 => Verdict::Evict,
            1 => keep(0),
            2 => keep(CREDIT_1),
            3 => keep(CREDIT_2),
            CREDIT_1 if self.gives_credit(candidate.hash) => keep(LAST_CREDIT),
            CREDIT_2 if self.gives_credit(candidate.hash) => keep(CREDIT_1),
            CREDIT_1 | CREDIT_2 => Verdict::Evict,
            LAST_CREDIT => {
                self.credit.count(1);
                Verdict::Evict
            }
            _ => {
                self.credit.count(1);
                self.credit.hit();
                keep(0)
            }
        }
    }

    fn evicted(&self, candidates: &[Candidate]) {
        for of_queue in candidates.chunk_by(|one, next| one.queue == next.queue) {
            let queue = of_queue[0].queue;
            if self.is_balanced {
                if queue == QueueId::MAIN {
                    self.back.count(of_queue.len() as u32);
                }
            } else if queue != QueueId::ENTRY {
                continue;
            }
            let bytes = of_queue.iter().map(|candidate| candidate.bytes).sum();
            self.ghosts.add_all(queue, bytes, of_queue.iter().map(|candidate| candidate.hash));
        }
    }
}

/// How many of the last few hundred were hits. Exact where one thread counts; of two at the same time
/// one may not be heard.
#[derive(Debug)]
struct Rate {
    hits: AtomicU32,
    all: AtomicU32,
}

impl Rate {
    /// All are halved when there are so many.
    const ALL_MAX: u32 = 1024;

    fn of(hits: u32, all: u32) -> Rate {
        Rate { hits: AtomicU32::new(hits), all: AtomicU32::new(all) }
    }

    fn hit(&self) {
        self.hits.store(self.hits.load(Relaxed).saturating_add(1), Relaxed);
    }

    fn count(&self, more: u32) {
        let all = self.all.load(Relaxed) + more;
        self.all.store(all, Relaxed);
        if all >= Rate::ALL_MAX {
            self.all.store(all / 2, Relaxed);
            self.hits.store(self.hits.load(Relaxed) / 2, Relaxed);
        }
    }

    /// Hits, and of how many: never more than all.
    fn get(&self) -> (u64, u64) {
        let all = self.all.load(Relaxed);
        (u64::from(self.hits.load(Relaxed).min(all)), u64::from(all))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn at(bits: u8, queue: QueueId) -> Candidate {
        Candidate { hash: 7 << 20, bits, queue, idle_secs: 0, bytes: 1 << 10 }
    }

    fn new(hash: u64) -> Newcomer {
        Newcomer { hash, bytes: 1 << 10, replaces: None }
    }

    fn attached(mut policy: S3Fifo) -> S3Fifo {
        assert_eq!(policy.attach(1 << 20, 256), 16 << 10);
        policy
    }

    fn come_back(policy: &S3Fifo, queue: QueueId, times: usize) {
        for _ in 0..times {
            policy.evicted(&[at(0, queue)]);
            assert_eq!(policy.insert(&new(7 << 20)), 1);
        }
    }

    /// Rounds that an entry stays in the main queue without a hit, once it has had so many.
    fn rounds(policy: &S3Fifo, hits: usize) -> usize {
        let mut bits = (0..hits).fold(0, |bits, _| policy.hit(bits));
        let mut rounds = 0;
        while let Verdict::Keep { bits: next, .. } = policy.judge(&at(bits, QueueId::MAIN)) {
            (bits, rounds) = (next, rounds + 1);
        }
        rounds
    }

    #[test]
    fn hits_move_on_and_buy_rounds() {
        let policy = attached(S3Fifo::fixed());
        assert_eq!(policy.judge(&at(0, QueueId::ENTRY)), Verdict::Evict);
        assert_eq!(policy.judge(&at(3, QueueId::ENTRY)), Verdict::Keep { queue: QueueId::MAIN, bits: 0 });
        assert_eq!([0, 1, 2, 3, 9].map(|hits| rounds(&policy, hits)), [0, 1, 2, 3, 3]);
        assert_eq!(policy.insert(&Newcomer { replaces: Some(1), ..new(1) }), 2);
        // Hits while on credit add up as they do before.
        assert_eq!([CREDIT_1, CREDIT_2, LAST_CREDIT].map(|bits| policy.hit(bits)), [2, 3, PAID]);
        assert_eq!(policy.judge(&at(PAID, QueueId::MAIN)), Verdict::Keep { queue: QueueId::MAIN, bits: 0 });
    }

    #[test]
    fn newcomers_have_their_share() {
        for (policy, share) in [(S3Fifo::fixed(), 20), (S3Fifo::balanced(), 10)] {
            let policy = attached(policy);
            assert_eq!(policy.victim([10, 0]), QueueId::ENTRY);
            assert_eq!(policy.victim([share, 100 - share]), QueueId::ENTRY);
            assert_eq!(policy.victim([share - 1, 101 - share]), QueueId::MAIN);
            assert_eq!(policy.victim([0, 5]), QueueId::MAIN);
        }
    }

    #[test]
    fn who_comes_back_counts_as_hit() {
        let policy = attached(S3Fifo::fixed());
        assert_eq!(policy.insert(&new(7 << 20)), 0);
        come_back(&policy, QueueId::ENTRY, 1);
        assert_eq!(policy.insert(&new(7 << 20)), 0, "a ghost is told once");
        policy.evicted(&[at(0, QueueId::MAIN)]);
        assert_eq!(policy.insert(&new(7 << 20)), 0, "the fixed one remembers only who left early");
        come_back(&attached(S3Fifo::balanced()), QueueId::MAIN, 1);
    }

    #[test]
    fn the_balance_follows_what_comes_back() {
        let policy = attached(S3Fifo::balanced());
        // 4 KiB more each time, of 1 MiB.
        come_back(&policy, QueueId::ENTRY, 51);
        assert_eq!((policy.victim([29, 71]), policy.victim([31, 69])), (QueueId::MAIN, QueueId::ENTRY));
        come_back(&policy, QueueId::ENTRY, 10_000);
        assert_eq!((policy.victim([79, 21]), policy.victim([81, 19])), (QueueId::MAIN, QueueId::ENTRY));
        come_back(&policy, QueueId::MAIN, 10_000);
        assert_eq!((policy.victim([9, 91]), policy.victim([11, 89])), (QueueId::MAIN, QueueId::ENTRY));
    }

    #[test]
    fn what_comes_back_late_moves_nothing() {
        let policy = attached(S3Fifo::balanced());
        for n in 0..100 {
            policy.evicted(&[at(0, QueueId::ENTRY)]);
            // Half of the memory goes by: still remembered, no longer the margin.
            let other = Candidate { hash: n + 1, bytes: 512 << 10, ..at(0, QueueId::ENTRY) };
            policy.evicted(&[other]);
            assert_eq!(policy.insert(&new(7 << 20)), 1);
        }
        assert_eq!((policy.victim([9, 91]), policy.victim([11, 89])), (QueueId::MAIN, QueueId::ENTRY));
    }

    #[test]
    fn credit_is_given_while_it_pays() {
        let policy = attached(S3Fifo::balanced());
        assert_eq!(rounds(&policy, 3), 3, "at first");
        // Nobody on credit is hit, and all that are evicted come back.
        for _ in 0..2_000 {
            policy.judge(&at(LAST_CREDIT, QueueId::MAIN));
            come_back(&policy, QueueId::MAIN, 1);
        }
        assert_eq!([1, 2, 3].map(|hits| rounds(&policy, hits)), [1, 1, 1]);
        let tried = Candidate { hash: 32 << 20, ..at(CREDIT_1, QueueId::MAIN) };
        assert_ne!(policy.judge(&tried), Verdict::Evict, "a few are tried");
        // All that are tried are hit, and few come back.
        for _ in 0..2_000 {
            policy.judge(&at(PAID, QueueId::MAIN));
            policy.evicted(&[at(0, QueueId::MAIN)]);
        }
        assert_eq!(rounds(&policy, 3), 3);
    }
}

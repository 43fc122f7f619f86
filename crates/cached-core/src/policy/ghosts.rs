//! Names of what was evicted not long ago, so that who comes back soon can be told from who is new.
//!
//! ```text
//!  a set is 32 bytes, half a cache line:  16 ghosts, found by the upper bits of the mixed hash
//!   15        14      11 10                    0
//!  ┌────────┬───────────┬───────────────────────┐
//!  │ queue  │ stamp     │ tag (0: empty)        │   stamp: eighths of the memory evicted from that
//!  └────────┴───────────┴───────────────────────┘   queue, modulo 16; eight and more are too old
//! ```
//! A ghost counts until as much as the whole memory has been evicted from its queue since: bytes, not
//! names, so it is the same for small items and large. A hand goes once round the table in that time
//! and removes what is too old, before its stamp could be taken for a young one. One name in 128
//! takes another for its own; the worst of that is an item kept a little longer.
//!
//! The table has two bytes for every 128 of memory. With items about as small as that, a full set gives
//! up any: some are forgotten early, and what is remembered stays bounded. It is touched only once something is evicted.

use super::QueueId;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};

const SET: usize = 16;
/// Bytes of memory for each byte of ghosts.
const MEMORY_SHARE: usize = 64;
/// Bytes of memory for each set.
const SET_SPAN: usize = MEMORY_SHARE * SET * size_of::<u16>();
const TAG_BITS: u32 = 11;
const TAG_MASK: u16 = (1 << TAG_BITS) - 1;
const STAMP_MASK: u16 = 15;
const QUEUE_BIT: u32 = 15;
/// Stamps that a ghost lasts, and that the memory is divided into.
const STAMPS: u16 = 8;
/// Sets that the hand passes at most at one eviction.
const SWEEP_MAX: u64 = 64;

/// The table. Made with no sets it remembers nothing.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    /// Each is only a hint: a race between two threads loses one at most.
    slots: Box<[AtomicU16]>,
    /// Bytes of memory for each stamp.
    stamp_span: u64,
    /// The stamp of each queue, and bytes to be evicted from it before the next.
    stamps: [AtomicU16; 2],
    stamp_left: [AtomicU64; 2],
    /// Bytes evicted so far: where the hand is.
    evicted_bytes: AtomicU64,
    /// Ghosts that had to go for others, which takes turns between the slots.
    pushed_out: AtomicUsize,
}

impl Ghosts {
    /// A table for so much memory.
    pub(super) fn new(memory_bytes: usize) -> Ghosts {
        let sets = (memory_bytes / SET_SPAN).max(1);
        // Zeroed by the system when first touched, which a loop over atomics would do at once.
        let zeroed = Box::into_raw(vec![0u16; sets * SET].into_boxed_slice());
        // SAFETY: the pointer comes from a box of the same layout: an atomic has its integer's size,
        // alignment and valid values.
        let slots = unsafe { Box::from_raw(zeroed as *mut [AtomicU16]) };
        let stamp_span = (memory_bytes as u64 / u64::from(STAMPS)).max(1);
        let stamp_left = [const { AtomicU64::new(0) }; 2];
        stamp_left.iter().for_each(|left| left.store(stamp_span, Ordering::Relaxed));
        Ghosts { slots, stamp_span, stamp_left, ..Ghosts::default() }
    }

    /// What the table takes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }

    fn sets(&self) -> u64 {
        (self.slots.len() / SET) as u64
    }

    /// The set of a hash, and its tag.
    fn find(&self, hash: u64) -> Option<(&[AtomicU16; SET], u16)> {
        let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let set = (((mixed >> 32) * self.sets()) >> 32) as usize;
        let tag = (mixed >> 21) as u16 & TAG_MASK;
        let (sets, _) = self.slots.as_chunks::<SET>();
        Some((sets.get(set)?, tag.max(1)))
    }

    /// Stamps since the ghost was made.
    #[inline]
    fn age(&self, ghost: u16) -> u16 {
        let stamp = self.stamps[usize::from(ghost >> QUEUE_BIT)].load(Ordering::Relaxed);
        stamp.wrapping_sub(ghost >> TAG_BITS) & STAMP_MASK
    }

    /// Forgets the ghost of a hash; tells the queue that it was evicted from, if there is one.
    pub(super) fn take(&self, hash: u64) -> Option<QueueId> {
        if self.evicted_bytes.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let (set, tag) = self.find(hash)?;
        let slot = set.iter().find(|slot| slot.load(Ordering::Relaxed) & TAG_MASK == tag)?;
        let ghost = slot.swap(0, Ordering::Relaxed);
        let is_young = ghost & TAG_MASK == tag && self.age(ghost) < STAMPS;
        is_young.then_some(QueueId((ghost >> QUEUE_BIT) as u8))
    }

    /// Remembers an eviction. One thread at a time.
    pub(super) fn add(&self, hash: u64, queue: QueueId, bytes: u64) {
        let queue = usize::from(queue.0 & 1);
        let Some((set, tag)) = self.find(hash) else { return };
        self.pass_time(queue, bytes);
        // The same name, an empty slot, or any: the hand has removed what is old.
        let fits = |slot: &AtomicU16| {
            let there = slot.load(Ordering::Relaxed) & TAG_MASK;
            there == 0 || there == tag
        };
        let at = set
            .iter()
            .position(fits)
            .unwrap_or_else(|| self.pushed_out.fetch_add(1, Ordering::Relaxed) % SET);
        let stamp = self.stamps[queue].load(Ordering::Relaxed);
        set[at].store((queue as u16) << QUEUE_BIT | stamp << TAG_BITS | tag, Ordering::Relaxed);
    }

    /// Moves the queue's stamp and the hand on by so many bytes evicted; the hand removes what is too old.
    fn pass_time(&self, queue: usize, bytes: u64) {
        let left = self.stamp_left[queue].load(Ordering::Relaxed);
        let passed = if bytes < left { 0 } else { (bytes - left) / self.stamp_span + 1 };
        self.stamp_left[queue].store(left + passed * self.stamp_span - bytes, Ordering::Relaxed);
        if passed > 0 {
            let stamp = self.stamps[queue].load(Ordering::Relaxed).wrapping_add(passed as u16);
            self.stamps[queue].store(stamp & STAMP_MASK, Ordering::Relaxed);
        }
        let before = self.evicted_bytes.load(Ordering::Relaxed);
        let after = before.wrapping_add(bytes);
        self.evicted_bytes.store(after, Ordering::Relaxed);
        let (from, to) = (before / SET_SPAN as u64, after / SET_SPAN as u64);
        for set in from..to.min(from + SWEEP_MAX) {
            let at = (set % self.sets()) as usize * SET;
            for slot in &self.slots[at..at + SET] {
                let ghost = slot.load(Ordering::Relaxed);
                if ghost != 0 && self.age(ghost) >= STAMPS {
                    slot.store(0, Ordering::Relaxed);
                }
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// Well mixed, as the hashes of keys are.
    fn hash(n: u64) -> u64 {
        (n + 1).wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(29).wrapping_mul(0xa076_1d64_78bd_642f)
    }

    #[test]
    fn a_ghost_lasts_until_the_memory_has_gone_round() {
        // Items of 256 bytes make as many ghosts as there are slots: some push others out.
        for (item_bytes, percent) in [(256, 75), (4096, 95)] {
            let ghosts = Ghosts::new(1 << 20);
            let round = (1 << 20) / item_bytes;
            (0..round * 3).for_each(|n| ghosts.add(hash(n), QueueId(n as u8 % 2), item_bytes));
            // Two queues with half of the evictions each: names of two rounds count.
            let last = round * 3;
            let young =
                (last - round * 3 / 2..last).filter(|n| ghosts.take(hash(*n)).is_some()).count() as u64;
            assert!(young * 100 >= round * 3 / 2 * percent, "{young} of {} are left", round * 3 / 2);
            let old = (0..last - round * 2).filter(|n| ghosts.take(hash(*n)).is_some()).count() as u64;
            assert!(old * 100 <= round * 3, "{old} of {round} are too old");
        }
    }

    #[test]
    fn it_tells_queues_and_strangers_apart_and_forgets_what_it_told() {
        let ghosts = Ghosts::new(1 << 20);
        (0..4_000).for_each(|n| ghosts.add(hash(n), QueueId(n as u8 % 2), 100));
        let right = (0..4_000).filter(|n| ghosts.take(hash(*n)) == Some(QueueId(*n as u8 % 2))).count();
        assert!(right > 3_900, "{right}");
        assert!((0..4_000).all(|n| ghosts.take(hash(n)).is_none()));
        (0..4_000).for_each(|n| ghosts.add(hash(n), QueueId(0), 100));
        let strangers = (10_000..50_000).filter(|n| ghosts.take(hash(*n)).is_some()).count();
        assert!(strangers < 40_000 / 100, "{strangers} strangers of 40000 were taken for ghosts");
    }

    #[test]
    fn memory_is_bounded_and_accounted_for() {
        let ghosts = Ghosts::new(64 << 20);
        assert_eq!(ghosts.bytes(), 1 << 20);
        assert_eq!(Ghosts::default().bytes(), 0);
        Ghosts::default().add(1, QueueId(0), 1);
        assert_eq!(Ghosts::default().take(1), None);
    }
}

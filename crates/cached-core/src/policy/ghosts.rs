//! Ghosts: hashes of recently evicted entries, which distinguish an entry that is stored again from
//! a new one.
//!
//! ```text
//!  a set:  eight ghosts in two words, found by the upper bits of the mixed hash; the latest enters at the
//!          lowest position, moves the others up, and pushes the oldest out
//!
//!  a ghost:  15        14        10 9                   0
//!           ┌────────┬─────────────┬─────────────────────┐
//!           │ queue  │ stamp       │ tag (0: empty)      │   stamp: quarters of the memory evicted from
//!           └────────┴─────────────┴─────────────────────┘   that queue, modulo 32; four and more are too old
//! ```
//! A ghost is valid until about as much as the whole memory has been evicted from its queue since.
//! That amount is measured in bytes, not entries, so entry sizes make no difference. A clock hand
//! sweeps the table and removes ghosts that are too old, before their stamps could be mistaken for
//! young ones. One hash in 128 matches another entry's ghost; at worst an entry is kept a little
//! longer.
//!
//! The table has four bytes, two ghosts, for every entry of the usual size that the memory could
//! hold. If entries are smaller, the oldest ghosts are forgotten early, and the table stays
//! bounded. A ghost is added without reading the ghosts that are there, so several are added while
//! the first waits for memory; a look-up compares a whole set at once. Each of the two takes about
//! twenty instructions.

use super::QueueId;
use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// The ghosts in a word, and the words in a set, whose first word has the four latest ghosts. Sets
/// are aligned so that each lies in one cache line.
const LANES: usize = 4;
const WORDS: usize = 2;
const LANE_BITS: u32 = u64::BITS / LANES as u32;
type Set = [AtomicU64; WORDS];
const SET_BYTES: usize = size_of::<Set>();
const _: () = assert!(SET_BYTES == 16);

/// The number of ghosts per entry: each of two queues remembers as many entries as the memory
/// holds.
const GHOSTS_PER_ENTRY: usize = 2;
const TAG_BITS: u32 = 10;
const QUEUE_BIT: u32 = 15;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
/// The lowest bit of every ghost in a word.
const LOWEST: u64 = 0x0001_0001_0001_0001;
const STAMPS: u64 = LOWEST * STAMP_MASK;

const STAMP_MASK: u64 = 31;
/// The number of stamps in which the whole memory is evicted, and during which a ghost is valid.
const STAMPS_PER_MEMORY: u64 = 4;
const STAMPS_YOUNG: u64 = 4;
/// The number of sets by which the hand advances in one step, and the number of stamps in which it
/// passes the whole table. With more stamps, a stamp could repeat before the hand comes back.
const SWEEP_SETS: usize = 16;
const SWEEP_STAMPS: usize = 26;
const _: () = assert!(STAMPS_YOUNG + (SWEEP_STAMPS as u64) < STAMP_MASK);

/// The time of a queue, measured in evicted bytes.
#[derive(Debug, Default)]
struct QueueTime {
    stamp: AtomicU64,
    /// Bytes to be evicted before the next stamp.
    left: AtomicI64,
}

/// The information about an entry that is stored again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ghost {
    /// The queue from which it was evicted.
    pub(super) queue: QueueId,
    /// Whether at most a quarter of the memory has been evicted from that queue since.
    pub(super) is_recent: bool,
}

/// The table of ghosts. Without sets, it remembers nothing.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    /// Each ghost is only a hint: a race between two threads at worst loses some ghosts of a set,
    /// or restores earlier ones.
    sets: Box<[Set]>,
    times: [QueueTime; 2],
    /// The number of evicted bytes per stamp.
    stamp_bytes: i64,
    /// The evicted bytes per step of the hand, how many of them remain until the next step, and the
    /// set at which the hand is.
    sweep_bytes: i64,
    sweep_left: AtomicI64,
    hand: AtomicU64,
}

/// Returns `count` sets, or `None` if there is no memory for them.
fn zeroed(count: usize) -> Option<Box<[Set]>> {
    let layout = Layout::array::<Set>(count).ok().filter(|layout| layout.size() > 0)?;
    // The system zeroes each page at its first use; a loop over atomics would touch all pages now.
    // SAFETY: the layout's size is not zero.
    let sets = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<Set>())?;
    // SAFETY: the memory is allocated by the global allocator with the layout of such a slice, and zeros are valid atomics.
    Some(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(sets.as_ptr(), count)) })
}

impl Ghosts {
    /// Creates a table for `memory_bytes` of memory, in entries of about `entry_bytes` or more.
    pub(super) fn new(memory_bytes: usize, entry_bytes: usize) -> Ghosts {
        let set_bytes = entry_bytes.max(1) * WORDS * LANES / GHOSTS_PER_ENTRY;
        let count = (memory_bytes / set_bytes).max(1);
        let Some(sets) = zeroed(count) else {
            let bytes = count.saturating_mul(SET_BYTES);
            tracing::warn!(
                bytes,
                "no memory for the eviction policy's records of evicted entries: it will not recognise any"
            );
            return Ghosts::default();
        };
        let stamp_bytes = (memory_bytes as u64 / STAMPS_PER_MEMORY).max(1) as i64;
        let sweep_bytes = (SWEEP_SETS * set_bytes * SWEEP_STAMPS / STAMPS_PER_MEMORY as usize) as i64;
        let ghosts = Ghosts { sets, stamp_bytes, sweep_bytes, ..Ghosts::default() };
        ghosts.times.iter().for_each(|time| time.left.store(stamp_bytes, Relaxed));
        ghosts.sweep_left.store(sweep_bytes, Relaxed);
        ghosts
    }

    /// Returns the size of the table in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.sets.len() * SET_BYTES
    }

    /// Returns the set of a hash, and its tag.
    #[inline]
    fn find(&self, hash: u64) -> Option<(&Set, u64)> {
        let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let set = ((mixed >> 32) * self.sets.len() as u64) >> 32;
        let tag = (mixed >> (32 - TAG_BITS)) & TAG_MASK;
        Some((self.sets.get(set as usize)?, tag.max(1)))
    }

    /// Returns a bit mask of the ghosts in a set that have this tag.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline]
    fn lanes(set: &Set, tag: u64) -> u32 {
        use std::arch::x86_64::{
            _mm_and_si128, _mm_cmpeq_epi16, _mm_movemask_epi8, _mm_packs_epi16, _mm_set_epi64x,
            _mm_set1_epi16, _mm_setzero_si128,
        };
        let [latest, older] = set;
        let (latest, older) = (latest.load(Relaxed) as i64, older.load(Relaxed) as i64);
        // SAFETY: these need SSE2, which every x86-64 has, and touch no memory.
        unsafe {
            let tags = _mm_and_si128(_mm_set_epi64x(older, latest), _mm_set1_epi16(TAG_MASK as i16));
            let are = _mm_cmpeq_epi16(tags, _mm_set1_epi16(tag as i16));
            _mm_movemask_epi8(_mm_packs_epi16(are, _mm_setzero_si128())) as u32
        }
    }

    /// Returns a bit mask of the ghosts in a set that have this tag.
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    #[inline]
    fn lanes(set: &Set, tag: u64) -> u32 {
        let lane = |at: usize| set[at / LANES].load(Relaxed) >> (at % LANES * LANE_BITS as usize);
        (0..WORDS * LANES).filter(|at| lane(*at) & TAG_MASK == tag).map(|at| 1 << at).sum()
    }

    /// Returns the word of the first ghost in a mask, and its shift in that word.
    #[inline]
    fn first_of(set: &Set, lanes: u32) -> (&AtomicU64, u32) {
        let lane = lanes.trailing_zeros();
        (&set[lane as usize / LANES % WORDS], lane % LANES as u32 * LANE_BITS)
    }

    /// Removes and returns the ghost of a hash.
    #[inline]
    pub(super) fn take(&self, hash: u64) -> Option<Ghost> {
        let (set, tag) = self.find(hash)?;
        let lanes = Self::lanes(set, tag);
        if lanes == 0 {
            return None;
        }
        let (place, shift) = Self::first_of(set, lanes);
        let word = place.load(Relaxed);
        place.store(word & !(0xffff << shift), Relaxed);
        let ghost = word >> shift;
        let queue = (ghost >> QUEUE_BIT) & 1;
        let stamp = self.times[queue as usize].stamp.load(Relaxed);
        let age = stamp.wrapping_sub(ghost >> TAG_BITS) & STAMP_MASK;
        (age < STAMPS_YOUNG).then_some(Ghost { queue: QueueId(queue as u8), is_recent: age == 0 })
    }

    /// Adds ghosts of entries evicted from one queue, `bytes` in total. Only one thread at a time
    /// may call it.
    pub(super) fn add_all(&self, queue: QueueId, bytes: u64, hashes: &[u64]) {
        if self.sets.is_empty() {
            return;
        }
        let queue = usize::from(queue.0 & 1);
        let stamp = self.pass_time(queue, bytes as i64);
        let dated = (queue as u64) << QUEUE_BIT | stamp << TAG_BITS;
        for hash in hashes {
            if let Some((set, tag)) = self.find(*hash) {
                Self::put(set, dated | tag);
            }
        }
    }

    /// Puts a ghost into its set, and drops the oldest ghost of the set.
    #[inline]
    fn put([latest, older]: &Set, ghost: u64) {
        let word = latest.load(Relaxed);
        older.store(older.load(Relaxed) << LANE_BITS | word >> (u64::BITS - LANE_BITS), Relaxed);
        latest.store(word << LANE_BITS | ghost, Relaxed);
    }

    /// Advances the queue's time and the hand by `bytes` evicted bytes. Returns the queue's stamp.
    #[inline]
    fn pass_time(&self, queue: usize, bytes: i64) -> u64 {
        let time = &self.times[queue];
        let left = time.left.load(Relaxed) - bytes;
        time.left.store(left, Relaxed);
        if left < 0 {
            // An entry larger than a stamp advances the time by several stamps.
            let passed = -left / self.stamp_bytes + 1;
            time.left.store(left + passed * self.stamp_bytes, Relaxed);
            time.stamp.store((time.stamp.load(Relaxed) + passed as u64) & STAMP_MASK, Relaxed);
        }
        let left = self.sweep_left.load(Relaxed) - bytes;
        self.sweep_left.store(left, Relaxed);
        if left < 0 {
            self.sweep(left);
        }
        time.stamp.load(Relaxed)
    }

    /// Advances the hand, and removes the ghosts on its way that are too old.
    #[cold]
    fn sweep(&self, left: i64) {
        // A very large entry moves the hand at most once through the table.
        let steps = (-left / self.sweep_bytes + 1).min(self.sets.len().div_ceil(SWEEP_SETS) as i64);
        self.sweep_left.store(self.sweep_bytes, Relaxed);
        let [entry, main] = [0, 1].map(|queue: usize| self.times[queue].stamp.load(Relaxed));
        let mut hand = self.hand.load(Relaxed) as usize;
        for _ in 0..steps {
            let end = (hand + SWEEP_SETS).min(self.sets.len());
            for place in self.sets[hand..end].as_flattened() {
                let word = place.load(Relaxed);
                if word != 0 {
                    place.store(word & !Self::lanes_too_old(word, entry, main), Relaxed);
                }
            }
            hand = if end == self.sets.len() { 0 } else { end };
        }
        self.hand.store(hand as u64, Relaxed);
    }

    /// Returns all bits of the ghosts in a word that are too old at these stamps of the two queues.
    fn lanes_too_old(word: u64, entry: u64, main: u64) -> u64 {
        let now = (entry * LOWEST) ^ (((word >> QUEUE_BIT) & LOWEST) * (entry ^ main));
        // Uses one bit more than a stamp has, so that no ghost's bits borrow from the next.
        let age = ((now | LOWEST << 5) - ((word >> TAG_BITS) & STAMPS)) & STAMPS;
        // Four or more means that one of the three upper bits is set.
        let old = (age >> 2 | age >> 3 | age >> 4) & LOWEST;
        const { assert!(STAMPS_YOUNG == 4) };
        old * 0xffff
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    impl Ghosts {
        fn add(&self, hash: u64, queue: QueueId, bytes: u64) {
            self.add_all(queue, bytes, &[hash]);
        }
    }

    /// Returns a hash that is as well mixed as the hashes of keys.
    fn hash(n: u64) -> u64 {
        (n + 1).wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(29).wrapping_mul(0xa076_1d64_78bd_642f)
    }

    #[test]
    fn a_ghost_lasts_until_the_memory_has_been_evicted_once() {
        // As many entries of 256 bytes become ghosts as fit, so some ghosts displace others.
        for (entry_bytes, percent) in [(256, 70), (4096, 95)] {
            let ghosts = Ghosts::new(1 << 20, 256);
            let round = (1 << 20) / entry_bytes;
            (0..round * 9).for_each(|n| ghosts.add(hash(n), QueueId(n as u8 % 2), entry_bytes));
            // Each of the two queues has half of the evictions. The names of two rounds are valid,
            // except for a quarter, by which the last stamp may be old.
            let last = round * 9;
            let young = (last - round * 3 / 2..last).filter(|n| ghosts.take(hash(*n)).is_some()).count();
            assert!(young as u64 * 100 >= round * 3 / 2 * percent, "{young} of {} are left", round * 3 / 2);
            let old = (0..last - round * 2).filter(|n| ghosts.take(hash(*n)).is_some()).count() as u64;
            assert!(old * 100 <= round * 7, "{old} of {} are too old", round * 7);
        }
    }

    #[test]
    fn ghosts_are_found_once_with_their_queue_and_others_are_not() {
        let ghosts = Ghosts::new(1 << 20, 256);
        (0..4_000).for_each(|n| ghosts.add(hash(n), QueueId(n as u8 % 2), 100));
        let right = (0..4_000)
            .filter(|n| ghosts.take(hash(*n)).is_some_and(|ghost| ghost.queue == QueueId(*n as u8 % 2)))
            .count();
        assert!(right > 3_900, "{right}");
        assert!((0..4_000).all(|n| ghosts.take(hash(n)).is_none()));
        (0..4_000).for_each(|n| ghosts.add(hash(n), QueueId(0), 100));
        let others = (10_000..50_000).filter(|n| ghosts.take(hash(*n)).is_some()).count();
        assert!(others < 40_000 / 100, "{others} of 40000 others were taken for ghosts");
    }

    #[test]
    fn lanes_are_aged_independently() {
        for entry in 0..32 {
            for main in 0..32 {
                for lane in 0..LANES {
                    for (queue, stamp) in (0..2).flat_map(|queue| (0..32).map(move |stamp| (queue, stamp))) {
                        let shift = lane as u32 * LANE_BITS;
                        let word = (queue << QUEUE_BIT | stamp << TAG_BITS | 5) << shift;
                        // The neighbouring ghosts are as young as possible.
                        let young = (LOWEST * (entry << TAG_BITS | 7)) & !(0xffff << shift);
                        let age = [entry, main][queue as usize].wrapping_sub(stamp) & STAMP_MASK;
                        let old = if age < STAMPS_YOUNG { 0 } else { 0xffff << shift };
                        assert_eq!(Ghosts::lanes_too_old(word | young, entry, main), old);
                        for at in 0..WORDS {
                            let mut set = [(); WORDS].map(|()| AtomicU64::new(0));
                            *set[at].get_mut() = word | young;
                            assert_eq!(Ghosts::lanes(&set, 5), 1 << (at * LANES + lane));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn entries_larger_than_the_memory_age_everything() {
        let ghosts = Ghosts::new(1 << 20, 4096);
        ghosts.add(hash(1), QueueId::ENTRY, 4096);
        ghosts.add(hash(2), QueueId::ENTRY, 3 << 20);
        assert_eq!(ghosts.take(hash(1)), None);
        assert_eq!(ghosts.take(hash(2)), Some(Ghost { queue: QueueId::ENTRY, is_recent: true }));
    }

    #[test]
    fn the_table_is_bounded_and_its_size_reported() {
        let many = Ghosts::new(64 << 20, 4096);
        many.add_all(QueueId::MAIN, 100 << 12, &std::array::from_fn::<_, 100, _>(|n| hash(n as u64)));
        assert_eq!((0..100).filter(|n| many.take(hash(*n)).is_some()).count(), 100);
        assert_eq!(Ghosts::new(64 << 20, 256).bytes(), 1 << 20);
        assert_eq!(Ghosts::new(64 << 20, 4096).bytes(), 64 << 10);
        assert_eq!(Ghosts::new(1, 0).bytes(), 16);
        assert_eq!(Ghosts::default().bytes(), 0);
        Ghosts::default().add(1, QueueId(0), 1);
        assert_eq!(Ghosts::default().take(1), None);
    }
}

//! The rule for dividing memory between consumers: between items and objects
//! ([`arbiter`](crate::arbiter)), and between namespaces of objects.
//!
//! A consumer's *gain* is what it has recently lost because it had too little memory: its *ghost
//! hits*, entries that were stored again soon after their eviction, times the cost of a miss. All
//! gains relate to the same amount of memory, so memory moves from where it gains least to where it
//! gains most, until the gains are alike (marginal utility: Cidon et al., *Memshare*, ATC'17). It
//! moves
//!
//! - only to a consumer whose memory is full;
//! - only if the gains differ by a quarter, and by more than the random variation of so few misses;
//! - by one step at most, by no more than the consumer has filled since the last decision, less
//!   where the gains are close, and within the bounds of both.

/// Memory moves only if the larger gain is at least this many times the smaller one.
const GAINS_DIFFER: f64 = 1.25;
/// Memory moves only if the gains differ by this many standard deviations, assuming that misses are
/// random.
const DEVIATIONS: f64 = 2.0;
/// The part of a gain that is forgotten from one decision to the next.
const FORGOTTEN: f64 = 0.25;

/// The state and needs of a cache that shares its memory, at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Needs {
    /// The cache's memory, without the policy's records, and the minimum of that memory.
    pub(crate) bytes: u64,
    pub(crate) bytes_min: u64,
    /// The free part of the memory.
    pub(crate) spare_bytes: u64,
    /// The number of entries, since the start, that were stored again, and that a quarter more of
    /// the maximum memory would have kept.
    pub(crate) ghost_hits: u64,
    /// The cost of a miss; 0 if unknown.
    pub(crate) miss_nanos: u64,
    /// The approximate number of entries stored since the start, and the size of one.
    pub(crate) stored: u64,
    pub(crate) entry_bytes: u64,
}

/// A consumer of memory, as input to a decision.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Consumer {
    /// The consumer's memory, and the limits of the memory.
    pub(crate) size: u64,
    pub(crate) min: u64,
    pub(crate) max: u64,
    /// Whether the consumer's memory is full. Otherwise, it would not use more memory.
    pub(crate) is_full: bool,
    /// The amount of memory that the consumer has filled since the last decision.
    pub(crate) filled: u64,
    /// The number of entries, since the start, that were stored again soon after their eviction.
    pub(crate) ghost_hits: u64,
    pub(crate) miss_cost: f64,
}

/// A decision that memory moves from one consumer to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) size: u64,
}

/// The history of a consumer.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    ghost_hits: u64,
    /// The number of recent ghost hits, in which older ones count less.
    recent_hits: f64,
    miss_cost: f64,
}

impl Seen {
    fn gain(&self) -> f64 {
        self.recent_hits * self.miss_cost
    }

    /// Returns the variance of the gain, assuming that misses are random.
    fn variance(&self) -> f64 {
        self.gain() * self.miss_cost
    }
}

/// Decides how memory moves between consumers.
#[derive(Debug)]
pub(crate) struct Balance<const N: usize> {
    /// The unit in which memory moves.
    unit: u64,
    seen: [Seen; N],
    /// The bytes that a consumer has filled before earlier decisions, and that were not enough for
    /// a unit.
    rest: Option<(usize, f64)>,
}

impl<const N: usize> Balance<N> {
    /// Creates a balance between consumers with these ghost hits so far, which moves multiples of
    /// `unit`.
    pub(crate) fn new(unit: u64, ghost_hits: [u64; N]) -> Balance<N> {
        let seen = ghost_hits.map(|ghost_hits| Seen { ghost_hits, ..Seen::default() });
        Balance { unit: unit.max(1), seen, rest: None }
    }

    /// Returns a consumer's gain: the cost of the recent misses that more memory might have saved.
    pub(crate) fn gain(&self, consumer: usize) -> f64 {
        self.seen[consumer].gain()
    }

    /// Decides, given the present state of all consumers (`None` for one that does not exist). At
    /// most `step` bytes move. Returns `None` if nothing moves.
    pub(crate) fn decide(&mut self, now: &[Option<Consumer>; N], step: u64) -> Option<Transfer> {
        for (seen, now) in self.seen.iter_mut().zip(now) {
            let Some(now) = now else { continue };
            let hits = now.ghost_hits.wrapping_sub(seen.ghost_hits) as f64;
            seen.recent_hits = seen.recent_hits * (1.0 - FORGOTTEN) + hits;
            (seen.ghost_hits, seen.miss_cost) = (now.ghost_hits, now.miss_cost);
        }
        let rest = self.rest.take();
        let all = || now.iter().enumerate().filter_map(|(at, consumer)| Some((at, consumer.as_ref()?)));
        let by_gain = |(one, _): &(usize, &Consumer), (other, _): &(usize, &Consumer)| {
            self.gain(*one).total_cmp(&self.gain(*other))
        };
        let takers = all().filter(|(_, consumer)| consumer.is_full && consumer.size < consumer.max);
        let (to, taker) = takers.max_by(by_gain)?;
        let givers = all().filter(|(_, consumer)| consumer.size > consumer.min);
        let (from, giver) = givers.min_by(by_gain)?;
        let difference = self.gain(to) - self.gain(from);
        let chance = DEVIATIONS * (self.seen[to].variance() + self.seen[from].variance()).sqrt();
        if self.gain(to) <= self.gain(from) * GAINS_DIFFER || difference <= chance {
            return None;
        }
        let earlier = rest.filter(|(consumer, _)| *consumer == to).map_or(0.0, |(_, size)| size);
        let filled = earlier + taker.filled as f64 * difference / self.gain(to);
        let most = step.min(giver.size - giver.min).min(taker.max - taker.size);
        let size = (filled as u64).min(most) / self.unit * self.unit;
        // Only the remainder is carried over, not the part that the limits have cut off.
        self.rest = Some((to, (filled - size as f64).min(self.unit as f64)));
        (size > 0).then_some(Transfer { from, to, size })
    }
}

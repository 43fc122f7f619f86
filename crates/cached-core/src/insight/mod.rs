//! What a cache knows about itself beyond counters: what other amounts of memory would give, why requests
//! miss, and which names are asked for most.
//!
//! ```text
//!  request ── hash < threshold? ──> queue of the thread ──> one thread: miniature caches of ¼, ½, 1, 2 and
//!             (one comparison)      (bounded, drops)        4 times the memory, under the policy's own code
//! ```
//! - The [miss-ratio curve](MissRatioCurve) is simulated on sampled names, for the byte-keyed store
//!   ([`Kv::take_samples`](crate::kv::Kv::take_samples)) and for an object cache's buckets
//!   ([`ObjectCache::take_samples`](crate::object::ObjectCache::take_samples)), and for each namespace.
//! - The [reasons of misses](MissesByReason) come from the engine where it knows them, and from what it
//!   remembers of sampled names otherwise.
//! - [`SpaceSaving`] finds the most frequent of many names; an object cache counts its own
//!   ([`ObjectCache::hot_objects`](crate::object::ObjectCache::hot_objects)).
//!
//! It takes 1 to 6 MiB for each cache, by how many names it sees, and nothing where it is off.

mod fates;
mod hot_names;
mod miniature;
mod names;
mod sampler;
mod simulation;
#[cfg(all(test, not(shuttle)))]
mod tests;

pub(crate) use hot_names::HotSketch;
pub use hot_names::SpaceSaving;
pub(crate) use sampler::{Event, Sample, Sampler};

use serde::Serialize;

use crate::sync::{Mutex, lock};
use fates::{Fates, Reason};
use simulation::Simulation;

/// The amounts of memory that are simulated, as multiples of the cache's.
pub const FACTORS: [f64; SIZES] = [0.25, 0.5, 1.0, 2.0, 4.0];
/// The number of those amounts.
const SIZES: usize = 5;
/// The cache's own size among them.
const ONE: usize = 2;

/// Returns the most memory that insight into one cache takes with samples from `threads` threads, in bytes.
#[must_use]
pub fn bytes_max(threads: usize) -> usize {
    const SIMULATION_BYTES_MAX: usize = 8 << 20;
    SIMULATION_BYTES_MAX + (threads + 1) * Sampler::QUEUE_BYTES
}

/// Returns the most memory that counting the hot objects of a cache takes, in bytes.
#[must_use]
pub fn hot_objects_bytes_max() -> usize {
    hot_names::bytes_max(2 * blocker::NAME_BYTES_MAX + 1)
}

/// Which requests are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Sampling {
    /// None.
    #[default]
    Off,
    /// Those for one name in 256 at first; more where requests are few, fewer where they are many: about two
    /// thousand requests per second, and up to 16 384 names in the cache.
    Adaptive,
    /// Those for this share of all names, 0 to 1; fewer only to keep at most 16 384 names in the cache. With 1
    /// a small cache is simulated exactly, at some hundred instructions for each request.
    Share(f64),
}

/// Counters of a cache since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// The number of reads, one for each key.
    pub requests: u64,
    /// The number of those that missed.
    pub misses: u64,
    /// The number of those that found an expired entry.
    pub expired: u64,
    /// The number of those that found a flushed entry.
    pub flushed: u64,
}

impl Totals {
    fn since(self, before: Totals) -> Totals {
        Totals {
            requests: self.requests.saturating_sub(before.requests),
            misses: self.misses.saturating_sub(before.misses),
            expired: self.expired.saturating_sub(before.expired),
            flushed: self.flushed.saturating_sub(before.flushed),
        }
    }
}

/// The gate for requests, and what one thread makes of the samples.
pub(crate) struct Insight {
    pub(crate) sampler: Sampler,
    state: Option<Mutex<State>>,
}

struct State {
    simulation: Simulation,
    fates: Fates,
    /// Sampled misses by their reason, each counted for as many as it stands for.
    reasons: [f64; 5],
    sampled_misses: u64,
    totals: Option<Totals>,
    flushes: u32,
}

/// What the simulation needs to know of the cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Present {
    /// The second of the clock.
    pub(crate) now: u32,
    pub(crate) totals: Option<Totals>,
    /// Bytes of memory and of the entries in it, where it is full.
    pub(crate) used: Option<(u64, u64)>,
    /// The number of times that everything has been flushed.
    pub(crate) flushes: u32,
    /// The number of entries; 0 if it is not known.
    pub(crate) entries: u64,
}

impl Insight {
    /// Returns a gate that lets nothing pass.
    pub(crate) fn off() -> Insight {
        Insight { sampler: Sampler::new(0), state: None }
    }

    /// Returns a gate with queues for `threads` threads, in a cache with `memory_bytes` under the policy called
    /// `policy`. It lets nothing pass if no policy has that name.
    pub(crate) fn new(policy: &str, memory_bytes: u64, threads: usize, sampling: Sampling) -> Insight {
        let Some(simulation) = Simulation::new(policy, memory_bytes, sampling) else {
            return Insight::off();
        };
        let sampler = Sampler::new(threads.max(1));
        sampler.set_threshold(simulation.threshold());
        let state = State {
            simulation,
            fates: Fates::new(),
            reasons: [0.0; 5],
            sampled_misses: 0,
            totals: None,
            flushes: 0,
        };
        Insight { sampler, state: Some(Mutex::new(state)) }
    }

    /// Simulates what has been sampled since the last call; `namespace_of` returns the namespace of a sample.
    /// Returns the number of samples.
    pub(crate) fn take_samples<N: AsRef<[u8]>>(
        &self,
        present: &Present,
        namespace_of: impl Fn(&Sample) -> N,
    ) -> usize {
        let Some(state) = &self.state else { return 0 };
        let state = &mut *lock(state);
        if state.flushes != present.flushes {
            state.flushes = present.flushes;
            state.fates.flush();
        }
        state.simulation.begin(present.now, present.flushes, present.used);
        state.simulation.set_real_entries(present.entries);
        let mut count = 0;
        self.sampler.drain(|sample| {
            count += 1;
            if let Some(reason) = state.fates.learn(sample, present.now) {
                state.reasons[reason as usize] += state.simulation.weight();
                state.sampled_misses += 1;
            }
            state.simulation.apply(sample, namespace_of(sample).as_ref());
        });
        state.totals = present.totals;
        let threshold = state.simulation.end(present.totals, self.sampler.dropped());
        self.sampler.set_threshold(threshold);
        count
    }

    /// Returns the curve; `None` where there is none.
    pub(crate) fn curve(&self) -> Option<MissRatioCurve> {
        self.state.as_ref().map(|state| lock(state).simulation.curve())
    }

    /// Returns the reasons of misses since the start; `None` where samples are not taken.
    pub(crate) fn misses_by_reason(&self) -> Option<MissesByReason> {
        let state = lock(self.state.as_ref()?);
        let all: f64 = state.reasons.iter().sum();
        // Without counters all of them are estimated.
        let totals = state.totals.unwrap_or(Totals { misses: all as u64, ..Totals::default() });
        // The engine knows the reason of the others.
        let unknown = totals.misses.saturating_sub(totals.expired + totals.flushed);
        let share = |reason: Reason| match all > 0.0 {
            true => (state.reasons[reason as usize] * unknown as f64 / all) as u64,
            false => 0,
        };
        let (expired, evicted) = (share(Reason::Expired), share(Reason::Evicted));
        let (flushed, deleted) = (share(Reason::Flushed), share(Reason::Deleted));
        Some(MissesByReason {
            never_seen: unknown.saturating_sub(expired + evicted + flushed + deleted),
            expired: totals.expired + expired,
            evicted,
            flushed: totals.flushed + flushed,
            deleted,
            sampled: state.sampled_misses,
        })
    }

    /// Memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let Some(state) = &self.state else { return 0 };
        let state = lock(state);
        self.sampler.bytes() + state.simulation.bytes() + state.fates.bytes()
    }
}

// The reports: plain values, for JSON, statistics and metrics.

/// The miss ratio that the cache would have with other amounts of memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MissRatioCurve {
    /// The memory that the cache has, in bytes.
    pub memory_bytes: u64,
    /// The time for which requests have been counted, in seconds: the last ten to twenty minutes.
    pub since_secs: u32,
    /// The number of requests in that time.
    pub requests: u64,
    /// The share of them that missed in the cache itself, 0 to 1.
    pub counted_miss_ratio: f64,
    /// The number of requests that were simulated.
    pub sampled_requests: u64,
    /// The share of all names that are sampled, 0 to 1.
    pub sampled_share: f64,
    /// The number of samples lost since the start because a queue was full.
    pub dropped_samples: u64,
    /// False while the simulated caches are being filled: nothing is counted then.
    pub is_warm: bool,
    /// One point for each amount of memory, rising.
    pub points: Vec<CurvePoint>,
    /// The same by namespace, those with the most requests first.
    pub namespaces: Vec<NamespaceShare>,
}

/// The predicted miss ratio with one amount of memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CurvePoint {
    /// The memory as a multiple of the cache's.
    pub factor: f64,
    /// The memory in bytes.
    pub memory_bytes: u64,
    /// The share of requests that would miss, 0 to 1.
    pub miss_ratio: f64,
}

/// What one namespace has of the cache, estimated from the samples.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NamespaceShare {
    /// The namespace: a key's prefix, or that of objects. `None` for all that are not counted apart.
    pub namespace: Option<String>,
    /// The number of requests.
    pub requests: u64,
    /// The number of those that missed.
    pub misses: u64,
    /// The bytes of its entries.
    pub entry_bytes: u64,
    /// Its miss ratios, if the cache as a whole had these amounts of memory.
    pub points: Vec<CurvePoint>,
}

/// The number of misses by their reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MissesByReason {
    /// The name was never stored, or so long ago that it is not remembered.
    pub never_seen: u64,
    /// The entry had expired.
    pub expired: u64,
    /// The entry was evicted.
    pub evicted: u64,
    /// The entry was flushed.
    pub flushed: u64,
    /// The entry was deleted.
    pub deleted: u64,
    /// The number of sampled misses from which the reasons are estimated, as far as the engine does not know
    /// them.
    pub sampled: u64,
}

/// The names that are asked for most, of the last five to ten minutes.
#[derive(Debug, Clone, PartialEq)]
pub struct HotNames {
    /// The names, the hottest first.
    pub names: Vec<Hot>,
    /// The groups of names, the hottest first.
    pub groups: Vec<Hot>,
    /// The number of sampled requests.
    pub sampled: u64,
    /// The number of samples lost since the start because another thread was counting.
    pub dropped: u64,
    /// The number of all requests per second.
    pub per_sec: f64,
}

/// A key, or a prefix of keys, that is asked for often; or an object, or a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hot {
    /// The key or the prefix.
    pub name: Box<[u8]>,
    /// The number of sampled requests for it, at most.
    pub count: u64,
    /// By how much that may be too high.
    pub error: u64,
}

/// Sizes, idle times and remaining lifetimes of entries, from a sample.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ItemShape {
    /// The number of items looked at.
    pub sampled: u64,
    /// Bytes of an item with its header: the number of items with at most 2^n bytes and more than half of
    /// that, from n = 0.
    pub sizes: Vec<u64>,
    /// Seconds since the last use, the same way; the first has those used in this second.
    pub idle_secs: Vec<u64>,
    /// Seconds since the item was stored, or last kept by an eviction, to within the time in which a region
    /// fills; the same way.
    pub age_secs: Vec<u64>,
    /// Seconds until the item expires, the same way.
    pub ttl_secs: Vec<u64>,
    /// The number of items that never expire.
    pub without_expiry: u64,
    /// The number of items that have been read since they were stored.
    pub fetched: u64,
}

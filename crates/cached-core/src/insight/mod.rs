//! Statistics about a cache beyond counters: the miss ratios of other amounts of memory, why
//! requests miss, and which names are requested most often.
//!
//! ```text
//!  request ── hash < threshold? ──> queue of the thread ──> one thread: miniature caches of ¼, ½, 1, 2 and
//!             (one comparison)      (bounded, drops)        4 times the memory, under the policy's own code
//! ```
//! - The [miss-ratio curve](MissRatioCurve) is simulated on sampled names, for the byte-keyed store
//!   ([`Kv::take_samples`](crate::kv::Kv::take_samples)) and for an object cache's buckets
//!   ([`ObjectCache::take_samples`](crate::object::ObjectCache::take_samples)), and for each
//!   namespace.
//! - The [reasons of misses](MissesByReason) come from the engine if it knows them, and otherwise
//!   from the records of sampled names.
//! - [`SpaceSaving`] finds the most frequent of many names; an object cache counts its own
//!   ([`ObjectCache::hot_objects`](crate::object::ObjectCache::hot_objects)).
//!
//! The insight needs 1 to 6 MiB for each cache, depending on the number of names, and no memory if
//! it is off.

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

/// The simulated amounts of memory, as multiples of the cache's own.
pub const FACTORS: [f64; SIZES] = [0.25, 0.5, 1.0, 2.0, 4.0];
/// The number of simulated amounts of memory.
const SIZES: usize = 5;
/// The index of the cache's own size.
const ONE: usize = 2;

/// Returns the maximum memory, in bytes, for insight into one cache with samples from `threads`
/// threads.
#[must_use]
pub fn bytes_max(threads: usize) -> usize {
    const SIMULATION_BYTES_MAX: usize = 8 << 20;
    SIMULATION_BYTES_MAX + (threads + 1) * Sampler::QUEUE_BYTES
}

/// Returns the maximum memory, in bytes, for counting the hot objects of a cache.
#[must_use]
pub fn hot_objects_bytes_max() -> usize {
    hot_names::bytes_max(2 * blocker::NAME_BYTES_MAX + 1)
}

/// Selects the requests to sample.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Sampling {
    /// None.
    #[default]
    Off,
    /// Requests for one name in 256 at first. If there are few requests, more names are sampled,
    /// and if there are many, fewer: about two thousand requests per second, and up to 16 384 names
    /// in the cache.
    Adaptive,
    /// Requests for this share of all names, 0 to 1, but for at most 16 384 names in the cache.
    /// With 1, a small cache is simulated exactly, at some hundred instructions per request.
    Share(f64),
}

/// Counters of a cache since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// The number of reads, counted per key.
    pub requests: u64,
    /// The number of reads that missed.
    pub misses: u64,
    /// The number of reads that found an expired entry.
    pub expired: u64,
    /// The number of reads that found a flushed entry.
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

/// The sampler on the request path, and the state of the thread that processes the samples.
pub(crate) struct Insight {
    pub(crate) sampler: Sampler,
    state: Option<Mutex<State>>,
}

struct State {
    simulation: Simulation,
    fates: Fates,
    /// Sampled misses by reason, each weighted with the number of misses it represents.
    reasons: [f64; 5],
    sampled_misses: u64,
    totals: Option<Totals>,
    flushes: u32,
}

/// The simulation's information about the cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Present {
    /// The clock's time, in seconds.
    pub(crate) now: u32,
    pub(crate) totals: Option<Totals>,
    /// The memory and the entries' part of it, in bytes, if the memory is full.
    pub(crate) used: Option<(u64, u64)>,
    /// The number of flushes of everything.
    pub(crate) flushes: u32,
    /// The number of entries; 0 if unknown.
    pub(crate) entries: u64,
}

impl Insight {
    /// Returns an instance that samples nothing.
    pub(crate) fn off() -> Insight {
        Insight { sampler: Sampler::new(0), state: None }
    }

    /// Returns an instance with queues for `threads` threads, in a cache with `memory_bytes` and
    /// the policy called `policy`. It samples nothing if no policy has that name.
    pub(crate) fn new(policy: &str, memory_bytes: u64, threads: usize, sampling: Sampling) -> Insight {
        let Some(simulation) = Simulation::new(policy, memory_bytes, sampling) else {
            return Insight::off();
        };
        let sampler = Sampler::new(threads.max(1));
        sampler.set_threshold(simulation.threshold);
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

    /// Simulates the samples since the last call. `namespace_of` returns the namespace of a sample.
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
        state.simulation.begin(present);
        let mut count = 0;
        self.sampler.drain(|sample| {
            count += 1;
            if let Some(reason) = state.fates.learn(sample, present.now) {
                state.reasons[reason as usize] += state.simulation.scale.weight;
                state.sampled_misses += 1;
            }
            state.simulation.apply(sample, namespace_of(sample).as_ref());
        });
        state.totals = present.totals;
        let threshold = state.simulation.end(present.totals, self.sampler.dropped());
        self.sampler.set_threshold(threshold);
        count
    }

    /// Returns the curve; `None` if sampling is off.
    pub(crate) fn curve(&self) -> Option<MissRatioCurve> {
        self.state.as_ref().map(|state| lock(state).simulation.curve())
    }

    /// Returns the misses by reason since the start; `None` if sampling is off.
    pub(crate) fn misses_by_reason(&self) -> Option<MissesByReason> {
        let state = lock(self.state.as_ref()?);
        let all: f64 = state.reasons.iter().sum();
        // Without counters, all parts are estimated.
        let totals = state.totals.unwrap_or(Totals { misses: all as u64, ..Totals::default() });
        // For expired and flushed entries the engine has counted the misses itself.
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

    /// Returns the memory use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let Some(state) = &self.state else { return 0 };
        let state = lock(state);
        self.sampler.bytes() + state.simulation.bytes() + state.fates.bytes()
    }
}

// The reports are plain values, for JSON, statistics and metrics.

/// The miss ratios of the cache with other amounts of memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MissRatioCurve {
    /// The cache's memory, in bytes.
    pub memory_bytes: u64,
    /// The time over which requests were counted, in seconds: the last ten to twenty minutes.
    pub since_secs: u32,
    /// The number of requests in that time.
    pub requests: u64,
    /// The share of these requests that missed in the cache itself, 0 to 1.
    pub counted_miss_ratio: f64,
    /// The number of requests that were simulated.
    pub sampled_requests: u64,
    /// The share of all names that are sampled, 0 to 1.
    pub sampled_share: f64,
    /// The number of samples lost since the start because a queue was full.
    pub dropped_samples: u64,
    /// Whether the simulated caches have been filled; until then nothing is counted.
    pub is_warm: bool,
    /// One point for each amount of memory, in ascending order.
    pub points: Vec<CurvePoint>,
    /// The namespaces' requests and miss ratios; the namespace with the most requests comes first.
    pub namespaces: Vec<NamespaceShare>,
}

/// The predicted miss ratio with one amount of memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CurvePoint {
    /// The memory as a multiple of the cache's memory.
    pub factor: f64,
    /// The memory in bytes.
    pub memory_bytes: u64,
    /// The share of requests that would miss, 0 to 1.
    pub miss_ratio: f64,
}

/// A namespace's part of the cache, estimated from the samples.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NamespaceShare {
    /// The namespace: a key's prefix, or a namespace of objects. `None` for all namespaces that are
    /// not counted separately.
    pub namespace: Option<String>,
    /// The number of requests.
    pub requests: u64,
    /// The number of requests that missed.
    pub misses: u64,
    /// The bytes of the namespace's entries.
    pub entry_bytes: u64,
    /// The namespace's miss ratios if the whole cache had these amounts of memory.
    pub points: Vec<CurvePoint>,
}

/// The number of misses by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MissesByReason {
    /// The name was never stored, or too long ago to be remembered.
    pub never_seen: u64,
    /// The entry had expired.
    pub expired: u64,
    /// The entry was evicted.
    pub evicted: u64,
    /// The entry was flushed.
    pub flushed: u64,
    /// The entry was deleted.
    pub deleted: u64,
    /// The number of sampled misses, from which the reasons that the engine does not know are
    /// estimated.
    pub sampled: u64,
}

/// The names requested most often in the last five to ten minutes.
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

/// A key, prefix, object or namespace that is requested often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hot {
    /// The name.
    pub name: Box<[u8]>,
    /// The upper bound of the number of sampled requests for the name.
    pub count: u64,
    /// The largest possible error of that number.
    pub error: u64,
}

/// Sizes, idle times and remaining lifetimes of entries, from a sample.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ItemShape {
    /// The number of sampled items.
    pub sampled: u64,
    /// The sizes of items including headers: entry n is the number of items with at most 2^n bytes
    /// and more than half of that.
    pub sizes: Vec<u64>,
    /// Seconds since the last use, in the same classes; the first class has the items used in the
    /// current second.
    pub idle_secs: Vec<u64>,
    /// Seconds since the item was stored or last kept by an eviction, in the same classes. The
    /// error is the time in which a region fills.
    pub age_secs: Vec<u64>,
    /// Seconds until the item expires, in the same classes.
    pub ttl_secs: Vec<u64>,
    /// The number of items that never expire.
    pub without_expiry: u64,
    /// The number of items that have been read since they were stored.
    pub fetched: u64,
}

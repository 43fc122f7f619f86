//! Memory shared by a byte-keyed store and an object cache: the *arbiter* moves memory to the half
//! in which it saves more.
//!
//! Each half has address space for its maximum; only memory moves. The half that gives memory
//! evicts what its policy would evict next, and returns the memory to the system: the store in
//! whole regions, the cache in pages of buckets. Then the other half may use as much more. So the
//! sum never exceeds the whole, and neither half gets less than its minimum.
//!
//! ```text
//!              items                              objects
//!  ├───────────────────────────────┼────────────────────────────────────┤   the whole
//!  ├───────────┤                   ^                      ├─────────────┤
//!  items_bytes_min          moves with the gains          objects_bytes_min
//! ```
//! *In which direction* (`balance.rs`): by marginal gain, the rule that also divides an object
//! cache's memory among its namespaces. Both policies remember what they have evicted, for the same
//! amount of memory: a quarter of the half's maximum. Entries that are stored again within that
//! time would have been hits with that much more memory. Their number times the cost of a miss can
//! be compared between the halves.
//!
//! *How fast*: by as much as the receiving half has stored since the last decision, so it fills its
//! memory as fast as it gets it; and in bounded [`step`](Arbiter::step)s, each of which does its
//! own evicting. Operations of the halves neither do more work for a move nor wait for one: the
//! store releases only regions that are free beyond those that it keeps ready, and the cache
//! releases no bucket for which a task waits.
//!
//! ```
//! use std::sync::Arc;
//! use cached_core::arbiter::{Arbiter, SharedMemory};
//! use cached_core::kv::{Kv, KvConfig};
//! use cached_core::object::ObjectCache;
//!
//! let memory = SharedMemory {
//!     items_bytes: 64 << 20,
//!     objects_bytes: 64 << 20,
//!     items_bytes_min: 16 << 20,
//!     objects_bytes_min: 16 << 20,
//!     item_miss: None,
//! };
//! let kv = Kv::new(KvConfig { memory_range: Some(memory.items_range()), ..KvConfig::default() })?;
//! let store = Arc::new(blocker::Memory::default());
//! let cache = ObjectCache::builder(store)
//!     .memory_bytes(memory.objects_bytes)
//!     .memory_range(memory.objects_range())
//!     .start()?;
//! let mut arbiter = Arbiter::new(kv, &cache, memory);
//! // About ten times a second, on a thread that may work for a while:
//! arbiter.look();
//! while arbiter.step() {}
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod halves;

use std::time::Duration;

use blocker::BUCKET_BYTES;
use blocker::metrics::{Collect, Counter, Families, Gauge, counters};
use halves::{Halves, Move};

pub use halves::Half;

use crate::arena::MemoryRange;
use crate::balance::Needs;
use crate::ensure;
use crate::kv::{Kv, Released};
use crate::object::{ObjectCache, WeakObjectCache};
use crate::sync::Arc;

/// The number of buckets that one step releases.
const STEP_BUCKETS: u32 = 64;
/// The number of steps without a released region after which the store counts as stuck: more than
/// it takes to walk every item of several regions.
const FRUITLESS_STEPS_MAX: u32 = 16 * 1024;

/// The division of a memory between a byte-keyed store and an object cache. All sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedMemory {
    /// The store's memory at the start.
    pub items_bytes: u64,
    /// The object cache's memory at the start.
    pub objects_bytes: u64,
    /// The store's minimum.
    pub items_bytes_min: u64,
    /// The object cache's minimum.
    pub objects_bytes_min: u64,
    /// The cost of a missed item. `None` means the cost of loading one bucket, so that a hit in
    /// either half has the same value.
    pub item_miss: Option<Duration>,
}

impl SharedMemory {
    /// Returns the memory of both halves together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.items_bytes.saturating_add(self.objects_bytes)
    }

    /// Returns the range of the store's memory, for
    /// [`KvConfig::memory_range`](crate::kv::KvConfig::memory_range).
    #[must_use]
    pub fn items_range(&self) -> MemoryRange {
        let bytes_max = self.bytes().saturating_sub(self.objects_bytes_min);
        MemoryRange { bytes_min: self.items_bytes_min, bytes_max }
    }

    /// Returns the range of the cache's memory, for
    /// [`ObjectCacheConfig::memory_range`](crate::object::ObjectCacheConfig::memory_range).
    #[must_use]
    pub fn objects_range(&self) -> MemoryRange {
        let bytes_max = self.bytes().saturating_sub(self.items_bytes_min);
        MemoryRange { bytes_min: self.objects_bytes_min, bytes_max }
    }
}

/// Moves memory between a byte-keyed store and an object cache; see the [module](self).
///
/// One thread calls [`look`](Arbiter::look) and [`step`](Arbiter::step), while any threads use both
/// halves.
#[derive(Debug)]
pub struct Arbiter {
    kv: Kv,
    objects: WeakObjectCache,
    item_miss: Option<Duration>,
    /// The memory of both halves and the store's minimum, without the policies' own records.
    bytes: u64,
    items_bytes_min: u64,
    halves: Halves,
    /// The move in progress, and how much of it remains.
    pending: Option<Move>,
    /// Memory that one half has released and that the other has not received yet. Between two
    /// steps, it is less than a region.
    in_hand: u64,
    fruitless_steps: u32,
    metrics: Arc<ArbiterMetrics>,
}

impl Arbiter {
    /// Returns an arbiter over a store and a cache that were created with the ranges of `memory`.
    /// The arbiter does not keep the cache alive.
    #[must_use]
    pub fn new(kv: Kv, objects: &ObjectCache, memory: SharedMemory) -> Arbiter {
        let items_bytes = kv.item_memory();
        let bytes = items_bytes + objects.bytes();
        let items_bytes_min = kv.item_memory_in(memory.items_bytes_min).min(items_bytes);
        let metrics = Arc::new(ArbiterMetrics::new([items_bytes_min, objects.bytes_min()]));
        let now = needs(&kv, objects, items_bytes_min, memory.item_miss);
        metrics.look(now.map(|half| half.bytes), [0; 2]);
        Arbiter {
            objects: objects.downgrade(),
            item_miss: memory.item_miss,
            bytes,
            items_bytes_min,
            halves: Halves::new(bytes, kv.move_unit_bytes(), &now),
            pending: None,
            in_hand: 0,
            fruitless_steps: 0,
            metrics,
            kv,
        }
    }

    /// Returns the arbiter's counters, for reports.
    #[must_use]
    pub fn metrics(&self) -> Arc<ArbiterMetrics> {
        Arc::clone(&self.metrics)
    }

    /// Decides whether memory moves, depending on the state of both halves. Does nothing while a
    /// move is in progress, or after the cache has been dropped.
    pub fn look(&mut self) {
        let Some(objects) = self.objects.upgrade() else { return };
        if self.pending.is_some() {
            return;
        }
        let now = needs(&self.kv, &objects, self.items_bytes_min, self.item_miss);
        self.pending = self.halves.decide(&now);
        self.fruitless_steps = 0;
        self.metrics.look(now.map(|half| half.bytes), self.halves.gains());
        if self.pending.is_some() {
            self.metrics.counts.moves.increment();
        }
    }

    /// Does a bounded part of the move in progress. Returns false if no move is in progress.
    pub fn step(&mut self) -> bool {
        let Some(mut moved) = self.pending else { return false };
        let Some(objects) = self.objects.upgrade() else {
            self.pending = None;
            return false;
        };
        let unit = self.kv.move_unit_bytes();
        let before = moved.bytes;
        let goes_on = match moved.from {
            Half::Items => self.move_from_items(&objects, unit, &mut moved.bytes),
            Half::Objects => self.move_from_objects(&objects, unit, &mut moved.bytes),
        };
        self.metrics.of(moved.from).given_bytes.add(before - moved.bytes);
        let goes_on = goes_on && moved.bytes >= unit;
        self.pending = goes_on.then_some(moved);
        if !goes_on {
            // Memory that is not enough for a region is returned, because the cache accepts any
            // number of buckets.
            self.give_to(&objects);
            self.metrics.look([self.kv.item_memory(), objects.bytes()], self.halves.gains());
        }
        goes_on
    }

    /// Moves a region's memory from the store to the cache, or prepares for it. Returns false if
    /// the move cannot continue.
    fn move_from_items(&mut self, objects: &ObjectCache, unit: u64, left: &mut u64) -> bool {
        let free = objects.bytes_max().saturating_sub(objects.bytes());
        if self.kv.item_memory() < self.items_bytes_min + unit || free < self.in_hand + unit {
            return false;
        }
        match self.kv.release_step() {
            Ok(Released::Done) => {
                self.fruitless_steps = 0;
                self.in_hand += unit;
                *left -= unit;
                self.give_to(objects);
                true
            }
            Ok(Released::Working) => {
                self.fruitless_steps += 1;
                self.fruitless_steps < FRUITLESS_STEPS_MAX
            }
            Ok(Released::Stuck) => false,
            Err(error) => self.failed(Half::Items, &error),
        }
    }

    /// Moves buckets' memory from the cache to the store. Returns false if the move cannot
    /// continue.
    fn move_from_objects(&mut self, objects: &ObjectCache, unit: u64, left: &mut u64) -> bool {
        let missing = (unit - self.in_hand) / BUCKET_BYTES;
        let given = objects.give_buckets(STEP_BUCKETS.min(missing as u32));
        let given = match given {
            Ok(given) => given,
            Err(error) => return self.failed(Half::Objects, &error),
        };
        self.in_hand += u64::from(given) * BUCKET_BYTES;
        if self.in_hand < unit {
            return given > 0;
        }
        if !self.kv.take_region() {
            return false;
        }
        self.in_hand -= unit;
        *left -= unit;
        true
    }

    /// Gives the memory in hand to the cache.
    fn give_to(&mut self, objects: &ObjectCache) {
        // This is below 2^32, because it is at most a few regions.
        let taken = objects.take_buckets((self.in_hand / BUCKET_BYTES) as u32);
        self.in_hand -= u64::from(taken) * BUCKET_BYTES;
    }

    fn failed(&self, half: Half, error: &std::io::Error) -> bool {
        if self.metrics.counts.failures.get() == 0 {
            let half = half.name();
            tracing::warn!(cause = %error, "the system does not take back the memory of {half}; it stays there");
        }
        self.metrics.counts.failures.increment();
        false
    }

    /// Checks that no memory is lost or counted twice, and that each half has its minimum. No step
    /// may be in progress.
    ///
    /// # Errors
    /// Returns the violated condition.
    #[inline]
    pub fn validate(&self) -> Result<(), String> {
        let Some(objects) = self.objects.upgrade() else { return Ok(()) };
        let (items, buckets) = (self.kv.item_memory(), objects.bytes());
        let sum = items + buckets + self.in_hand;
        let (all, in_hand) = (self.bytes, self.in_hand);
        ensure(sum == all, || format!("items, objects and memory in transit have {sum} bytes of {all}"))?;
        ensure(items >= self.items_bytes_min && buckets >= objects.bytes_min(), || {
            format!("items have {items}, objects {buckets} bytes: less than their minimum")
        })?;
        let is_moving = self.pending.is_some();
        ensure(is_moving || in_hand == 0, || format!("{in_hand} bytes are in transit, but nothing moves"))
    }

    /// Starts a move of `bytes` from one half as if it had been decided, replacing a move in
    /// progress. For tests.
    #[doc(hidden)]
    pub fn force(&mut self, from: Half, bytes: u64) {
        if let Some(objects) = self.objects.upgrade() {
            self.give_to(&objects);
        }
        self.fruitless_steps = 0;
        self.pending = Some(Move { from, bytes });
    }
}

/// Returns the present needs of items and objects.
fn needs(kv: &Kv, objects: &ObjectCache, items_bytes_min: u64, item_miss: Option<Duration>) -> [Needs; 2] {
    let mut objects = objects.needs();
    objects.miss_nanos = objects.miss_nanos.max(1);
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let miss_nanos = item_miss.map_or(objects.miss_nanos, nanos);
    [Needs { bytes_min: items_bytes_min, miss_nanos, ..kv.needs() }, objects]
}

counters! {
    /// The memory of one half, as its arbiter last saw it.
    #[derive(Debug, Default)]
    pub struct HalfMetrics {
        /// The memory of items and of objects, within the memory that they share.
        pub bytes: Gauge => "cached_shared_memory_bytes",
        /// The minimum memory of items and of objects.
        pub bytes_min: u64 => "cached_shared_memory_least_bytes",
        /// The cost of recent misses that a quarter more of the memory would have saved.
        pub gain_seconds: Gauge => "cached_shared_memory_gain_seconds",
        /// Memory that has moved to the other half.
        pub given_bytes: Counter => "cached_shared_memory_given_bytes_total",
    }
}

counters! {
    /// The moves of an arbiter since its start.
    #[derive(Debug, Default)]
    pub struct MoveCounts {
        /// Moves of memory between items and objects.
        pub moves: Counter => "cached_shared_memory_moves_total",
        /// Moves that failed because the system did not take the memory back.
        pub failures: Counter => "cached_shared_memory_failures_total",
    }
}

/// The arbiter's counters, which any thread may read.
#[derive(Debug)]
pub struct ArbiterMetrics {
    halves: [HalfMetrics; 2],
    /// The moves since the start.
    pub counts: MoveCounts,
}

impl ArbiterMetrics {
    fn new(bytes_min: [u64; 2]) -> ArbiterMetrics {
        let halves = bytes_min.map(|bytes_min| HalfMetrics { bytes_min, ..HalfMetrics::default() });
        ArbiterMetrics { halves, counts: MoveCounts::default() }
    }

    /// Returns the counters of a half.
    #[must_use]
    pub fn of(&self, half: Half) -> &HalfMetrics {
        &self.halves[half as usize]
    }

    fn look(&self, bytes: [u64; 2], gain_nanos: [u64; 2]) {
        for ((half, bytes), nanos) in self.halves.iter().zip(bytes).zip(gain_nanos) {
            half.bytes.set(bytes as f64);
            half.gain_seconds.set(nanos as f64 / 1e9);
        }
    }
}

impl Collect for ArbiterMetrics {
    fn collect(&self, into: &mut Families) {
        for half in Half::BOTH {
            into.append_labelled(&[("half", half.name()).into()], self.of(half).families());
        }
        self.counts.collect(into);
    }
}

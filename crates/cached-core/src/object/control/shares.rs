//! The namespaces' shares of the memory: they determine which share gives up a bucket when one is
//! needed.
//!
//! A namespace that has its own minimum, maximum or weight has a *share*, with its own eviction
//! queues; all other namespaces use the common share. Each share has a *target*, and the targets
//! add up to the whole memory (`share_targets.rs`). Buckets are evicted from the share that is
//! furthest above its target: a share that does not use all of its target lends the rest to the
//! others, and gets it back bucket by bucket as it loads.
//!
//! ```text
//!  share      common                 a                   b
//!            ├───────────────┼──────────────────────┼──────────┤   all buckets
//!  used       ■■■■■■■■■■■■■■■■■■■■■   ■■■■■■■■■■■■■   ■■■■■■■■■■■
//!  target    ──────────────^          ────────────────────^   ──────────^
//!                          └── 6 above: the next bucket goes from here
//! ```
//! The targets are recomputed each time that another 1/64 of all buckets has been evicted: only
//! eviction can move memory.
//!
//! If no namespace has its own share, none of this happens.

use super::namespaces::Namespaces;
use super::records::NamespaceTable;
use super::share_targets::{Bounds, Targets};
use crate::balance::Needs;
use crate::ensure;
use crate::object::config::{NamespaceConfig, OTHERS, ObjectCacheConfig, SHARES, Share};
use crate::object::lock_ranks;
use crate::object::memory::pool::Pool;
use crate::object::memory::queue::Queues;
use crate::object::memory::slots::State;
use crate::sync::{AtomicU16, AtomicU32, AtomicU64, Mutex, Ordering, lock, try_lock};
use blocker::{BUCKET_BYTES, NamespaceKey};

/// The targets are recomputed each time that this fraction of all buckets has been evicted.
const EVICTED_DIVISOR: u64 = 64;
/// Load times are averaged exponentially: each new measurement has a weight of 1/8.
const LOAD_SHIFT: u32 = 3;

/// The namespaces' shares of the memory, in buckets.
pub(crate) struct MemoryShares {
    /// The namespace of each share; [`OTHERS`] for the common share, which belongs to no single
    /// namespace.
    namespaces: [AtomicU16; SHARES],
    /// The number of shares in use; 1 if there is only the common share.
    count: AtomicU32,
    targets: [AtomicU64; SHARES],
    maxima: [AtomicU64; SHARES],
    /// The recent average time to load a bucket.
    load_nanos: [AtomicU64; SHARES],
    /// The recent average time to load a bucket, over all shares.
    all_load_nanos: AtomicU64,
    /// The number of buckets evicted since the targets were last recomputed.
    evicted: AtomicU64,
    balance: Mutex<Targets>,
}

/// A namespace's share of the memory, for reports.
pub(crate) struct ShareReport {
    pub(crate) target_buckets: u64,
    pub(crate) ghost_hits: u64,
    pub(crate) gain_nanos: u64,
}

/// Returns the bounds configured for a namespace.
fn bounds(config: &NamespaceConfig) -> Bounds {
    let none = Bounds::NONE;
    Bounds {
        min: config.own(NamespaceKey::MemoryBytesMin).map_or(none.min, |bytes| bytes / BUCKET_BYTES),
        max: config.own(NamespaceKey::MemoryBytesMax).map_or(none.max, |bytes| (bytes / BUCKET_BYTES).max(1)),
        weight: config.own(NamespaceKey::MemoryWeight).unwrap_or(none.weight),
    }
}

impl MemoryShares {
    /// Returns shares in which the common one has all of `buckets`.
    pub(crate) fn new(buckets: u32) -> Self {
        let shares = Self {
            namespaces: std::array::from_fn(|_| AtomicU16::new(OTHERS)),
            count: AtomicU32::new(1),
            targets: std::array::from_fn(|_| AtomicU64::new(0)),
            maxima: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            load_nanos: std::array::from_fn(|_| AtomicU64::new(0)),
            all_load_nanos: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            balance: Mutex::ranked(Targets::new(u64::from(buckets)), &lock_ranks::MEMORY_SHARES),
        };
        shares.publish(&lock(&shares.balance));
        shares
    }

    fn publish(&self, balance: &Targets) {
        for (share, target) in self.targets.iter().enumerate() {
            target.store(balance.target(share).unwrap_or(0), Ordering::SeqCst);
        }
    }

    /// Returns the shares in use.
    fn in_use(&self) -> impl Iterator<Item = Share> + use<> {
        // There are at most 16 shares.
        (0..self.count.load(Ordering::SeqCst) as u8).map(Share)
    }

    /// Returns whether no namespace has its own share.
    #[inline]
    pub(crate) fn is_common_only(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 1
    }

    fn namespace_of(&self, share: Share) -> u16 {
        self.namespaces[usize::from(share.0)].load(Ordering::SeqCst)
    }

    /// Returns the namespace's own share, if it has one.
    fn own_share(&self, namespace: u16) -> Option<Share> {
        self.in_use().skip(1).find(|share| self.namespace_of(*share) == namespace)
    }

    /// Returns how many more namespaces may get a share.
    pub(crate) fn free(&self) -> usize {
        SHARES - self.count.load(Ordering::SeqCst) as usize
    }

    /// Returns whether the namespace already has its own share.
    pub(crate) fn has_own(&self, namespace: u16) -> bool {
        self.own_share(namespace).is_some()
    }

    /// Applies the shares of `config`; calls must not overlap. A namespace that `config` no longer
    /// names keeps its queues, but loses its bounds. Returns the namespaces whose buckets
    /// `shared/resources.rs` must move to a new share.
    pub(crate) fn set(
        &self,
        config: &ObjectCacheConfig,
        numbers: &Namespaces,
        queues: &Queues,
        buckets: u32,
    ) -> Vec<u16> {
        let own = config.namespaces.iter().filter(|each| each.has_own_memory());
        let wanted: Vec<(u16, Bounds)> =
            own.map(|each| (numbers.of(&each.namespace), bounds(each))).collect();
        let mut balance = lock(&self.balance);
        for share in self.in_use().skip(1) {
            let is_wanted = wanted.iter().any(|(namespace, _)| *namespace == self.namespace_of(share));
            if !is_wanted {
                self.set_bounds(&mut balance, share, Bounds::NONE);
            }
        }
        let mut new = Vec::new();
        for (namespace, bounds) in wanted.iter().filter(|(number, _)| *number != OTHERS) {
            let share = match self.own_share(*namespace) {
                Some(share) => share,
                // The configuration was validated: there are enough shares.
                None if self.free() == 0 => continue,
                None => {
                    let share = Share(self.count.load(Ordering::SeqCst) as u8);
                    queues.open(share, buckets);
                    self.namespaces[usize::from(share.0)].store(*namespace, Ordering::SeqCst);
                    self.count.fetch_add(1, Ordering::SeqCst);
                    queues.set_share(*namespace, share);
                    new.push(*namespace);
                    share
                }
            };
            self.set_bounds(&mut balance, share, *bounds);
        }
        self.publish(&balance);
        new
    }

    fn set_bounds(&self, balance: &mut Targets, share: Share, bounds: Bounds) {
        balance.set(share.0.into(), bounds);
        self.maxima[usize::from(share.0)].store(bounds.max, Ordering::SeqCst);
    }

    /// Returns the number of buckets in a namespace's own share; 0 for the common share.
    fn used_by_own(&self, table: &NamespaceTable, share: Share) -> u64 {
        match self.namespace_of(share) {
            OTHERS => 0,
            namespace => {
                let metrics = &table.record(namespace).metrics;
                let states = [State::Clean, State::Dirty, State::DirtyWhole, State::Writing];
                // A slot may change its state between two loads: then the sum may wrap around
                // temporarily.
                states.iter().fold(0_u64, |sum, state| sum.wrapping_add(metrics.count_of(*state)))
            }
        }
    }

    /// Returns the number of buckets in each share.
    fn used(&self, pool: &Pool, table: &NamespaceTable) -> [u64; SHARES] {
        let mut used = [0; SHARES];
        for share in self.in_use().skip(1) {
            used[usize::from(share.0)] = self.used_by_own(table, share);
        }
        let own: u64 = used.iter().fold(0, |sum, used| sum.wrapping_add(*used));
        let all = u64::from(pool.count().saturating_sub(pool.free()));
        used[0] = all.saturating_sub(own);
        used
    }

    /// Returns the shares in the order in which they give up buckets: the one furthest above its
    /// target first.
    pub(crate) fn by_excess(
        &self,
        pool: &Pool,
        table: &NamespaceTable,
    ) -> impl Iterator<Item = Share> + use<> {
        let used = self.used(pool, table);
        let room = |share: &Share| {
            let at = usize::from(share.0);
            i128::from(self.targets[at].load(Ordering::Relaxed)) - i128::from(used[at])
        };
        let mut order = [(0_i128, Share::COMMON); SHARES];
        let mut count = 0;
        for share in self.in_use() {
            order[count] = (room(&share), share);
            count += 1;
        }
        order[..count].sort_unstable_by_key(|(room, _)| *room);
        order.into_iter().take(count).map(|(_, share)| share)
    }

    /// Returns the shares that exceed their maximum.
    pub(crate) fn above_maximum<'a>(&'a self, table: &'a NamespaceTable) -> impl Iterator<Item = Share> + 'a {
        self.in_use().skip(1).filter(|share| {
            let max = self.maxima[usize::from(share.0)].load(Ordering::Relaxed);
            max != u64::MAX && self.used_by_own(table, *share) > max
        })
    }

    /// Records that loading `buckets` buckets of a namespace took `nanos` nanoseconds.
    pub(crate) fn loaded(&self, queues: &Queues, namespace: u16, buckets: u64, nanos: u64) {
        if buckets == 0 {
            return;
        }
        let own = &self.load_nanos[usize::from(queues.share_of(namespace).0)];
        for place in [own, &self.all_load_nanos] {
            let (before, new) = (place.load(Ordering::Relaxed), nanos / buckets);
            // If two threads update the average simultaneously, one measurement may be lost, which
            // is harmless.
            let after = if before == 0 { new } else { before - (before >> LOAD_SHIFT) + (new >> LOAD_SHIFT) };
            place.store(after, Ordering::Relaxed);
        }
    }

    /// Returns the recent average time to load a bucket, over all shares; 0 before the first load.
    pub(crate) fn load_nanos(&self) -> u64 {
        self.all_load_nanos.load(Ordering::Relaxed)
    }

    /// Returns the number of ghost hits of all shares since the start: loads of evicted buckets
    /// that a quarter more than the maximum memory would have kept.
    pub(crate) fn ghost_hits(&self, queues: &Queues) -> u64 {
        self.in_use().map(|share| queues.ghost_hits(share)).sum()
    }

    /// Adjusts the targets to a new total number of buckets.
    pub(crate) fn resize(&self, buckets: u32) {
        let mut balance = lock(&self.balance);
        balance.resize(buckets.into());
        self.publish(&balance);
    }

    /// Counts an eviction, and recomputes the targets when they are due.
    pub(crate) fn count_eviction(&self, pool: &Pool, queues: &Queues, table: &NamespaceTable) {
        if self.is_common_only() {
            return;
        }
        let period = (u64::from(pool.count()) / EVICTED_DIVISOR).max(1);
        if self.evicted.fetch_add(1, Ordering::Relaxed) + 1 < period {
            return;
        }
        let used = self.used(pool, table);
        let mut needs = [Needs::default(); SHARES];
        for share in self.in_use() {
            let at = usize::from(share.0);
            needs[at] = Needs {
                bytes: used[at],
                ghost_hits: queues.ghost_hits(share),
                miss_nanos: self.load_nanos[at].load(Ordering::Relaxed),
                ..Needs::default()
            };
        }
        // A thread that holds the lock sees the same numbers, so this one need not wait for it.
        if let Some(mut balance) = try_lock(&self.balance) {
            self.evicted.store(0, Ordering::Relaxed);
            if balance.rebalance(&needs) {
                self.publish(&balance);
            }
        }
    }

    /// Returns a report of the namespace's share; `None` if it does not have its own.
    pub(crate) fn report(&self, queues: &Queues, namespace: u16) -> Option<ShareReport> {
        let share = self.own_share(namespace)?;
        let gain = lock(&self.balance).gain(share.0.into());
        Some(ShareReport {
            target_buckets: self.targets[usize::from(share.0)].load(Ordering::Relaxed),
            ghost_hits: queues.ghost_hits(share),
            gain_nanos: gain as u64,
        })
    }

    /// Checks that the targets add up to `buckets`, and are within their bounds.
    #[inline]
    pub(crate) fn validate(&self, buckets: u32) -> Result<(), String> {
        let balance = lock(&self.balance);
        let total = balance.total;
        ensure(total == u64::from(buckets), || {
            format!("the targets add up to {total} buckets, and there are {buckets}")
        })?;
        balance.validate()
    }
}

//! Room for dirty data: a single limit for the cache, part of which can be reserved for a
//! namespace.
//!
//! ```text
//!  dirty_bytes_max
//!  ├── namespace a ──┼── namespace b ──┼── all namespaces without a part of their own ──┤
//! ```
//! A *pool* is one of these parts. A change takes room for the buckets that it makes dirty from the
//! pool of its namespace, and waits for that pool only. So a namespace that is written faster than
//! the store can take it never delays writers of another pool. The room is returned when the flush
//! is stored.
//!
//! A namespace can get or lose its part while it has dirty data: the room taken is counted for each
//! namespace, and moves to the new pool at once. This is why a lock protects the counters; hits and
//! changes of buckets that are already dirty do not take it.

use std::collections::HashMap;

use super::records::NamespaceTable;
use crate::ensure;
use crate::object::config::OTHERS;
use crate::object::lock_ranks;
use crate::object::tasks::wait_queue::WaitQueue;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// The room for dirty data, in buckets.
pub(crate) struct DirtyRoom {
    /// Each record holds the room that its namespace has taken, the number of the namespace whose
    /// pool it was taken from, and the namespace's own pool. The record of the others holds the
    /// common pool.
    namespaces: NamespaceTable,
    /// The namespaces that have their own pool. All counters of the dirty room are written under
    /// this lock.
    own: Mutex<Vec<u16>>,
    dirty: AtomicU64,
    dirty_max: AtomicU64,
    /// The number of pools that are more than half dirty.
    above_half: AtomicU64,
    /// The number of tasks that wait for room in any pool.
    waiting: AtomicU64,
    /// Whether a pool has become more than half full since [`Self::pressure_has_begun`] last
    /// returned true.
    is_half_full: AtomicBool,
}

/// The limits of the whole cache, and of the namespaces that have their own part.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct DirtyLimits {
    /// The maximum number of dirty buckets.
    pub(crate) total: u64,
    /// The number of each namespace with its own part (never [`OTHERS`]), and the size of that
    /// part.
    pub(crate) own: Vec<(u16, u64)>,
}

impl DirtyRoom {
    pub(crate) fn new(namespaces: &NamespaceTable, limits: &DirtyLimits) -> Self {
        let room = Self {
            namespaces: namespaces.clone(),
            own: Mutex::ranked(Vec::new(), &lock_ranks::DIRTY_ROOM),
            dirty: AtomicU64::new(0),
            dirty_max: AtomicU64::new(0),
            above_half: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            is_half_full: AtomicBool::new(false),
        };
        room.set_limits(limits);
        room
    }

    /// Changes the limits. Dirty data stay dirty: a pool that has taken more than its new limit
    /// gets back within it as its data are stored.
    pub(crate) fn set_limits(&self, limits: &DirtyLimits) {
        let mut own_pools = lock(&self.own);
        let parts: HashMap<u16, u64> =
            limits.own.iter().copied().filter(|(number, _)| *number != OTHERS).collect();
        let own_sum: u64 = parts.values().sum();
        // At least one bucket: with a limit of 0 nothing could become dirty.
        let others_max = limits.total.saturating_sub(own_sum).max(1);
        let mut others_dirty = 0;
        for record in self.namespaces.records() {
            let dirty = record.dirty_taken.load(Ordering::SeqCst);
            if let Some(part) = parts.get(&record.number) {
                record.dirty_pool.set(dirty, (*part).max(1), &self.above_half);
                record.dirty_pool_of.store(record.number, Ordering::SeqCst);
                continue;
            }
            others_dirty += dirty;
            record.dirty_pool_of.store(OTHERS, Ordering::SeqCst);
            if record.number != OTHERS {
                record.dirty_pool.set(0, 0, &self.above_half);
            }
        }
        self.pool(OTHERS).set(others_dirty, others_max, &self.above_half);
        self.dirty_max.store(limits.total, Ordering::SeqCst);
        let before = std::mem::replace(&mut *own_pools, parts.into_keys().collect());
        let woken: Vec<u16> = before.into_iter().chain(own_pools.iter().copied()).collect();
        drop(own_pools);
        // Tasks whose namespace has another pool now look it up again.
        woken.into_iter().chain([OTHERS]).for_each(|number| self.pool(number).waiters.notify());
    }

    fn pool(&self, number: u16) -> &DirtyPool {
        &self.namespaces.record(number).dirty_pool
    }

    /// Returns the number of the pool from which a namespace takes room.
    pub(crate) fn pool_of(&self, namespace: u16) -> u16 {
        self.namespaces.record(namespace).dirty_pool_of.load(Ordering::SeqCst)
    }

    /// Returns the queue of tasks that wait for room in a pool.
    pub(crate) fn waiters(&self, pool: u16) -> &WaitQueue {
        &self.pool(pool).waiters
    }

    /// Counts a task that waits for room, until the result is dropped.
    pub(crate) fn begin_wait(&self) -> impl Sized {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        scopeguard::guard(&self.waiting, |waiting| {
            waiting.fetch_sub(1, Ordering::SeqCst);
        })
    }

    /// Wakes the first waiting task of each pool.
    pub(crate) fn notify_all(&self) {
        let own = lock(&self.own).clone();
        own.into_iter().chain([OTHERS]).for_each(|number| self.pool(number).waiters.notify());
    }

    /// Returns the number of buckets that are dirty or being written, including the room taken for
    /// buckets that are about to become dirty.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::SeqCst)
    }

    /// Returns the maximum number of dirty buckets.
    #[inline]
    pub(crate) fn dirty_max(&self) -> u64 {
        self.dirty_max.load(Ordering::Relaxed)
    }

    /// Returns the dirty limit of a namespace, if it has its own part.
    pub(crate) fn own_max(&self, namespace: u16) -> Option<u64> {
        let pool = self.pool_of(namespace);
        (pool != OTHERS).then(|| self.pool(pool).dirty_max())
    }

    /// Takes room for `count` dirty buckets of a namespace. A request that exceeds the whole limit
    /// of its pool is granted once nothing else in the pool is dirty, so that it does not wait
    /// forever.
    pub(crate) fn take(&self, namespace: u16, count: u32) -> bool {
        if count == 0 {
            return true;
        }
        let _lock = lock(&self.own);
        let pool = self.pool(self.pool_of(namespace));
        let before = pool.dirty();
        let after = before + u64::from(count);
        if after > pool.dirty_max() && before != 0 {
            return false;
        }
        self.add(namespace, count);
        if !pool.is_above_half(before) && pool.is_above_half(after) {
            self.is_half_full.store(true, Ordering::SeqCst);
        }
        true
    }

    /// Takes room for `count` dirty buckets of a namespace, unless the room is used up or tasks wait
    /// for room.
    pub(crate) fn take_at_once(&self, namespace: u16, count: u32) -> bool {
        let taking = || self.take(namespace, count).then_some(());
        self.waiters(self.pool_of(namespace)).try_take(taking).is_some()
    }

    /// Adds to the counters. The caller holds the lock.
    fn add(&self, namespace: u16, count: u32) {
        let count = u64::from(count);
        let more = |number: &AtomicU64| number.store(number.load(Ordering::SeqCst) + count, Ordering::SeqCst);
        let pool = self.pool(self.pool_of(namespace));
        pool.set_dirty(pool.dirty() + count, &self.above_half);
        more(&self.namespaces.record(namespace).dirty_taken);
        more(&self.dirty);
    }

    /// Retakes room that the same slot returned just before, or will return just after this call.
    pub(crate) fn retake(&self, namespace: u16, count: u32) {
        let _lock = lock(&self.own);
        self.add(namespace, count);
    }

    /// Returns room.
    #[inline]
    pub(crate) fn give_back(&self, namespace: u16, count: u32) {
        if count > 0 {
            self.give_some_back(namespace, count);
        }
    }

    fn give_some_back(&self, namespace: u16, count: u32) {
        let count = u64::from(count);
        let less = |number: &AtomicU64| number.store(number.load(Ordering::SeqCst) - count, Ordering::SeqCst);
        let own = lock(&self.own);
        let pool = self.pool(self.pool_of(namespace));
        pool.set_dirty(pool.dirty() - count, &self.above_half);
        less(&self.namespaces.record(namespace).dirty_taken);
        less(&self.dirty);
        drop(own);
        pool.waiters.notify();
    }

    /// Returns whether the namespace should be flushed without regard to age, because its pool is
    /// more than half dirty or tasks wait for room in it.
    pub(crate) fn is_pressed(&self, namespace: u16) -> bool {
        self.pool(self.pool_of(namespace)).is_pressed()
    }

    /// Returns whether any pool is more than half dirty, or any task waits for room.
    pub(crate) fn is_any_pressed(&self) -> bool {
        self.above_half.load(Ordering::SeqCst) > 0 || self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Returns whether a pool has just become more than half full; true only once each time.
    pub(crate) fn pressure_has_begun(&self) -> bool {
        self.is_half_full.load(Ordering::Relaxed) && self.is_half_full.swap(false, Ordering::SeqCst)
    }

    /// Checks that the sums agree.
    #[inline]
    pub(crate) fn validate(&self) -> Result<(), String> {
        let own = lock(&self.own);
        let mut of_pools: HashMap<u16, u64> =
            own.iter().chain([&OTHERS]).map(|number| (*number, 0)).collect();
        for record in self.namespaces.records() {
            let (pool, taken) = (self.pool_of(record.number), record.dirty_taken.load(Ordering::SeqCst));
            let why = || format!("namespace {} takes room from {pool}, which is not a pool", record.number);
            *of_pools.get_mut(&pool).ok_or_else(why)? += taken;
        }
        let mut above_half = 0;
        for (number, taken) in &of_pools {
            let counted = self.pool(*number).dirty();
            ensure(counted == *taken, || {
                format!("pool {number} of the dirty room has {counted}, its namespaces {taken}")
            })?;
            above_half += u64::from(self.pool(*number).is_above_half(counted));
        }
        let (counted, sum) = (self.dirty(), of_pools.values().sum::<u64>());
        ensure(counted == sum, || format!("the dirty room counts {counted} buckets, its namespaces {sum}"))?;
        let counted = self.above_half.load(Ordering::SeqCst);
        ensure(counted == above_half, || {
            format!("{above_half} pools are more than half dirty, but {counted} are counted")
        })
    }
}

/// A part of the room for dirty data: a single namespace's own part, or the common part of all
/// other namespaces. The counters are written under the lock of the [`DirtyRoom`]. Sizes are in
/// buckets.
#[derive(Default)]
pub(crate) struct DirtyPool {
    dirty: AtomicU64,
    dirty_max: AtomicU64,
    /// Whether the pool is counted as more than half dirty.
    is_counted: AtomicBool,
    /// The tasks that wait for room in the pool.
    pub(crate) waiters: WaitQueue,
}

impl DirtyPool {
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::SeqCst)
    }

    pub(crate) fn dirty_max(&self) -> u64 {
        self.dirty_max.load(Ordering::SeqCst)
    }

    /// Sets the room taken and the limit. `above_half` is the number of pools that are more than
    /// half dirty.
    pub(crate) fn set(&self, dirty: u64, dirty_max: u64, above_half: &AtomicU64) {
        self.dirty_max.store(dirty_max, Ordering::SeqCst);
        self.set_dirty(dirty, above_half);
    }

    /// Sets the room taken.
    pub(crate) fn set_dirty(&self, dirty: u64, above_half: &AtomicU64) {
        self.dirty.store(dirty, Ordering::SeqCst);
        let is_above = self.is_above_half(dirty);
        if self.is_counted.load(Ordering::Relaxed) != is_above {
            self.is_counted.store(is_above, Ordering::Relaxed);
            let count = above_half.load(Ordering::SeqCst);
            above_half.store(if is_above { count + 1 } else { count - 1 }, Ordering::SeqCst);
        }
    }

    /// Returns whether `dirty` buckets are more than half of the limit. Flushing begins at this
    /// point, so that writers seldom wait for room.
    pub(crate) fn is_above_half(&self, dirty: u64) -> bool {
        dirty > self.dirty_max() / 2
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.is_above_half(self.dirty()) || self.waiters.has_waiters()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::write_phases::WritePhases;
    use super::*;

    /// Returns a dirty room of three namespaces with the numbers 1 to 3.
    fn room(total: u64, own: &[(u16, u64)]) -> DirtyRoom {
        let phases = || WritePhases::new(blocker::WriteMode::Through, blocker::WriteMode::Through);
        let namespaces = NamespaceTable::new(phases());
        for name in ["a", "b", "c"] {
            namespaces.add(blocker::Namespace::new(name).unwrap(), phases());
        }
        DirtyRoom::new(&namespaces, &DirtyLimits { total, own: own.to_vec() })
    }

    #[test]
    fn room_is_limited_and_every_waiter_gets_some() {
        let room = room(4, &[]);
        assert!(room.take(1, 3));
        assert!(!room.take(2, 2));
        assert!(room.take(2, 1));
        room.give_back(1, 3);
        room.give_back(2, 1);
        assert!(room.take(1, 9), "alone, even beyond the limit");
        assert!(!room.take(1, 1));
        assert!(room.take(1, 0));
        room.validate().unwrap();
    }

    #[test]
    fn the_limit_can_change_while_more_is_dirty() {
        let room = room(4, &[]);
        assert!(room.take(1, 4) && !room.take(1, 1));
        room.set_limits(&DirtyLimits { total: 6, own: vec![] });
        assert!(room.take(1, 2) && !room.take(1, 1));
        room.set_limits(&DirtyLimits { total: 2, own: vec![] });
        room.give_back(1, 4);
        assert!(!room.take(1, 1) && room.is_pressed(1));
        room.give_back(1, 1);
        assert!(room.take(1, 1) && !room.take(1, 1));
    }

    #[test]
    fn half_of_the_room_taken_is_reported_once_each_time() {
        let room = room(4, &[]);
        assert!(room.take(1, 2) && !room.pressure_has_begun());
        assert!(room.take(1, 1) && room.is_pressed(1) && room.is_any_pressed());
        assert!(room.pressure_has_begun() && !room.pressure_has_begun());
        assert!(room.take(1, 1) && !room.pressure_has_begun(), "reported before");
        room.give_back(1, 3);
        assert!(room.take(1, 2) && room.pressure_has_begun());
    }

    #[test]
    fn a_namespace_with_a_part_takes_none_of_the_others_room_and_they_none_of_its() {
        let room = room(10, &[(3, 4)]);
        assert!(room.take(3, 4) && !room.take(3, 1), "its part is full");
        assert!(room.take(1, 3) && room.take(2, 3), "the others have six");
        assert!(!room.take(1, 1) && !room.take(OTHERS, 1));
        assert_eq!(
            (room.dirty(), room.dirty_max(), room.own_max(3), room.own_max(1)),
            (10, 10, Some(4), None)
        );
        room.give_back(3, 2);
        assert!(!room.take(1, 1), "what the namespace gives back is its own");
        assert!(!room.is_pressed(3) && room.is_pressed(1) && room.is_any_pressed());
        room.give_back(1, 3);
        assert!(!room.is_any_pressed(), "both at their halves");
        assert!(room.take(3, 1) && room.is_pressed(3) && room.is_any_pressed() && !room.is_pressed(2));
        room.validate().unwrap();
    }

    #[test]
    fn what_is_dirty_goes_over_with_its_namespace() {
        let room = room(10, &[]);
        assert!(room.take(3, 5) && room.take(1, 3));
        room.set_limits(&DirtyLimits { total: 10, own: vec![(3, 6)] });
        room.validate().unwrap();
        assert!(room.take(3, 1) && !room.take(3, 1), "five of its six were taken before");
        assert!(room.take(1, 1) && !room.take(1, 1), "four are left for the others");
        room.set_limits(&DirtyLimits { total: 12, own: vec![(1, 4)] });
        room.validate().unwrap();
        assert!(!room.take(1, 1) && room.take(3, 2) && !room.take(3, 1));
        room.give_back(3, 8);
        room.give_back(1, 4);
        assert_eq!(room.dirty(), 0);
        room.validate().unwrap();
    }
}

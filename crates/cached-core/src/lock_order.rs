//! Ranks for locks, and a check at run time that every thread takes them in order.
//!
//! A deadlock needs a cycle: one thread holds A and waits for B, another holds B and waits for A.
//! If every lock has a [`Rank`] and each thread takes locks only in ascending order of their
//! levels, there is no cycle. The check fails at the first lock taken out of order, in any
//! interleaving and without a second thread: one pass through the code is enough.
//!
//! ```
//! use cached_core::lock_order::Rank;
//! use std::sync::Mutex;
//!
//! static LANE: Rank = Rank::new("lane", 10);
//! static QUEUE: Rank = Rank::new("queue", 20);
//! let (lane, queue) = (Mutex::new(()), Mutex::new(()));
//!
//! let _lane_order = LANE.enter();
//! let _lane = lane.lock();
//! let _queue_order = QUEUE.enter();
//! let _queue = queue.lock();
//! ```
//!
//! Builds without debug assertions check nothing: a [`Held`] is empty, and every call compiles to
//! nothing.

use std::marker::PhantomData;

/// The name of a lock, or of a group of similar locks, and its level in the order.
#[derive(Debug)]
#[cfg_attr(not(debug_assertions), expect(dead_code, reason = "only the checks read the fields"))]
pub struct Rank {
    name: &'static str,
    level: u32,
}

impl Rank {
    /// Creates a rank. Locks are taken in ascending order of their levels; two ranks of the same
    /// level are never held together.
    pub const fn new(name: &'static str, level: u32) -> Rank {
        Rank { name, level }
    }

    /// Checks that the thread may wait for a lock of this rank, and records the lock as held
    /// until the result is dropped. Call it just before taking the lock.
    ///
    /// # Panics
    /// Panics in a build with debug assertions if the thread holds a lock of this level or a higher
    /// one.
    #[inline(always)]
    #[track_caller]
    pub fn enter(&'static self) -> Held {
        self.enter_nth(0)
    }

    /// Like [`enter`](Rank::enter), for one of several locks of this rank. A thread takes them in
    /// ascending order of their numbers.
    ///
    /// # Panics
    /// Panics in a build with debug assertions if the thread holds a lock of this rank with this
    /// number or a higher one, or a lock of a higher level.
    #[inline(always)]
    #[track_caller]
    pub fn enter_nth(&'static self, number: u32) -> Held {
        imp::enter(self, number, true);
        Held::new(self, number)
    }

    /// Records a lock that was taken without waiting (by a successful `try_lock`). It may be taken
    /// at any point of the order.
    #[inline(always)]
    #[track_caller]
    pub fn enter_tried(&'static self) -> Held {
        imp::enter(self, u32::MAX, false);
        Held::new(self, u32::MAX)
    }
}

/// The record of a lock that a thread holds. Keep it as long as the lock's guard, and drop it in the same
/// thread.
#[derive(Debug)]
#[must_use = "the lock counts as released when this is dropped"]
pub struct Held {
    #[cfg(debug_assertions)]
    entry: (&'static Rank, u32),
    /// The marker that makes the record neither `Send` nor `Sync`, because it belongs to the
    /// thread.
    _thread: PhantomData<*const ()>,
}

impl Held {
    #[inline(always)]
    fn new(rank: &'static Rank, number: u32) -> Held {
        let _ = (rank, number);
        Held {
            #[cfg(debug_assertions)]
            entry: (rank, number),
            _thread: PhantomData,
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        imp::leave(self.entry);
    }
}

/// Checks that the calling thread holds no ranked lock of `level` or above.
///
/// # Panics
/// Panics in a build with debug assertions if the thread holds such a lock.
#[inline(always)]
#[track_caller]
pub fn assert_none_from(level: u32) {
    imp::assert_none_from(level);
}

#[cfg(debug_assertions)]
mod imp {
    use super::Rank;
    use std::cell::RefCell;
    use std::panic::Location;

    struct Entry {
        rank: &'static Rank,
        number: u32,
        at: &'static Location<'static>,
    }

    #[cfg(not(shuttle))]
    use std::thread_local;
    // All of shuttle's threads run on one system thread.
    #[cfg(shuttle)]
    use shuttle::thread_local;

    thread_local! {
        static HELD: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
    }

    /// Calls `f` with the locks that the thread holds, unless the thread is being torn down.
    fn with(f: impl FnOnce(&mut Vec<Entry>)) {
        let _ = HELD.try_with(|held| f(&mut held.borrow_mut()));
    }

    fn describe(held: &[Entry]) -> String {
        let line =
            |Entry { rank, at, .. }: &Entry| format!("  \"{}\" ({}), taken at {at}", rank.name, rank.level);
        held.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[track_caller]
    pub(super) fn enter(rank: &'static Rank, number: u32, waits: bool) {
        let at = Location::caller();
        with(|held| {
            if waits
                && !std::thread::panicking()
                && held.iter().any(|entry| (entry.rank.level, entry.number) >= (rank.level, number))
            {
                let held = describe(held);
                panic!(
                    "lock order: \"{}\" ({}) may not be waited for at {at}: it must be taken before these, which the thread holds\n{held}",
                    rank.name, rank.level
                );
            }
            held.push(Entry { rank, number, at });
        });
    }

    pub(super) fn leave((rank, number): (&'static Rank, u32)) {
        with(|held| {
            let last =
                held.iter().rposition(|entry| std::ptr::eq(entry.rank, rank) && entry.number == number);
            if let Some(last) = last {
                held.remove(last);
            }
        });
    }

    #[track_caller]
    pub(super) fn assert_none_from(level: u32) {
        let at = Location::caller();
        with(|held| {
            if held.iter().any(|entry| entry.rank.level >= level) && !std::thread::panicking() {
                panic!("lock order: no lock may be held at {at}, but the thread holds\n{}", describe(held));
            }
        });
    }
}

#[cfg(not(debug_assertions))]
mod imp {
    use super::Rank;

    #[inline(always)]
    pub(super) fn enter(_rank: &'static Rank, _number: u32, _waits: bool) {}

    #[inline(always)]
    pub(super) fn assert_none_from(_level: u32) {}
}

#[cfg(all(test, debug_assertions, not(shuttle)))]
mod tests {
    use super::*;

    static OUTER: Rank = Rank::new("outer", 10);
    static INNER: Rank = Rank::new("inner", 20);
    static OTHER_INNER: Rank = Rank::new("other inner", 20);

    fn is_refused(f: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(f).is_err()
    }

    #[test]
    fn locks_are_taken_with_rising_levels() {
        let outer = OUTER.enter();
        let inner = INNER.enter();
        assert!(is_refused(|| drop(OUTER.enter())), "the same lock again");
        assert!(is_refused(|| drop(OTHER_INNER.enter())), "another of the same level");
        drop(outer);
        assert!(is_refused(|| drop(OUTER.enter())), "the inner one is still held");
        drop(inner);
        drop(OUTER.enter());
    }

    #[test]
    fn locks_of_one_rank_are_taken_with_rising_numbers() {
        let held: Vec<_> = (0..3).map(|n| OUTER.enter_nth(n)).collect();
        assert!(is_refused(|| drop(OUTER.enter_nth(1))));
        drop(INNER.enter());
        drop(held);
    }

    #[test]
    fn a_tried_lock_may_be_taken_at_any_point() {
        let inner = INNER.enter();
        let tried = OUTER.enter_tried();
        drop(inner);
        drop(INNER.enter());
        assert!(is_refused(|| drop(OUTER.enter_nth(0))), "it is held: waiting for it would be out of order");
        drop(tried);
    }

    #[test]
    fn the_absence_of_locks_can_be_asserted() {
        assert_none_from(0);
        let outer = OUTER.enter();
        assert_none_from(11);
        assert!(is_refused(|| assert_none_from(10)));
        drop(outer);
    }
}

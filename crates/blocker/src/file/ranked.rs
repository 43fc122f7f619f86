//! The file store's locks, each with a rank. The ranks define the order in which the locks are
//! taken.
//!
//! A thread that holds a lock waits only for locks of a higher [`Rank`]; of two objects it locks
//! the one with the smaller ID first, by [`RwLock::read_pair`] and [`RwLock::write_pair`]. Attempts
//! that do not wait (`try_…`) may be made at any time. Builds with debug assertions check the order
//! at every lock, so a test that violates the order fails even without a deadlock.

use std::ops::{Deref, DerefMut};

/// The ranks of locks. A thread may wait only for a lock whose rank is above the ranks of all locks
/// that the thread holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Rank {
    /// The right to store many objects together, held during disk I/O.
    Turn,
    /// The claims, held shared by a change from its check to its end, and exclusively by a claim.
    Claims,
    /// The state of one object.
    Object,
    /// The header of one file.
    Header,
    /// The tables of objects, directories and names, held for a look-up or an insertion, and never
    /// during disk I/O.
    Table,
}

/// A readers-writer lock with a rank.
pub(super) struct RwLock<T> {
    rank: Rank,
    lock: parking_lot::RwLock<T>,
}

/// A mutex with a rank.
pub(super) struct Mutex<T> {
    rank: Rank,
    lock: parking_lot::Mutex<T>,
}

/// A held lock.
pub(super) struct Locked<G> {
    // The order of the fields matters: the note is removed after the lock is released.
    guard: G,
    _held: Held,
}

pub(super) type ReadGuard<'a, T> = Locked<parking_lot::RwLockReadGuard<'a, T>>;
pub(super) type WriteGuard<'a, T> = Locked<parking_lot::RwLockWriteGuard<'a, T>>;
pub(super) type MutexGuard<'a, T> = Locked<parking_lot::MutexGuard<'a, T>>;

impl<G: Deref> Deref for Locked<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Locked<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<T> RwLock<T> {
    pub(super) const fn new(rank: Rank, value: T) -> Self {
        Self { rank, lock: parking_lot::RwLock::new(value) }
    }

    pub(super) fn read(&self) -> ReadGuard<'_, T> {
        let held = Held::wait(self.rank, false);
        Locked { guard: self.lock.read(), _held: held }
    }

    pub(super) fn write(&self) -> WriteGuard<'_, T> {
        let held = Held::wait(self.rank, false);
        Locked { guard: self.lock.write(), _held: held }
    }

    /// Locks as `read` does, for the second of two locks of one rank.
    pub(super) fn read_pair(&self) -> ReadGuard<'_, T> {
        let held = Held::wait(self.rank, true);
        Locked { guard: self.lock.read(), _held: held }
    }

    /// Locks as `write` does, for the second of two locks of one rank.
    pub(super) fn write_pair(&self) -> WriteGuard<'_, T> {
        let held = Held::wait(self.rank, true);
        Locked { guard: self.lock.write(), _held: held }
    }

    pub(super) fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        let guard = self.lock.try_read()?;
        Some(Locked { guard, _held: Held::note(self.rank) })
    }

    pub(super) fn try_write(&self) -> Option<WriteGuard<'_, T>> {
        let guard = self.lock.try_write()?;
        Some(Locked { guard, _held: Held::note(self.rank) })
    }
}

impl<T> Mutex<T> {
    pub(super) const fn new(rank: Rank, value: T) -> Self {
        Self { rank, lock: parking_lot::Mutex::new(value) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        let held = Held::wait(self.rank, false);
        Locked { guard: self.lock.lock(), _held: held }
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.lock.try_lock()?;
        Some(Locked { guard, _held: Held::note(self.rank) })
    }
}

#[cfg(not(debug_assertions))]
struct Held;

#[cfg(not(debug_assertions))]
impl Held {
    #[inline(always)]
    fn wait(_: Rank, _: bool) -> Self {
        Self
    }

    #[inline(always)]
    fn note(_: Rank) -> Self {
        Self
    }
}

/// A note in a thread-local list that a lock is held or waited for.
#[cfg(debug_assertions)]
struct Held(Rank);

#[cfg(debug_assertions)]
thread_local! {
    static HELD: std::cell::RefCell<Vec<Rank>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[cfg(debug_assertions)]
impl Held {
    fn wait(rank: Rank, pair: bool) -> Self {
        let highest = HELD.with(|held| held.borrow().iter().max().copied());
        let in_order = highest.is_none_or(|highest| highest < rank || (pair && highest == rank));
        assert!(in_order, "a thread that holds {highest:?} waits for {rank:?}: the lock order is broken");
        Self::note(rank)
    }

    fn note(rank: Rank) -> Self {
        HELD.with(|held| held.borrow_mut().push(rank));
        Self(rank)
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        HELD.with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|rank| *rank == self.0) {
                held.remove(at);
            }
        });
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_by_rising_rank() {
        let (claims, object) = (RwLock::new(Rank::Claims, ()), RwLock::new(Rank::Object, ()));
        let other = RwLock::new(Rank::Object, ());
        let table = Mutex::new(Rank::Table, ());
        let _claims = claims.read();
        let object = object.write();
        drop(other.read_pair());
        drop(table.lock());
        drop(object);
        let _again = other.write();
    }

    #[test]
    #[should_panic = "a thread that holds Some(Object) waits for Claims"]
    fn a_broken_order_fails_without_a_second_thread() {
        let (claims, object) = (RwLock::new(Rank::Claims, ()), RwLock::new(Rank::Object, ()));
        let _object = object.read();
        let _claims = claims.read();
    }

    #[test]
    fn an_attempt_may_be_made_at_any_time() {
        let (claims, object) = (RwLock::new(Rank::Claims, ()), RwLock::new(Rank::Object, ()));
        let _object = object.read();
        assert!(claims.try_read().is_some());
    }
}

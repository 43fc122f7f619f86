//! Atomics, locks, threads and spinning.
//!
//! All synchronisation of this crate uses this module, so that a test built with `--cfg shuttle`
//! runs the same code under a scheduler that tries many interleavings.
//!
//! A mutex may have a [`Rank`]: builds with debug assertions check that every thread takes such
//! locks in order.

#[cfg(debug_assertions)]
use crate::lock_order::Held;
use crate::lock_order::Rank;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicUsize;

#[cfg(not(shuttle))]
mod imp {
    pub(crate) use blocker::executor::block_on;
    pub(super) use parking_lot::{Mutex as RawMutex, MutexGuard as RawGuard};
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering,
    };

    #[inline]
    pub(super) fn try_lock<T>(mutex: &RawMutex<T>) -> Option<RawGuard<'_, T>> {
        mutex.try_lock()
    }

    #[inline]
    pub(super) fn lock<T>(mutex: &RawMutex<T>) -> RawGuard<'_, T> {
        mutex.lock()
    }

    /// Waits for one step for a hash bucket's lock; `spins` counts the steps so far.
    ///
    /// Critical sections are far shorter than a time slice, so the thread spins at first, and yields
    /// the core only when the holder has probably been preempted.
    pub(crate) fn relax(spins: &mut u32) {
        *spins += 1;
        if *spins < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(shuttle)]
mod imp {
    pub(crate) use shuttle::future::block_on;
    pub(crate) use shuttle::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering,
    };
    pub(super) use shuttle::sync::{Mutex as RawMutex, MutexGuard as RawGuard};
    pub(crate) use std::sync::Arc;

    pub(super) fn try_lock<T>(mutex: &RawMutex<T>) -> Option<RawGuard<'_, T>> {
        mutex.try_lock().ok()
    }

    pub(super) fn lock<T>(mutex: &RawMutex<T>) -> RawGuard<'_, T> {
        mutex.lock().expect("a shuttle thread panicked while holding this lock")
    }

    pub(crate) fn relax(_spins: &mut u32) {
        shuttle::thread::yield_now();
    }
}

pub(crate) use imp::*;

/// A mutex that may have a position in the lock order.
#[derive(Default)]
pub struct Mutex<T> {
    raw: imp::RawMutex<T>,
    #[cfg(debug_assertions)]
    order: Option<(&'static Rank, u32)>,
}

impl<T> Mutex<T> {
    /// Creates a mutex whose order is not checked.
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex {
            raw: imp::RawMutex::new(value),
            #[cfg(debug_assertions)]
            order: None,
        }
    }

    /// Creates a mutex of this rank.
    pub fn ranked(value: T, rank: &'static Rank) -> Mutex<T> {
        Mutex::ranked_nth(value, rank, 0)
    }

    /// Creates one of several mutexes of this rank, which a thread takes in ascending order of
    /// their numbers.
    pub(crate) fn ranked_nth(value: T, rank: &'static Rank, number: u32) -> Mutex<T> {
        let _ = (rank, number);
        Mutex {
            raw: imp::RawMutex::new(value),
            #[cfg(debug_assertions)]
            order: Some((rank, number)),
        }
    }

    /// Locks the mutex. A panic of an earlier holder does not poison it.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        lock(self)
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.raw.fmt(f)
    }
}

/// The guard of a [`Mutex`].
pub struct MutexGuard<'a, T> {
    raw: imp::RawGuard<'a, T>,
    /// This field is declared after the guard, so that it is dropped after the guard.
    #[cfg(debug_assertions)]
    _order: Option<Held>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.raw
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.raw
    }
}

/// Locks a mutex. A panic of an earlier holder does not poison it.
#[inline]
#[cfg_attr(debug_assertions, track_caller)]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(debug_assertions)]
    let _order = mutex.order.map(|(rank, number)| rank.enter_nth(number));
    MutexGuard {
        raw: imp::lock(&mutex.raw),
        #[cfg(debug_assertions)]
        _order,
    }
}

/// Locks a mutex if that is possible without waiting.
#[inline]
#[cfg_attr(debug_assertions, track_caller)]
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let raw = imp::try_lock(&mutex.raw)?;
    Some(MutexGuard {
        raw,
        #[cfg(debug_assertions)]
        _order: mutex.order.map(|(rank, _)| rank.enter_tried()),
    })
}

// Threads have small numbers, by which they choose append streams and queues. This module also runs
// work on all cores at startup and shutdown.

// This is not a shuttle atomic, because no test of interleavings depends on it.
static THREADS: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Returns a small number for the calling thread, which is always the same.
#[inline]
pub(crate) fn thread_number() -> usize {
    THREAD.with(|thread| {
        if thread.get() == usize::MAX {
            thread.set(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        thread.get()
    })
}

/// Runs `work` on as many threads as there are cores, but at most `threads_max`, and waits for all of them.
pub(crate) fn on_all_cores<T: Send>(threads_max: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = cores.min(threads_max).max(1);
    std::thread::scope(|scope| {
        // If no further thread can be started, this one does the work.
        let others: Vec<_> = (1..threads)
            .filter_map(|_| {
                std::thread::Builder::new().name("cached-restart".into()).spawn_scoped(scope, &work).ok()
            })
            .collect();
        let mut results = vec![work()];
        for other in others {
            results.push(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    })
}

//! The one door to atomics, locks and spinning.
//!
//! Everything in this crate that threads share goes through here, so that a test built with
//! `--cfg shuttle` runs the very same code under a scheduler that tries other interleavings.

#[cfg(not(shuttle))]
mod imp {
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering,
    };

    /// Lets a mutex be tried with the same words under both schedulers.
    pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
        mutex.try_lock()
    }

    /// Takes a mutex; a panic of an earlier holder does not poison it.
    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock()
    }

    /// One step of waiting for a bucket lock: `spins` counts the steps so far.
    ///
    /// Critical sections are far shorter than a time slice, so we burn a few cycles first and yield
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
    pub(crate) use shuttle::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering,
    };
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
    pub(crate) use std::sync::Arc;

    pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
        mutex.try_lock().ok()
    }

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("a shuttle thread panicked while holding this lock")
    }

    pub(crate) fn relax(_spins: &mut u32) {
        shuttle::thread::yield_now();
    }
}

pub(crate) use imp::*;

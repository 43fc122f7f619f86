//! Defects on request, so that tests can check how a server ends that has one: a thread that panics, a worker
//! that makes no progress. Requested by `debugtime` with `--debug-clock`, and only in builds with debug
//! assertions; other builds have none.

#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicBool, Ordering};

/// The defects that have been requested.
#[derive(Debug, Default)]
pub(crate) struct InjectedFaults {
    /// The acceptor's thread is to panic.
    #[cfg(debug_assertions)]
    acceptor_panics: AtomicBool,
    /// A worker loops for as long as this is set.
    #[cfg(debug_assertions)]
    stalled: AtomicBool,
}

#[cfg(debug_assertions)]
impl InjectedFaults {
    /// Injects the fault called `word`, on the worker that received it. Returns false if there is no such
    /// fault.
    ///
    /// # Panics
    /// If that is the fault.
    pub(crate) fn inject(&self, word: &[u8]) -> bool {
        match word {
            b"panic-worker" => panic!("requested by a client"),
            b"panic-acceptor" => self.acceptor_panics.store(true, Ordering::Relaxed),
            b"stall-on" => {
                self.stalled.store(true, Ordering::Relaxed);
                while self.stalled.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
            b"stall-off" => self.stalled.store(false, Ordering::Relaxed),
            _ => return false,
        }
        true
    }

    /// Called on the acceptor's thread, once a second.
    ///
    /// # Panics
    /// If that has been requested.
    pub(crate) fn check_acceptor(&self) {
        assert!(!self.acceptor_panics.load(Ordering::Relaxed), "requested by a client");
    }
}

#[cfg(not(debug_assertions))]
impl InjectedFaults {
    /// Returns false: there are no faults in this build.
    pub(crate) fn inject(&self, _: &[u8]) -> bool {
        false
    }

    /// Does nothing.
    pub(crate) fn check_acceptor(&self) {}
}

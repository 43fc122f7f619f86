//! Fault injection, so that tests can check how a server with a defect ends: a thread that panics,
//! or a worker that makes no progress. Faults are requested by `debugtime` with `--debug-clock`,
//! and only builds with debug assertions have them. A process that takes over from another can be
//! killed, stalled or held at each step (`CACHED_FAULT`).

use std::sync::atomic::{AtomicBool, Ordering};

/// The defects that have been requested.
#[derive(Debug, Default)]
pub(crate) struct InjectedFaults {
    /// Whether the acceptor's thread must panic.
    acceptor_panics: AtomicBool,
    /// Whether a worker is stalled: it loops as long as this is set.
    stalled: AtomicBool,
}

impl InjectedFaults {
    /// Injects the fault called `word` on the worker that received the request. Returns false if
    /// the fault does not exist, or this build has no faults.
    ///
    /// # Panics
    /// Panics if the fault is a panic.
    pub(crate) fn inject(&self, word: &[u8]) -> bool {
        match word {
            _ if !cfg!(debug_assertions) => return false,
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

    /// Panics if this was requested. It is called on the acceptor's thread, once a second.
    ///
    /// # Panics
    /// Panics if that was requested.
    pub(crate) fn check_acceptor(&self) {
        debug_assert!(!self.acceptor_panics.load(Ordering::Relaxed), "requested by a client");
    }
}

/// Kills or stalls the process at this step of a takeover, if the environment requests it:
/// `CACHED_FAULT=kill:STEP`, `stall:STEP`, or `hold:STEP:FIFO` until another process has opened the
/// FIFO for writing, and closed it. Does nothing in builds without faults.
pub(crate) fn at_step(step: &str) {
    if !cfg!(debug_assertions) {
        return;
    }
    let Ok(fault) = std::env::var("CACHED_FAULT") else { return };
    let mut words = fault.splitn(3, ':');
    let what = words.next();
    if words.next() != Some(step) {
        return;
    }
    match (what, words.next()) {
        (Some("kill"), _) => {
            // SAFETY: the arguments are plain numbers, and the process ends.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        (Some("stall"), _) => loop {
            std::thread::park();
        },
        // The end of the file comes once its writer has closed it.
        (Some("hold"), Some(fifo)) => drop(std::fs::read(fifo)),
        _ => {}
    }
}

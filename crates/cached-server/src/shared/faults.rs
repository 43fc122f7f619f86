//! Fault injection, so that tests can check how a server with a defect ends: a thread that panics,
//! or a worker that makes no progress. Faults are requested by `debugtime` with `--debug-clock`,
//! and only in builds with debug assertions; other builds have none. A process that takes over from
//! another can be killed or stalled at each step (`CACHED_FAULT`).

#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicBool, Ordering};

/// The defects that have been requested.
#[derive(Debug, Default)]
pub(crate) struct InjectedFaults {
    /// Whether the acceptor's thread must panic.
    #[cfg(debug_assertions)]
    acceptor_panics: AtomicBool,
    /// A worker loops as long as this is set.
    #[cfg(debug_assertions)]
    stalled: AtomicBool,
}

#[cfg(debug_assertions)]
impl InjectedFaults {
    /// Injects the fault called `word` on the worker that received the request. Returns false if
    /// there is no such fault.
    ///
    /// # Panics
    /// If the fault is a panic.
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

    /// Panics if that was requested. Called on the acceptor's thread, once a second.
    ///
    /// # Panics
    /// If that was requested.
    pub(crate) fn check_acceptor(&self) {
        assert!(!self.acceptor_panics.load(Ordering::Relaxed), "requested by a client");
    }
}

#[cfg(not(debug_assertions))]
impl InjectedFaults {
    /// Returns false, because this build has no faults.
    pub(crate) fn inject(&self, _: &[u8]) -> bool {
        false
    }

    /// Does nothing.
    pub(crate) fn check_acceptor(&self) {}
}

/// Kills or stalls the process at this step of a takeover, if the environment requests that:
/// `CACHED_FAULT=kill:STEP`, `stall:STEP`, or `slow:STEP` for a pause of one second.
#[cfg(debug_assertions)]
pub(crate) fn at_step(step: &str) {
    let Ok(fault) = std::env::var("CACHED_FAULT") else { return };
    match fault.split_once(':') {
        Some(("kill", at)) if at == step => {
            // SAFETY: plain numbers; the process ends.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        Some(("slow", at)) if at == step => std::thread::sleep(std::time::Duration::from_secs(1)),
        Some(("stall", at)) if at == step => loop {
            std::thread::park();
        },
        _ => {}
    }
}

/// Does nothing.
#[cfg(not(debug_assertions))]
pub(crate) fn at_step(_: &str) {}

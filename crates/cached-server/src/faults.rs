//! Defects on request, so that tests can see what becomes of a server that has one: a thread that panics, a worker that stands
//! still. Asked for by `debugtime` with `--debug-clock`, and only in builds with debug assertions; in others there is nothing here.

#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicBool, Ordering};

/// What has been asked for.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    /// The acceptor's thread is to panic.
    #[cfg(debug_assertions)]
    acceptor_panics: AtomicBool,
    /// A worker stands still for as long as this is set.
    #[cfg(debug_assertions)]
    standing: AtomicBool,
}

#[cfg(debug_assertions)]
impl Trials {
    /// Does what a word after `debugtime` asks for, on the worker that was asked; false if it asks for nothing of the kind.
    pub(crate) fn ask(&self, word: &[u8]) -> bool {
        match word {
            b"panic-worker" => panic!("asked to by a client"),
            b"panic-acceptor" => self.acceptor_panics.store(true, Ordering::Relaxed),
            b"stand-still" => {
                self.standing.store(true, Ordering::Relaxed);
                while self.standing.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
            b"go-on" => self.standing.store(false, Ordering::Relaxed),
            _ => return false,
        }
        true
    }

    /// The acceptor's look, once a second.
    pub(crate) fn acceptor(&self) {
        assert!(!self.acceptor_panics.load(Ordering::Relaxed), "asked to by a client");
    }
}

#[cfg(not(debug_assertions))]
impl Trials {
    /// Nothing can be asked for.
    pub(crate) fn ask(&self, _: &[u8]) -> bool {
        false
    }

    /// Nothing has been asked for.
    pub(crate) fn acceptor(&self) {}
}

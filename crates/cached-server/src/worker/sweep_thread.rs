//! The thread that removes what flushes of prefixes have ended.

use crate::shared::Shared;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// The thread; it ends when this is dropped.
pub(crate) struct SweepThread {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SweepThread {
    /// Starts the thread, which sleeps until [`Shared::flush_prefix`] wakes it.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub(crate) fn start(shared: Arc<Shared>) -> io::Result<SweepThread> {
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let waking = shared.clone();
        let body = move || {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| run(&shared, &ended))) {
                shared.fail_by_panic("the thread that sweeps prefixes", &*payload);
            }
        };
        let thread = thread::Builder::new().name("cached-sweep".into()).spawn(body)?;
        // Set once: a server runs once.
        let _ = waking.sweeper.set(thread.thread().clone());
        Ok(SweepThread { end, thread: Some(thread) })
    }
}

impl Drop for SweepThread {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, end: &AtomicBool) {
    while !end.load(Ordering::Acquire) {
        let is_handed_over = shared.is_handed_over.lock();
        if *is_handed_over {
            return;
        }
        if shared.kv.sweep_prefixes() {
            continue;
        }
        drop(is_handed_over);
        if shared.kv.prefix_flushes().pending == 0 {
            // A flush that comes in between has made this return at once.
            thread::park();
        } else {
            // The upkeep of every second has a slice.
            thread::yield_now();
        }
    }
}

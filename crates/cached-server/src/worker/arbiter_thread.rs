//! The thread that moves memory between items and objects, where they share it.

use crate::shared::Shared;
use cached_core::arbiter::Arbiter;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often both halves are looked at. How much moves depends on what is stored, not on this.
const INTERVAL: Duration = Duration::from_millis(100);

/// The thread; it ends when this is dropped.
pub(crate) struct ArbiterThread {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ArbiterThread {
    /// Starts the thread, if items and objects share their memory.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<Option<ArbiterThread>> {
        let cache = shared.objects.get().and_then(|objects| objects.cache());
        let (Some(memory), Some(cache)) = (shared.settings.shared_memory, cache) else { return Ok(None) };
        let arbiter = Arbiter::new(shared.kv.clone(), &cache, memory);
        // Set once: a server runs once.
        let _ = shared.arbiter.set(arbiter.metrics());
        let end = Arc::new(AtomicBool::new(false));
        let (ended, shared) = (end.clone(), shared.clone());
        let body = move || {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| run(arbiter, &ended))) {
                shared.fail_by_panic("the thread that moves memory", &*payload);
            }
        };
        let thread = thread::Builder::new().name("cached-arbiter".into()).spawn(body)?;
        Ok(Some(ArbiterThread { end, thread: Some(thread) }))
    }
}

impl Drop for ArbiterThread {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

fn run(mut arbiter: Arbiter, end: &AtomicBool) {
    while !end.load(Ordering::Acquire) {
        arbiter.look();
        while arbiter.step() && !end.load(Ordering::Acquire) {
            // A move is never urgent.
            thread::yield_now();
        }
        thread::park_timeout(INTERVAL);
    }
}

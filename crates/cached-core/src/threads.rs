//! Threads: small numbers by which they choose among lanes and queues, and work for all cores at a start and an end.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

static THREADS: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Returns a small number for the calling thread, the same every time.
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
        // Where no thread can be had, this one does the work.
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

//! Small numbers for threads, by which they choose among lanes and queues.

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

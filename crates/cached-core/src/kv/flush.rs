//! Flushes: everything that is stored ends at once.
//!
//! A flush seals all open regions and draws a boundary in the age order: items in older regions are
//! gone from that moment. Their memory is reclaimed afterwards, a region at a time, by
//! [`Kv::maintain`](super::Kv::maintain) and by threads that need memory.

use super::index::Index;
use super::lock_ranks;
use super::log::Log;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// A flush that was requested for later.
pub(super) struct FlushSchedule {
    /// The clock's second in which it is due; 0 for none.
    due: AtomicU32,
    /// Held while a flush that has become due runs.
    running: Mutex<()>,
}

impl FlushSchedule {
    pub(super) fn new() -> FlushSchedule {
        FlushSchedule { due: AtomicU32::new(0), running: Mutex::ranked((), &lock_ranks::FLUSH) }
    }

    /// The clock's second in which a flush is due; 0 for none.
    #[inline]
    pub(super) fn due(&self) -> u32 {
        self.due.load(Ordering::Relaxed)
    }

    /// Schedules a flush in place of an earlier one; 0 schedules none.
    pub(super) fn set_due(&self, secs: u32) {
        self.due.store(secs, Ordering::Relaxed);
    }

    /// Removes the flush that was due at `due`, unless another one has been scheduled since.
    pub(super) fn clear(&self, due: u32) {
        let _ = self.due.compare_exchange(due, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Flushes for the operation that finds the flush due. Other operations that begin meanwhile wait for it:
    /// none may still see what is gone.
    #[cold]
    pub(super) fn run_due(&self, due: u32, log: &Log, index: &Index) {
        let _running = lock(&self.running);
        if self.due() == due {
            flush(log, index);
            self.clear(due);
        }
    }

    /// Whether an operation flushes at present. For tests.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn is_running(&self) -> bool {
        crate::sync::try_lock(&self.running).is_none()
    }
}

/// Ends every item stored so far.
pub(super) fn flush(log: &Log, index: &Index) {
    log.draw_boundary();
    index.shards().iter().for_each(|shard| shard.count_flushed(false));
}

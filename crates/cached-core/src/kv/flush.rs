//! Flushes: everything that is stored ends at once.
//!
//! A flush seals all open regions and draws a boundary in the age order: items in older regions are
//! gone from that moment. Their memory is reclaimed afterwards, a region at a time, by
//! [`Kv::maintain`](super::Kv::maintain) and by threads that need memory.

use super::index::Index;
use super::lock_ranks;
use super::log::Log;
use crate::arena::Superblock;
use crate::sync::{Arc, AtomicU32, Mutex, Ordering, lock};

/// A flush that was requested for later.
pub(super) struct FlushSchedule {
    /// The clock's second in which it is due; 0 for none.
    due: AtomicU32,
    /// The number of flushes so far.
    flushes: AtomicU32,
    /// Held while a flush that has become due runs, and while the schedule changes.
    running: Mutex<()>,
    /// Has the schedule for a later process.
    superblock: Arc<Superblock>,
}

impl FlushSchedule {
    /// Takes over what an earlier process has scheduled.
    pub(super) fn new(superblock: Arc<Superblock>) -> FlushSchedule {
        FlushSchedule {
            due: AtomicU32::new(superblock.notes().flush_due()),
            flushes: AtomicU32::new(0),
            running: Mutex::ranked((), &lock_ranks::FLUSH),
            superblock,
        }
    }

    /// The clock's second in which a flush is due; 0 for none.
    #[inline]
    pub(super) fn due(&self) -> u32 {
        self.due.load(Ordering::Relaxed)
    }

    /// Schedules a flush in place of an earlier one; 0 schedules none.
    pub(super) fn set_due(&self, secs: u32) {
        let _running = lock(&self.running);
        self.change_due(secs);
    }

    /// Removes the flush that was due at `due`, unless another one has been scheduled since.
    pub(super) fn clear(&self, due: u32) {
        let _running = lock(&self.running);
        self.clear_locked(due);
    }

    fn clear_locked(&self, due: u32) {
        if due != 0 && self.due() == due {
            self.change_due(0);
        }
    }

    /// Changes the schedule, first for a later process. The lock is held.
    fn change_due(&self, secs: u32) {
        self.superblock.notes().set_flush_due(secs);
        self.due.store(secs, Ordering::Relaxed);
    }

    /// Flushes for the operation that finds the flush due. Other operations that begin meanwhile wait for it:
    /// none may still see what is gone.
    #[cold]
    pub(super) fn run_due(&self, due: u32, log: &Log, index: &Index) {
        let _running = lock(&self.running);
        if self.due() == due {
            self.flush(log, index);
            self.clear_locked(due);
        }
    }

    /// Ends every item stored so far.
    pub(super) fn flush(&self, log: &Log, index: &Index) {
        log.draw_boundary();
        index.shards().iter().for_each(|shard| shard.count_flushed(false));
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of flushes so far.
    pub(super) fn flushes(&self) -> u32 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Whether an operation flushes at present. For tests.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn is_running(&self) -> bool {
        crate::sync::try_lock(&self.running).is_none()
    }
}

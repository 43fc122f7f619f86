//! A part of the room for dirty data: that of one namespace, or of all namespaces without a part of their own.

use crate::object::tasks::wait_queue::WaitQueue;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// See the module; the room is a `DirtyRoom`, under whose lock all numbers here
/// are written. Sizes are in buckets.
#[derive(Default)]
pub(crate) struct DirtyPool {
    dirty: AtomicU64,
    dirty_max: AtomicU64,
    /// Whether the pool is counted among those of which more than half is dirty.
    is_counted: AtomicBool,
    /// The tasks that wait until less of it is dirty.
    pub(crate) waiters: WaitQueue,
}

impl DirtyPool {
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::SeqCst)
    }

    pub(crate) fn dirty_max(&self) -> u64 {
        self.dirty_max.load(Ordering::SeqCst)
    }

    /// Sets both numbers. `above_half` is the number of pools of which more than half is dirty.
    pub(crate) fn set(&self, dirty: u64, dirty_max: u64, above_half: &AtomicU64) {
        self.dirty_max.store(dirty_max, Ordering::SeqCst);
        self.set_dirty(dirty, above_half);
    }

    /// Sets what is dirty.
    pub(crate) fn set_dirty(&self, dirty: u64, above_half: &AtomicU64) {
        self.dirty.store(dirty, Ordering::SeqCst);
        let is_above = self.is_above_half(dirty);
        if self.is_counted.load(Ordering::Relaxed) != is_above {
            self.is_counted.store(is_above, Ordering::Relaxed);
            let count = above_half.load(Ordering::SeqCst);
            above_half.store(if is_above { count + 1 } else { count - 1 }, Ordering::SeqCst);
        }
    }

    /// Whether that many dirty buckets are more than half of those that may be: then flushing begins, so
    /// that writers seldom wait for it.
    pub(crate) fn is_above_half(&self, dirty: u64) -> bool {
        dirty > self.dirty_max() / 2
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.is_above_half(self.dirty()) || self.waiters.has_waiters()
    }
}

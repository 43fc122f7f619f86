//! The memory for writes to objects that are not copied yet, which all open volumes of a store share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[derive(Debug)]
pub(crate) struct Room {
    bytes_max: u64,
    used_bytes: AtomicU64,
}

impl Room {
    pub(crate) fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes_max, used_bytes: AtomicU64::new(0) })
    }

    /// Returns whether there is any memory.
    pub(crate) fn is_any(&self) -> bool {
        self.bytes_max > 0
    }

    /// Returns whether there is room for as many bytes more. Volumes that ask at once may together take a little more.
    pub(crate) fn has(&self, bytes: u64) -> bool {
        self.used_bytes.load(Ordering::Relaxed).saturating_add(bytes) <= self.bytes_max
    }

    /// Notes that what took `before` bytes takes `after`.
    pub(crate) fn note(&self, before: u64, after: u64) {
        // Modulo 2^64, so a difference below 0 is a subtraction.
        self.used_bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }
}

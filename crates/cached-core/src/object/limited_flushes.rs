//! Flushes of namespaces that are limited at the gate to the store.
//!
//! Such a flush may wait for long. It is not counted among the flushes that may be under way, or a namespace
//! with a low limit would keep all others from being flushed; instead each limited namespace has a few at
//! once.

use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// The flushes that a limited namespace has under way at most, but for those that a caller waits for.
const EACH_MAX: u32 = 4;

/// What one namespace has of them.
#[derive(Default)]
pub(crate) struct LimitedFlushes {
    is_limited: AtomicBool,
    under_way: AtomicU32,
}

impl LimitedFlushes {
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::SeqCst)
    }

    pub(crate) fn set_limited(&self, is_limited: bool) {
        self.is_limited.store(is_limited, Ordering::SeqCst);
    }

    /// Counts a flush that begins.
    pub(crate) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a flush that has ended.
    pub(crate) fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether the namespace is limited, and has as many flushes under way as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.is_limited() && self.under_way.load(Ordering::SeqCst) >= EACH_MAX
    }
}

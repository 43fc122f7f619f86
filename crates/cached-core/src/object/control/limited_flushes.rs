//! Flushes of namespaces that are limited at the gate to the store.
//!
//! Such a flush may wait for long. It is not counted among the flushes that may be under way, or a namespace
//! with a low limit would keep all others from being flushed; instead each limited namespace has a few at
//! once, and apart from them as many urgent ones as a cache without limits has of all. The others wait in the
//! queue of what is dirty, where they are logged again if they hold a crowded log.

use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// The flushes that a limited namespace has under way at most, but for those that are urgent.
const EACH_MAX: u32 = 4;

/// What one namespace has of them.
#[derive(Default)]
pub(crate) struct LimitedFlushes {
    is_limited: AtomicBool,
    under_way: AtomicU32,
    urgent: AtomicU32,
}

impl LimitedFlushes {
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::SeqCst)
    }

    pub(crate) fn set_limited(&self, is_limited: bool) {
        self.is_limited.store(is_limited, Ordering::SeqCst);
    }

    /// Counts a flush that begins.
    pub(crate) fn begin(&self, is_urgent: bool) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        self.urgent.fetch_add(u32::from(is_urgent), Ordering::SeqCst);
    }

    /// Counts a flush that has ended, which was urgent or not when it began.
    pub(crate) fn end(&self, is_urgent: bool) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        self.urgent.fetch_sub(u32::from(is_urgent), Ordering::SeqCst);
    }

    /// Whether the namespace is limited, and has as many flushes under way as it may, but for urgent ones.
    pub(crate) fn is_full(&self) -> bool {
        self.is_limited() && self.under_way.load(Ordering::SeqCst) >= EACH_MAX
    }

    /// Whether the namespace is limited, and has `max` urgent flushes under way.
    pub(crate) fn is_full_of_urgent(&self, max: usize) -> bool {
        self.is_limited() && self.urgent.load(Ordering::SeqCst) as usize >= max
    }
}

//! What reading ahead and bypassing have of one namespace: its settings, its counters, how well it goes.

use super::accuracy::Accuracy;
use crate::sync::{AtomicU64, Ordering};

/// A setting that a namespace does not have of its own.
const NO_OWN: u64 = u64::MAX;

/// A setting of the whole cache, or one that a namespace may have of its own.
#[derive(Debug)]
pub(crate) struct Setting(AtomicU64);

impl Default for Setting {
    fn default() -> Self {
        Self(AtomicU64::new(NO_OWN))
    }
}

impl Setting {
    pub(crate) fn set(&self, value: Option<u64>) {
        self.0.store(value.map_or(NO_OWN, |value| value.min(NO_OWN - 1)), Ordering::Relaxed);
    }

    /// Returns the value; that of `default` if there is none.
    pub(crate) fn or(&self, default: &Setting) -> u64 {
        match self.0.load(Ordering::Relaxed) {
            NO_OWN => default.0.load(Ordering::Relaxed),
            own => own,
        }
    }
}

/// The settings of the whole cache, or those that a namespace has of its own.
#[derive(Debug, Default)]
pub(crate) struct FlowSettings {
    pub(crate) read_ahead_bytes_max: Setting,
    pub(crate) bypass_read_bytes_min: Setting,
    pub(crate) bypass_write_bytes_min: Setting,
}

/// Buckets that were read ahead, and bytes that have bypassed the cache, since the start.
#[derive(Debug, Default)]
pub(crate) struct FlowCounters {
    pub(crate) ahead: AtomicU64,
    pub(crate) used: AtomicU64,
    pub(crate) wasted: AtomicU64,
    pub(crate) bypassed_read_bytes: AtomicU64,
    pub(crate) bypassed_write_bytes: AtomicU64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub(crate) own: FlowSettings,
    pub(crate) counters: FlowCounters,
    pub(crate) accuracy: Accuracy,
}

//! The places of the lanes, taken without a lock while nothing has to wait.

use super::classes::{LANES, Lane};
use crate::sync::{AtomicU32, Ordering};

/// How many requests of each lane are under way, and how many may be.
pub(super) struct Lanes {
    taken: [AtomicU32; LANES],
    max: [AtomicU32; LANES],
}

impl Lanes {
    pub(super) fn new(loads_max: u32, flushes_max: u32) -> Self {
        Self {
            taken: std::array::from_fn(|_| AtomicU32::new(0)),
            max: [loads_max, flushes_max, u32::MAX].map(AtomicU32::new),
        }
    }

    pub(super) fn set_max(&self, loads_max: u32, flushes_max: u32) {
        self.max[Lane::Load as usize].store(loads_max, Ordering::SeqCst);
        self.max[Lane::Flush as usize].store(flushes_max, Ordering::SeqCst);
    }

    fn taken(&self, lane: Lane) -> u32 {
        self.taken[lane as usize].load(Ordering::SeqCst)
    }

    pub(super) fn under_way(&self) -> u32 {
        Lane::ALL.into_iter().map(|lane| self.taken(lane)).sum()
    }

    pub(super) fn has_room(&self, lane: Lane) -> bool {
        self.taken(lane) < self.max[lane as usize].load(Ordering::SeqCst)
    }

    /// Whether one more request would make it more than three quarters of those that may be.
    pub(super) fn is_crowded(&self, lane: Lane) -> bool {
        let max = self.max[lane as usize].load(Ordering::SeqCst);
        (u64::from(self.taken(lane)) + 1) * 4 > u64::from(max) * 3
    }

    pub(super) fn try_take(&self, lane: Lane) -> bool {
        let max = self.max[lane as usize].load(Ordering::SeqCst);
        let up = |taken: u32| (taken < max).then(|| taken + 1);
        self.taken[lane as usize].fetch_update(Ordering::SeqCst, Ordering::SeqCst, up).is_ok()
    }

    pub(super) fn give_back(&self, lane: Lane) {
        self.taken[lane as usize].fetch_sub(1, Ordering::SeqCst);
    }
}

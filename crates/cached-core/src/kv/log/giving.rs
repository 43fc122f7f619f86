//! Giving memory up, and taking it back: whole free regions, while the store is used.
//!
//! The thread that gives a region up does the reclaiming for it, in small steps, and takes only regions that
//! are free beyond those that the allocating threads keep ready. So none of them has to reclaim more, or
//! waits longer than for one such step.

use super::owner::EntryOwner;
use super::{Effort, Log};
use crate::arena::Owner;
use crate::sync::try_lock;

/// Regions that are free beyond those when one is given up: the walk for the next one may open two for
/// survivors.
const SPARE: u32 = 2;
/// Entries that one step walks.
const STEP_ENTRIES: usize = 64;

/// What a step has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Giving {
    /// One region's memory has been given up.
    Given,
    /// Something was reclaimed; further steps are needed.
    Working,
    /// Nothing can be reclaimed at present.
    Stuck,
}

impl Log {
    /// The bytes of the regions that the store may have.
    pub(in crate::kv) fn present_bytes(&self) -> usize {
        self.arena.share(Owner::Kv) as usize * self.arena.region_bytes()
    }

    /// The bytes of regions that are free beyond those kept ready for allocations; a hint.
    pub(in crate::kv) fn spare_bytes(&self) -> usize {
        let spare = self.arena.kv_available().saturating_sub(self.lanes.low_water());
        spare as usize * self.arena.region_bytes()
    }

    /// Gives up a region that is free beyond those kept ready for allocations, or walks a few entries so that
    /// there will be one.
    ///
    /// # Errors
    /// If the system does not take the memory back; nothing is given up.
    pub(in crate::kv) fn give_step<O: EntryOwner>(&self, owner: &O, now: u32) -> std::io::Result<Giving> {
        if self.arena.give_up(Owner::Kv, self.lanes.low_water() + SPARE)? {
            return Ok(Giving::Given);
        }
        // Another thread that has the lock is reclaiming.
        let Some(mut reclaimer) = try_lock(&self.reclaimer) else { return Ok(Giving::Working) };
        let has_walked = reclaimer.step(self, owner, now, STEP_ENTRIES, Effort::Pace);
        Ok(if has_walked { Giving::Working } else { Giving::Stuck })
    }
}

//! The choice of regions for compactions and sweeps.

use super::{Effort, EntryOwner, GARBAGE_SHARE, Job, Log, Purpose, Survivors};
use crate::arena::{RegionId, RegionState};
use crate::sync::lock;

/// Regions chosen by one look at all of them.
const CHOSEN_MAX: usize = 64;
/// When no region had enough garbage, one in this many of all regions may be evicted in the same second
/// before all are looked at again: looking each time would cost as much as the walks.
const LOOK_AGAIN_SHARE: u32 = 32;
/// Sweeps in which a store that evicts may find little before it pauses sweeping.
const BARREN_SWEEPS_MAX: u32 = 4;

/// The regions chosen, and when to look for more.
pub(super) struct Choice {
    /// Bytes that made the region worth a walk, and the region; the best one last.
    chosen: Vec<(u32, RegionId)>,
    /// The purpose for which they were chosen.
    purpose: Purpose,
    /// When no region had enough garbage, or less than it seemed: the clock's second, and the jobs done by
    /// then.
    exhausted_at: Option<(u32, u64)>,
    /// The owner's stamp at that time, which differs after every change that made garbage.
    exhausted_stamp: (u64, u64),
    /// Sweeps since the last look in which little was found.
    barren_sweeps: u32,
}

impl Choice {
    pub(super) fn new() -> Choice {
        Choice {
            chosen: Vec::with_capacity(2 * CHOSEN_MAX),
            purpose: Purpose::Compact,
            exhausted_at: None,
            exhausted_stamp: (0, 0),
            barren_sweeps: 0,
        }
    }

    /// Takes the next chosen region out of its queue; looks again if none is left.
    pub(super) fn take<O: EntryOwner>(
        &mut self,
        log: &Log,
        owner: &O,
        survivors: &mut Survivors,
        jobs: u64,
        now: u32,
        effort: Effort,
    ) -> Option<(RegionId, usize, Purpose)> {
        let mut has_looked = false;
        loop {
            while let Some((bytes, region)) = self.chosen.pop() {
                // It may have been emptied and filled again since.
                if self.purpose == Purpose::Compact && garbage(log, region, now) < bytes.div_ceil(2) {
                    continue;
                }
                let mut queues = lock(&log.queues);
                if log.is_quiet(region)
                    && log.arena.region(region).shift(RegionState::Sealed, RegionState::Reclaiming)
                {
                    return Some((region, queues.remove(region), self.purpose));
                }
            }
            if has_looked || !self.may_look(log, owner, jobs, now, effort) {
                return None;
            }
            has_looked = true;
            self.look(log, owner, survivors, jobs, now);
        }
    }

    /// Whether a look may find what the last one did not.
    fn may_look<O: EntryOwner>(&self, log: &Log, owner: &O, jobs: u64, now: u32, effort: Effort) -> bool {
        let Some((second, jobs_then)) = self.exhausted_at else { return true };
        if second != now || log.boundary() != 0 {
            return true;
        }
        match effort {
            Effort::Upkeep => true,
            _ if log.evicts => jobs - jobs_then > u64::from(log.arena.region_count() / LOOK_AGAIN_SHARE),
            Effort::Pace => false,
            Effort::Need => self.exhausted_stamp != owner.change_stamp(),
        }
    }

    /// Looks at all regions, and chooses those that are worth a walk.
    fn look<O: EntryOwner>(&mut self, log: &Log, owner: &O, survivors: &mut Survivors, jobs: u64, now: u32) {
        let region_bytes = log.arena.region_bytes() as u32;
        survivors.seal_littered(log);
        // Read before the look: a change during the look is worth another one.
        let stamp = if log.evicts { (0, 0) } else { owner.change_stamp() };
        self.purpose = Purpose::Compact;
        self.choose(log, region_bytes / GARBAGE_SHARE, |region| garbage(log, region, now));
        if self.chosen.is_empty() && log.evicts {
            self.purpose = Purpose::Sweep;
            self.barren_sweeps = 0;
            self.choose(log, region_bytes / GARBAGE_SHARE, |region| log.arena.expired(region, now).most);
        } else if self.chosen.is_empty() {
            let dead = self.choose(log, 0, |region| log.arena.region(region).dead_bytes());
            if dead < u64::from(region_bytes) {
                self.purpose = Purpose::Sweep;
                self.choose(log, 0, |region| log.arena.expired(region, now).most);
            }
        }
        if self.chosen.is_empty() {
            self.exhausted_at = Some((now, jobs));
            self.exhausted_stamp = stamp;
        }
    }

    /// Chooses the regions with the most bytes by `bytes_of`, of those that have more than `above`. Returns
    /// how many bytes those have together.
    fn choose(&mut self, log: &Log, above: u32, bytes_of: impl Fn(RegionId) -> u32) -> u64 {
        let chosen = &mut self.chosen;
        chosen.clear();
        let mut sum = 0;
        for region in (0..log.arena.region_count()).map(RegionId) {
            if log.arena.region(region).state() != RegionState::Sealed || !log.is_quiet(region) {
                continue;
            }
            let bytes = bytes_of(region);
            if bytes <= above {
                continue;
            }
            sum += u64::from(bytes);
            chosen.push((bytes, region));
            if chosen.len() == 2 * CHOSEN_MAX {
                chosen.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
                chosen.truncate(CHOSEN_MAX);
            }
        }
        chosen.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        chosen.truncate(CHOSEN_MAX);
        chosen.reverse();
        sum
    }

    /// Called after a sweep. If sweeps find little, items expire one by one: a store that evicts stops
    /// looking for them for a while.
    pub(super) fn note_sweep(&mut self, log: &Log, job: &Job, jobs: u64, now: u32) {
        let freed = job.live_bytes_before.saturating_sub(log.arena.region(job.region).live_bytes());
        if !log.evicts || freed > log.arena.region_bytes() as u32 / GARBAGE_SHARE {
            return;
        }
        self.barren_sweeps += 1;
        if self.barren_sweeps == BARREN_SWEEPS_MAX {
            self.chosen.clear();
            self.exhausted_at = Some((now, jobs));
        }
    }

    /// Called after a compaction that copied `copied_bytes`. If it freed less than what makes one worth it,
    /// the estimates are bad at present, and are left alone for a while.
    pub(super) fn note_compaction(&mut self, log: &Log, job: &Job, copied_bytes: u32, jobs: u64, now: u32) {
        let region_bytes = log.arena.region_bytes() as u32;
        if log.evicts
            && job.purpose == Purpose::Compact
            && copied_bytes > region_bytes - region_bytes / GARBAGE_SHARE
        {
            self.chosen.clear();
            self.exhausted_at = Some((now, jobs));
        }
    }
}

/// Bytes of a region that are garbage, as far as that is known without a walk.
fn garbage(log: &Log, region: RegionId, now: u32) -> u32 {
    let record = log.arena.region(region);
    if record.sequence() < log.boundary() {
        return log.arena.region_bytes() as u32;
    }
    record.dead_bytes() + log.arena.expired(region, now).likely.min(record.live_bytes())
}

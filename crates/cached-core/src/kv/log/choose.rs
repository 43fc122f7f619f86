//! The choice of regions for compactions and sweeps, and of the entries kept when a region is
//! evicted.

use super::queues::{LARGE, Queues};
use super::reclaim::{Effort, GARBAGE_SHARE, Purpose, Reclaimer};
use super::walk::{Job, Survivors};
use super::{EntryOwner, LiveEntry, Log};
use crate::arena::{RegionId, RegionState};
use crate::policy::{Candidate, QUEUES_MAX, QueueId, Verdict};
use crate::sync::lock;

/// The maximum number of regions chosen in one pass over all of them.
const CHOSEN_MAX: usize = 64;
/// If no region has enough garbage, the next pass in the same second comes only after one in this
/// many of all regions has been evicted: a pass for each eviction would cost as much as the walks.
const LOOK_AGAIN_SHARE: u32 = 32;
/// The number of sweeps that may find little before a store that evicts pauses sweeping.
const BARREN_SWEEPS_MAX: u32 = 4;

/// The chosen regions, and when to choose more.
pub(super) struct Choice {
    /// The chosen regions with their garbage or expired bytes, the best one last.
    chosen: Vec<(u32, RegionId)>,
    /// The purpose for which the regions were chosen.
    purpose: Purpose,
    /// The clock's second and the number of completed jobs at the time when no region had enough
    /// garbage, or the regions had less than estimated.
    exhausted_at: Option<(u32, u64)>,
    /// The owner's stamp at that time. Every change that creates garbage changes the stamp.
    exhausted_stamp: (u64, u64),
    /// The number of sweeps since the last pass that found little.
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

    /// Takes the next chosen region out of its queue. If none is left, chooses again.
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
                // The region may have been emptied and filled again in the meantime.
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

    /// Returns whether another pass may find regions to reclaim that the last pass did not find.
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

    /// Chooses the regions that are worth a walk.
    fn look<O: EntryOwner>(&mut self, log: &Log, owner: &O, survivors: &mut Survivors, jobs: u64, now: u32) {
        let region_bytes = log.arena.region_bytes() as u32;
        survivors.seal_mostly_dead(log);
        // The stamp is read before the pass, because a change during the pass is worth another
        // pass.
        let stamp = if log.evicts { (0, 0) } else { owner.change_stamp() };
        self.purpose = Purpose::Compact;
        self.choose(log, region_bytes / GARBAGE_SHARE, |region| garbage(log, region, now));
        if self.chosen.is_empty() && log.evicts {
            self.purpose = Purpose::Sweep;
            self.barren_sweeps = 0;
            self.choose(log, region_bytes / GARBAGE_SHARE, |region| {
                log.arena.expiring.expired(region, now).most
            });
        } else if self.chosen.is_empty() {
            let dead = self.choose(log, 0, |region| log.arena.region(region).dead_bytes());
            if dead < u64::from(region_bytes) {
                self.purpose = Purpose::Sweep;
                self.choose(log, 0, |region| log.arena.expiring.expired(region, now).most);
            }
        }
        if self.chosen.is_empty() {
            self.exhausted_at = Some((now, jobs));
            self.exhausted_stamp = stamp;
        }
    }

    /// Chooses the regions with the largest `bytes_of` above `above`. Returns their total.
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
                keep_largest(chosen);
            }
        }
        keep_largest(chosen);
        chosen.reverse();
        sum
    }

    /// Ends a sweep: if sweeps find little, items expire one at a time, and a store that evicts
    /// stops looking for them for a while.
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

    /// Ends a compaction that copied `copied_bytes`. If it freed less than makes a compaction
    /// worthwhile, the estimates are bad at present, and are not used for a while.
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

/// Keeps the regions with the most bytes, the largest first.
fn keep_largest(chosen: &mut Vec<(u32, RegionId)>) {
    chosen.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    chosen.truncate(CHOSEN_MAX);
}

/// Returns the number of garbage bytes in a region, as far as this is known without a walk.
fn garbage(log: &Log, region: RegionId, now: u32) -> u32 {
    let record = log.arena.region(region);
    if record.sequence() < log.boundary() {
        return log.arena.region_bytes() as u32;
    }
    record.dead_bytes() + log.arena.expiring.expired(region, now).likely.min(record.live_bytes())
}

// Eviction decides which items of a queue's oldest region are kept, and which are removed.

/// The maximum share of the walked regions that survives evictions, 3/4, and the number of regions
/// over which it is averaged.
const SURVIVORS: (u32, u32) = (3, 4);
const SURVIVORS_AVERAGED_REGIONS: u32 = 32;

/// Returns the bytes that the eviction of one region may keep, on average.
fn survivors_share(region_bytes: usize) -> u32 {
    region_bytes as u32 / SURVIVORS.1 * SURVIVORS.0
}

/// Returns the most that evictions may accumulate for keeping.
pub(super) fn credit_max(region_bytes: usize) -> u32 {
    survivors_share(region_bytes) * SURVIVORS_AVERAGED_REGIONS
}

impl Reclaimer {
    /// Adds the share of one more walked region.
    pub(super) fn earn_credit(&mut self, log: &Log) {
        let region_bytes = log.arena.region_bytes();
        self.keep_credit = (self.keep_credit + survivors_share(region_bytes)).min(credit_max(region_bytes));
    }

    /// Returns whether evictions may keep `bytes` more, and deducts them from the credit if so.
    fn may_keep(&mut self, bytes: u32) -> bool {
        let left = self.keep_credit.checked_sub(bytes);
        self.keep_credit = left.unwrap_or(self.keep_credit);
        left.is_some()
    }

    /// Lets the policy decide about an item.
    pub(super) fn keep_or_evict_item<L: LiveEntry>(
        &mut self,
        log: &Log,
        job: &Job,
        entry: L,
        place: (u32, u32),
        now: u32,
    ) {
        let (_, bytes) = place;
        let candidate = Candidate {
            hash: entry.hash(),
            bits: entry.item().policy_bits(),
            queue: QueueId(job.queue as u8),
            idle_secs: entry.item().idle_secs(now),
            bytes: entry.item_bytes(bytes),
        };
        if let Verdict::Keep { queue, bits } = log.policy.decide(&candidate)
            && self.may_keep(bytes)
        {
            let queue = usize::from(queue.0).min(QUEUES_MAX - 1);
            entry.item().set_policy_bits(bits);
            if self.relocate(log, job, queue, &entry, place, now).is_ok() {
                return;
            }
            entry.item().set_policy_bits(candidate.bits);
        }
        if is_pinned_since(log, job) && self.relocate(log, job, job.queue, &entry, place, now).is_ok() {
            return;
        }
        self.evicted.push(candidate.hash);
        self.evicted_bytes += candidate.bytes;
        self.evict(log, job, entry, bytes, now);
    }

    /// Decides about a piece of a large value by the last use of its item.
    pub(super) fn keep_or_evict_piece<L: LiveEntry>(
        &mut self,
        log: &Log,
        job: &Job,
        entry: L,
        place: (u32, u32),
        now: u32,
    ) {
        let (_, bytes) = place;
        let keeps = keeps_piece(log, job.region, &entry, now);
        if job.requeues && keeps {
            return;
        }
        let may_stay = keeps && self.may_keep(bytes) || is_pinned_since(log, job);
        if !may_stay || self.relocate(log, job, LARGE, &entry, place, now).is_err() {
            self.evict(log, job, entry, bytes, now);
        }
    }

    /// Removes an item. The garbage that this creates in the walked region is recorded at the end
    /// of the step.
    fn evict<L: LiveEntry>(&mut self, log: &Log, job: &Job, entry: L, bytes: u32, now: u32) {
        let expiry = entry.item().expiry();
        log.arena.expiring.forget(job.region, bytes, expiry);
        let idle_secs = entry.item().idle_secs(now);
        let was_fetched = entry.evict(now, bytes, |location, bytes| log.entry_died(location, bytes, expiry));
        self.tally.dead_bytes += bytes;
        self.tally.evicted[usize::from(was_fetched)] += 1;
        self.tally.idle_secs[usize::from(was_fetched)] += u64::from(idle_secs);
    }
}

/// Returns whether the job's region has been pinned since it was chosen. The reader may be the very
/// thread that needs the memory, for an item in this region. In this case the rest of the region is
/// not evicted.
fn is_pinned_since(log: &Log, job: &Job) -> bool {
    log.arena.region(job.region).pins.count() != 0
}

/// Returns whether a piece is kept, which is the case if its large value was used after the region
/// was opened or last requeued.
fn keeps_piece<L: LiveEntry>(log: &Log, region: RegionId, entry: &L, now: u32) -> bool {
    entry.item().last_access(now) > log.arena.region(region).opened_at()
}

/// Returns whether at least three quarters of a region of pieces would be kept. Such a region is
/// not copied.
pub(super) fn is_mostly_kept<O: EntryOwner>(log: &Log, owner: &O, job: &Job, now: u32) -> bool {
    let mut kept = 0u64;
    job.for_each_ahead(log, owner, |walked| {
        if walked.scanned.is_piece
            && let Some(entry) = owner.lock(&walked.scanned, walked.location, now)
            && keeps_piece(log, job.region, &entry, now)
        {
            kept += u64::from(walked.scanned.bytes);
        }
    });
    kept * 4 >= log.arena.region_bytes() as u64 * 3
}

/// Returns the oldest region of the queue that the policy names, or of the large values' queue if
/// that is older.
pub(super) fn oldest_victim(log: &Log, queues: &Queues) -> Option<RegionId> {
    let oldest = |queue: usize| queues.oldest_first(queue).find(|region| log.is_quiet(*region));
    let region_bytes = log.arena.region_bytes();
    let lengths = std::array::from_fn(|queue| (queues.regions(queue) * region_bytes) as u64);
    let named = log.policy.victim(lengths);
    log.hits.refresh(&*log.policy);
    let named = usize::from(named.0).min(QUEUES_MAX - 1);
    let item = oldest(named).or_else(|| (0..QUEUES_MAX).find_map(oldest));
    match (item, oldest(LARGE)) {
        (Some(item), Some(large)) => {
            let age = |region| log.arena.region(region).sequence();
            Some(if age(large) < age(item) { large } else { item })
        }
        (item, large) => item.or(large),
    }
}

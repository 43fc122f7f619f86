//! The reclaimer: walks one region at a time, copies the entries to be kept elsewhere, and frees
//! the region.
//!
//! A region is walked for one of three purposes:
//!
//! - *Compaction*: a seventh or more of it is garbage (dead or expired). All entries in use are
//!   copied together; none is evicted.
//! - *Eviction*: no region has that much garbage. The policy names a queue, and decides about every
//!   item in its oldest region. So expired items are removed before live ones, and memory is not
//!   divided by item size.
//! - *Sweep*: the amount of expired bytes is only an estimate. If it may be a seventh, a walk first
//!   removes the expired items and leaves the others in place.
//!
//! A store that does not evict uses all of its garbage: when the total is at least one region, the
//! region with the most garbage is compacted, however little that is. Before an allocation fails,
//! all regions that contain expired items are swept.
//!
//! Averaged over several regions, evictions keep at most three quarters of the bytes walked, even if
//! the policy would keep more. So freeing a byte costs at most three copied bytes, and a cache in
//! which every item was hit recently does not stall while all items are copied: a thread that needs
//! a region waits for a few walks, and then each region may keep only its own share.
//!
//! Allocating threads do the work in small steps while few regions are free. The reclaimer's lock
//! admits one thread at a time.

use super::choose::Choice;
use super::queues::LARGE;
use super::walk::{Job, NoSpace, Survivors, Walked};
use super::{EntryOwner, LiveEntry, Log, choose};
use crate::arena::{RegionId, RegionState};
use crate::policy::QueueId;
use crate::sync::lock;

/// A region with at least this share of garbage is compacted before anything is evicted: 1/7.
pub(super) const GARBAGE_SHARE: u32 = 7;
/// The number of consecutive regions of large values that may be requeued before one is evicted
/// regardless.
const REQUEUES_MAX: u32 = 8;
/// The maximum number of bytes that a store that does not evict copies for one region before it
/// reports that memory is full. Memory freed by then is kept.
const COMPACTED_FOR_ONE_BYTES_MAX: u64 = 256 << 20;
/// The maximum number of bytes that such a store sweeps for one region before it reports that
/// memory is full.
const SWEPT_FOR_ONE_BYTES_MAX: u64 = 64 << 20;
/// The number of walks that may keep everything while a thread waits for a region.
const PATIENT_JOBS: u64 = 3;
/// The number of entries whose index lines are prefetched together.
pub(super) const BATCH: usize = 16;

/// The walk in progress, and the destinations of survivors. It shares cache lines only with its own
/// lock: nearly every store to a full cache writes it, while every hit of every thread reads the
/// fields that would otherwise be on the same line.
#[repr(align(128))]
pub(super) struct Reclaimer {
    job: Option<Job>,
    pub(super) survivors: Survivors,
    choice: Choice,
    /// Regions walked so far.
    pub(super) jobs: u64,
    /// The number of walked regions that were swept.
    sweeps: u64,
    /// The number of consecutive requeued regions.
    requeues: u32,
    /// The bytes that evictions may still keep: the share of every walked region is added, up to a
    /// limit.
    pub(super) keep_credit: u32,
    /// Whether the last compaction found no space for survivors. The next compaction must be
    /// preceded by an eviction.
    lacks_space: bool,
    /// The bytes copied out of the job's region.
    copied_bytes: u32,
    pub(super) tally: Tally,
    /// Hashes and bytes of the items evicted from the job's queue that have not been reported to
    /// the policy yet; at most `BATCH`.
    pub(super) evicted: Vec<u64>,
    pub(super) evicted_bytes: u64,
}

/// A step's changes to shared counters, applied at its end.
#[derive(Default)]
pub(super) struct Tally {
    /// Items evicted that had not been read, and that had been, and the sums of their times since the last
    /// use.
    pub(super) evicted: [u64; 2],
    pub(super) idle_secs: [u64; 2],
    /// Bytes that became garbage in the region of the job.
    pub(super) dead_bytes: u32,
}

/// The purpose of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// All entries in use are copied out.
    Compact,
    /// Entries in use are copied out or evicted.
    Evict,
    /// Expired items are removed; the others stay in place.
    Sweep,
}

/// The reason for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// Background work, in which nothing is evicted.
    Upkeep,
    /// Work that is necessary because few regions are free.
    Pace,
    /// A thread waits for a region.
    Need,
}

impl Reclaimer {
    pub(super) fn new(region_bytes: usize) -> Reclaimer {
        Reclaimer {
            job: None,
            survivors: Survivors::new(),
            choice: Choice::new(),
            jobs: 0,
            sweeps: 0,
            requeues: 0,
            keep_credit: choose::credit_max(region_bytes),
            lacks_space: false,
            copied_bytes: 0,
            tally: Tally::default(),
            evicted: Vec::with_capacity(BATCH),
            evicted_bytes: 0,
        }
    }

    /// Takes a free region, and reclaims until there is one. Returns `None` if nothing more can be
    /// reclaimed.
    pub(super) fn obtain<O: EntryOwner>(&mut self, log: &Log, owner: &O, now: u32) -> Option<RegionId> {
        let (first_job, first_sweep) = (self.jobs, self.sweeps);
        let region_bytes = log.arena.region_bytes() as u64;
        let (jobs_max, sweeps_max) = if log.evicts {
            // Every walk frees at least a quarter of a region, unless pins prevent it.
            (first_job + 4 * u64::from(log.arena.region_count()) + 64, u64::MAX)
        } else {
            (
                first_job + COMPACTED_FOR_ONE_BYTES_MAX / region_bytes,
                first_sweep + SWEPT_FOR_ONE_BYTES_MAX / region_bytes,
            )
        };
        loop {
            if self.jobs == first_job + PATIENT_JOBS {
                // A thread has waited long enough, so each region may keep only its own share.
                self.keep_credit = 0;
            }
            if let Some(region) = log.take_region() {
                return Some(region);
            }
            if self.jobs > jobs_max
                || self.sweeps > sweeps_max
                || !self.step(log, owner, now, 256, Effort::Need)
            {
                return None;
            }
        }
    }

    /// Walks about `entries` entries at most. Returns false if there is nothing to reclaim.
    pub(super) fn step<O: EntryOwner>(
        &mut self,
        log: &Log,
        owner: &O,
        now: u32,
        entries: usize,
        effort: Effort,
    ) -> bool {
        let may_evict = log.evicts && effort != Effort::Upkeep;
        let next = self.job.take().or_else(|| self.pick(log, owner, now, effort));
        let Some(mut job) = next else { return false };
        let mut left = entries;
        while left > 0 && !job.is_done() {
            let mut batch = [None; BATCH];
            let count = job.scan(log, owner, &mut batch[..BATCH.min(left)]);
            for walked in batch[..count].iter().flatten() {
                if self.process(log, owner, &job, walked, now).is_err() {
                    self.jobs += 1;
                    self.lacks_space = true;
                    self.report_evicted(log, &job);
                    self.apply_tally(log, job.region, now);
                    log.put_back(job.queue, job.region);
                    return may_evict;
                }
            }
            left -= count;
            self.report_evicted(log, &job);
        }
        self.apply_tally(log, job.region, now);
        if !job.is_done() {
            self.job = Some(job);
            return true;
        }
        self.jobs += 1;
        if job.purpose == Purpose::Sweep {
            self.sweeps += 1;
            self.choice.note_sweep(log, &job, self.jobs, now);
            log.put_back(job.queue, job.region);
        } else if job.requeues {
            self.requeues += 1;
            log.arena.region(job.region).renew(log.arena.take_sequence(), now);
            log.put_back(job.queue, job.region);
        } else {
            self.requeues = 0;
            self.choice.note_compaction(log, &job, self.copied_bytes, self.jobs, now);
            debug_assert_eq!(log.arena.region(job.region).live_bytes(), 0, "an entry was overlooked");
            log.arena.release(job.region);
        }
        true
    }

    /// Reports the evicted items to the policy.
    fn report_evicted(&mut self, log: &Log, job: &Job) {
        if !self.evicted.is_empty() {
            let bytes = std::mem::take(&mut self.evicted_bytes);
            log.policy.record_evicted(QueueId(job.queue as u8), bytes, &self.evicted);
            self.evicted.clear();
        }
    }

    /// Applies a step's changes to shared counters. The region still belongs to the job.
    fn apply_tally(&mut self, log: &Log, region: RegionId, now: u32) {
        let Tally { evicted, idle_secs, dead_bytes } = std::mem::take(&mut self.tally);
        for was_fetched in [false, true] {
            let class = usize::from(was_fetched);
            log.evictions.count(was_fetched, evicted[class], idle_secs[class], now);
        }
        if dead_bytes > 0 {
            log.arena.region(region).entry_died(dead_bytes);
        }
    }

    /// Handles one entry according to the purpose of the walk. Garbage is skipped.
    #[inline]
    fn process<'a, O: EntryOwner>(
        &mut self,
        log: &Log,
        owner: &'a O,
        job: &Job,
        walked: &Walked<O::Hint<'a>>,
        now: u32,
    ) -> Result<(), NoSpace> {
        let Some(entry) = owner.lock(&walked.scanned, walked.location, now) else { return Ok(()) };
        let is_piece = walked.scanned.is_piece;
        match job.purpose {
            Purpose::Sweep => {
                log.arena.expiring.seen(job.region, entry.item().expiry());
                Ok(())
            }
            Purpose::Compact => {
                let queue = if is_piece { LARGE } else { job.queue };
                self.relocate(log, job, queue, &entry, walked.place(), now)
            }
            Purpose::Evict if is_piece => {
                self.keep_or_evict_piece(log, job, entry, walked.place(), now);
                Ok(())
            }
            Purpose::Evict => {
                self.keep_or_evict_item(log, job, entry, walked.place(), now);
                Ok(())
            }
        }
    }

    /// Copies an entry of the job's region to the open region of a queue, one for kept entries or
    /// one for compacted ones.
    #[inline]
    pub(super) fn relocate<L: LiveEntry>(
        &mut self,
        log: &Log,
        job: &Job,
        queue: usize,
        entry: &L,
        (_, bytes): (u32, u32),
        now: u32,
    ) -> Result<(), NoSpace> {
        let to = self.survivors.place(log, job, queue, bytes, now)?;
        entry.relocate(to);
        let expiry = entry.item().expiry();
        log.arena.expiring.note(to.region, bytes, expiry);
        log.arena.expiring.forget(job.region, bytes, expiry);
        self.tally.dead_bytes += bytes;
        self.copied_bytes += bytes;
        Ok(())
    }

    /// Chooses the next region and takes it out of its queue.
    fn pick<O: EntryOwner>(&mut self, log: &Log, owner: &O, now: u32, effort: Effort) -> Option<Job> {
        let may_evict = log.evicts && effort != Effort::Upkeep;
        let may_compact = !std::mem::take(&mut self.lacks_space);
        let chosen = if may_compact {
            self.choice.take(log, owner, &mut self.survivors, self.jobs, now, effort)
        } else {
            None
        };
        let (region, queue, purpose) = match chosen {
            Some(chosen) => chosen,
            None if may_evict => {
                let mut queues = lock(&log.queues);
                let region = choose::oldest_victim(log, &queues)?;
                if !log.arena.region(region).shift(RegionState::Sealed, RegionState::Reclaiming) {
                    return None;
                }
                (region, queues.remove(region), Purpose::Evict)
            }
            None => return None,
        };
        match purpose {
            Purpose::Evict => self.earn_credit(log),
            Purpose::Sweep => log.arena.expiring.begin_walk(region),
            Purpose::Compact => {}
        }
        self.copied_bytes = 0;
        let mut job = Job::new(log, region, queue, purpose);
        job.requeues = purpose == Purpose::Evict
            && queue == LARGE
            && self.requeues < REQUEUES_MAX
            && choose::is_mostly_kept(log, owner, &job, now);
        Some(job)
    }
}

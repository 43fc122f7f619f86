//! Eviction: which items of a queue's oldest region stay, and which are removed.

use super::{EntryOwner, Job, LiveEntry, Log, Reclaimer};
use crate::arena::RegionId;
use crate::kv::log::queues::{LARGE, Queues};
use crate::policy::{Candidate, QUEUES_MAX, QueueId, Verdict};

/// At most this share of the regions walked survives evictions: 3/4, averaged over this many regions.
const SURVIVORS: (u32, u32) = (3, 4);
const SURVIVORS_AVERAGED_REGIONS: u32 = 32;

/// The bytes that the eviction of one region may keep, on average.
fn survivors_share(region_bytes: usize) -> u32 {
    region_bytes as u32 / SURVIVORS.1 * SURVIVORS.0
}

/// The most that evictions may save up to keep.
pub(super) fn credit_max(region_bytes: usize) -> u32 {
    survivors_share(region_bytes) * SURVIVORS_AVERAGED_REGIONS
}

impl Reclaimer {
    /// Adds the share of one more region that is walked.
    pub(super) fn earn_credit(&mut self, log: &Log) {
        let region_bytes = log.arena.region_bytes();
        self.keep_credit = (self.keep_credit + survivors_share(region_bytes)).min(credit_max(region_bytes));
    }

    /// From now on no more is kept than the share of each region: a thread has waited long enough.
    pub(super) fn spend_credit(&mut self) {
        self.keep_credit = 0;
    }

    /// Whether evictions may keep `bytes` more; if so, they are taken from the credit.
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
            bits: entry.policy_bits(),
            queue: QueueId(job.queue as u8),
            idle_secs: entry.idle_secs(now),
            bytes: entry.item_bytes(bytes),
        };
        if let Verdict::Keep { queue, bits } = log.policy.decide(&candidate)
            && self.may_keep(bytes)
        {
            let queue = usize::from(queue.0).min(QUEUES_MAX - 1);
            entry.set_policy_bits(bits);
            if self.relocate(log, job, queue, &entry, place, now).is_ok() {
                return;
            }
            entry.set_policy_bits(candidate.bits);
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

    /// Removes an item. What becomes garbage of the walked entry is applied at the end of the step.
    fn evict<L: LiveEntry>(&mut self, log: &Log, job: &Job, entry: L, bytes: u32, now: u32) {
        let expiry = entry.expiry();
        log.arena.forget_expiry(job.region, bytes, expiry);
        let was_fetched = entry.evict(now, bytes, |location, bytes| log.entry_died(location, bytes, expiry));
        self.tally.dead_bytes += bytes;
        self.tally.evictions += 1;
        self.tally.evicted_unfetched += u64::from(!was_fetched);
    }
}

/// Whether the job's region has been pinned since it was chosen. The reader may be the very thread that makes
/// room, for an item that lies there: what is left of the region is not evicted.
fn is_pinned_since(log: &Log, job: &Job) -> bool {
    log.arena.region(job.region).pins() != 0
}

/// A large value stays if it was used after its region was opened or last requeued.
fn keeps_piece<L: LiveEntry>(log: &Log, region: RegionId, entry: &L, now: u32) -> bool {
    entry.last_access(now) > log.arena.region(region).opened_at()
}

/// Whether at least three quarters of a region of pieces would be kept: then it is not copied.
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

/// The oldest region of the queue that the policy names, or of the large values if that is older.
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

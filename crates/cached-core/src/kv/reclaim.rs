//! Making room: one region at a time is walked, what should stay is copied out, the rest goes.
//!
//! Two reasons to walk a region. *Compaction*: a seventh or more of it is garbage (dead or expired);
//! all that lives is copied together, nothing is evicted. *Eviction*: no region has that much
//! garbage; the policy names a queue, and judges every item of its oldest region. So expired items
//! go before live ones, and memory follows the sizes in use.
//!
//! What of a region has expired is an estimate. Where it may be a seventh, a walk (*sweep*) comes first, which removes what has
//! expired and leaves the rest where it is.
//!
//! A store that does not evict has only its garbage to live on, and gets all of it: once there is a region's worth, what
//! has the most is compacted, however little that is; before it gives up, all regions where something has expired are swept.
//!
//! Evictions keep at most three quarters of what they walk, whatever the policy says, averaged over
//! a number of regions. So a byte freed costs at most three copied, and a cache in which every item has
//! just been hit does not stand still while all of it goes round: who has to wait for a region waits
//! for a few walks, then the average counts from there.
//!
//! Work is done in small steps by whoever allocates while free regions are few; the reclaimer's lock
//! lets one thread at a time take a step.

use super::extent::{self, List, PIECE_HEADER_BYTES};
use super::hook::{Change, EvictedItem, EvictionHook};
use super::index::{Locked, Slot, Spot};
use super::item::{ItemPtr, Shape, state};
use super::log::{Entry, Place, Stream};
use super::queues::{LARGE, QUEUES, Queues};
use super::{Found, Inner};
use crate::KeyHash;
use crate::arena::{Owner, REGION_HEADER_BYTES, RegionId, RegionState};
use crate::clock::Expiry;
use crate::policy::{Candidate, QUEUES_MAX, QueueId, Verdict};
use crate::sync::{Ordering, lock};

/// A region with at least this share of garbage is compacted before anything is evicted: 1/7.
const GARBAGE_SHARE: u32 = 7;
/// At most this share of the regions walked survives evictions: 3/4, averaged over so many regions.
const SURVIVORS: (u32, u32) = (3, 4);
const SURVIVORS_AVERAGED_REGIONS: u32 = 32;
/// Regions of large values that may go round in a row before one is evicted all the same.
const REQUEUES_MAX: u32 = 8;
/// Regions kept open for the room that is left in them, at most, and one in 32 of all.
const ROOMY_MAX: usize = 16;
/// Less room than this share of a region is not worth that: 1/64, as for a last piece of a large value.
const ROOM_SHARE: u32 = 64;
/// Regions that one look at all of them chooses for the walks to come.
const CHOSEN_MAX: usize = 64;
/// A store that does not evict copies at most so much for one region before it says that memory is used up, and sweeps so much:
/// what it has found out by then is not lost.
pub(super) const COMPACTED_FOR_ONE_BYTES_MAX: u64 = 256 << 20;
pub(super) const SWEPT_FOR_ONE_BYTES_MAX: u64 = 64 << 20;
/// When no region had garbage enough, one in so many of all regions may be evicted in the same second
/// before they are looked at again: looking at all of them each time would cost as much as the walks.
const LOOK_AGAIN_SHARE: u32 = 32;
/// Sweeps in which a store that evicts may find little before it lets the time pass until it looks again.
const BARREN_SWEEPS_MAX: u32 = 4;
/// Entries whose index lines are fetched together.
pub(super) const BATCH: usize = 16;

/// What the reclaimer is at, and where survivors go. With its lock on lines of its own: it is written with nearly every store of a
/// full cache, and every hit of every thread reads what would lie beside it.
#[repr(align(128))]
pub(super) struct Reclaimer {
    job: Option<Job>,
    /// Kept by the policy: they go to the head of their queue.
    kept: [Stream; QUEUES],
    /// Moved by compaction: they keep their region's place in the age order.
    compacted: [Stream; QUEUES],
    /// Without eviction: regions of that kind in which some room is left, and their queues. Without these every compaction
    /// would lose at the regions' ends what it gains.
    roomy: Vec<(usize, Stream)>,
    jobs: u64,
    /// Regions that just went round, in a row.
    requeues: u32,
    /// Bytes that evictions may still keep: the share of every region walked is added, up to a bound.
    keep_credit: u32,
    /// The last compaction found no place for survivors: evict once before trying again.
    no_place: bool,
    /// The last look's choice, the best one last, and what is to be done with them.
    chosen: Vec<(u32, RegionId)>,
    chosen_for: Purpose,
    /// When no region had garbage enough, or less than it seemed: the clock's second, and the jobs until then.
    looked: Option<(u32, u64)>,
    /// Then: items stored and items there, which change with everything that makes garbage.
    looked_at: (u64, u64),
    /// Regions swept so far.
    sweeps: u64,
    /// Of those that the last look has chosen, the ones in which little was found.
    barren_sweeps: u32,
    /// Bytes copied out of the job's region.
    copied_bytes: u32,
    tally: Tally,
    /// Names and bytes of what was evicted from the job's queue and the policy has not been told of yet: `BATCH` at most.
    evicted: Vec<u64>,
    evicted_bytes: u64,
}

/// What a step has done to counters that others share, told to them at its end.
#[derive(Default)]
struct Tally {
    evictions: u64,
    evicted_unfetched: u64,
    /// Bytes that died in the region of the job.
    dead_bytes: u32,
}

/// What is done with a region that is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// What lives is copied out, all of it.
    Compact,
    /// What lives is judged, and copied out or evicted.
    Evict,
    /// What has expired is removed; what lives stays where it is.
    Sweep,
}

/// For what a step is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// Upkeep: nothing is evicted.
    Upkeep,
    /// Free regions are running low.
    Pace,
    /// A store waits for a region.
    Need,
}

struct Job {
    region: RegionId,
    queue: usize,
    /// Where the next entry starts, and where the last one ends.
    cursor: u32,
    end: u32,
    purpose: Purpose,
    /// Bytes that lived when the walk began.
    live_before: u32,
    /// The region stays where it is: nearly all of it is kept (pieces of large values).
    requeue: bool,
}

/// An entry met on the walk.
#[derive(Clone, Copy)]
struct Met<'a> {
    /// Where the index has it; `None`: nothing was met.
    spot: Option<Spot<'a>>,
    hash: KeyHash,
    location: u32,
    /// Padded; the same for as long as the entry stands.
    bytes: u32,
    piece: bool,
}

const NOT_MET: Met<'_> = Met { spot: None, hash: KeyHash(0), location: 0, bytes: 0, piece: false };

/// What an eviction of one region may keep, on average.
fn survivors_share(region_bytes: usize) -> u32 {
    region_bytes as u32 / SURVIVORS.1 * SURVIVORS.0
}

/// There is no place for a survivor.
struct NoPlace;

impl Reclaimer {
    pub(super) fn new(region_bytes: usize) -> Reclaimer {
        Reclaimer {
            job: None,
            kept: [const { Stream::new() }; QUEUES],
            compacted: [const { Stream::new() }; QUEUES],
            roomy: Vec::new(),
            jobs: 0,
            requeues: 0,
            keep_credit: survivors_share(region_bytes) * SURVIVORS_AVERAGED_REGIONS,
            no_place: false,
            chosen: Vec::with_capacity(2 * CHOSEN_MAX),
            chosen_for: Purpose::Compact,
            looked: None,
            looked_at: (0, 0),
            sweeps: 0,
            barren_sweeps: 0,
            copied_bytes: 0,
            tally: Tally::default(),
            evicted: Vec::with_capacity(BATCH),
            evicted_bytes: 0,
        }
    }

    /// Whether an eviction may keep so much more; if so, it is spent.
    fn may_keep(&mut self, bytes: u32) -> bool {
        let left = self.keep_credit.checked_sub(bytes);
        self.keep_credit = left.unwrap_or(self.keep_credit);
        left.is_some()
    }

    /// From now on no more is kept than the share: somebody has waited long enough.
    pub(super) fn keep_no_more(&mut self) {
        self.keep_credit = 0;
    }

    /// Regions walked so far.
    pub(super) fn jobs(&self) -> u64 {
        self.jobs
    }

    /// Of those, walked for what has expired.
    pub(super) fn sweeps(&self) -> u64 {
        self.sweeps
    }
}

impl Inner {
    /// Walks at most about `entries` entries. False when there is nothing to reclaim.
    pub(super) fn reclaim_step(
        &self,
        reclaimer: &mut Reclaimer,
        now: u32,
        entries: usize,
        effort: Effort,
    ) -> bool {
        let may_evict = self.evict && effort != Effort::Upkeep;
        let next = reclaimer.job.take().or_else(|| self.pick(reclaimer, now, effort));
        let Some(mut job) = next else { return false };
        let mut left = entries;
        while left > 0 && job.cursor < job.end {
            let mut met = [NOT_MET; BATCH];
            let count = self.meet(&mut job, &mut met[..BATCH.min(left)]);
            for met in &met[..count] {
                if self.settle(reclaimer, &job, met, now).is_err() {
                    reclaimer.jobs += 1;
                    reclaimer.no_place = true;
                    self.tell_evicted(reclaimer, &job);
                    self.tell_tally(reclaimer, job.region);
                    self.put_back(&job);
                    return may_evict;
                }
            }
            left -= count;
            self.tell_evicted(reclaimer, &job);
        }
        self.tell_tally(reclaimer, job.region);
        if job.cursor < job.end {
            reclaimer.job = Some(job);
            return true;
        }
        reclaimer.jobs += 1;
        if job.purpose == Purpose::Sweep {
            reclaimer.sweeps += 1;
            self.note_sweep(reclaimer, &job, now);
            self.put_back(&job);
        } else if job.requeue {
            reclaimer.requeues += 1;
            self.arena.region(job.region).renew(self.arena.take_sequence(), now);
            self.put_back(&job);
        } else {
            reclaimer.requeues = 0;
            self.note_yield(reclaimer, &job, now);
            debug_assert_eq!(self.arena.region(job.region).live_bytes(), 0, "an entry was overlooked");
            self.arena.release(job.region);
        }
        true
    }

    /// Tells the policy what has been evicted.
    fn tell_evicted(&self, reclaimer: &mut Reclaimer, job: &Job) {
        if !reclaimer.evicted.is_empty() {
            let bytes = std::mem::take(&mut reclaimer.evicted_bytes);
            self.policy.record_evicted(QueueId(job.queue as u8), bytes, &reclaimer.evicted);
            reclaimer.evicted.clear();
        }
    }

    /// Adds up what a step has done. The region is still the job's.
    fn tell_tally(&self, reclaimer: &mut Reclaimer, region: RegionId) {
        let Tally { evictions, evicted_unfetched, dead_bytes } = std::mem::take(&mut reclaimer.tally);
        if evictions > 0 {
            self.events.evictions.fetch_add(evictions, Ordering::Relaxed);
            self.events.evicted_unfetched.fetch_add(evicted_unfetched, Ordering::Relaxed);
        }
        if dead_bytes > 0 {
            self.arena.region(region).entry_died(dead_bytes);
        }
    }

    /// The region goes back into its queue.
    fn put_back(&self, job: &Job) {
        let mut queues = lock(&self.queues);
        queues.insert(&self.arena, job.queue, job.region);
        self.arena.region(job.region).shift(RegionState::Reclaiming, RegionState::Sealed);
        drop(queues);
        if self.arena.region(job.region).live_bytes() == 0 {
            self.free_if_dead(job.region);
        }
    }

    /// Collects the next entries and asks for their index lines.
    fn meet<'a>(&'a self, job: &mut Job, met: &mut [Met<'a>]) -> usize {
        let mut count = 0;
        while count < met.len() && job.cursor < job.end {
            let at = self.arena.offset_of(job.region, job.cursor);
            let entry = self.arena.at(at);
            // SAFETY: the cursor stands on an entry of a region that only this job can give away;
            // entries are complete, since the region had no writers when the job began.
            let shape = unsafe { Shape::read(entry) };
            let piece = shape.piece_bytes().is_some();
            let hash = if piece {
                // SAFETY: as above, and the shape says it is a piece.
                unsafe { extent::piece_owner(entry) }
            } else {
                // SAFETY: as above; only the key is read, which never changes.
                self.hasher.hash(unsafe { ItemPtr::new(entry) }.key())
            };
            let spot = self.index.shard(hash).spot(hash);
            spot.prefetch();
            let bytes = self.padded(shape.entry_bytes());
            let location = (at >> self.granule_shift) as u32;
            met[count] = Met { spot: Some(spot), hash, location, bytes, piece };
            count += 1;
            job.cursor += bytes;
        }
        count
    }

    /// Decides about one entry: dead ones are passed over.
    #[inline]
    fn settle(&self, reclaimer: &mut Reclaimer, job: &Job, met: &Met<'_>, now: u32) -> Result<(), NoPlace> {
        let Some(spot) = met.spot else { return Ok(()) };
        let locked = spot.lock(met.hash);
        if met.piece {
            self.settle_piece(reclaimer, job, met, &locked, now)
        } else {
            self.settle_item(reclaimer, job, met, &locked, now)
        }
    }

    fn settle_item(
        &self,
        reclaimer: &mut Reclaimer,
        job: &Job,
        met: &Met<'_>,
        locked: &Locked<'_>,
        now: u32,
    ) -> Result<(), NoPlace> {
        let Some(slot) = locked.find(met.hash, |location| location == met.location) else { return Ok(()) };
        let found = Found { slot, item: self.item_at(met.location), location: met.location };
        if self.remove_if_over(locked, found, now) {
            return Ok(());
        }
        let item = found.item;
        match job.purpose {
            Purpose::Compact => return self.move_item(reclaimer, job, job.queue, slot, met.bytes, now),
            Purpose::Sweep => {
                self.arena.expiry_seen(job.region, item.expiry());
                return Ok(());
            }
            Purpose::Evict => {}
        }
        let large = item.shape().fields().extents;
        let candidate = Candidate {
            hash: met.hash.0,
            bits: item.policy_bits(),
            queue: QueueId(job.queue as u8),
            idle_secs: item.idle_secs(now),
            bytes: if large { self.item_bytes(item) } else { u64::from(met.bytes) },
        };
        if let Verdict::Keep { queue, bits } = self.policy.decide(&candidate)
            && reclaimer.may_keep(met.bytes)
        {
            let queue = usize::from(queue.0).min(QUEUES_MAX - 1);
            let before = candidate.bits;
            item.set_policy_bits(bits);
            if self.move_item(reclaimer, job, queue, slot, met.bytes, now).is_ok() {
                return Ok(());
            }
            item.set_policy_bits(before);
        }
        if self.is_pinned_meanwhile(job)
            && self.move_item(reclaimer, job, job.queue, slot, met.bytes, now).is_ok()
        {
            return Ok(());
        }
        reclaimer.evicted.push(candidate.hash);
        reclaimer.evicted_bytes += candidate.bytes;
        self.note_eviction(&mut reclaimer.tally, item, now);
        if large {
            self.remove(locked, found, Change::Evicted);
        } else {
            // As `remove`, with the region's share told at the end of the step.
            self.tell(Change::Evicted, item.key(), item.cas());
            self.arena.forget_expiry(job.region, met.bytes, item.expiry());
            locked.remove(slot, u64::from(met.bytes));
            reclaimer.tally.dead_bytes += met.bytes;
        }
        Ok(())
    }

    fn settle_piece(
        &self,
        reclaimer: &mut Reclaimer,
        job: &Job,
        met: &Met<'_>,
        locked: &Locked<'_>,
        now: u32,
    ) -> Result<(), NoPlace> {
        let Some((found, n)) = self.owner_of_piece(locked, met) else { return Ok(()) };
        if self.remove_if_over(locked, found, now) {
            return Ok(());
        }
        if job.purpose == Purpose::Sweep {
            self.arena.expiry_seen(job.region, found.item.expiry());
            return Ok(());
        }
        if job.requeue && self.keeps_piece(job.region, found.item, now) {
            return Ok(());
        }
        let bytes = met.bytes;
        let evicts = job.purpose == Purpose::Evict;
        if evicts
            && !(self.keeps_piece(job.region, found.item, now) && reclaimer.may_keep(bytes))
            && !self.is_pinned_meanwhile(job)
        {
            self.note_eviction(&mut reclaimer.tally, found.item, now);
            self.remove(locked, found, Change::Evicted);
            return Ok(());
        }
        match self.place(reclaimer, job, LARGE, bytes, now) {
            Ok(entry) => {
                self.copy_entry(met.location, entry);
                // SAFETY: the payload is the list in which the piece was found at `n`, and the lock
                // of its bucket is held.
                unsafe { extent::set_piece_location(found.item.payload_ptr(), n, entry.location) };
                self.moved(reclaimer, job, entry, found.item.expiry());
                Ok(())
            }
            Err(NoPlace) if evicts => {
                self.note_eviction(&mut reclaimer.tally, found.item, now);
                self.remove(locked, found, Change::Evicted);
                Ok(())
            }
            Err(NoPlace) => Err(NoPlace),
        }
    }

    /// The item whose list has this piece, and the piece's place in the list.
    fn owner_of_piece<'a>(&self, locked: &Locked<'a>, met: &Met<'_>) -> Option<(Found<'a>, usize)> {
        let mut n = 0;
        let slot = locked.find(met.hash, |location| {
            let item = self.item_at(location);
            item.shape().fields().extents
                && List::new(item.payload()).position(met.location).inspect(|at| n = *at).is_some()
        })?;
        let location = slot.location();
        Some((Found { slot, item: self.item_at(location), location }, n))
    }

    /// A large value stays if it was used since its region was opened or last went round.
    fn keeps_piece(&self, region: RegionId, item: ItemPtr, now: u32) -> bool {
        item.last_access(now) > self.arena.region(region).opened_at()
    }

    #[inline]
    fn remove_if_over(&self, locked: &Locked<'_>, found: Found<'_>, now: u32) -> bool {
        if self.flush_boundary.load(Ordering::Acquire) == 0 && !found.item.shape().fields().expiry {
            return false;
        }
        self.remove_if_flushed_or_expired(locked, found, now)
    }

    fn remove_if_flushed_or_expired(&self, locked: &Locked<'_>, found: Found<'_>, now: u32) -> bool {
        if self.is_flushed(found.location) {
            self.remove(locked, found, Change::Flushed);
            return true;
        }
        if found.item.expiry().is_past(now) {
            self.count_expired(found.item);
            self.events.reclaimed.fetch_add(1, Ordering::Relaxed);
            self.remove(locked, found, Change::Expired);
            return true;
        }
        false
    }

    /// Counts an eviction, and tells the hook.
    #[inline]
    fn note_eviction(&self, tally: &mut Tally, item: ItemPtr, now: u32) {
        tally.evictions += 1;
        tally.evicted_unfetched += u64::from(item.state() & state::FETCHED == 0);
        if let Some(hook) = &self.eviction_hook {
            self.tell_eviction(&**hook, item, now);
        }
    }

    #[cold]
    fn tell_eviction(&self, hook: &dyn EvictionHook, item: ItemPtr, now: u32) {
        let shape = item.shape();
        let value_bytes = match shape.fields().extents {
            true => List::new(item.payload()).value_bytes(),
            false => shape.payload_bytes(),
        };
        hook.on_eviction(&EvictedItem {
            key: item.key(),
            value_bytes,
            client_flags: item.client_flags(),
            expiry: item.expiry(),
            last_access: item.last_access(now),
            fetched: item.state() & state::FETCHED != 0,
            now,
        });
    }

    /// Copies an item of the job's region to the open region of a queue, for those kept or those compacted.
    #[inline]
    fn move_item(
        &self,
        reclaimer: &mut Reclaimer,
        job: &Job,
        queue: usize,
        slot: Slot<'_>,
        bytes: u32,
        now: u32,
    ) -> Result<(), NoPlace> {
        let entry = self.place(reclaimer, job, queue, bytes, now)?;
        self.copy_entry(slot.location(), entry);
        slot.set_location(entry.location);
        self.moved(reclaimer, job, entry, self.item_at(entry.location).expiry());
        Ok(())
    }

    /// An entry of the job's region lies elsewhere now.
    #[inline]
    fn moved(&self, reclaimer: &mut Reclaimer, job: &Job, to: Entry, expiry: Expiry) {
        self.arena.note_expiry(to.region, to.bytes, expiry);
        self.arena.forget_expiry(job.region, to.bytes, expiry);
        reclaimer.tally.dead_bytes += to.bytes;
        reclaimer.copied_bytes += to.bytes;
    }

    /// Copies an entry to another place. The caller holds the lock of its bucket, or is the only one who knows of it.
    #[inline]
    pub(super) fn copy_entry(&self, from: u32, to: Entry) {
        let bytes = to.bytes as usize;
        // SAFETY: both are whole entries of `bytes` bytes, apart from each other; the target is known
        // to us alone, and nobody writes the source meanwhile, as the caller makes sure.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr(from), self.ptr(to.location), bytes) };
    }

    /// Space for a survivor, in the stream's open region or a new one from the reserve. It counts as
    /// published: nobody but the reclaimer closes that region, so nothing has to wait for the writer.
    #[inline]
    fn place(
        &self,
        reclaimer: &mut Reclaimer,
        job: &Job,
        queue: usize,
        bytes: u32,
        now: u32,
    ) -> Result<Entry, NoPlace> {
        let streams =
            if job.purpose == Purpose::Evict { &mut reclaimer.kept } else { &mut reclaimer.compacted };
        match self.append_survivor(&mut streams[queue], bytes) {
            Some(entry) => Ok(entry),
            None => self.place_anew(reclaimer, job, queue, bytes, now),
        }
    }

    /// The same where there is room elsewhere, or in a new region.
    #[cold]
    fn place_anew(
        &self,
        reclaimer: &mut Reclaimer,
        job: &Job,
        queue: usize,
        bytes: u32,
        now: u32,
    ) -> Result<Entry, NoPlace> {
        let Reclaimer { kept, compacted, roomy, .. } = reclaimer;
        let stream = match job.purpose {
            Purpose::Evict => &mut kept[queue],
            _ => &mut compacted[queue],
        };
        if !self.evict {
            let region_bytes = self.arena.region_bytes();
            let tightest = roomy
                .iter_mut()
                .filter(|(of, other)| *of == queue && other.room(region_bytes) >= bytes)
                .min_by_key(|(_, other)| other.room(region_bytes));
            if let Some((_, other)) = tightest {
                return self.append_survivor(other, bytes).ok_or(NoPlace);
            }
        }
        let region = self.arena.take(Owner::Kv, 0).ok_or(NoPlace)?;
        let age = if job.purpose == Purpose::Evict { Place::Newest } else { Place::Inherited };
        if self.evict {
            self.seal(stream, queue, age);
        } else {
            self.set_aside(roomy, queue, std::mem::replace(stream, Stream::new()));
        }
        if job.purpose != Purpose::Evict {
            // The age order is about the items, and these are as old as the region they come from; but
            // what survives a flush (a piece older than its item) must not look flushed for ever.
            let inherited = self.arena.region(job.region).sequence();
            let boundary = self.flush_boundary.load(Ordering::Acquire);
            self.arena.region(region).set_sequence(inherited.max(boundary));
        }
        self.open(stream, region, now);
        self.append_survivor(stream, bytes).ok_or(NoPlace)
    }

    /// Keeps a region open while there is room in it, instead of the one that has the least.
    fn set_aside(&self, roomy: &mut Vec<(usize, Stream)>, queue: usize, stream: Stream) {
        let region_bytes = self.arena.region_bytes();
        roomy.push((queue, stream));
        let room_of = |roomy: &[(usize, Stream)], at: usize| roomy[at].1.room(region_bytes);
        while let Some(tightest) = (0..roomy.len()).min_by_key(|at| room_of(roomy, *at))
            && (roomy.len() > ROOMY_MAX.min(self.arena.region_count() as usize / 32)
                || room_of(roomy, tightest) < region_bytes as u32 / ROOM_SHARE)
        {
            let (queue, mut stream) = roomy.swap_remove(tightest);
            self.seal(&mut stream, queue, Place::Inherited);
        }
    }

    /// Closes those of them in which there is more garbage than room: that can be had only of closed ones.
    fn close_littered(&self, roomy: &mut Vec<(usize, Stream)>) {
        let region_bytes = self.arena.region_bytes();
        for at in (0..roomy.len()).rev() {
            let (queue, stream) = &mut roomy[at];
            let Some(region) = stream.region else { continue };
            let room = stream.room(region_bytes);
            let filled = (region_bytes - REGION_HEADER_BYTES) as u32 - room;
            if filled.saturating_sub(self.arena.region(region).live_bytes()) > room {
                self.seal(stream, *queue, Place::Inherited);
                roomy.swap_remove(at);
            }
        }
    }

    /// Closes the regions that survivors are copied to.
    pub(super) fn seal_survivors(&self, reclaimer: &mut Reclaimer) {
        let Reclaimer { kept, compacted, roomy, .. } = reclaimer;
        for (queue, mut stream) in roomy.drain(..) {
            self.seal(&mut stream, queue, Place::Inherited);
        }
        for (streams, place) in [(kept, Place::Newest), (compacted, Place::Inherited)] {
            for (queue, stream) in streams.iter_mut().enumerate() {
                self.seal(stream, queue, place);
            }
        }
    }

    /// Chooses the next region and takes it out of its queue.
    fn pick(&self, reclaimer: &mut Reclaimer, now: u32, effort: Effort) -> Option<Job> {
        let may_evict = self.evict && effort != Effort::Upkeep;
        let may_compact = !std::mem::take(&mut reclaimer.no_place);
        let chosen = if may_compact { self.take_chosen(reclaimer, now, effort) } else { None };
        let (region, queue, purpose) = match chosen {
            Some(chosen) => chosen,
            None if may_evict => {
                let mut queues = lock(&self.queues);
                let region = self.oldest_victim(&queues)?;
                if !self.arena.region(region).shift(RegionState::Sealed, RegionState::Reclaiming) {
                    return None;
                }
                (region, queues.remove(region), Purpose::Evict)
            }
            None => return None,
        };
        match purpose {
            Purpose::Evict => {
                let share = survivors_share(self.arena.region_bytes());
                reclaimer.keep_credit =
                    (reclaimer.keep_credit + share).min(share * SURVIVORS_AVERAGED_REGIONS);
            }
            Purpose::Sweep => self.arena.begin_expiry_walk(region),
            Purpose::Compact => {}
        }
        let cursor = (REGION_HEADER_BYTES as u32).next_multiple_of(1 << self.granule_shift);
        let record = self.arena.region(region);
        let (end, live_before) = (record.used_bytes(), record.live_bytes());
        reclaimer.copied_bytes = 0;
        let mut job = Job { region, queue, cursor, end, purpose, live_before, requeue: false };
        job.requeue = purpose == Purpose::Evict
            && queue == LARGE
            && reclaimer.requeues < REQUEUES_MAX
            && self.mostly_kept(&job, now);
        Some(job)
    }

    /// The next region that a look has chosen, out of its queue; looks again if none is left.
    fn take_chosen(
        &self,
        reclaimer: &mut Reclaimer,
        now: u32,
        effort: Effort,
    ) -> Option<(RegionId, usize, Purpose)> {
        let mut has_looked = false;
        loop {
            while let Some((bytes, region)) = reclaimer.chosen.pop() {
                // It may have been emptied and filled again since.
                if reclaimer.chosen_for == Purpose::Compact && self.garbage(region, now) < bytes.div_ceil(2) {
                    continue;
                }
                let mut queues = lock(&self.queues);
                if self.is_quiet(region)
                    && self.arena.region(region).shift(RegionState::Sealed, RegionState::Reclaiming)
                {
                    return Some((region, queues.remove(region), reclaimer.chosen_for));
                }
            }
            if has_looked || !self.may_look(reclaimer, now, effort) {
                return None;
            }
            has_looked = true;
            self.look(reclaimer, now);
        }
    }

    /// Whether there is a chance to find what the last look has not found.
    fn may_look(&self, reclaimer: &Reclaimer, now: u32, effort: Effort) -> bool {
        let Some((second, jobs)) = reclaimer.looked else { return true };
        if second != now || self.flush_boundary.load(Ordering::Acquire) != 0 {
            return true;
        }
        match effort {
            Effort::Upkeep => true,
            _ if self.evict => {
                reclaimer.jobs - jobs > u64::from(self.arena.region_count() / LOOK_AGAIN_SHARE)
            }
            Effort::Pace => false,
            Effort::Need => reclaimer.looked_at != self.index.stored_and_items(),
        }
    }

    /// Bytes of a region that are garbage, as far as that is known without a walk.
    fn garbage(&self, region: RegionId, now: u32) -> u32 {
        let record = self.arena.region(region);
        if record.sequence() < self.flush_boundary.load(Ordering::Acquire) {
            return self.arena.region_bytes() as u32;
        }
        record.dead_bytes() + self.arena.expired(region, now).likely.min(record.live_bytes())
    }

    /// Looks at all regions, and chooses those that are worth a walk.
    fn look(&self, reclaimer: &mut Reclaimer, now: u32) {
        let region_bytes = self.arena.region_bytes() as u32;
        self.close_littered(&mut reclaimer.roomy);
        // Before the look: what happens meanwhile is worth another one.
        let looked_at = if self.evict { (0, 0) } else { self.index.stored_and_items() };
        reclaimer.chosen_for = Purpose::Compact;
        self.choose(&mut reclaimer.chosen, region_bytes / GARBAGE_SHARE, |region| self.garbage(region, now));
        if reclaimer.chosen.is_empty() && self.evict {
            reclaimer.chosen_for = Purpose::Sweep;
            reclaimer.barren_sweeps = 0;
            let above = region_bytes / GARBAGE_SHARE;
            self.choose(&mut reclaimer.chosen, above, |region| self.arena.expired(region, now).most);
        } else if reclaimer.chosen.is_empty() {
            let dead = self.choose(&mut reclaimer.chosen, 0, |region| self.arena.region(region).dead_bytes());
            if dead < u64::from(region_bytes) {
                reclaimer.chosen_for = Purpose::Sweep;
                self.choose(&mut reclaimer.chosen, 0, |region| self.arena.expired(region, now).most);
            }
        }
        if reclaimer.chosen.is_empty() {
            reclaimer.looked = Some((now, reclaimer.jobs));
            reclaimer.looked_at = looked_at;
        }
    }

    /// Chooses the regions with the most of something, of those that have more than `above`; tells how much those have together.
    fn choose(&self, chosen: &mut Vec<(u32, RegionId)>, above: u32, of: impl Fn(RegionId) -> u32) -> u64 {
        chosen.clear();
        let mut sum = 0;
        for region in (0..self.arena.region_count()).map(RegionId) {
            if self.arena.region(region).state() != RegionState::Sealed || !self.is_quiet(region) {
                continue;
            }
            let bytes = of(region);
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

    /// If sweeps find little, items expire one by one: then a store that evicts does not go on looking for them.
    fn note_sweep(&self, reclaimer: &mut Reclaimer, job: &Job, now: u32) {
        let freed = job.live_before.saturating_sub(self.arena.region(job.region).live_bytes());
        if !self.evict || freed > self.arena.region_bytes() as u32 / GARBAGE_SHARE {
            return;
        }
        reclaimer.barren_sweeps += 1;
        if reclaimer.barren_sweeps == BARREN_SWEEPS_MAX {
            reclaimer.chosen.clear();
            reclaimer.looked = Some((now, reclaimer.jobs));
        }
    }

    /// If a compaction has freed less than what makes one worth it, the estimates are bad just now: they are left alone for a while.
    fn note_yield(&self, reclaimer: &mut Reclaimer, job: &Job, now: u32) {
        let region_bytes = self.arena.region_bytes() as u32;
        if self.evict
            && job.purpose == Purpose::Compact
            && reclaimer.copied_bytes > region_bytes - region_bytes / GARBAGE_SHARE
        {
            reclaimer.chosen.clear();
            reclaimer.looked = Some((now, reclaimer.jobs));
        }
    }

    /// Whether somebody reads the job's region who did not when it was chosen. It may be the very thread that makes room, for an
    /// item that lies there: what is left of the region is not evicted.
    fn is_pinned_meanwhile(&self, job: &Job) -> bool {
        self.arena.region(job.region).pins() != 0
    }

    /// Gives away the region to which survivors of compactions are copied, if it has room for so many bytes more: without
    /// eviction it may be all the room there is.
    pub(super) fn give_room(&self, reclaimer: &mut Reclaimer, bytes: u32) -> Option<Stream> {
        let region_bytes = self.arena.region_bytes();
        let Reclaimer { compacted, roomy, .. } = reclaimer;
        let streams = compacted.iter_mut().chain(roomy.iter_mut().map(|(_, stream)| stream));
        let roomiest = streams.max_by_key(|stream| stream.room(region_bytes))?;
        (roomiest.room(region_bytes) >= bytes).then(|| std::mem::replace(roomiest, Stream::new()))
    }

    /// Whether nobody reads the region for longer than a lookup, and nobody writes to it.
    fn is_quiet(&self, region: RegionId) -> bool {
        let record = self.arena.region(region);
        record.pins() == 0 && record.writers() == 0
    }

    /// The oldest region of the queue that the policy names, or of the large values if that is older.
    fn oldest_victim(&self, queues: &Queues) -> Option<RegionId> {
        let oldest = |queue: usize| queues.oldest_first(queue).find(|region| self.is_quiet(*region));
        let region_bytes = self.arena.region_bytes();
        let lengths = std::array::from_fn(|queue| (queues.regions(queue) * region_bytes) as u64);
        let named = self.policy.victim(lengths);
        self.hit_states.renew(&*self.policy);
        let named = usize::from(named.0).min(QUEUES_MAX - 1);
        let item = oldest(named).or_else(|| (0..QUEUES_MAX).find_map(oldest));
        match (item, oldest(LARGE)) {
            (Some(item), Some(large)) => {
                let age = |region| self.arena.region(region).sequence();
                Some(if age(large) < age(item) { large } else { item })
            }
            (item, large) => item.or(large),
        }
    }

    /// Whether at least three quarters of a region of pieces would be kept: then it is not copied.
    fn mostly_kept(&self, job: &Job, now: u32) -> bool {
        let mut walk = Job { ..*job };
        let mut kept = 0u64;
        let mut met = [NOT_MET; BATCH];
        while walk.cursor < walk.end {
            let count = self.meet(&mut walk, &mut met);
            for met in met[..count].iter().filter(|met| met.piece) {
                let locked = self.index.shard(met.hash).lock(met.hash);
                if let Some((found, n)) = self.owner_of_piece(&locked, met)
                    && self.keeps_piece(job.region, found.item, now)
                {
                    let piece = List::new(found.item.payload()).pieces().nth(n);
                    kept += piece.map_or(0, |piece| u64::from(piece.bytes) + PIECE_HEADER_BYTES as u64);
                }
            }
        }
        kept * 4 >= self.arena.region_bytes() as u64 * 3
    }
}

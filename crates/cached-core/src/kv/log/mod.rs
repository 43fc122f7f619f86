//! The log: where items' bytes lie, and how memory becomes free again.
//!
//! ```text
//!  lanes (open regions) ──seal──> queues (sealed regions, oldest first) ──reclaim──> free regions ──open──> lanes
//!                                                                          │
//!                                    what is kept or compacted <───────────┘
//! ```
//! The log owns the arena with its regions, the lanes that append to them, the queues of full regions, the
//! eviction policy and the reclaimer. It stores *entries*: bytes at a location. What an entry is, and whether
//! it is in use, it asks the store through the traits in [`owner`].
//!
//! Read on in `lanes.rs` (allocation), `space.rs` (addresses and accounting) and `reclaim.rs` (making room).

mod choose;
mod lanes;
pub(super) mod owner;
mod queues;
mod reclaim;
mod restore;
mod space;
mod walk;

pub(super) use lanes::Entry;
pub(crate) use space::Released;

use crate::arena::{Arena, Owner, RegionId, RegionState, Superblock};
use crate::clock::Expiry;
use crate::kv::item::CHECKSUM_BYTES;
use crate::kv::item::extent::PIECE_HEADER_BYTES;
use crate::kv::lock_ranks;
use crate::policy::Policy;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock, try_lock};
use lanes::{LARGE_STREAM, Lanes, Place, Stream, queue_of_stream};
use owner::EntryOwner;
use queues::{HitTable, LARGE, Queues};
use reclaim::{BATCH, Effort, Reclaimer};
use space::Reserved;

/// Free regions that only the reclaimer may take, so that survivors always find a place.
const RECLAIM_RESERVE: u32 = 2;
/// The low-water mark of free regions while no lane is in use.
const LOW_WATER_MIN: u32 = RECLAIM_RESERVE + 2;
/// In the word of the boundary: the owner knows of entries that have ended by its own account. One word, so
/// that an operation reads one.
const OWNER_ENDED: u64 = 1 << 63;

/// Regions, lanes, queues, policy and reclaimer of one store.
pub(super) struct Log {
    pub(super) arena: Arena,
    /// An entry starts at a multiple of `1 << granule_shift` bytes; locations count granules.
    granule_shift: u32,
    /// The bytes of an entry's checksum; 0 without one.
    checksum_bytes: usize,
    /// Whether live items are evicted to make room.
    pub(super) evicts: bool,
    /// Entries in regions with a lower sequence number have been flushed; 0 while no flush is being cleaned
    /// up. The highest bit is apart: [`OWNER_ENDED`].
    boundary: AtomicU64,
    /// Has the boundary for a later process.
    pub(super) superblock: Arc<Superblock>,
    lanes: Lanes,
    pub(super) policy: Box<dyn Policy>,
    /// Memory that the policy takes for itself.
    pub(super) policy_bytes: usize,
    pub(super) hits: HitTable,
    queues: Mutex<Queues>,
    reclaimer: Mutex<Reclaimer>,
    evictions: Evictions,
    pub(super) reserved: Reserved,
}

/// Counters of evictions: off the hot path, and on a cache line that hits do not read.
#[repr(align(128))]
#[derive(Default)]
struct Evictions {
    items: AtomicU64,
    unfetched: AtomicU64,
}

/// What a log is made of.
pub(super) struct LogConfig {
    pub(super) arena: Arena,
    pub(super) superblock: Arc<Superblock>,
    pub(super) granule_shift: u32,
    /// Whether entries have checksums, for a later process.
    pub(super) has_checksums: bool,
    pub(super) evicts: bool,
    pub(super) lanes: usize,
    /// The number of regions that it has at least.
    pub(super) regions_min: u32,
    /// Attached to its memory.
    pub(super) policy: Box<dyn Policy>,
    pub(super) policy_bytes: usize,
    /// Limits for values that have not arrived completely.
    pub(super) reserved_bytes_max: u64,
    pub(super) reserved_regions_max: u32,
}

/// Metrics of a log.
pub(super) struct LogMetrics {
    pub(super) evictions: u64,
    pub(super) evicted_unfetched: u64,
    pub(super) regions_reclaimed: u64,
    pub(super) regions_free: u32,
    pub(super) regions: u32,
    pub(super) garbage_bytes: u64,
}

impl Log {
    pub(super) fn new(config: LogConfig) -> Log {
        let regions = config.arena.region_count();
        Log {
            granule_shift: config.granule_shift,
            checksum_bytes: if config.has_checksums { CHECKSUM_BYTES } else { 0 },
            evicts: config.evicts,
            boundary: AtomicU64::new(0),
            superblock: config.superblock,
            lanes: Lanes::new(config.lanes, config.regions_min),
            hits: HitTable::new(&*config.policy),
            policy: config.policy,
            policy_bytes: config.policy_bytes,
            queues: Mutex::ranked(Queues::new(regions), &lock_ranks::QUEUES),
            reclaimer: Mutex::ranked(Reclaimer::new(config.arena.region_bytes()), &lock_ranks::RECLAIMER),
            evictions: Evictions::default(),
            reserved: Reserved::new(config.reserved_bytes_max, config.reserved_regions_max),
            arena: config.arena,
        }
    }

    /// The stream for a new item of this expiry.
    pub(super) fn stream_for(&self, expiry: Expiry, now: u32) -> usize {
        self.lanes.stream_for(expiry, now)
    }

    /// Allocates an entry in the open region of a stream. Never waits, so it may be called under a hash
    /// bucket's lock.
    #[inline]
    pub(super) fn try_alloc(&self, stream: usize, bytes: u32) -> Option<Entry> {
        if self.is_low() {
            return None;
        }
        let mut streams = self.lanes.own().try_lock()?;
        streams[stream].append(self, bytes)
    }

    /// Allocates an entry, and reclaims regions if necessary. Not under a hash bucket's lock. Returns `None`
    /// when no memory can be freed.
    pub(super) fn alloc<O: EntryOwner>(
        &self,
        owner: &O,
        stream: usize,
        bytes: u32,
        now: u32,
    ) -> Option<Entry> {
        self.reclaim_if_low(owner, now);
        let mut streams = self.lanes.own_in_use().lock();
        let open = &mut streams[stream];
        if let Some(entry) = open.append(self, bytes) {
            return Some(entry);
        }
        let Some(region) = self.obtain_region(owner, now) else {
            self.take_over(open, queue_of_stream(stream), bytes)?;
            return open.append(self, bytes);
        };
        {
            // The reclaimer refreshes the table under the same lock.
            let _queues = lock(&self.queues);
            if self.policy.advance(self.arena.region_bytes() as u64) {
                self.hits.refresh(&*self.policy);
            }
        }
        open.seal(self, queue_of_stream(stream), Place::Newest);
        open.open(self, region, queue_of_stream(stream), now);
        open.append(self, bytes)
    }

    /// Allocates an entry for a piece of at most `wanted` bytes of data: what is left of the open region, or
    /// a new region when too little is left. Returns the entry and the bytes of data for which it has space.
    pub(super) fn alloc_piece<O: EntryOwner>(
        &self,
        owner: &O,
        wanted: usize,
        now: u32,
    ) -> Option<(Entry, u32)> {
        let header = PIECE_HEADER_BYTES + self.checksum_bytes;
        let region_bytes = self.arena.region_bytes();
        self.reclaim_if_low(owner, now);
        let mut streams = self.lanes.own_in_use().lock();
        let open = &mut streams[LARGE_STREAM];
        // A small remainder is cheaper left unused than listed.
        if (open.free_bytes(region_bytes) as usize) < (header + wanted).min(region_bytes / 64) {
            match self.obtain_region(owner, now) {
                Some(region) => {
                    open.seal(self, LARGE, Place::Newest);
                    open.open(self, region, LARGE, now);
                }
                None => self.take_over(open, LARGE, (header + wanted).min(region_bytes / 64) as u32)?,
            }
        }
        let data = wanted.min(open.free_bytes(region_bytes) as usize - header) as u32;
        let entry = open.append(self, self.padded(PIECE_HEADER_BYTES + data as usize))?;
        Some((entry, data))
    }

    /// Whether fewer regions are free than should be.
    #[inline]
    fn is_low(&self) -> bool {
        self.arena.kv_available() < self.lanes.low_water()
    }

    /// Reclaims a little when few regions are free, so that no thread has to reclaim a whole region in one go.
    #[inline]
    fn reclaim_if_low<O: EntryOwner>(&self, owner: &O, now: u32) {
        if self.is_low()
            && let Some(mut reclaimer) = try_lock(&self.reclaimer)
        {
            reclaimer.step(self, owner, now, BATCH, Effort::Pace);
        }
    }

    /// Takes a free region and leaves the reclaimer's reserve.
    fn take_region(&self) -> Option<RegionId> {
        self.arena.take(Owner::Kv, RECLAIM_RESERVE)
    }

    /// Takes a free region, and reclaims until there is one. Returns `None` when nothing more can be
    /// reclaimed.
    fn obtain_region<O: EntryOwner>(&self, owner: &O, now: u32) -> Option<RegionId> {
        self.take_region().or_else(|| lock(&self.reclaimer).obtain(self, owner, now))
    }

    /// Makes a region to which the reclaimer has copied survivors the stream's open one, if it has space for
    /// `bytes`.
    #[cold]
    fn take_over(&self, stream: &mut Stream, queue: usize, bytes: u32) -> Option<()> {
        if self.evicts {
            return None;
        }
        let other = lock(&self.reclaimer).survivors.take_emptiest(self, bytes)?;
        stream.seal(self, queue, Place::Newest);
        *stream = other;
        Some(())
    }

    /// Reclaims for a few milliseconds where no thread waits for it. Nothing is evicted. Returns whether
    /// there was anything to do.
    pub(super) fn reclaim_some<O: EntryOwner>(&self, owner: &O, now: u32) -> bool {
        const STEPS: usize = 16;
        const ENTRIES: usize = 256;
        let mut reclaimer = lock(&self.reclaimer);
        (0..STEPS).take_while(|_| reclaimer.step(self, owner, now, ENTRIES, Effort::Upkeep)).count() > 0
    }

    /// A log that does not evict turns garbage into free regions before a thread has to wait for one. Returns
    /// whether there was anything to do.
    pub(super) fn reclaim_ahead<O: EntryOwner>(&self, owner: &O, now: u32) -> bool {
        !self.evicts && self.is_low() && self.reclaim_some(owner, now)
    }

    /// Ends every entry that has been published: all open regions are sealed, and all regions in use fall
    /// before the boundary.
    pub(super) fn draw_boundary(&self) {
        // Meanwhile no region may be opened, sealed or filled: one that is open on both sides of the boundary
        // would take later entries along, or give earlier ones a later number.
        self.lanes.with_all_sealed(self, || {
            let mut reclaimer = lock(&self.reclaimer);
            reclaimer.survivors.seal_all(self);
            let boundary = self.arena.next_sequence();
            // First for a later process: what this one sees as flushed must not come back.
            self.superblock.notes().raise_boundary(boundary);
            self.change_boundary(|word| Some(word & OWNER_ENDED | boundary.max(word & !OWNER_ENDED)));
        });
    }

    /// Changes the word of the boundary, unless `change` returns `None`. Returns whether it did.
    fn change_boundary(&self, change: impl FnMut(u64) -> Option<u64>) -> bool {
        self.boundary.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    /// Whether an entry may have ended otherwise than by its expiry: it may be flushed, or the owner has to
    /// be asked.
    #[inline]
    pub(super) fn may_have_ended(&self) -> bool {
        self.boundary.load(Ordering::Acquire) != 0
    }

    /// Whether the owner has ended entries by its own account.
    #[inline]
    pub(super) fn owner_ended(&self) -> bool {
        self.boundary.load(Ordering::Acquire) & OWNER_ENDED != 0
    }

    /// Records whether the owner has ended entries by its own account, for which it has to be asked.
    pub(super) fn set_owner_ended(&self, ended: bool) {
        let bit = if ended { OWNER_ENDED } else { 0 };
        self.change_boundary(|word| Some(word & !OWNER_ENDED | bit));
    }

    /// The sequence number below which regions have been flushed; 0 for none.
    #[inline]
    pub(super) fn boundary(&self) -> u64 {
        self.boundary.load(Ordering::Acquire) & !OWNER_ENDED
    }

    /// Whether the entry at a location has been flushed.
    #[inline]
    pub(super) fn is_flushed(&self, location: u32) -> bool {
        let boundary = self.boundary();
        boundary != 0 && self.arena.region(self.region_of(location)).sequence() < boundary
    }

    /// Whether regions before the boundary are in use.
    pub(super) fn has_regions_before(&self, boundary: u64) -> bool {
        (0..self.arena.region_count()).map(RegionId).any(|region| {
            let record = self.arena.region(region);
            record.state() != RegionState::Free && record.sequence() < boundary
        })
    }

    /// Removes the boundary, before which no region is in use. Returns false if another flush has moved it
    /// meanwhile: then it stays.
    pub(super) fn clear_boundary(&self, boundary: u64) -> bool {
        self.superblock.notes().clear_boundary(boundary);
        self.change_boundary(|word| (word & !OWNER_ENDED == boundary).then_some(word & OWNER_ENDED))
    }

    /// Reads the counters, and walks over the table of regions.
    pub(super) fn metrics(&self) -> LogMetrics {
        let mut metrics = LogMetrics {
            evictions: self.evictions.items.load(Ordering::Relaxed),
            evicted_unfetched: self.evictions.unfetched.load(Ordering::Relaxed),
            regions_reclaimed: lock(&self.reclaimer).jobs,
            regions_free: 0,
            regions: self.arena.share(Owner::Kv),
            garbage_bytes: 0,
        };
        for region in (0..self.arena.region_count()).map(RegionId) {
            let record = self.arena.region(region);
            match record.state() {
                RegionState::Free => metrics.regions_free += 1,
                RegionState::Sealed => {
                    metrics.garbage_bytes +=
                        u64::from(record.used_bytes().saturating_sub(record.live_bytes()));
                }
                _ => {}
            }
        }
        // Those that the store may not take are free as well.
        let absent = self.arena.region_count() - metrics.regions;
        metrics.regions_free = metrics.regions_free.saturating_sub(absent);
        metrics
    }

    /// Seals the open regions of all lanes.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn seal_lanes(&self) {
        self.lanes.with_all_sealed(self, || ());
    }

    /// Whether no thread holds the first lane.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn is_a_lane_free(&self) -> bool {
        self.lanes.is_first_free()
    }

    /// Locks a lane, for which a flush then waits.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn lock_a_lane(&self) -> impl Sized + '_ {
        self.lanes.lock_first()
    }
}

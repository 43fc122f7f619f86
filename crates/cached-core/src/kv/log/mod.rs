//! The log: the storage of items' bytes, and the reclaiming of memory.
//!
//! ```text
//!  lanes (open regions) ──seal──> queues (sealed regions, oldest first) ──reclaim──> free regions ──open──> lanes
//!                                                                          │
//!                                    entries kept or compacted <───────────┘
//! ```
//! The log owns the arena with its regions, the lanes that append to them, the queues of full
//! regions, the eviction policy and the reclaimer. The log stores *entries*: bytes at a location.
//! The store, which the log queries through the trait [`EntryOwner`], knows the meaning of an entry
//! and whether the entry is in use.
//!
//! Read on in `lanes.rs` (allocation), `space.rs` (addresses and accounting) and `reclaim.rs`
//! (making room).

mod choose;
mod lanes;
mod queues;
mod reclaim;
mod restore;
mod space;
mod walk;

pub(super) use lanes::Entry;
pub(crate) use space::Released;

use crate::arena::{Arena, Owner, RegionId, RegionState, Superblock};
use crate::clock::Expiry;
use crate::kv::item::extent::PIECE_HEADER_BYTES;
use crate::kv::item::{CHECKSUM_BYTES, ItemPtr};
use crate::kv::lock_ranks;
use crate::policy::Policy;
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, lock, try_lock};
use lanes::{LARGE_STREAM, Lanes, Place, Stream, queue_of_stream};
use queues::{HitTable, LARGE, Queues};
use reclaim::{BATCH, Effort, Reclaimer};
use space::Reserved;

/// Free regions that only the reclaimer may take, so that it always has space for survivors.
const RECLAIM_RESERVE: u32 = 2;
/// The low-water mark of free regions while no lane is in use.
const LOW_WATER_MIN: u32 = RECLAIM_RESERVE + 2;
/// A bit in the word of the boundary: the owner has ended entries by a rule of its own. Both are in
/// the same word, so that an operation reads only one word.
const OWNER_ENDED: u64 = 1 << 63;

/// Regions, lanes, queues, policy and reclaimer of a store.
pub(super) struct Log {
    pub(super) arena: Arena,
    /// An entry starts at a multiple of `1 << granule_shift` bytes; locations count granules.
    granule_shift: u32,
    /// The size of an entry's checksum in bytes; 0 without checksums.
    checksum_bytes: usize,
    /// Whether live items are evicted to free memory.
    pub(super) evicts: bool,
    /// Entries in regions with a lower sequence number have been flushed; 0 if no flush is being
    /// cleaned up. The highest bit is separate: [`OWNER_ENDED`].
    boundary: AtomicU64,
    /// Stores the boundary for a later process.
    pub(super) superblock: Arc<Superblock>,
    lanes: Lanes,
    pub(super) policy: Box<dyn Policy>,
    /// The memory that the policy uses for its own records.
    pub(super) policy_bytes: usize,
    pub(super) hits: HitTable,
    queues: Mutex<Queues>,
    reclaimer: Mutex<Reclaimer>,
    pub(super) evictions: Evictions,
    pub(super) reserved: Reserved,
}

/// Counters of evictions, off the hot path and on a cache line that hits do not read.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Evictions {
    pub(super) items: AtomicU64,
    pub(super) unfetched: AtomicU64,
    /// The time for which items evicted lately had not been used, in seconds, as a mean of those that had
    /// been read and one of those that had not; 0 before the first.
    idle_secs: [AtomicU32; 2],
    /// The second of the latest eviction of either kind.
    latest: [AtomicU32; 2],
}

/// The time for which the mean of evicted items says what would be evicted next.
const EVICTED_LATELY_SECS: u32 = 60;

impl Evictions {
    /// Counts items that were evicted in one step; `idle_secs` is the sum of the times since their last uses.
    fn count(&self, was_fetched: bool, items: u64, idle_secs: u64, now: u32) {
        let Some(mean) = idle_secs.checked_div(items) else { return };
        self.items.fetch_add(items, Ordering::Relaxed);
        if !was_fetched {
            self.unfetched.fetch_add(items, Ordering::Relaxed);
        }
        let word = &self.idle_secs[usize::from(was_fetched)];
        let (before, mean) = (u64::from(word.load(Ordering::Relaxed)), mean.max(1));
        // A step has some items of one region.
        let mean = if before == 0 { mean } else { (7 * before + mean) / 8 };
        word.store(mean as u32, Ordering::Relaxed);
        self.latest[usize::from(was_fetched)].store(now, Ordering::Relaxed);
    }
}

/// The parts and settings of a log.
pub(super) struct LogConfig {
    pub(super) arena: Arena,
    pub(super) superblock: Arc<Superblock>,
    pub(super) granule_shift: u32,
    /// Whether entries have checksums for a later process.
    pub(super) has_checksums: bool,
    pub(super) evicts: bool,
    pub(super) lanes: usize,
    /// The minimum number of regions of the log.
    pub(super) regions_min: u32,
    /// The policy, already attached to its memory.
    pub(super) policy: Box<dyn Policy>,
    pub(super) policy_bytes: usize,
    /// Limits for values that have not arrived completely.
    pub(super) reserved_bytes_max: u64,
    pub(super) reserved_regions_max: u32,
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

    /// Returns the stream for a new item with this expiry.
    pub(super) fn stream_for(&self, expiry: Expiry, now: u32) -> usize {
        self.lanes.stream_for(expiry, now)
    }

    /// Allocates an entry in the open region of a stream. It never waits, so it may be called with
    /// a hash bucket locked.
    #[inline]
    pub(super) fn try_alloc(&self, stream: usize, bytes: u32) -> Option<Entry> {
        if self.is_low() {
            return None;
        }
        let mut streams = self.lanes.own().try_lock()?;
        streams[stream].append(self, bytes)
    }

    /// Allocates an entry, and reclaims regions if necessary. Must not be called with a hash bucket
    /// locked. Returns `None` if no memory can be freed.
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

    /// Allocates an entry for a piece of at most `wanted` bytes of data, in the rest of the open
    /// region, or in a new region if the rest is too small. Returns the entry and the bytes of data
    /// for which it has space.
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
        // It is cheaper to leave a small remainder unused than to list it.
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

    /// Returns whether fewer regions are free than the low-water mark.
    #[inline]
    fn is_low(&self) -> bool {
        self.arena.kv_available() < self.lanes.low_water()
    }

    /// Returns whether there is hardly a free region. Around the low-water mark, whether something is
    /// evicted for the next item is a matter of chance.
    pub(super) fn is_full(&self) -> bool {
        self.arena.kv_available() < self.lanes.low_water() + RECLAIM_RESERVE
    }

    /// Returns whether a new item that has not been used for this time would displace items that were used
    /// later: memory is full, and such items were evicted lately.
    pub(super) fn is_colder(&self, was_fetched: bool, idle_secs: u32, now: u32) -> bool {
        let of_kind = |words: &[AtomicU32; 2]| words[usize::from(was_fetched)].load(Ordering::Relaxed);
        let evicted = of_kind(&self.evictions.idle_secs);
        let is_late = now.saturating_sub(of_kind(&self.evictions.latest)) <= EVICTED_LATELY_SECS;
        self.evicts
            && self.policy.evicts_idle()
            && self.is_full()
            && (evicted != 0 && is_late)
            && idle_secs > evicted
    }

    /// Reclaims a little if few regions are free, so that no thread has to reclaim a whole region
    /// at once.
    #[inline]
    fn reclaim_if_low<O: EntryOwner>(&self, owner: &O, now: u32) {
        if self.is_low()
            && let Some(mut reclaimer) = try_lock(&self.reclaimer)
        {
            reclaimer.step(self, owner, now, BATCH, Effort::Pace);
        }
    }

    /// Takes a free region, except those reserved for the reclaimer.
    fn take_region(&self) -> Option<RegionId> {
        self.arena.take(Owner::Kv, RECLAIM_RESERVE)
    }

    /// Takes a free region, and reclaims until there is one. Returns `None` if nothing more can be
    /// reclaimed.
    fn obtain_region<O: EntryOwner>(&self, owner: &O, now: u32) -> Option<RegionId> {
        self.take_region().or_else(|| lock(&self.reclaimer).obtain(self, owner, now))
    }

    /// Makes a region to which the reclaimer has copied survivors the stream's open region, if the
    /// region has space for `bytes`.
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

    /// Reclaims for a few milliseconds when no thread waits for it. Nothing is evicted. Returns
    /// whether there was anything to do.
    pub(super) fn reclaim_some<O: EntryOwner>(&self, owner: &O, now: u32) -> bool {
        const STEPS: usize = 16;
        const ENTRIES: usize = 256;
        let mut reclaimer = lock(&self.reclaimer);
        (0..STEPS).take_while(|_| reclaimer.step(self, owner, now, ENTRIES, Effort::Upkeep)).count() > 0
    }

    /// In a log that does not evict, turns garbage into free regions before a thread has to wait
    /// for one. Returns whether there was anything to do.
    pub(super) fn reclaim_ahead<O: EntryOwner>(&self, owner: &O, now: u32) -> bool {
        !self.evicts && self.is_low() && self.reclaim_some(owner, now)
    }

    /// Ends every published entry: seals all open regions, and moves the boundary past all regions
    /// in use.
    pub(super) fn draw_boundary(&self) {
        // Meanwhile no region may be opened, sealed or filled. A region that is open on both sides
        // of the boundary would end later entries too, or give earlier entries a later number.
        self.lanes.with_all_sealed(self, || {
            let mut reclaimer = lock(&self.reclaimer);
            reclaimer.survivors.seal_all(self);
            let boundary = self.arena.next_sequence();
            // The copy for a later process is written first, because what this process sees as
            // flushed must not come back.
            self.superblock.notes().raise_boundary(boundary);
            self.change_boundary(|word| Some(word & OWNER_ENDED | boundary.max(word & !OWNER_ENDED)));
        });
    }

    /// Changes the word of the boundary, unless `change` returns `None`. Returns whether it
    /// changed.
    fn change_boundary(&self, change: impl FnMut(u64) -> Option<u64>) -> bool {
        self.boundary.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    /// Returns whether an entry may have ended for a reason other than its expiry: by a flush, or
    /// by a rule of the owner, which the caller must then query.
    #[inline]
    pub(super) fn may_have_ended(&self) -> bool {
        self.boundary.load(Ordering::Acquire) != 0
    }

    /// Returns whether the owner has ended entries by a rule of its own.
    #[inline]
    pub(super) fn owner_ended(&self) -> bool {
        self.boundary.load(Ordering::Acquire) & OWNER_ENDED != 0
    }

    /// Sets whether the owner has ended entries by a rule of its own, so that the log must query
    /// the owner about each entry.
    pub(super) fn set_owner_ended(&self, ended: bool) {
        let bit = if ended { OWNER_ENDED } else { 0 };
        self.change_boundary(|word| Some(word & !OWNER_ENDED | bit));
    }

    /// Returns the sequence number below which regions have been flushed; 0 for none.
    #[inline]
    pub(super) fn boundary(&self) -> u64 {
        self.boundary.load(Ordering::Acquire) & !OWNER_ENDED
    }

    /// Returns whether the entry at a location has been flushed.
    #[inline]
    pub(super) fn is_flushed(&self, location: u32) -> bool {
        let boundary = self.boundary();
        boundary != 0 && self.arena.region(self.region_of(location)).sequence() < boundary
    }

    /// Returns whether regions before the boundary are in use.
    pub(super) fn has_regions_before(&self, boundary: u64) -> bool {
        (0..self.arena.region_count()).map(RegionId).any(|region| {
            let record = self.arena.region(region);
            record.state() != RegionState::Free && record.sequence() < boundary
        })
    }

    /// Removes the boundary if no region before it is in use. Returns false if another flush has
    /// moved the boundary in the meantime; then it stays.
    pub(super) fn clear_boundary(&self, boundary: u64) -> bool {
        self.superblock.notes().clear_boundary(boundary);
        self.change_boundary(|word| (word & !OWNER_ENDED == boundary).then_some(word & OWNER_ENDED))
    }

    /// Returns the number of regions that the reclaimer has walked.
    pub(super) fn regions_reclaimed(&self) -> u64 {
        lock(&self.reclaimer).jobs
    }

    /// Seals the open regions of all lanes.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn seal_lanes(&self) {
        self.lanes.with_all_sealed(self, || ());
    }

    /// Returns whether the first lane is unlocked.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn is_a_lane_free(&self) -> bool {
        self.lanes.first().try_lock().is_some()
    }

    /// Locks a lane, so that a flush has to wait.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn lock_a_lane(&self) -> impl Sized + '_ {
        self.lanes.first().lock()
    }
}

// The interface between the log and the store whose entries it holds.
//
// The log knows the location and size of an entry, and how much of each region is garbage. The
// owner of an entry knows whether it is still in use, which item it belongs to, and how to record
// that it has moved. The log asks the owner through two traits, one entry at a time:
//
// ```text
//  scan ──> lock ──> None: garbage, or removed because it was flushed or has expired
//              └────> LiveEntry ──> relocate(entry): moves it there
//                             └───> evict(…): the item is removed
// ```
// `scan` takes no lock and prefetches what `lock` reads, so the reclaimer scans a batch of entries
// before it locks the first one. A `LiveEntry` holds the lock of its item: it stays alive, in
// its place, until it is relocated, evicted or dropped.
//
// Everything that moves or removes entries by region has to use this interface. The reclaimer is
// its only user in this crate; an arbiter that removes regions, a restart that finds regions of an
// earlier process, and a second tier on flash need the same operations and no others. The traits
// are monomorphised: no call through them is dynamic.

/// A store that keeps its entries in a log.
pub(in crate::kv) trait EntryOwner {
    /// The owner's hint for finding an entry, which it computes without a lock.
    type Hint<'a>: Copy
    where
        Self: 'a;

    /// An entry in use, and the lock that keeps it in use.
    type Live<'a>: LiveEntry
    where
        Self: 'a;

    /// Reads the head of an entry, and prefetches what [`lock`](EntryOwner::lock) reads.
    ///
    /// # Safety
    /// `entry` points at a complete entry in a region that is not reused during the call.
    unsafe fn scan<'a>(&'a self, entry: *mut u8) -> Scanned<Self::Hint<'a>>;

    /// Locks the entry at `location`; `None` if the entry is garbage. An item that was flushed or
    /// has expired at `now` is removed, so its entry becomes garbage too.
    fn lock<'a>(
        &'a self,
        scanned: &Scanned<Self::Hint<'a>>,
        location: u32,
        now: u32,
    ) -> Option<Self::Live<'a>>;

    /// Returns a pair of numbers that every garbage-creating change alters.
    fn change_stamp(&self) -> (u64, u64);
}

/// The information in the head of an entry.
#[derive(Clone, Copy)]
pub(in crate::kv) struct Scanned<H> {
    /// For [`EntryOwner::lock`].
    pub(in crate::kv) hint: H,
    /// The size of the entry before padding. It does not change until the region is reused.
    pub(in crate::kv) bytes: u32,
    /// Whether the entry is a piece of a large value, not an item.
    pub(in crate::kv) is_piece: bool,
}

/// A locked entry that is in use. For a piece of a large value, the properties are those of its
/// item.
pub(in crate::kv) trait LiveEntry {
    /// Returns the hash of the item's key.
    fn hash(&self) -> u64;

    /// Returns the item, which stays in place until the entry is relocated or evicted.
    fn item(&self) -> ItemPtr;

    /// Returns the number of bytes that evicting the item turns into garbage, including the
    /// `entry_bytes` of its own entry.
    fn item_bytes(&self, entry_bytes: u32) -> u64;

    /// Copies the entry to `to`, which has the same size, and records the new location.
    fn relocate(&self, to: Entry);

    /// Removes the item to free memory. The caller accounts for this entry, whose padded size is
    /// `entry_bytes`. `other` is called with the location and padded size of each of the item's
    /// other entries. Returns whether the item had been read since it was stored.
    fn evict(self, now: u32, entry_bytes: u32, other: impl FnMut(u32, u32)) -> bool;
}

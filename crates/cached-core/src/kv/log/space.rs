//! Addresses of entries, and the accounting of bytes in use and of garbage.
//!
//! A *location* counts granules from the start of the arena. Entries start at granule boundaries
//! and are padded to whole granules.

use super::lanes::Entry;
use super::queues::QUEUES;
use super::{Effort, EntryOwner, Log};
use crate::arena::{Owner, REGION_HEADER_BYTES, RegionId, RegionState};
use crate::clock::Expiry;
use crate::kv::item;
use crate::kv::item::{ItemPtr, Usage};
use crate::stores;
use crate::sync::{AtomicU32, AtomicU64, Ordering, lock, try_lock};
use std::collections::HashMap;

impl Log {
    /// Returns the first byte of the entry at a location.
    #[inline]
    pub(in crate::kv) fn ptr(&self, location: u32) -> *mut u8 {
        self.arena.at((location as usize) << self.granule_shift)
    }

    /// Returns the location of a region's first entry, relative to the region.
    pub(in crate::kv) fn first_entry(&self) -> u32 {
        (REGION_HEADER_BYTES as u32).next_multiple_of(1 << self.granule_shift)
    }

    /// Returns the region of a location.
    #[inline]
    pub(in crate::kv) fn region_of(&self, location: u32) -> RegionId {
        self.arena.region_of((location as usize) << self.granule_shift)
    }

    /// Returns the time at which the region of a location was opened, in the clock's seconds.
    pub(in crate::kv) fn opened_at(&self, location: u32) -> u32 {
        self.arena.region(self.region_of(location)).opened_at()
    }

    /// Returns the location of a byte of a region, which must start a granule.
    #[inline]
    pub(in crate::kv) fn location_in(&self, region: RegionId, offset: u32) -> u32 {
        (self.arena.offset_of(region, offset) >> self.granule_shift) as u32
    }

    /// Returns the size of an entry with its padding and, if it has one, its checksum.
    #[inline]
    pub(in crate::kv) fn padded(&self, bytes: usize) -> u32 {
        let mask = (1usize << self.granule_shift) - 1;
        ((bytes + self.checksum_bytes + mask) & !mask) as u32
    }

    /// Returns whether entries have checksums.
    #[inline]
    pub(in crate::kv) fn has_checksums(&self) -> bool {
        self.checksum_bytes != 0
    }

    /// Marks a complete item as being in the index.
    #[inline]
    pub(in crate::kv) fn make_live(&self, item: ItemPtr, usage: Usage) {
        if self.has_checksums() {
            item.write_checksum(self.padded(item.shape().entry_bytes()));
        }
        item.make_live(usage);
    }

    /// Marks an item as no longer being in the index, permanently.
    #[inline]
    pub(in crate::kv) fn make_dead(&self, item: ItemPtr) {
        item.make_dead();
        if self.has_checksums() {
            item.void_checksum(self.padded(item.shape().entry_bytes()));
        }
    }

    /// Completes a piece of `data` bytes.
    pub(in crate::kv) fn end_piece(&self, piece: Entry, data: u32) {
        if self.has_checksums() {
            // SAFETY: the piece has this size, and nothing refers to it yet.
            unsafe { item::write_piece_checksum(self.ptr(piece.location), data, piece.bytes) };
        }
    }

    /// Writes a placeholder entry to which nothing refers, so that a restart can skip it.
    #[inline]
    pub(super) fn write_placeholder(&self, location: u32, bytes: u32) {
        // SAFETY: the bytes have just been cut from the open region of the caller's stream, whose lock the
        // caller holds; they are aligned to a granule.
        unsafe { item::write_placeholder(self.ptr(location), bytes - self.checksum_bytes as u32) };
    }

    /// Records that the index refers to the entry, so that its region may be reclaimed again.
    #[inline]
    pub(in crate::kv) fn publish(&self, entry: Entry) {
        self.arena.region(entry.region).end_entry();
    }

    /// Abandons an entry that was never published. Its first word must have been written, so that
    /// walks can skip it.
    pub(in crate::kv) fn abandon(&self, entry: Entry) {
        let record = self.arena.region(entry.region);
        record.abandon_entry(entry.bytes);
        if record.live_bytes() == 0 {
            self.free_if_dead(entry.region);
        }
    }

    /// Records that a published entry with the expiry `expiry` is garbage.
    pub(in crate::kv) fn entry_died(&self, location: u32, bytes: u32, expiry: Expiry) {
        let region = self.region_of(location);
        self.arena.expiring.forget(region, bytes, expiry);
        if self.arena.region(region).entry_died(bytes) == 0 {
            self.free_if_dead(region);
        }
    }

    /// Records when a newly published entry expires.
    pub(in crate::kv) fn note_expiry(&self, location: u32, bytes: u32, expiry: Expiry) {
        self.arena.expiring.note(self.region_of(location), bytes, expiry);
    }

    /// Records that the expiry of an entry has changed from `before` to `after`.
    pub(in crate::kv) fn change_expiry(&self, location: u32, bytes: u32, before: Expiry, after: Expiry) {
        let region = self.region_of(location);
        self.arena.expiring.forget(region, bytes, before);
        self.arena.expiring.note(region, bytes, after);
    }

    /// Copies an entry that is not a live item to another location. The caller holds the lock of
    /// its hash bucket, or is the only one that knows the entry.
    #[inline]
    pub(in crate::kv) fn copy_entry(&self, from: u32, to: Entry) {
        let bytes = to.bytes as usize;
        // SAFETY: both are whole entries of `bytes` bytes, apart from each other; nothing refers to the
        // target yet, and no thread writes the source during the call, as the caller makes sure.
        unsafe { stores::copy(self.ptr(from), self.ptr(to.location), bytes) };
    }

    /// Keeps the region of a location from being reused. The caller holds the lock of the hash
    /// bucket of an item there, and has to call [`unpin`](Log::unpin) later.
    pub(in crate::kv) fn pin(&self, location: u32) -> RegionId {
        let region = self.region_of(location);
        self.arena.region(region).pins.pin();
        region
    }

    /// Reverts one call of [`pin`](Log::pin).
    pub(in crate::kv) fn unpin(&self, region: RegionId) {
        self.arena.unpin(region);
    }

    /// Returns whether values in the region of a location may be read by threads that do not hold
    /// the hash bucket's lock.
    #[inline]
    pub(in crate::kv) fn is_pinned(&self, location: u32) -> bool {
        self.arena.region(self.region_of(location)).pins.count() != 0
    }

    /// Returns whether the region is neither pinned nor written to.
    pub(super) fn is_quiet(&self, region: RegionId) -> bool {
        let record = self.arena.region(region);
        record.pins.count() == 0 && record.writers() == 0
    }

    /// Frees a sealed region without a walk if no entry in it is in use.
    pub(in crate::kv) fn free_if_dead(&self, region: RegionId) {
        let record = self.arena.region(region);
        if record.state() != RegionState::Sealed {
            return;
        }
        {
            let mut queues = lock(&self.queues);
            // A piece can become garbage before its writer has finished, because it is published
            // after the item whose list contains it.
            if record.live_bytes() != 0
                || record.writers() != 0
                || !record.shift(RegionState::Sealed, RegionState::Reclaiming)
            {
                return;
            }
            queues.remove(region);
        }
        self.arena.release(region);
    }

    /// Returns a region to its queue, from which the reclaimer had taken it.
    pub(super) fn put_back(&self, queue: usize, region: RegionId) {
        let mut queues = lock(&self.queues);
        queues.insert(&self.arena, queue, region);
        self.arena.region(region).shift(RegionState::Reclaiming, RegionState::Sealed);
        drop(queues);
        if self.arena.region(region).live_bytes() == 0 {
            self.free_if_dead(region);
        }
    }

    /// Counts the region in which an entry waits for its value, once for all such entries. If there
    /// would be more than `regions_max` such regions, returns false and counts nothing.
    pub(in crate::kv) fn hold_region(&self, entry: Entry, regions_max: u32) -> bool {
        if !self.arena.region(entry.region).begin_arrival()
            || self.reserved.regions.fetch_add(1, Ordering::Relaxed) < regions_max
        {
            return true;
        }
        self.release_region(entry);
        false
    }

    /// Reverts one call of [`hold_region`](Log::hold_region).
    pub(in crate::kv) fn release_region(&self, entry: Entry) {
        if self.arena.region(entry.region).end_arrival() {
            self.reserved.regions.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

// The memory of values that have not arrived completely, and its limits.
//
// A region cannot be reclaimed while a value in it is incomplete, which may take as long as the
// sender likes. Therefore both the bytes of reservations and the number of their regions are
// limited.

/// The counts of bytes and regions that reservations hold, and their limits.
pub(in crate::kv) struct Reserved {
    bytes: AtomicU64,
    pub(in crate::kv) bytes_max: u64,
    regions: AtomicU32,
    pub(in crate::kv) regions_max: u32,
}

impl Reserved {
    pub(super) fn new(bytes_max: u64, regions_max: u32) -> Reserved {
        Reserved { bytes: AtomicU64::new(0), bytes_max, regions: AtomicU32::new(0), regions_max }
    }

    pub(in crate::kv) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(in crate::kv) fn regions(&self) -> u32 {
        self.regions.load(Ordering::Relaxed)
    }

    /// Counts bytes, and returns whether the total is within the limit. The bytes are counted in
    /// either case.
    pub(in crate::kv) fn add_bytes(&self, bytes: u64) -> bool {
        self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.bytes_max
    }

    pub(in crate::kv) fn remove_bytes(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

// Memory released to the system and taken back while the store is in use, in whole free regions.
//
// The thread that releases a region also does the necessary reclaiming, in small steps, and takes
// only regions beyond those that are kept ready for allocations. Therefore no allocating thread has
// to reclaim more, or waits longer than for one such step.

/// The number of further regions that must be free when one is released, because the walk for the
/// next one may open two for survivors.
const SPARE: u32 = 2;
/// The number of entries walked in one step.
const STEP_ENTRIES: usize = 64;

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// One region's memory has been returned to the system.
    Done,
    /// Memory was reclaimed, and further steps are needed.
    Working,
    /// Nothing can be reclaimed at present.
    Stuck,
}

impl Log {
    /// Returns the bytes of the regions that the store may use at present.
    pub(in crate::kv) fn present_bytes(&self) -> usize {
        self.arena.share(Owner::Kv) as usize * self.arena.region_bytes()
    }

    /// Returns the bytes of free regions beyond those kept ready for allocations; an estimate.
    pub(in crate::kv) fn spare_bytes(&self) -> usize {
        let spare = self.arena.kv_available().saturating_sub(self.lanes.low_water());
        spare as usize * self.arena.region_bytes()
    }

    /// Releases to the system a free region beyond those kept ready for allocations. If there is
    /// none, walks a few entries towards one.
    ///
    /// # Errors
    /// Fails if the system does not take the memory back; nothing is released.
    pub(in crate::kv) fn release_step<O: EntryOwner>(
        &self,
        owner: &O,
        now: u32,
    ) -> std::io::Result<Released> {
        if self.arena.release_memory(Owner::Kv, self.lanes.low_water() + SPARE)? {
            return Ok(Released::Done);
        }
        // Another thread, which holds the lock, is reclaiming.
        let Some(mut reclaimer) = try_lock(&self.reclaimer) else { return Ok(Released::Working) };
        let has_walked = reclaimer.step(self, owner, now, STEP_ENTRIES, Effort::Pace);
        Ok(if has_walked { Released::Working } else { Released::Stuck })
    }

    // Checks, for tests.

    /// Checks regions, queues and counters against the entries to which the index refers: the bytes
    /// in use in each region, and how many of them are recorded in each expiry span of a region. No
    /// other thread may use the store.
    ///
    /// # Panics
    /// Panics if they do not agree with the entries.
    #[inline]
    pub(in crate::kv) fn validate(&self, live: &[u64], mut expiring: HashMap<(u32, usize), u32>) {
        let regions = self.arena.region_count();
        self.arena.validate();
        let queues = lock(&self.queues);
        let mut queued = 0;
        for queue in 0..QUEUES {
            let mut last = 0;
            for region in queues.oldest_first(queue) {
                queued += 1;
                let sequence = self.arena.region(region).sequence();
                assert!(last <= sequence, "queue {queue} is not in age order");
                last = sequence;
                assert_eq!(self.arena.region(region).state(), RegionState::Sealed);
            }
        }
        for id in (0..regions).map(RegionId) {
            let record = self.arena.region(id);
            match record.state() {
                RegionState::Free => assert_eq!(live[id.0 as usize], 0, "live items in free region {}", id.0),
                RegionState::Sealed => {
                    queued -= 1;
                    assert!(queues.queue_of(id).is_some(), "a sealed region in no queue");
                    check_live(record.live_bytes(), live[id.0 as usize], id);
                }
                RegionState::Active | RegionState::Reclaiming => {
                    check_live(record.live_bytes(), live[id.0 as usize], id);
                }
            }
            assert_eq!(record.pins.count(), 0, "a pin is left on region {}", id.0);
            assert_eq!(record.writers(), 0, "a writer is left in region {}", id.0);
            if record.state() != RegionState::Free {
                let header = self.arena.read_header(id).expect("a region in use has a header");
                assert_eq!(u32::from(header.granule_shift), self.granule_shift);
                self.arena.expiring.for_each(id, |span, bytes| {
                    let found = expiring.remove(&(id.0, span)).unwrap_or(0);
                    assert_eq!(bytes, found, "bytes noted and found in span {span} of region {}", id.0);
                });
            }
        }
        assert!(expiring.is_empty(), "bytes that expire were not noted: {expiring:?}");
        assert_eq!(queued, 0, "regions in queues that are not sealed");
        assert_eq!(self.reserved.bytes(), 0, "bytes of incomplete values are left");
        assert_eq!(self.reserved.regions(), 0, "regions of incomplete values are left");
    }
}

#[inline]
fn check_live(counted: u32, found: u64, id: RegionId) {
    assert_eq!(u64::from(counted), found, "live bytes counted and found in region {}", id.0);
}

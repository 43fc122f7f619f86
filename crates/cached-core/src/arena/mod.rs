//! A contiguous span of memory, divided into regions that change owner as a whole.
//!
//! The arena is mapped once and touched lazily. It is divided into *regions* of the same size, a
//! power of two. A region is free, or belongs to the byte-keyed store (as part of its log) or to
//! the object cache (as 4 KiB buckets). Only whole regions move between the owners, within each
//! owner's share. Everything inside is addressed by index, never by pointer, so the memory can be
//! mapped at another address and remains valid.
//!
//! The content of a region is defined by its owner, not here.

mod expiring;
mod file;
mod memory;
mod region;
mod shares;
mod superblock;

use expiring::Expiring;
pub use file::{ArenaFile, ArenaFileError, RestartProgress};
pub(crate) use file::{HeldFile, MappedFile};
pub use memory::prefetch;
pub(crate) use memory::{Atomics, Memory, Table, prefetch_to_l2};
pub(crate) use region::{Owner, REGION_HEADER_BYTES, Region, RegionHeader, RegionState};
use shares::FreeRegions;
pub use shares::MemoryRange;
#[cfg(all(test, not(any(miri, shuttle))))]
pub(crate) use superblock::test_time;
pub(crate) use superblock::{Identity, Superblock};

use crate::lock_order::Rank;
use crate::stores;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// The index of a region in its arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RegionId(pub(crate) u32);

/// The minimum size of a region. In smaller regions, headers and unused ends would waste too much
/// space.
pub(crate) const REGION_BYTES_MIN: usize = 64 << 10;
/// The maximum size of a region. With larger regions, eviction would be too coarse.
pub(crate) const REGION_BYTES_MAX: usize = 1 << 20;

/// Returns the region size for an arena: a 256th of it, rounded down to a power of two, within the
/// bounds.
///
/// Eviction frees whole regions, and each sealed region wastes its unused end, so a small arena
/// needs small regions. From 256 MiB on, a region has 1 MiB.
pub(crate) fn region_bytes_for(arena_bytes: usize) -> usize {
    let wanted = (arena_bytes / 256).max(1);
    let floor_pow2 = 1usize << (usize::BITS - 1 - wanted.leading_zeros());
    floor_pow2.clamp(REGION_BYTES_MIN, REGION_BYTES_MAX)
}

/// The sizes of an arena and the shares of its owners.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArenaConfig {
    /// The size of the memory, rounded down to whole regions.
    pub(crate) bytes: usize,
    /// A power of two between [`REGION_BYTES_MIN`] and [`REGION_BYTES_MAX`].
    pub(crate) region_bytes: usize,
    /// The number of regions that the byte-keyed store may hold at a time.
    pub(crate) kv_regions_max: u32,
    /// The number of regions that the object cache may hold at a time.
    pub(crate) objects_regions_max: u32,
    /// Whether to ask the kernel for huge pages, on a best-effort basis.
    pub(crate) huge_pages: bool,
}

/// The reason why an arena could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The sizes are inconsistent.
    #[error("arena of {bytes} bytes cannot be cut into regions of {region_bytes}: {why}")]
    Sizes {
        /// The bytes requested.
        bytes: usize,
        /// The size of a region.
        region_bytes: usize,
        /// The violated rule.
        why: &'static str,
    },
    /// The system refused the memory.
    #[error("cannot map {bytes} bytes of memory: {source}")]
    Map {
        /// The bytes requested.
        bytes: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// A leaf lock: no other lock is taken while it is held.
static FREE: Rank = Rank::new("arena: free regions", 55);

/// The memory and the table of its regions.
pub(crate) struct Arena {
    memory: Memory,
    region_bytes: usize,
    region_shift: u32,
    regions: Table<Region>,
    /// The numbers of bytes of each region that expire, by time.
    pub(crate) expiring: Expiring,
    /// The free regions. This is a leaf lock: no other lock is taken while it is held.
    free: Mutex<FreeRegions>,
    /// The number of free regions that the byte-keyed store may take. It can be read without the
    /// lock, but is exact only while the lock is held.
    free_count: AtomicU32,
    next_sequence: AtomicU64,
}

impl Arena {
    /// Maps the memory and divides it. Only the region table is touched.
    ///
    /// # Errors
    /// Returns [`ArenaError`] if the sizes are inconsistent or the system refuses the memory.
    pub(crate) fn new(config: ArenaConfig) -> Result<Arena, ArenaError> {
        Arena::over(config, |count, bytes| {
            Ok((Table::new(count, false)?, Memory::map(bytes, config.huge_pages)?))
        })
    }

    /// Divides memory that may contain the arena of an earlier process, including the table of its
    /// regions. All regions count as taken until [`restore_free`](Arena::restore_free) is called.
    ///
    /// # Errors
    /// Returns the errors of [`Arena::new`].
    pub(crate) fn in_memory_of(
        config: ArenaConfig,
        table: Memory,
        memory: Memory,
    ) -> Result<Arena, ArenaError> {
        let arena = Arena::over(config, |count, _| Ok((Table::over(table, count), memory)))?;
        let mut free = lock(&arena.free);
        free.ids.clear();
        arena.publish_free_count(&free);
        drop(free);
        Ok(arena)
    }

    fn over(
        config: ArenaConfig,
        map: impl FnOnce(usize, usize) -> std::io::Result<(Table<Region>, Memory)>,
    ) -> Result<Arena, ArenaError> {
        let ArenaConfig { bytes, region_bytes, .. } = config;
        let bad = |why| ArenaError::Sizes { bytes, region_bytes, why };
        if !region_bytes.is_power_of_two() {
            return Err(bad("a region's size must be a power of two"));
        }
        if !(REGION_BYTES_MIN..=REGION_BYTES_MAX).contains(&region_bytes) {
            return Err(bad("a region has between 64 KiB and 1 MiB"));
        }
        let count = bytes / region_bytes;
        if count == 0 {
            return Err(bad("at least one region is needed"));
        }
        let count = u32::try_from(count).map_err(|_| bad("too many regions"))?;
        let bytes = count as usize * region_bytes;
        let (regions, memory) =
            map(count as usize, bytes).map_err(|source| ArenaError::Map { bytes, source })?;
        debug_assert!(memory.len() >= bytes);
        let expiring = Expiring::new(count).map_err(|source| ArenaError::Map { bytes, source })?;
        Ok(Arena {
            memory,
            expiring,
            region_bytes,
            region_shift: region_bytes.trailing_zeros(),
            regions,
            // Regions are taken from the back, so that memory is touched from the bottom up.
            free: Mutex::ranked(
                FreeRegions {
                    ids: (0..count).rev().collect(),
                    held: [0; 2],
                    share: [config.kv_regions_max, config.objects_regions_max],
                },
                &FREE,
            ),
            free_count: AtomicU32::new(count.min(config.kv_regions_max)),
            next_sequence: AtomicU64::new(1),
        })
    }

    /// Asks the system not to use huge pages, so that the memory of each region can be released.
    pub(crate) fn keep_pages_small(&self) {
        self.memory.keep_pages_small();
    }

    /// Obtains the memory of a range: see [`Memory::populate`].
    pub(crate) fn populate(&self, offset: usize, len: usize) {
        self.memory.populate(offset, len);
    }

    /// Takes over the region table of an earlier process: the free regions, and the age order of
    /// the others, which are renumbered. `in_use` has all regions that are not free, oldest first.
    pub(crate) fn restore_free(&self, owner: Owner, in_use: &[RegionId]) {
        for (n, id) in in_use.iter().enumerate() {
            self.region(*id).set_sequence(n as u64 + 1);
        }
        self.next_sequence.store(in_use.len() as u64 + 1, Ordering::Release);
        let mut free = lock(&self.free);
        let is_free = |id: &u32| self.regions[*id as usize].state() == RegionState::Free;
        free.ids = (0..self.region_count()).rev().filter(is_free).collect();
        free.held[owner as usize - 1] = in_use.len() as u32;
        self.publish_free_count(&free);
    }

    /// Returns the records of all regions.
    pub(crate) fn table(&self) -> &[Region] {
        &self.regions
    }

    /// Returns the CRC-32 of a region's allocated bytes. No other thread may write to it.
    pub(crate) fn crc_of(&self, id: RegionId) -> u32 {
        let bytes = (self.region(id).used_bytes() as usize).min(self.region_bytes);
        // SAFETY: the range lies inside the region, and no thread writes to it during the call.
        crc32fast::hash(unsafe { std::slice::from_raw_parts(self.at(self.offset_of(id, 0)), bytes) })
    }

    /// Returns the size of a region in bytes.
    pub(crate) fn region_bytes(&self) -> usize {
        self.region_bytes
    }

    /// Returns the number of regions.
    pub(crate) fn region_count(&self) -> u32 {
        self.regions.len() as u32
    }

    /// Returns the size of the arena in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.regions.len() * self.region_bytes
    }

    /// Returns the memory use of the table of regions and the expiry histograms beside the arena,
    /// in bytes.
    pub(crate) fn table_bytes(&self) -> usize {
        self.regions.len() * size_of::<Region>() + self.expiring.bytes()
    }

    /// Returns the number of regions that [`Owner::Kv`] could still take; an estimate.
    pub(crate) fn kv_available(&self) -> u32 {
        self.free_count.load(Ordering::Relaxed)
    }

    /// Returns the sequence number of the next region taken.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.next_sequence.load(Ordering::Acquire)
    }

    /// Assigns a sequence number at the young end of the age order to a region that is requeued.
    pub(crate) fn take_sequence(&self) -> u64 {
        self.next_sequence.fetch_add(1, Ordering::AcqRel)
    }

    /// Takes a free region within the owner's share, if at least `keep` remain free. The region is
    /// *active* and empty.
    pub(crate) fn take(&self, owner: Owner, keep: u32) -> Option<RegionId> {
        let mut free = lock(&self.free);
        if free.available(owner) <= keep {
            return None;
        }
        let id = free.ids.pop_back()?;
        free.held[owner as usize - 1] += 1;
        self.publish_free_count(&free);
        drop(free);
        let sequence = self.next_sequence.fetch_add(1, Ordering::AcqRel);
        self.regions[id as usize].open(owner, sequence);
        Some(RegionId(id))
    }

    /// Frees a region now or, if it is pinned, when its last pin is dropped.
    ///
    /// The caller owns the region, and only existing pins refer to its content.
    pub(crate) fn release(&self, id: RegionId) {
        if self.region(id).pins.drain() {
            self.put_back(id);
        }
    }

    /// Removes one pin.
    pub(crate) fn unpin(&self, id: RegionId) {
        if self.region(id).pins.unpin() {
            self.put_back(id);
        }
    }

    fn put_back(&self, id: RegionId) {
        let owner = self.region(id).close();
        let mut free = lock(&self.free);
        free.held[owner as usize - 1] -= 1;
        free.ids.push_back(id.0);
        self.publish_free_count(&free);
    }

    fn publish_free_count(&self, free: &FreeRegions) {
        self.free_count.store(free.available(Owner::Kv), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn region(&self, id: RegionId) -> &Region {
        &self.regions[id.0 as usize]
    }

    /// Records that a newly taken region is being filled from `now` on.
    pub(crate) fn begin(&self, id: RegionId, now: u32) {
        self.region(id).set_opened_at(now);
        self.expiring.begin(id, now);
    }

    /// Returns the region that contains the byte at `offset` of the arena.
    #[inline]
    pub(crate) fn region_of(&self, offset: usize) -> RegionId {
        RegionId((offset >> self.region_shift) as u32)
    }

    /// Returns the offset in the arena of a byte of a region.
    #[inline]
    pub(crate) fn offset_of(&self, id: RegionId, within: u32) -> usize {
        ((id.0 as usize) << self.region_shift) + within as usize
    }

    /// Returns a pointer to the byte at `offset`, which must lie inside the arena.
    #[inline]
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.memory.len());
        // SAFETY: `offset` is below the mapping's length (checked in debug builds; every offset comes
        // from `offset_of` on a region of this arena), so the pointer stays inside one allocation.
        unsafe { self.memory.base().add(offset) }
    }

    /// Writes a region's header at its start. The caller has just taken the region.
    pub(crate) fn write_header(&self, id: RegionId, header: &RegionHeader) {
        let bytes = header.encode();
        let to = self.at(self.offset_of(id, 0));
        // SAFETY: the region is active and owned by the caller, entries start after the header, and
        // a region is larger than its header; no other thread writes or reads these bytes.
        unsafe { stores::copy(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Reads a region's header; `None` if the bytes are not a header of this version.
    pub(crate) fn read_header(&self, id: RegionId) -> Option<RegionHeader> {
        let mut bytes = [0u8; REGION_HEADER_BYTES];
        let from = self.at(self.offset_of(id, 0));
        // SAFETY: the header lies inside the region; it is written only right after `take`, before
        // another thread knows of the region.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        RegionHeader::decode(&bytes)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn arena(regions: u32, kv: u32, objects: u32) -> Arena {
        Arena::new(ArenaConfig {
            bytes: regions as usize * REGION_BYTES_MIN,
            region_bytes: REGION_BYTES_MIN,
            kv_regions_max: kv,
            objects_regions_max: objects,
            huge_pages: false,
        })
        .unwrap()
    }

    #[test]
    fn an_owner_takes_no_more_than_its_share() {
        let arena = arena(4, 3, 2);
        let kv: Vec<_> = std::iter::from_fn(|| arena.take(Owner::Kv, 0)).collect();
        assert_eq!(kv.len(), 3, "the kv share is 3 of 4");
        assert!(arena.take(Owner::Objects, 0).is_some());
        assert!(arena.take(Owner::Objects, 0).is_none(), "no region is left at all");
        arena.release(kv[0]);
        assert!(arena.take(Owner::Objects, 0).is_some());
        assert!(arena.take(Owner::Objects, 0).is_none());
    }

    #[test]
    fn a_pinned_region_is_freed_with_its_last_pin() {
        let arena = arena(1, 1, 0);
        let id = arena.take(Owner::Kv, 0).unwrap();
        arena.region(id).pins.pin();
        arena.region(id).pins.pin();
        arena.release(id);
        assert!(arena.take(Owner::Kv, 0).is_none());
        arena.unpin(id);
        assert!(arena.take(Owner::Kv, 0).is_none());
        arena.unpin(id);
        assert_eq!(arena.take(Owner::Kv, 0), Some(id));
    }

    #[test]
    fn a_reserve_is_left_to_others() {
        let arena = arena(3, 3, 0);
        assert!(arena.take(Owner::Kv, 2).is_some());
        assert!(arena.take(Owner::Kv, 2).is_none());
        assert!(arena.take(Owner::Kv, 0).is_some());
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let bad = |bytes, region_bytes| {
            Arena::new(ArenaConfig {
                bytes,
                region_bytes,
                kv_regions_max: 1,
                objects_regions_max: 0,
                huge_pages: false,
            })
            .is_err()
        };
        assert!(bad(1 << 20, 100_000));
        assert!(bad(1 << 20, 4096));
        assert!(bad(1000, REGION_BYTES_MIN));
    }

    #[test]
    fn the_region_size_depends_on_the_arena() {
        assert_eq!(region_bytes_for(1 << 20), 64 << 10);
        assert_eq!(region_bytes_for(64 << 20), 256 << 10);
        assert_eq!(region_bytes_for(100 << 20), 256 << 10);
        assert_eq!(region_bytes_for(1 << 30), 1 << 20);
        assert_eq!(region_bytes_for(1 << 40), 1 << 20);
    }
}

//! One span of memory, cut into regions that change hands whole.
//!
//! The arena is mapped once and touched lazily. It is cut into *regions* of equal, power-of-two
//! size. A region belongs to nobody, to the byte-keyed store (a log segment) or to the object cache
//! (4 KiB buckets); only whole regions move between them, within each owner's share. Inside, everything is named
//! by index, never by pointer, so that the memory could be mapped elsewhere and still make sense.
//!
//! What this module leaves out: what the bytes of a region mean. That is the owner's business.

mod expiring;
mod memory;
mod pins;
mod region;

pub(crate) use expiring::Expired;
use expiring::Expiring;
pub(crate) use memory::Memory;
pub use region::{REGION_HEADER_BYTES, RegionHeader, RegionHeaderError};
pub(crate) use region::{Region, RegionState};

use crate::clock::Expiry;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock};
use lock_order::Rank;

/// The index of a region in its arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub(crate) u32);

/// Who may use a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Owner {
    /// The byte-keyed store.
    Kv = 1,
    /// The object cache's buckets.
    Objects = 2,
}

/// The smallest and largest region: below, headers and tails waste too much; above, eviction is too coarse.
pub const REGION_BYTES_MIN: usize = 64 << 10;
/// See [`REGION_BYTES_MIN`].
pub const REGION_BYTES_MAX: usize = 1 << 20;

/// Picks the region size for an arena: a 256th of it, within the bounds, a power of two.
///
/// Eviction and the tail that a sealed region wastes both come in regions, so a small arena wants
/// small ones; at 256 MiB and above a region has its full 1 MiB.
pub fn region_bytes_for(arena_bytes: usize) -> usize {
    let wanted = (arena_bytes / 256).max(1);
    let floor_pow2 = 1usize << (usize::BITS - 1 - wanted.leading_zeros());
    floor_pow2.clamp(REGION_BYTES_MIN, REGION_BYTES_MAX)
}

/// How an arena is cut and shared.
#[derive(Debug, Clone, Copy)]
pub struct ArenaConfig {
    /// All the memory, rounded down to whole regions.
    pub bytes: usize,
    /// A power of two between [`REGION_BYTES_MIN`] and [`REGION_BYTES_MAX`].
    pub region_bytes: usize,
    /// How many regions the byte-keyed store may hold at once.
    pub kv_regions_max: u32,
    /// How many regions the object cache may hold at once.
    pub objects_regions_max: u32,
    /// Ask the kernel for huge pages (best effort).
    pub huge_pages: bool,
}

/// The arena could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The sizes do not fit each other.
    #[error("arena of {bytes} bytes cannot be cut into regions of {region_bytes}: {why}")]
    Sizes {
        /// What was asked for.
        bytes: usize,
        /// What it was to be cut into.
        region_bytes: usize,
        /// The rule it broke.
        why: &'static str,
    },
    /// The system refused the memory.
    #[error("cannot map {bytes} bytes of memory: {source}")]
    Map {
        /// What was asked for.
        bytes: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// A leaf: nothing is taken while it is held.
static FREE: Rank = Rank::new("arena: free regions", 55);

/// The memory and the table of its regions.
pub struct Arena {
    memory: Memory,
    region_bytes: usize,
    region_shift: u32,
    regions: Box<[Region]>,
    expiring: Expiring,
    /// Regions that belong to nobody. A leaf lock: nothing is taken while it is held.
    free: Mutex<FreeRegions>,
    /// `free.ids.len()`, readable without the lock; a hint, exact only under it.
    free_count: AtomicU32,
    next_sequence: AtomicU64,
}

struct FreeRegions {
    ids: Vec<u32>,
    /// Regions held per owner, and each owner's share, indexed by `Owner as usize - 1`.
    held: [u32; 2],
    share: [u32; 2],
}

impl Arena {
    /// Maps the memory and cuts it. Nothing is touched yet but the region table.
    ///
    /// # Errors
    /// [`ArenaError`] when the sizes do not fit or the system refuses the memory.
    pub fn new(config: ArenaConfig) -> Result<Arena, ArenaError> {
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
        let memory =
            Memory::map(bytes, config.huge_pages).map_err(|source| ArenaError::Map { bytes, source })?;
        let expiring = Expiring::new(count).map_err(|source| ArenaError::Map { bytes, source })?;
        Ok(Arena {
            memory,
            expiring,
            region_bytes,
            region_shift: region_bytes.trailing_zeros(),
            regions: (0..count).map(|_| Region::new()).collect(),
            // Popped from the end, so that memory is touched from the bottom up.
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

    /// Bytes of one region.
    pub fn region_bytes(&self) -> usize {
        self.region_bytes
    }

    /// Number of regions.
    pub fn region_count(&self) -> u32 {
        self.regions.len() as u32
    }

    /// Bytes of the whole arena.
    pub fn bytes(&self) -> usize {
        self.regions.len() * self.region_bytes
    }

    /// Regions that `Owner::Kv` could still take; a hint.
    pub(crate) fn kv_available(&self) -> u32 {
        self.free_count.load(Ordering::Relaxed)
    }

    /// The sequence number that the next region taken will get.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.next_sequence.load(Ordering::Acquire)
    }

    /// A new place at the young end of the age order, for a region that goes round once more.
    pub(crate) fn take_sequence(&self) -> u64 {
        self.next_sequence.fetch_add(1, Ordering::AcqRel)
    }

    /// Takes a region within the owner's share, leaving at least `keep` for others; it comes *active* and empty.
    pub(crate) fn take(&self, owner: Owner, keep: u32) -> Option<RegionId> {
        let mut free = lock(&self.free);
        let slot = owner as usize - 1;
        let available = (free.ids.len() as u32).min(free.share[slot] - free.held[slot].min(free.share[slot]));
        if available <= keep {
            return None;
        }
        let id = free.ids.pop()?;
        free.held[slot] += 1;
        self.publish_free_count(&free);
        drop(free);
        let sequence = self.next_sequence.fetch_add(1, Ordering::AcqRel);
        self.regions[id as usize].open(owner, sequence);
        Some(RegionId(id))
    }

    /// Gives a region back once nobody reads it any more: at once, or when its last pin goes.
    ///
    /// The caller owns the region, and nothing refers to its content but pins taken earlier.
    pub(crate) fn release(&self, id: RegionId) {
        if self.region(id).drain() {
            self.put_back(id);
        }
    }

    /// Drops one pin.
    pub(crate) fn unpin(&self, id: RegionId) {
        if self.region(id).unpin() {
            self.put_back(id);
        }
    }

    fn put_back(&self, id: RegionId) {
        let owner = self.region(id).close();
        let mut free = lock(&self.free);
        free.held[owner as usize - 1] -= 1;
        free.ids.push(id.0);
        self.publish_free_count(&free);
    }

    fn publish_free_count(&self, free: &FreeRegions) {
        let kv_room = free.share[0].saturating_sub(free.held[0]);
        self.free_count.store((free.ids.len() as u32).min(kv_room), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn region(&self, id: RegionId) -> &Region {
        &self.regions[id.0 as usize]
    }

    /// A region just taken begins to be filled.
    pub(crate) fn begin(&self, id: RegionId, now: u32) {
        self.region(id).set_opened_at(now);
        self.expiring.begin(id.0, now);
    }

    /// Bytes of this expiry have come into a region.
    pub(crate) fn note_expiry(&self, id: RegionId, bytes: u32, expiry: Expiry) {
        self.expiring.note(id.0, bytes, expiry);
    }

    /// Bytes of this expiry have died in a region, or moved away.
    pub(crate) fn forget_expiry(&self, id: RegionId, bytes: u32, expiry: Expiry) {
        self.expiring.forget(id.0, bytes, expiry);
    }

    /// A walk begins that shows every live entry of a region to [`expiry_seen`](Arena::expiry_seen), so that what it finds
    /// to expire first is known anew.
    pub(crate) fn begin_expiry_walk(&self, id: RegionId) {
        self.expiring.begin_walk(id.0);
    }

    pub(crate) fn expiry_seen(&self, id: RegionId, expiry: Expiry) {
        self.expiring.seen(id.0, expiry);
    }

    /// Bytes of live entries of a region whose time is over.
    pub(crate) fn expired(&self, id: RegionId, now: u32) -> Expired {
        self.expiring.expired(id.0, now)
    }

    /// Calls `each` with every span of a region's notes and its bytes.
    #[cfg(any(test, feature = "validate"))]
    pub(crate) fn for_each_expiring(&self, id: RegionId, each: impl FnMut(usize, u32)) {
        self.expiring.for_each(id.0, each);
    }

    /// The span of a region's notes in which this expiry stands.
    #[cfg(any(test, feature = "validate"))]
    pub(crate) fn expiry_span(&self, id: RegionId, expiry: Expiry) -> usize {
        self.expiring.span_in(id.0, expiry)
    }

    /// The region that holds the byte at `offset` of the arena.
    #[inline]
    pub(crate) fn region_of(&self, offset: usize) -> RegionId {
        RegionId((offset >> self.region_shift) as u32)
    }

    /// The offset in the arena of a byte of a region.
    #[inline]
    pub(crate) fn offset_of(&self, id: RegionId, within: u32) -> usize {
        ((id.0 as usize) << self.region_shift) + within as usize
    }

    /// A pointer to the byte at `offset`, which must lie inside the arena.
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
        // a region is larger than its header; nobody else writes or reads these bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Reads and checks a region's header.
    ///
    /// # Errors
    /// [`RegionHeaderError`] when the bytes are not a header of this version.
    pub fn read_header(&self, id: RegionId) -> Result<RegionHeader, RegionHeaderError> {
        let mut bytes = [0u8; REGION_HEADER_BYTES];
        let from = self.at(self.offset_of(id, 0));
        // SAFETY: the header lies inside the region; it is written only right after `take`, before
        // the id becomes known to anybody else.
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
    fn shares_hold() {
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
    fn a_pinned_region_comes_back_when_its_last_pin_goes() {
        let arena = arena(1, 1, 0);
        let id = arena.take(Owner::Kv, 0).unwrap();
        arena.region(id).pin();
        arena.region(id).pin();
        arena.release(id);
        assert!(arena.take(Owner::Kv, 0).is_none());
        arena.unpin(id);
        assert!(arena.take(Owner::Kv, 0).is_none());
        arena.unpin(id);
        assert_eq!(arena.take(Owner::Kv, 0), Some(id));
    }

    #[test]
    fn a_reserve_is_kept() {
        let arena = arena(3, 3, 0);
        assert!(arena.take(Owner::Kv, 2).is_some());
        assert!(arena.take(Owner::Kv, 2).is_none());
        assert!(arena.take(Owner::Kv, 0).is_some());
    }

    #[test]
    fn sizes_are_checked() {
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
    fn region_size_follows_the_arena() {
        assert_eq!(region_bytes_for(1 << 20), 64 << 10);
        assert_eq!(region_bytes_for(64 << 20), 256 << 10);
        assert_eq!(region_bytes_for(100 << 20), 256 << 10);
        assert_eq!(region_bytes_for(1 << 30), 1 << 20);
        assert_eq!(region_bytes_for(1 << 40), 1 << 20);
    }
}

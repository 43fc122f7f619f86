//! The free regions, and the number that each owner may hold. A share can change at run time.

use super::{Arena, Owner, RegionId};
use crate::ensure;
use crate::sync::lock;
use std::collections::VecDeque;

/// The range in which a cache's memory can be changed at run time, in bytes: one half of a memory
/// that a byte-keyed store and an object cache share ([`arbiter`](crate::arbiter)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRange {
    /// The minimum.
    pub bytes_min: u64,
    /// The maximum, for which address space is reserved.
    pub bytes_max: u64,
}

impl MemoryRange {
    /// The maximum ratio of `bytes_max` to `bytes_min`. The policy's records are sized by the
    /// former, and are part of both.
    pub const RATIO_MAX: u64 = 32;

    /// Checks the range of a memory whose initial size, the setting `key`, is `bytes`.
    ///
    /// # Errors
    /// Returns the rule that is violated.
    pub(crate) fn check(&self, key: &str, bytes: u64, bytes_min: u64) -> Result<(), String> {
        let Self { bytes_min: least, bytes_max: most } = *self;
        ensure(least >= bytes_min, || format!("its minimum must be at least {bytes_min}"))?;
        ensure((least..=most).contains(&bytes), || format!("{key} must be within it"))?;
        ensure(most / Self::RATIO_MAX <= least, || {
            format!("its maximum must be at most {} times its minimum", Self::RATIO_MAX)
        })
    }
}

pub(super) struct FreeRegions {
    /// Regions that were in use are at the back, and are taken first. Regions at the front have no
    /// memory, because they were never touched or have been released. There are always at least as
    /// many as no owner may take, so memory in use never exceeds the shares.
    pub(super) ids: VecDeque<u32>,
    /// The regions held per owner and each owner's share, indexed by `Owner as usize - 1`.
    pub(super) held: [u32; 2],
    pub(super) share: [u32; 2],
}

impl FreeRegions {
    /// Returns how many regions an owner may still take.
    pub(super) fn available(&self, owner: Owner) -> u32 {
        let slot = owner as usize - 1;
        (self.ids.len() as u32).min(self.share[slot].saturating_sub(self.held[slot]))
    }
}

impl Arena {
    /// Lowers an owner's share by one region, if the owner can still take `keep` regions
    /// afterwards, and returns the region's memory to the system. Returns whether it did. Memory in
    /// a file must not be released this way.
    ///
    /// # Errors
    /// Fails if the system refuses the memory; the share then stays unchanged.
    pub(crate) fn release_memory(&self, owner: Owner, keep: u32) -> std::io::Result<bool> {
        let mut free = lock(&self.free);
        if free.available(owner) <= keep {
            return Ok(false);
        }
        let Some(id) = free.ids.pop_back() else { return Ok(false) };
        free.share[owner as usize - 1] -= 1;
        self.publish_free_count(&free);
        drop(free);
        // SAFETY: the region was free and is in no list: no thread knows of it.
        let given = unsafe { self.memory.discard(self.offset_of(RegionId(id), 0), self.region_bytes) };
        let mut free = lock(&self.free);
        match given {
            Ok(()) => free.ids.push_front(id),
            Err(_) => {
                free.ids.push_back(id);
                free.share[owner as usize - 1] += 1;
                self.publish_free_count(&free);
            }
        }
        given.map(|()| true)
    }

    /// Returns bytes of the arena to the system; they are zero when used again.
    ///
    /// # Errors
    /// Fails if the system refuses; the bytes may then keep their content.
    ///
    /// # Safety
    /// The caller owns the bytes, whole pages of anonymous memory, and no thread refers to any of
    /// them.
    pub(crate) unsafe fn discard(&self, offset: usize, len: usize) -> std::io::Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.memory.discard(offset, len) }
    }

    /// Raises an owner's share by one region, unless it has all regions already. Returns whether
    /// the share has changed.
    pub(crate) fn add_to_share(&self, owner: Owner) -> bool {
        let mut free = lock(&self.free);
        let share = &mut free.share[owner as usize - 1];
        if *share >= self.region_count() {
            return false;
        }
        *share += 1;
        self.publish_free_count(&free);
        true
    }

    /// Returns the number of regions that an owner may hold.
    pub(crate) fn share(&self, owner: Owner) -> u32 {
        lock(&self.free).share[owner as usize - 1]
    }

    /// Checks that every region is either free or held, and that no owner holds more than its
    /// share. No other thread may use the arena.
    ///
    /// # Panics
    /// Panics if a check fails.
    #[inline]
    pub(crate) fn validate(&self) {
        let free = lock(&self.free);
        let held: u32 = free.held.iter().sum();
        assert_eq!(free.ids.len() as u32 + held, self.region_count(), "a region is neither free nor held");
        for (held, share) in free.held.iter().zip(&free.share) {
            assert!(held <= share, "{held} regions are held, the share is {share}");
        }
        assert_eq!(self.kv_available(), free.available(Owner::Kv), "free regions counted");
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::arena::{ArenaConfig, REGION_BYTES_MIN};

    #[test]
    fn regions_given_up_have_no_memory_and_come_back_zero() {
        let arena = Arena::new(ArenaConfig {
            bytes: 4 * REGION_BYTES_MIN,
            region_bytes: REGION_BYTES_MIN,
            kv_regions_max: 3,
            objects_regions_max: 0,
            huge_pages: false,
        })
        .unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| arena.take(Owner::Kv, 0)).collect();
        for id in &taken {
            // SAFETY: the region has just been taken, so no other thread uses it.
            unsafe { arena.at(arena.offset_of(*id, 0)).write_bytes(7, REGION_BYTES_MIN) };
        }
        assert!(!arena.release_memory(Owner::Kv, 0).unwrap(), "none is free");
        arena.release(taken[0]);
        arena.release(taken[1]);
        assert!(!arena.release_memory(Owner::Kv, 2).unwrap(), "two are to be kept");
        assert!(arena.release_memory(Owner::Kv, 1).unwrap());
        arena.validate();
        assert_eq!((arena.share(Owner::Kv), arena.kv_available()), (2, 1));
        let bytes_of = |id: RegionId| {
            // SAFETY: no thread uses the region.
            unsafe { std::slice::from_raw_parts(arena.at(arena.offset_of(id, 0)), REGION_BYTES_MIN) }
        };
        assert_eq!([taken[0], taken[1]].map(|id| bytes_of(id)[9]), [7, 0], "the one freed last has gone");
        assert!(arena.add_to_share(Owner::Kv) && arena.add_to_share(Owner::Kv));
        assert!(!arena.add_to_share(Owner::Kv), "all regions are its own");
        assert_eq!(arena.take(Owner::Kv, 0), Some(taken[0]), "one that has memory goes first");
        assert_eq!(std::iter::from_fn(|| arena.take(Owner::Kv, 0)).count(), 2);
        arena.validate();
    }
}

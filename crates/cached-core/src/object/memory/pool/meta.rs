//! The metadata of buckets.

use crate::arena::Atomics;
use crate::sync::{AtomicU8, AtomicU16, AtomicU32, Ordering};

/// A value of `owner`: the bucket belongs to a receive buffer or payload that no write has taken
/// over yet.
pub(super) const RECEIVING: u32 = u32::MAX;

/// The metadata of a bucket. All zeros: the bucket was never used.
#[derive(Default)]
pub(crate) struct Meta {
    /// The object, plus one, whose clean or dirty slot owns this bucket; 0 if there is none.
    pub(super) owner: AtomicU32,
    /// The neighbours in an eviction queue, plus one each; `next` also links free buckets.
    pub(in crate::object) next: AtomicU32,
    pub(in crate::object) prev: AtomicU32,
    /// The number of the owner's slot.
    pub(super) slot: AtomicU16,
    /// The number of slots, segments and flushes that refer to the bucket.
    pub(super) refs: AtomicU16,
    /// The sectors with valid bytes, and the sectors that are newer than the store.
    pub(super) valid: AtomicU8,
    pub(super) dirty: AtomicU8,
    /// The policy's bits (the lowest three) and flags: see `memory/queue.rs`.
    pub(in crate::object) bits: AtomicU8,
    /// Whether the bucket is in a queue, and in which one: see `memory/queue.rs`. Protected by the
    /// queue's lock.
    pub(in crate::object) place: AtomicU8,
}

#[cfg(not(shuttle))]
const _: () = assert!(size_of::<Meta>() == 20);

impl Meta {
    /// Returns the object and the slot that own the bucket.
    pub(crate) fn owner(&self) -> Option<(u32, u32)> {
        let owner = self.owner.load(Ordering::Relaxed);
        let owner = if owner == RECEIVING { return None } else { owner.checked_sub(1)? };
        Some((owner, u32::from(self.slot.load(Ordering::Relaxed))))
    }

    pub(crate) fn set_owner(&self, owner: Option<(u32, u32)>) {
        let (object, slot) = owner.map_or((0, 0), |(object, slot)| (object + 1, slot));
        // A slot's number is below 2^16, because of `OBJECT_BYTES_LIMIT`.
        self.slot.store(slot as u16, Ordering::Relaxed);
        self.owner.store(object, Ordering::Relaxed);
    }

    /// Returns whether the bucket belongs to a receive buffer or payload that no write has taken
    /// over yet.
    pub(crate) fn is_receiving(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == RECEIVING
    }

    pub(crate) fn valid(&self) -> u8 {
        self.valid.load(Ordering::Relaxed)
    }
    pub(crate) fn set_valid(&self, mask: u8) {
        self.valid.store(mask, Ordering::Relaxed);
    }
    pub(crate) fn dirty(&self) -> u8 {
        self.dirty.load(Ordering::Relaxed)
    }
    pub(crate) fn set_dirty(&self, mask: u8) {
        self.dirty.store(mask, Ordering::Relaxed);
    }
    /// Returns whether the bucket has flags besides the policy's bits.
    pub(crate) fn is_flagged(&self) -> bool {
        self.bits.load(Ordering::Relaxed) > 7
    }
    /// Returns whether the bucket has any of `flags`.
    pub(crate) fn has_flags(&self, flags: u8) -> bool {
        self.bits.load(Ordering::Relaxed) & flags != 0
    }
    /// Clears `flags`; returns all flags that the bucket had before.
    pub(crate) fn take_flags(&self, flags: u8) -> u8 {
        self.bits.fetch_and(!flags, Ordering::Relaxed) & !7
    }
    pub(crate) fn refs(&self) -> u16 {
        self.refs.load(Ordering::Acquire)
    }
}

// SAFETY: the metadata consist of atomic integers alone.
unsafe impl Atomics for Meta {}

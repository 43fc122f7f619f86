//! The index: a table from a key's hash to the location of its item.
//!
//! It is sharded by the hash's top bits. Each shard is a linear-hashing table of hash buckets, each
//! one cache line long, that grows by one hash bucket at a time (Litwin, *Linear Hashing*, VLDB
//! 1980). No operation waits for a rehash, and the load factor is the same at every size, about 8
//! bytes per item. Every hash bucket has its own lock in its line, and a look-up writes to no other
//! line.
//!
//! The table's address space is reserved at creation for the maximum number of items that the arena
//! can hold, and touched as the table grows, so hash buckets never move.

mod bucket;
mod guard;
mod shard;
#[cfg(test)]
mod tests;

pub(crate) use guard::{BucketGuard, BucketHint, BucketLock, BucketRef, Slot};
pub(crate) use shard::Shard;

use crate::KeyHash;
use crate::arena::Superblock;
use crate::sync::Arc;

/// The most bits of the hash that choose the shard.
const SHARD_BITS_MAX: u32 = crate::hash::SHARD_BITS;
/// The index of a store.
pub(crate) struct Index {
    /// A power of two many.
    shards: Box<[Shard]>,
    /// The number of shards minus one.
    shard_mask: usize,
    bytes_max: usize,
}

impl Index {
    /// Creates an index with space for at least `items_max` items.
    pub(crate) fn new(items_max: u64) -> std::io::Result<Index> {
        // With some thousands of items per shard, the shards' sizes differ little.
        let shard_bits = (items_max / 4096).max(1).ilog2().min(SHARD_BITS_MAX);
        let shards = 1u64 << shard_bits;
        // Shards fill unevenly, so four standard deviations are added, and a minimum for tiny
        // shards.
        let mean = items_max.div_ceil(shards);
        let per_shard = mean + 4 * mean.isqrt() + 64;
        let shard = |number| Shard::new(per_shard, number, shards);
        let shards: Box<[Shard]> = (0..shards).map(shard).collect::<Result<_, _>>()?;
        let bytes_max = shards.iter().map(Shard::bytes_max).sum();
        Ok(Index { shard_mask: shards.len() - 1, shards, bytes_max })
    }

    /// Ensures that no CAS value is used twice, even across processes that use the same memory.
    /// This must be called before the index is used.
    pub(crate) fn persist_cas(&mut self, superblock: &Arc<Superblock>) {
        self.shards.iter_mut().for_each(|shard| shard.persist_cas(superblock));
    }

    /// Returns the lowest number above every CAS value used so far.
    pub(crate) fn cas_ahead(&self) -> u64 {
        self.shards.iter().map(Shard::cas_ahead).max().unwrap_or(0)
    }

    /// Creates hash buckets for this many items in an empty index, so that it need not grow step by
    /// step.
    pub(crate) fn reserve(&self, items: u64) {
        let per_shard = items / self.shards.len() as u64;
        self.shards.iter().for_each(|shard| shard.reserve(per_shard));
    }

    #[inline]
    pub(crate) fn shard(&self, hash: KeyHash) -> &Shard {
        // SAFETY: there is one shard at least, and the mask is the number of the last.
        unsafe { self.shards.get_unchecked(hash.shard_bits() & self.shard_mask) }
    }

    /// Returns the number of the shard to which a hash belongs.
    pub(crate) fn shard_number(&self, hash: KeyHash) -> usize {
        hash.shard_bits() & self.shard_mask
    }

    pub(crate) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Returns the number of items ever stored, and the present number of items.
    pub(crate) fn stored_and_items(&self) -> (u64, u64) {
        self.shards
            .iter()
            .fold((0, 0), |(stored, items), shard| (stored + shard.stored(), items + shard.items()))
    }

    /// Returns the maximum size of the index, in bytes.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Returns the number of bytes in use.
    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(Shard::bytes).sum()
    }
}

//! The hash index: from a key's hash to where its item lies.
//!
//! Sharded by the hash's top bits; each shard is a linear-hashing table of cache-line buckets that
//! grows one bucket at a time (Litwin, *Linear Hashing*, VLDB 1980), so there is never a rehash to
//! wait for and the fill stays the same at every size: about 8 bytes an item. Every bucket has its
//! own lock in its own line, and a lookup writes no other line.
//!
//! The table's address space is reserved at start for the most items the arena can hold, and
//! touched as it grows: buckets never move.

mod bucket;
mod shard;
#[cfg(all(test, not(shuttle)))]
mod tests;

pub(crate) use shard::{BucketGuard, BucketHint, BucketLock, BucketRef, Shard, Slot};

use crate::KeyHash;

/// Bits of the hash that choose the shard, at most.
const SHARD_BITS_MAX: u32 = crate::hash::SHARD_BITS;
/// Items per bucket the shards grow towards. At 10 the index takes 7.7–8.3 bytes an item and a
/// lookup touches 1.25 lines on average (12 slots a line; the unevenness of linear hashing included).
pub(crate) const ITEMS_PER_BUCKET: u64 = 10;

/// All shards.
pub(crate) struct Index {
    /// As many as a power of two.
    shards: Box<[Shard]>,
    /// Their number less one.
    shard_mask: usize,
    bytes_max: usize,
}

impl Index {
    /// An index with room for `items_max` items at least.
    pub(crate) fn new(items_max: u64) -> std::io::Result<Index> {
        // A shard wants some thousands of items before the unevenness between shards becomes small.
        let shard_bits = (items_max / 4096).max(1).ilog2().min(SHARD_BITS_MAX);
        let shards = 1u64 << shard_bits;
        // Shards fill unevenly: four standard deviations, and a floor for tiny ones.
        let mean = items_max.div_ceil(shards);
        let per_shard = mean + 4 * mean.isqrt() + 64;
        let shard = |number| Shard::new(per_shard, number, shards);
        let shards: Box<[Shard]> = (0..shards).map(shard).collect::<Result<_, _>>()?;
        let bytes_max = shards.iter().map(Shard::bytes_max).sum();
        Ok(Index { shard_mask: shards.len() - 1, shards, bytes_max })
    }

    #[inline]
    pub(crate) fn shard(&self, hash: KeyHash) -> &Shard {
        // SAFETY: there is one shard at least, and the mask is the number of the last.
        unsafe { self.shards.get_unchecked(hash.shard_bits() & self.shard_mask) }
    }

    pub(crate) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Items ever stored, and items there.
    pub(crate) fn stored_and_items(&self) -> (u64, u64) {
        self.shards
            .iter()
            .fold((0, 0), |(stored, items), shard| (stored + shard.stored(), items + shard.items()))
    }

    /// The most memory the index can ever take.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Memory in use now, to the bucket.
    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(Shard::bytes).sum()
    }
}

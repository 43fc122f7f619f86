//! Space held by values that have not arrived completely, and its limits.
//!
//! A region cannot be reclaimed while the rest of a value that lies in it is awaited, for as long as the
//! sender takes. So the bytes that reservations hold and the regions in which they lie are limited.

use crate::arena::Region;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Counts of what reservations hold, and their limits.
pub(in crate::kv) struct Reserved {
    bytes: AtomicU64,
    bytes_max: u64,
    regions: AtomicU32,
    regions_max: u32,
}

impl Reserved {
    pub(super) fn new(bytes_max: u64, regions_max: u32) -> Reserved {
        Reserved { bytes: AtomicU64::new(0), bytes_max, regions: AtomicU32::new(0), regions_max }
    }

    pub(in crate::kv) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(in crate::kv) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    pub(in crate::kv) fn regions(&self) -> u32 {
        self.regions.load(Ordering::Relaxed)
    }

    pub(in crate::kv) fn regions_max(&self) -> u32 {
        self.regions_max
    }

    /// Counts bytes; returns whether all that is counted is within the limit. They are counted in any case.
    pub(in crate::kv) fn add_bytes(&self, bytes: u64) -> bool {
        self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.bytes_max
    }

    pub(in crate::kv) fn remove_bytes(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts a region in which a reservation lies, once for all of them. Returns false, and counts nothing,
    /// if there would be more than `regions_max` such regions.
    pub(super) fn hold(&self, region: &Region, regions_max: u32) -> bool {
        if !region.begin_arrival() || self.regions.fetch_add(1, Ordering::Relaxed) < regions_max {
            return true;
        }
        self.release(region);
        false
    }

    /// Takes back one [`hold`](Reserved::hold).
    pub(super) fn release(&self, region: &Region) {
        if region.end_arrival() {
            self.regions.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

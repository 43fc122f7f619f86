//! What a backend can do. It must tell the truth: the conformance suite holds it to every word.

use crate::order::Durability;

/// The unit of atomicity every backend owes, and the natural size of a cache's bucket, in bytes.
pub const BUCKET_BYTES: u64 = 4096;

/// The largest object unless configured otherwise, in bytes.
pub const OBJECT_BYTES_MAX_DEFAULT: u64 = 4 * 1024 * 1024;

/// What still has the data that a backend calls *stored*.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Survives {
    /// Nothing: it lives in this process's memory.
    Nothing,
    /// The end of the process, by any signal.
    ProcessKill,
    /// Loss of power.
    PowerLoss,
}

/// What a backend does natively, atomically, durably, and up to which size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// The largest object.
    pub object_bytes_max: u64,
    /// The largest range or payload of one request; at least [`BUCKET_BYTES`].
    pub request_bytes_max: u64,
    /// The largest `expected` of a compare-and-write; 0 if there is no compare-and-write.
    pub compare_bytes_max: u64,
    /// The most runs of one `write_runs`; 0 if there is no such operation. Their bytes together are bounded by
    /// `request_bytes_max`.
    pub runs_max: u32,
    /// The largest page of a listing.
    pub list_entries_max: u32,
    /// A write of up to this size is atomic for concurrent readers wherever it lies. Every backend
    /// owes [`BUCKET_BYTES`] within one aligned bucket, even if this says less.
    pub atomic_bytes: u64,
    /// What is never torn by a crash: an aligned unit of this size holds old or new bytes.
    pub crash_atomic_bytes: u64,
    /// A write_full is all or nothing, for readers and across a crash.
    pub write_full_atomic: bool,
    /// Conditions are honoured; without it a request with one is `Unsupported`.
    pub conditions: bool,
    /// Stamps and claims are honoured; without it a request with one is `Unsupported`.
    pub fencing: bool,
    /// A stamped delete is remembered, so that a late change with an older stamp is refused.
    pub tombstones: bool,
    /// Flushes order the generations of a domain across a crash.
    pub order_domains: bool,
    /// `copy` does not move the bytes through the caller.
    pub copy_native: bool,
    /// `discard` and `write_zeroes` give space back.
    pub holes_native: bool,
    /// The strongest durability a single request can ask for.
    pub durability_max: Durability,
    /// What *stored* survives.
    pub survives: Survives,
}

impl Capabilities {
    /// A backend that keeps every word of the contract, with objects of up to `object_bytes_max`
    /// bytes, and loses everything with its process. A backend starts here and changes what differs;
    /// `runs_max` is 0 here, because [`crate::Blocker::write_runs`] has to be written to be had.
    #[must_use]
    pub fn full(object_bytes_max: u64) -> Self {
        Self {
            object_bytes_max,
            request_bytes_max: object_bytes_max.max(BUCKET_BYTES),
            compare_bytes_max: BUCKET_BYTES,
            runs_max: 0,
            list_entries_max: 10_000,
            atomic_bytes: object_bytes_max,
            crash_atomic_bytes: BUCKET_BYTES,
            write_full_atomic: true,
            conditions: true,
            fencing: true,
            tombstones: true,
            order_domains: true,
            copy_native: true,
            holes_native: true,
            durability_max: Durability::Stored,
            survives: Survives::Nothing,
        }
    }
}

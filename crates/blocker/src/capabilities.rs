//! The capabilities of a blocker. The conformance suite checks a blocker against every field.

use crate::Durability;

/// The unit of atomicity that every blocker guarantees, and the size of a cache's bucket, in bytes.
pub const BUCKET_BYTES: u64 = 4096;

/// The largest object unless configured otherwise, in bytes.
pub const OBJECT_BYTES_MAX_DEFAULT: u64 = 4 * 1024 * 1024;

/// The failures that *stored* data survive in a backend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Survives {
    /// Nothing: the data are in this process's memory.
    Nothing,
    /// The end of the process, by any signal.
    ProcessKill,
    /// A loss of power.
    PowerLoss,
}

/// The operations that a blocker supports natively, atomically and durably, and their size limits.
/// Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// The largest object.
    pub object_bytes_max: u64,
    /// The maximum length of a range or payload of one request; at least [`BUCKET_BYTES`].
    pub request_bytes_max: u64,
    /// The maximum length of `expected` in a compare-and-write; 0 if compare-and-write is not
    /// supported.
    pub compare_bytes_max: u64,
    /// The maximum number of runs in one `write_runs`; 0 if the operation is not supported. The
    /// total length of the runs is limited by `request_bytes_max`.
    pub runs_max: u32,
    /// The largest page of a listing.
    pub list_entries_max: u32,
    /// A write of up to this size is atomic for concurrent readers at any offset. A write within
    /// one aligned bucket is always atomic, even if this is less than [`BUCKET_BYTES`].
    pub atomic_bytes: u64,
    /// The size of the aligned unit that a crash never tears: after a crash, each unit has either
    /// its old or its new bytes.
    pub crash_atomic_bytes: u64,
    /// Whether a `write_full` is all or nothing, for readers and across a crash.
    pub write_full_atomic: bool,
    /// Whether conditions are checked; otherwise a request with a condition is `Unsupported`.
    pub conditions: bool,
    /// Whether stamps and claims are checked; otherwise a request with a stamp, and a claim, is
    /// `Unsupported`.
    pub fencing: bool,
    /// Whether a stamped delete is remembered, so that a late change with an older stamp is
    /// refused.
    pub tombstones: bool,
    /// Whether flushes order the generations of a domain across a crash.
    pub order_domains: bool,
    /// Whether `copy` copies the bytes without sending them through the caller.
    pub copy_native: bool,
    /// Whether `discard` and `write_zeroes` return space.
    pub holes_native: bool,
    /// The strongest durability that a single request can ask for.
    pub durability_max: Durability,
    /// The failures that *stored* data survive.
    pub survives: Survives,
}

impl Capabilities {
    /// Returns the capabilities of a backend that supports every feature of the contract, with
    /// objects of up to `object_bytes_max` bytes, and whose data survive no failure. A backend
    /// starts from these capabilities and changes the fields that differ. `runs_max` is 0: a
    /// backend that supports [`Change::WriteRuns`](crate::Change::WriteRuns) sets it.
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

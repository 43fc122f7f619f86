//! The allocator's settings: memory that is freed goes back to the system.
//!
//! glibc keeps what is freed for the next allocation. Buffers that grow and end in any order leave gaps behind
//! that nothing else fits into, and glibc raises the size from which it maps memory with each large buffer that
//! is freed: after a burst of large requests several times the memory that is in use stays resident.

#[cfg(target_env = "gnu")]
use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, c_int};

/// Buffers from this size on, in bytes, are mappings of their own: each returns to the system when it is freed,
/// and grows without a copy.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES_MIN: c_int = 64 << 10;
/// The most bytes that are kept at the end of a heap.
#[cfg(target_env = "gnu")]
const KEPT_BYTES_MAX: c_int = 2 << 20;

/// Sets the allocator up. Call before any other thread exists.
pub fn configure() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two plain numbers and is called before any other thread exists.
    unsafe {
        // Few heaps, so that memory freed by one thread is reused by all.
        libc::mallopt(M_ARENA_MAX, 2);
        libc::mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
        libc::mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_MAX);
    }
}

/// Returns the free pages within the heaps to the system. Allocations wait meanwhile, some milliseconds where much is
/// free.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

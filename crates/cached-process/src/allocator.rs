//! The allocator's settings, which make it return freed memory to the system.
//!
//! glibc keeps freed memory for later allocations. Buffers that grow and are freed in any order
//! leave gaps that nothing else fits into, and each large buffer that is freed raises glibc's
//! threshold for mapping memory directly. So after a burst of large requests, several times the
//! memory in use stays resident.

#[cfg(target_env = "gnu")]
use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, c_int};

/// Buffers of at least this size, in bytes, get their own mappings, which return to the system when
/// freed and grow without a copy.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES_MIN: c_int = 64 << 10;
/// The maximum number of free bytes that are kept at the end of a heap.
#[cfg(target_env = "gnu")]
const KEPT_BYTES_MAX: c_int = 2 << 20;

/// Configures the allocator. Call it before any other thread exists.
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

/// Returns free pages within the heaps to the system. Allocations wait meanwhile, for some
/// milliseconds if much is free.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

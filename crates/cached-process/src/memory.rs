//! Memory: compares the machine's memory with a program's maximum, and configures the allocator to
//! return freed memory to the system.

use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(target_env = "gnu")]
use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, c_int};

/// Returns this machine's memory in bytes; 0 if unknown.
fn machine_bytes() -> u64 {
    // SAFETY: the arguments are plain numbers.
    let of = |name| u64::try_from(unsafe { libc::sysconf(name) }).unwrap_or(0);
    of(libc::_SC_PHYS_PAGES).saturating_mul(of(libc::_SC_PAGESIZE))
}

/// The sum of all limits of this process's memory, in bytes.
static BYTES_MAX: AtomicU64 = AtomicU64::new(0);

/// Returns the sum of all limits of this process's memory, in bytes; 0 until the start has computed
/// it.
#[must_use]
pub fn bytes_max() -> u64 {
    BYTES_MAX.load(Ordering::Relaxed)
}

/// Records the sum of all limits of this process's memory, and logs a warning if it exceeds the
/// machine's memory.
pub fn set_bytes_max(bytes: u64) {
    BYTES_MAX.store(bytes, Ordering::Relaxed);
    let machine = machine_bytes();
    if machine > 0 && bytes > machine {
        tracing::warn!(
            most_mib = bytes >> 20,
            machine_mib = machine >> 20,
            "the configuration allows more memory than this machine has: when it is used, the system swaps, or ends the \
             process; lower memory_bytes_max (-m)"
        );
    }
}

// glibc keeps freed memory for later allocations. Buffers that grow and are freed in any order
// leave gaps that fit nothing else, and each large buffer that is freed raises glibc's threshold
// for mapping memory directly. Therefore, after a burst of large requests, several times the memory
// in use stays resident.

/// The minimum size, in bytes, of buffers that get their own mappings, which return to the system
/// when they are freed, and grow without a copy. A buffer that receives a body over HTTP is shorter:
/// each has about 64 KiB, and a mapping costs two system calls and 17 page faults.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES_MIN: c_int = 96 << 10;
/// The maximum number of free bytes that are kept at the end of a heap.
#[cfg(target_env = "gnu")]
const KEPT_BYTES_MAX: c_int = 2 << 20;

/// Configures the allocator to return freed memory to the system. This must be called before any
/// other thread exists.
pub fn configure_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two plain numbers and is called before any other thread exists.
    unsafe {
        // There are only a few heaps, so that memory freed by one thread is reused by all.
        libc::mallopt(M_ARENA_MAX, 2);
        libc::mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
        libc::mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_MAX);
    }
}

/// Returns free pages within the heaps to the system, on a thread of the runtime for blocking work.
/// During this time, for some milliseconds if much is free, allocations wait.
///
/// # Panics
/// Panics if it is called outside of a tokio runtime.
pub fn trim_on_thread() {
    // The task returns nothing.
    drop(tokio::task::spawn_blocking(trim));
}

fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_memory_of_the_machine_is_known() {
        assert!(super::machine_bytes() > 1 << 24);
    }
}

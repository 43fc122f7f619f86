//! Compares the machine's memory with a program's maximum.

/// Returns this machine's memory in bytes; 0 if unknown.
fn machine_bytes() -> u64 {
    // SAFETY: plain numbers.
    let of = |name| u64::try_from(unsafe { libc::sysconf(name) }).unwrap_or(0);
    of(libc::_SC_PHYS_PAGES).saturating_mul(of(libc::_SC_PAGESIZE))
}

/// Logs a warning if a program that uses up to `bytes` could exceed this machine's memory.
pub fn warn_beyond_machine(bytes: u64) {
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

#[cfg(test)]
mod tests {
    #[test]
    fn the_memory_of_the_machine_is_known() {
        assert!(super::machine_bytes() > 1 << 24);
    }
}

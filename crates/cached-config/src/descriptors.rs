//! File descriptors: as many as connections and files may need.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to `wanted`, or as far as the system allows. Returns the limit.
pub fn raise_descriptor_limit(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX);
    if current >= wanted {
        return current;
    }
    let maximum = limit.maximum.unwrap_or(u64::MAX).max(wanted);
    if setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(maximum) }).is_ok() {
        return wanted;
    }
    // Not root: as far as the hard limit goes.
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    match setrlimit(Resource::Nofile, Rlimit { current: Some(maximum), maximum: limit.maximum }) {
        Ok(()) => maximum,
        Err(_) => current,
    }
}

//! CPU cores: pinning threads, and the limits that a process with a thousand connections needs.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins the calling thread, and every thread that it starts later, to one core.
///
/// # Errors
/// Fails if the core does not exist or is not available.
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    restrict_current_thread(&[cpu])
}

/// Confines the calling thread, and every thread and process that it starts later, to some cores.
///
/// # Errors
/// Fails if one of the cores does not exist, or none is available.
pub fn restrict_current_thread(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no core {cpu}")));
        }
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns the cores that this process may use, in ascending order.
///
/// # Errors
/// Returns the kernel's error.
pub fn usable_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Raises the soft limit of open files to the hard one, and returns whether `wanted` descriptors fit.
///
/// # Errors
/// If the descriptors do not fit, the error states both numbers.
pub fn reserve_descriptors(wanted: u64) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    match getrlimit(Resource::Nofile).current {
        Some(current) if current < wanted => Err(io::Error::other(format!(
            "{wanted} descriptors are needed and {current} are allowed; raise `ulimit -n`"
        ))),
        _ => Ok(()),
    }
}

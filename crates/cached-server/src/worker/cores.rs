//! Pinning of worker threads to cores (`pin_workers`).

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins the calling thread to one of the cores it may run on, if there are enough for all `threads`. Best
/// effort.
///
/// The cores are those of the process's affinity mask, which the kernel keeps within the cpuset of its
/// cgroup.
pub(crate) fn pin(index: usize, threads: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let Some(core) = core_of(index, threads, |core| allowed.is_set(core)) else {
        if index == 0 {
            tracing::warn!(
                threads,
                "pin_workers: there are fewer cores than threads, so no thread is pinned"
            );
        }
        return;
    };
    let mut set = CpuSet::new();
    set.set(core);
    if let Err(error) = sched_setaffinity(None, &set) {
        // Some sandboxes refuse this; the thread then runs on any core.
        tracing::warn!(cause = %error, "pin_workers: a worker cannot be pinned to its core");
    }
}

/// Returns the core of a worker; `None` if there are fewer cores than workers.
fn core_of(index: usize, threads: usize, is_allowed: impl Fn(usize) -> bool) -> Option<usize> {
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| is_allowed(*core)).collect();
    if cores.len() < threads.max(2) {
        return None;
    }
    cores.get(index).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_pinned_to_allowed_cores() {
        let allowed = |core: usize| [3, 5, 8, 9].contains(&core);
        let cores: Vec<_> = (0..4).map(|index| core_of(index, 4, allowed)).collect();
        assert_eq!(cores, [Some(3), Some(5), Some(8), Some(9)]);
        assert_eq!(core_of(0, 5, allowed), None, "too few cores: the scheduler decides");
        assert_eq!(core_of(0, 1, |core| core == 7), None, "one core leaves no choice");
    }
}

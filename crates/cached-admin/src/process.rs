//! The system's counts for this process, under the names that Prometheus' own libraries use.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use cached_metrics::{Collect, Families, counters};
use serde::Serialize;

counters! {
    /// The system's counts for this process. Counts that the system does not report are 0.
    #[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
    pub struct Process {
        /// Processor time in user mode, in seconds.
        pub cpu_user_secs: f64,
        /// Processor time in the system, in seconds.
        pub cpu_system_secs: f64,
        /// Resident memory size in bytes.
        pub resident_bytes: u64 => "process_resident_memory_bytes",
        /// Number of OS threads in the process.
        pub threads: u64 => "process_threads",
        /// Number of open file descriptors.
        pub open_fds: u64 => "process_open_fds",
        /// Maximum number of open file descriptors.
        pub max_fds: u64 => "process_max_fds",
        /// Virtual memory size in bytes.
        #[serde(skip)]
        pub virtual_bytes: u64 => "process_virtual_memory_bytes",
    }
}

impl Process {
    /// Reads the counts.
    #[must_use]
    pub fn read() -> Process {
        let (cpu_user_secs, cpu_system_secs) = cpu_times();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let word = line.and_then(|line| line.split_whitespace().next());
            word.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
        };
        Process {
            cpu_user_secs,
            cpu_system_secs,
            resident_bytes: number("VmRSS:") << 10,
            virtual_bytes: number("VmSize:") << 10,
            threads: number("Threads:"),
            // One of the entries is the descriptor of the directory itself.
            open_fds: fs::read_dir("/proc/self/fd").map_or(0, |fds| fds.count().saturating_sub(1) as u64),
            max_fds: descriptors_max(),
        }
    }
}

/// Writes the counts into `into`.
pub fn collect(into: &mut Families) {
    let process = Process::read();
    let help = "Total user and system CPU time spent in seconds.";
    let cpu = process.cpu_user_secs + process.cpu_system_secs;
    into.measure("process_cpu_seconds_total", help, &cpu);
    process.collect(into);
    let help = "Start time of the process since unix epoch in seconds.";
    into.measure("process_start_time_seconds", help, &start_unix_secs());
}

/// Returns the Unix time in milliseconds.
#[must_use]
pub fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the start of the process as Unix time in seconds.
#[must_use]
pub fn start_unix_secs() -> f64 {
    static START: std::sync::OnceLock<f64> = std::sync::OnceLock::new();
    *START.get_or_init(|| {
        let now = unix_millis() as f64 / 1000.0;
        now - age_secs().unwrap_or(0.0)
    })
}

/// Returns the age of the process, by the system's clock ticks.
fn age_secs() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses, which may contain blanks.
    let started: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let uptime: f64 = fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
    // SAFETY: `sysconf` has no preconditions.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    (ticks > 0).then(|| (uptime - started / ticks as f64).max(0.0))
}

/// Returns the processor time used in user mode and in the system, in seconds.
#[must_use]
pub fn cpu_times() -> (f64, f64) {
    // SAFETY: an all-zero `rusage` is a valid value of that plain C struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer leads to a local `rusage` that the call fills in.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let secs = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (secs(usage.ru_utime), secs(usage.ru_stime))
}

fn descriptors_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer leads to a local `rlimit` that the call fills in.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_reports_every_count() {
        let process = Process::read();
        assert!(process.resident_bytes > 1 << 20 && process.virtual_bytes >= process.resident_bytes);
        assert!(process.threads > 0 && process.open_fds > 2 && process.max_fds >= process.open_fds);
        // It reads the clock itself, and the process may be no older than a millisecond.
        let start = start_unix_secs();
        let age = unix_millis() as f64 / 1000.0 - start;
        assert!((0.0..86_400.0).contains(&age), "{age}");
    }
}

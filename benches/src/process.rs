//! The resources used by a server process: CPU time in nanoseconds, resident memory in bytes.
//!
//! CPU time comes from the process's own CPU clock (`clock_getcpuclockid`), which the scheduler
//! maintains in nanoseconds over all threads, including ended ones. `utime + stime` in
//! `/proc/PID/stat` has a resolution of 10 ms. Work that the kernel does in softirq for a send is
//! charged to the sender, on loopback also the receiver's work: the figure includes this for every
//! server.

use std::fs;
use std::io;
use std::mem::MaybeUninit;

use anyhow::{Context, Result};

/// The CPU clock of a visible process.
#[derive(Clone, Copy, Debug)]
pub struct CpuClock {
    clock_id: libc::clockid_t,
}

impl CpuClock {
    /// Opens the clock of process `pid`.
    ///
    /// # Errors
    /// Fails if the process does not exist.
    pub fn of(pid: u32) -> Result<Self> {
        let mut clock_id = 0;
        let pid_raw = libc::pid_t::try_from(pid).context("a process id")?;
        // SAFETY: the second argument is a valid place for one clock id, for the length of the call.
        let code = unsafe { libc::clock_getcpuclockid(pid_raw, &raw mut clock_id) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code))
                .with_context(|| format!("no CPU clock of process {pid}"));
        }
        Ok(Self { clock_id })
    }

    /// Returns the CPU time that several processes have used together; `None` if there are none.
    ///
    /// # Errors
    /// Fails if a process has ended.
    pub fn sum_ns(clocks: &[Self]) -> Result<Option<u64>> {
        if clocks.is_empty() {
            return Ok(None);
        }
        Ok(Some(clocks.iter().map(|clock| clock.now_ns()).sum::<Result<u64>>()?))
    }

    /// Returns the CPU time of the children of a process that have ended, with a resolution of 10 ms.
    ///
    /// # Errors
    /// Fails if the process does not exist.
    pub fn ended_children_ns(pid: u32) -> Result<u64> {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let ticks = children_ticks(&stat).with_context(|| format!("{path}: `{stat}`"))?;
        Ok(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second())
    }

    /// Returns the clock of the calling thread.
    pub fn of_this_thread() -> Self {
        Self { clock_id: libc::CLOCK_THREAD_CPUTIME_ID }
    }

    /// Returns the CPU time that all threads have used so far, in user and kernel mode.
    ///
    /// # Errors
    /// Fails if the process has ended.
    pub fn now_ns(self) -> Result<u64> {
        let mut time = MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: `time` is a valid place for one timespec; it is read only after the call has filled it.
        let time = unsafe {
            if libc::clock_gettime(self.clock_id, time.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error()).context("the measured process is gone");
            }
            time.assume_init()
        };
        Ok(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
    }
}

/// Resident memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The current size (`VmRSS`).
    pub bytes: u64,
    /// The peak since the start (`VmHWM`).
    pub bytes_peak: u64,
}

impl Resident {
    /// Returns the memory of several processes together; `None` if there are none.
    ///
    /// # Errors
    /// Fails if a process does not exist.
    pub fn of_all(pids: &[u32]) -> Result<Option<Self>> {
        let each = pids.iter().map(|&pid| Self::of(pid)).collect::<Result<Vec<_>>>()?;
        Ok(each.into_iter().reduce(|sum, one| Self {
            bytes: sum.bytes + one.bytes,
            bytes_peak: sum.bytes_peak + one.bytes_peak,
        }))
    }

    /// Reads `/proc/PID/smaps_rollup` if available (exact), otherwise `/proc/PID/status` (which may
    /// lag by some pages per thread).
    ///
    /// # Errors
    /// Fails if the process does not exist.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let status = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let bytes_status = field_bytes(&status, "VmRSS:").context("no VmRSS")?;
        let bytes = field_bytes(&rollup, "Rss:").unwrap_or(bytes_status);
        let bytes_peak = field_bytes(&status, "VmHWM:").context("no VmHWM")?.max(bytes);
        Ok(Self { bytes, bytes_peak })
    }
}

/// Returns `cutime` and `cstime` of `/proc/PID/stat`, fields 16 and 17.
fn children_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut ticks = fields.split(' ').skip(13).map(|ticks| ticks.parse::<u64>().ok());
    Some(ticks.next()?? + ticks.next()??)
}

/// Returns the value of a `Name:   123 kB` line, in bytes.
fn field_bytes(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_clock_moves_and_own_memory_is_there() {
        let clock = CpuClock::of(std::process::id()).unwrap();
        let before = clock.now_ns().unwrap();
        let mut sum = 0_u64;
        while clock.now_ns().unwrap() < before + 100_000 {
            sum = std::hint::black_box(sum + 1);
        }
        let resident = Resident::of(std::process::id()).unwrap();
        assert!(resident.bytes > 100_000 && resident.bytes_peak >= resident.bytes);
    }

    #[test]
    fn the_time_of_ended_children_is_found_after_a_name_with_blanks() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 200 0 0 11 12 130 4 20 0 1 0 5 6 7";
        assert_eq!(children_ticks(stat), Some(134));
        assert_eq!(children_ticks("7 (a) S 1"), None);
        assert!(CpuClock::ended_children_ns(std::process::id()).is_ok());
    }

    #[test]
    fn status_lines() {
        assert_eq!(field_bytes("Name:\tx\nVmRSS:\t  12 kB\n", "VmRSS:"), Some(12 * 1024));
        assert_eq!(field_bytes("Name:\tx\n", "VmRSS:"), None);
    }
}

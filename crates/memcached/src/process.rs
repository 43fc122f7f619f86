//! The process, as far as memcached's listener concerns it: descriptors, cores, the log level, and
//! the file that contains the opened ports.

use cached_process::files::write_whole;
use cached_process::log::{Level, Log, LogTable};
use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// Raises the descriptor limit to the number that these connections and threads, and the rest of the
/// server, need. Returns the limit that the system allows.
pub fn raise_descriptor_limit(connections: usize, threads: usize) -> u64 {
    // Listeners, log, the acceptor's runtime, and three descriptors for each worker: its event loop,
    // the waker, and its ring.
    cached_config::raise_descriptor_limit((connections + 32 + 3 * threads) as u64)
}

/// Writes the opened ports to the file that `MEMCACHED_PORT_FILENAME` names, one line per address,
/// for test programs that request any free port. Does nothing if the variable is not set.
///
/// # Errors
/// Fails if the file cannot be written.
pub(crate) fn write_port_file(tcp: &[SocketAddr], udp: &[SocketAddr]) -> io::Result<()> {
    let Some(path) = std::env::var_os("MEMCACHED_PORT_FILENAME") else { return Ok(()) };
    let mut text = String::new();
    let all = tcp.iter().map(|address| ("TCP", address)).chain(udp.iter().map(|address| ("UDP", address)));
    for (kind, address) in all {
        let family = if address.is_ipv6() { "INET6" } else { "INET" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{kind} {family}: {}", address.port());
    }
    write_whole(Path::new(&path), ".lck", &text)
}

/// Pins the calling thread to one of the cores on which it may run, if there are enough cores for
/// all `threads`. This is on a best-effort basis.
///
/// The cores are taken from the process's affinity mask, which the kernel keeps within the cpuset
/// of its cgroup.
pub(crate) fn pin_thread(index: usize, threads: usize) {
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
        // Some sandboxes refuse the call; then the thread runs on any core.
        tracing::warn!(cause = %error, "pin_workers: a worker cannot be pinned to its core");
    }
}

/// Returns the core for a worker; `None` if there are fewer cores than workers.
fn core_of(index: usize, threads: usize, is_allowed: impl Fn(usize) -> bool) -> Option<usize> {
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| is_allowed(*core)).collect();
    if cores.len() < threads.max(2) {
        return None;
    }
    cores.get(index).copied()
}

/// The level of the log: `[log] level`, raised by `-v` and the `verbosity` command. It is cheap to
/// clone.
///
/// | verbosity | the level is at least |
/// |---|---|
/// | 0 | that of `[log]`, `info` unless set |
/// | 1 (`-v`) | `info`: start and end, refused clients, the store's absence and return |
/// | 2 (`-vv`) | `debug`: every connection that is opened or closed |
/// | 3 (`-vvv`) | `trace`: the logs of libraries |
///
/// Requests are never logged individually.
#[derive(Clone, Debug)]
pub struct Logging {
    log: Option<Log>,
    state: Arc<Mutex<LoggingState>>,
}

#[derive(Debug)]
struct LoggingState {
    /// The configured level, which no verbosity can lower.
    base: Level,
    verbosity: u8,
}

impl Logging {
    /// Returns a handle that changes `log`, which already has the configured level `base`.
    pub fn over(log: Log, base: Level, verbosity: u8) -> Logging {
        Logging { log: Some(log), ..Logging::new(base, verbosity) }
    }

    /// Leaves logging to the program that embeds the server.
    pub fn embedded(verbosity: u8) -> Logging {
        Logging::new(Level::Info, verbosity)
    }

    fn new(base: Level, verbosity: u8) -> Logging {
        Logging { log: None, state: Arc::new(Mutex::new(LoggingState { base, verbosity })) }
    }

    /// Returns the level for `verbosity` over the configured level `base`.
    pub fn level(base: Level, verbosity: u8) -> Level {
        match verbosity {
            0 => base,
            1 => base.max(Level::Info),
            2 => base.max(Level::Debug),
            _ => Level::Trace,
        }
    }

    /// Returns the verbosity, 0 to 3.
    pub fn verbosity(&self) -> u8 {
        self.state.lock().verbosity
    }

    /// Sets the verbosity.
    pub fn set(&self, verbosity: u8) {
        let mut state = self.state.lock();
        state.verbosity = verbosity;
        if let Some(log) = &self.log {
            log.set_level(Logging::level(state.base, verbosity));
        }
    }

    /// Sets the configured level and the format of the lines. The verbosity stays the same.
    pub(crate) fn configure(&self, table: LogTable) {
        let mut state = self.state.lock();
        state.base = table.level;
        if let Some(log) = &self.log {
            log.set(LogTable { level: Logging::level(table.level, state.verbosity), ..table });
        }
    }

    /// Logs how many lines were suppressed. This is called about once a second.
    pub(crate) fn report_repeats(&self) {
        if let Some(log) = &self.log {
            log.report_repeats();
        }
    }
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

    #[test]
    fn the_verbosity_only_adds() {
        for (base, levels) in [
            (Level::Error, [Level::Error, Level::Info, Level::Debug, Level::Trace]),
            (Level::Info, [Level::Info, Level::Info, Level::Debug, Level::Trace]),
            (Level::Trace, [Level::Trace; 4]),
        ] {
            assert_eq!([0, 1, 2, 3].map(|verbosity| Logging::level(base, verbosity)), levels);
        }
    }
}

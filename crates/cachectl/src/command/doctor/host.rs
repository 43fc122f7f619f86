//! Checks of the host and of the server's process: clocks, limits, memory, settings of the kernel,
//! certificates, files of secrets.

use std::path::{Path, PathBuf};

use cached_config::secret_warning;
use serde_json::Value;

use super::settings::Settings;
use super::{Check, Server};
use crate::command::volume::shown_size;

/// The memory that a process uses beyond the sum of its limits.
const BEYOND_LIMITS_BYTES: u64 = 32 << 20;
/// A difference between clocks that is not due to the measurement.
const CLOCKS_APART_MS: u64 = 1000;
/// The difference between clocks from which signed requests are refused.
const CLOCKS_APART_MS_MAX: u64 = 15 * 60 * 1000;
/// The time before the expiry of a certificate from which an alert is raised as well.
const EXPIRES_SOON_SECS: u64 = 7 * 24 * 3600;

/// The state of the server's process, as the kernel reports it.
pub(super) struct Process {
    /// The lines of `/proc/PID/status`.
    status: String,
    /// The lines of `/proc/PID/limits`.
    limits: String,
    /// The lines of `/proc/PID/mountinfo`: the file systems as the process sees them.
    pub(super) mounts: String,
    /// The memory limits of the process's cgroup and of those above.
    memory_limits: Vec<u64>,
    /// The process's working directory; empty if this user may not know it.
    pub(super) directory: PathBuf,
}

impl Process {
    /// Reads the files of a process in `/proc`; those that this user may not read count as empty.
    /// Returns `None` if no process here has this number and executes this program: in a container
    /// with the name of its host, processes have other numbers.
    pub(super) fn read(pid: u64, program: &str) -> Option<Self> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
        let cgroup = read("cgroup").unwrap_or_default();
        let path = cgroup.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let memory_limits = Path::new("/sys/fs/cgroup").join(path);
        let memory_limits = memory_limits.ancestors().take_while(|path| path.starts_with("/sys/fs/cgroup"));
        let memory_limits = memory_limits.filter_map(|path| number(&path.join("memory.max"))).collect();
        let status = read("status").ok()?;
        let name = status.lines().find_map(|line| line.strip_prefix("Name:"))?;
        if !name.trim_start().starts_with(program) {
            return None;
        }
        Some(Self {
            status,
            limits: read("limits").unwrap_or_default(),
            mounts: read("mountinfo").unwrap_or_default(),
            memory_limits,
            directory: std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default(),
        })
    }

    /// Returns the numbers in a line of `/proc/PID/status`.
    fn numbers(&self, name: &str) -> Vec<u64> {
        let line = self.status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok()).collect()
    }

    /// Returns the effective user.
    pub(super) fn user(&self) -> Option<u64> {
        self.numbers("Uid:").get(1).copied()
    }

    /// Returns the effective group and the supplementary groups.
    pub(super) fn groups(&self) -> Vec<u64> {
        let own = self.numbers("Gid:").get(1).copied();
        own.into_iter().chain(self.numbers("Groups:")).collect()
    }

    fn swapped_bytes(&self) -> u64 {
        self.numbers("VmSwap:").first().map_or(0, |kib| kib << 10)
    }

    /// Returns the limit of locked memory in bytes; `None` if there is no limit, or the process is
    /// privileged to exceed it.
    fn locked_bytes_max(&self) -> Option<u64> {
        const CAP_IPC_LOCK: u32 = 14;
        let capabilities = self.status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let capabilities = capabilities.and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
        if capabilities.is_some_and(|all| all & (1 << CAP_IPC_LOCK) != 0) {
            return None;
        }
        let line = self.limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
        line.split_whitespace().next()?.parse().ok()
    }
}

/// Returns the number in a file of the kernel.
fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Compares the server's clock with the clock of this host.
pub(super) fn clock(server: &Server) -> Check {
    let theirs = server.status["now_unix_ms"].as_u64().unwrap_or(0);
    clocks(theirs.abs_diff(server.asked_unix_ms).saturating_sub(server.error_ms))
}

fn clocks(apart_ms: u64) -> Check {
    let line = || {
        format!(
            "the server's clock and this host's are {:.1} s apart: synchronise both (chrony, systemd-timesyncd)",
            apart_ms as f64 / 1000.0
        )
    };
    match apart_ms {
        CLOCKS_APART_MS_MAX.. => Check::problem("clocks", line()),
        CLOCKS_APART_MS.. => Check::warning("clocks", line()),
        _ => Check::ok("clocks", "the server's clock agrees with this host's"),
    }
}

/// Checks whether this host's clock is synchronised.
pub(super) fn synchronised() -> Check {
    // SAFETY: an all-zero `timex` is a valid value of this plain C struct. Without modes, the call
    // changes nothing and only fills in the struct.
    let state = unsafe { libc::adjtimex(&mut std::mem::zeroed()) };
    match state {
        libc::TIME_ERROR => {
            let line = "the kernel regards this host's clock as not synchronised: run chrony or systemd-timesyncd \
                        (expiry times, certificates and S3 signatures depend on it)";
            Check::warning("synchronised", line)
        }
        -1 => Check::warning(
            "synchronised",
            "the kernel does not report whether this host's clock is synchronised",
        ),
        _ => Check::ok("synchronised", "this host's clock is synchronised"),
    }
}

/// Checks limits of descriptors and of memory of a process with these settings.
pub(super) fn limits(settings: &Settings, status: &Value, process: &Process) -> Vec<Check> {
    let counts = &status["process"];
    let [needed, limit, open] = [&status["descriptors_max"], &counts["max_fds"], &counts["open_fds"]]
        .map(|count| count.as_u64().unwrap_or(0));
    let mut checks = vec![match needed {
        0 => Check::warning("descriptors", "not checked: the server does not report how many it may need"),
        _ => descriptors(needed, limit, open),
    }];
    let machine = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = machine.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let machine = machine.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let needed = status["memory_bytes_max"].as_u64().unwrap_or(0);
    if needed > 0 {
        checks.push(memory(
            needed + BEYOND_LIMITS_BYTES,
            machine.map(|kib| kib << 10),
            &process.memory_limits,
        ));
    }
    if settings.is("process.lock_memory") {
        checks.push(locked(needed, process.locked_bytes_max()));
    }
    checks
}

fn descriptors(needed: u64, limit: u64, open: u64) -> Check {
    let line = format!("{open} of {limit} descriptors are open, and {needed} may be needed");
    match () {
        () if limit >= needed => Check::ok("descriptors", line),
        () if open > limit / 10 * 9 => Check::problem(
            "descriptors",
            format!("{line}: raise LimitNOFILE= of the unit (or ulimit -Hn) now"),
        ),
        () => {
            let line =
                format!("{line}: raise LimitNOFILE= of the unit (or ulimit -Hn), or lower connections_max");
            Check::warning("descriptors", line)
        }
    }
}

fn memory(needed: u64, machine: Option<u64>, groups: &[u64]) -> Check {
    let shown = shown_size(needed);
    let group = groups.iter().min().copied();
    match (group, machine) {
        (Some(limit), _) if limit < needed => Check::problem(
            "memory",
            format!(
                "the server may use {shown}, and its cgroup allows {}: raise MemoryMax= or the pod's limit, or lower \
                 memory_bytes_max",
                shown_size(limit)
            ),
        ),
        (_, Some(machine)) if machine < needed => Check::problem(
            "memory",
            format!(
                "the server may use {shown}, and the machine has {}: lower memory_bytes_max",
                shown_size(machine)
            ),
        ),
        (Some(_), _) => Check::ok(
            "memory",
            format!("the server uses at most {shown}, which the host and its cgroup allow"),
        ),
        // This is the case with cgroups of version 1, and in a cgroup without limits.
        (None, _) => Check::ok(
            "memory",
            format!("the server uses at most {shown}, which the host has; its cgroup has no known limit"),
        ),
    }
}

fn locked(needed: u64, limit: Option<u64>) -> Check {
    match limit.filter(|limit| *limit < needed) {
        Some(limit) => Check::problem(
            "locked memory",
            format!(
                "lock_memory is set, and at most {} can be locked: set LimitMEMLOCK=infinity in the unit",
                shown_size(limit)
            ),
        ),
        None => Check::ok("locked memory", "all memory can be locked"),
    }
}

/// Checks settings of the kernel.
pub(super) fn kernel(settings: &Settings, process: Option<&Process>) -> Vec<Check> {
    let mut checks = Vec::new();
    let queue = number(Path::new("/proc/sys/net/core/somaxconn"));
    if let (Some(queue), Some(backlog)) = (queue, settings.number("memcached.listen_backlog")) {
        checks.push(match queue < backlog {
            true => Check::warning(
                "listen queue",
                format!(
                    "listen_backlog is {backlog}, and the kernel queues {queue} connections: sysctl -w \
                     net.core.somaxconn={backlog}"
                ),
            ),
            false => Check::ok("listen queue", format!("the kernel queues {backlog} connections")),
        });
    }
    if settings.is("memcached.huge_pages") || settings.is("objects.huge_pages") {
        let state =
            std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        checks.push(match state.contains("[never]") || state.is_empty() {
            true => Check::warning(
                "huge pages",
                "huge_pages is set, and the kernel provides none: echo madvise > \
                 /sys/kernel/mm/transparent_hugepage/enabled",
            ),
            false => Check::ok("huge pages", "the kernel provides huge pages"),
        });
    }
    if let Some(process) = process {
        checks.push(match process.swapped_bytes() {
            0 => Check::ok("swap", "no memory of the server is swapped out"),
            bytes => Check::warning(
                "swap",
                format!(
                    "{} of the server are swapped out, and each access waits for the disk: lower memory_bytes_max or \
                     vm.swappiness, or set lock_memory",
                    shown_size(bytes)
                ),
            ),
        });
    }
    checks
}

/// Checks the expiry of the certificates of listeners.
pub(super) fn certificates(settings: &Settings, now_unix_secs: u64) -> Vec<Check> {
    let files = settings.files(&["tls.chain_file"]);
    let check = |(key, path): (&str, PathBuf)| match cached_tls::expiry_of(&path) {
        Ok(Some(expiry)) => certificate(key, expiry, now_unix_secs),
        Ok(None) => {
            Check::warning("certificate", format!("{key}: {} has no date that can be read", path.display()))
        }
        Err(error) => Check::warning(
            "certificate",
            format!("{key}: not checked: {}: {error}; run doctor as the server's user", path.display()),
        ),
    };
    files.into_iter().map(check).collect()
}

fn certificate(key: &str, expiry: u64, now: u64) -> Check {
    let days = expiry.abs_diff(now) / (24 * 3600);
    match expiry.checked_sub(now) {
        None => Check::problem(
            "certificate",
            format!(
                "{key}: a certificate of the chain expired {days} days ago: replace the files, then cachectl reload"
            ),
        ),
        Some(0..EXPIRES_SOON_SECS) => Check::warning(
            "certificate",
            format!(
                "{key}: a certificate of the chain expires in {days} days: replace the files, then cachectl reload"
            ),
        ),
        Some(_) => Check::ok("certificate", format!("{key}: valid for {days} more days")),
    }
}

/// Checks that other users cannot read the files of secrets.
pub(super) fn secrets(settings: &Settings) -> Vec<Check> {
    let ends = [
        "secret_file",
        "secret_file_previous",
        "token_file",
        "auth_file",
        "sasl_file",
        "keys_file",
        "key_file",
    ];
    let further = [".keyring", ".credentials_file"];
    let files = settings.files(&[&ends[..], &further[..]].concat());
    let check = |(key, path): &(&str, PathBuf)| match path.metadata() {
        Ok(_) => secret_warning(path).map(|line| Check::warning("secrets", line)),
        Err(error) => {
            let path = path.display();
            let line =
                format!("{key}: not checked: {path}: {error}; run doctor as root or as the server's user");
            Some(Check::warning("secrets", line))
        }
    };
    let mut checks: Vec<_> = files.iter().filter_map(check).collect();
    if checks.is_empty() && !files.is_empty() {
        checks.push(Check::ok("secrets", "only their owners can read the files of secrets"));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;
    use serde_json::json;

    #[test]
    fn each_check_tells_what_to_do() {
        const GIB: u64 = 1 << 30;
        const DAY: u64 = 24 * 3600;
        let entries = json!([{ "key": "admin.token_file", "value": "\"/no/file\"" }]);
        let settings = Settings::of_server(&json!({ "entries": entries }), Path::new(""));
        for (check, level, words) in [
            (clocks(0), Level::Ok, "agrees"),
            (clocks(5_500), Level::Warning, "5.5 s apart"),
            (clocks(CLOCKS_APART_MS_MAX), Level::Problem, "900.0 s apart"),
            (descriptors(1000, 1000, 10), Level::Ok, "10 of 1000"),
            (descriptors(1000, 256, 10), Level::Warning, "LimitNOFILE="),
            (descriptors(1000, 256, 250), Level::Problem, "LimitNOFILE="),
            (memory(GIB, None, &[4 * GIB, 2 * GIB]), Level::Ok, "its cgroup allow"),
            (memory(GIB, Some(2 * GIB), &[]), Level::Ok, "no known limit"),
            (memory(GIB, Some(8 * GIB), &[4 * GIB, GIB / 2]), Level::Problem, "its cgroup allows 512 MiB"),
            (memory(3 * GIB, Some(2 * GIB), &[]), Level::Problem, "the machine has 2 GiB"),
            (secrets(&settings).remove(0), Level::Warning, "admin.token_file: not checked: /no/file: "),
            (locked(GIB, None), Level::Ok, "can be locked"),
            (locked(GIB, Some(64 << 10)), Level::Problem, "LimitMEMLOCK=infinity"),
            (certificate("admin.tls.chain_file", 100 * DAY, 10 * DAY), Level::Ok, "90 more days"),
            (certificate("admin.tls.chain_file", 12 * DAY, 10 * DAY), Level::Warning, "expires in 2 days"),
            (certificate("admin.tls.chain_file", 9 * DAY, 10 * DAY), Level::Problem, "expired 1 days ago"),
        ] {
            assert_eq!(check.level, level, "{check:?}");
            assert!(check.line.contains(words), "{check:?}");
        }
    }

    #[test]
    fn a_privileged_process_locks_any_memory() {
        let limits = "Limit   Soft Limit  Hard Limit  Units\nMax locked memory   8388608   8388608   bytes\n";
        for (capabilities, right) in [("0000000000000000", Some(8 << 20)), ("0000000000004000", None)] {
            let status = format!("Name:\tcached\nCapEff:\t{capabilities}\n");
            let (limits, mounts, memory_limits) = (limits.to_owned(), String::new(), Vec::new());
            let process = Process { status, limits, mounts, memory_limits, directory: PathBuf::new() };
            assert_eq!(process.locked_bytes_max(), right);
        }
    }

    #[test]
    fn this_process_is_read() {
        let own = std::process::id().into();
        let process = Process::read(own, "cachectl").expect("this process");
        assert!(process.user().is_some() && !process.groups().is_empty() && !process.mounts.is_empty());
        assert!(Process::read(u64::MAX, "cachectl").is_none() && Process::read(own, "cached").is_none());
    }
}

//! Programs and files from outside the repository. Tests that need a missing one are skipped with a message.
//!
//! `CACHED_REQUIRE_ALL=1`, as `.ci/run` sets it, turns every skip into a failure.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Prints that a test is skipped, bypassing the test runner's capture.
///
/// # Panics
/// Panics if `CACHED_REQUIRE_ALL=1` is set.
pub fn skip(test: &str, why: &str) {
    let all = std::env::var("CACHED_REQUIRE_ALL").is_ok_and(|value| value == "1");
    assert!(!all, "{test}: {why}, and CACHED_REQUIRE_ALL=1 allows no skip");
    announce_skip(test, why);
}

/// Prints that a test is skipped for a reason that no installation can remove, bypassing the test
/// runner's capture.
pub fn announce_skip(test: &str, why: &str) {
    // The test runner captures the print macros of a passing test, but not what is written to the
    // stream itself. One write, so that concurrent tests do not mix their lines.
    let line = format!("\n*** SKIPPED {test}: {why} ***\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Returns whether these programs are in `PATH`; otherwise prints that a test is skipped.
///
/// # Panics
/// Panics as [`skip`] does.
#[must_use]
pub fn are_installed(test: &str, programs: &[&str]) -> bool {
    let missing: Vec<_> = programs.iter().copied().filter(|name| find_program(name).is_none()).collect();
    if !missing.is_empty() {
        skip(test, &format!("not installed: {}", missing.join(", ")));
    }
    missing.is_empty()
}

/// Returns the full path of a program in `PATH`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Lets the kernel kill a program when the thread that starts it ends, so that no program is left
/// behind when a test is killed. Therefore a test must start a program on a thread that outlives
/// it.
pub fn kill_with_thread(command: &mut Command) {
    // SAFETY: prctl is async-signal-safe and accesses none of this process's memory.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// Runs a command to its end and returns its output.
///
/// # Panics
/// Panics if the command cannot be started, or is still running at the deadline. In the latter case
/// it is killed together with its descendants.
pub fn run(command: &mut Command, deadline: Duration) -> Output {
    try_run(command, deadline).unwrap_or_else(|problem| panic!("{problem}"))
}

/// Runs a command that downloads something, several times if it fails or takes too long, because
/// networks and registries are sometimes unavailable.
///
/// # Errors
/// Returns the output of the last attempt.
pub fn fetch(command: &mut Command, deadline: Duration) -> Result<(), String> {
    const ATTEMPTS: u32 = 4;
    let mut attempt = 1;
    loop {
        let problem = match try_run(command, deadline) {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => text(&output),
            Err(problem) => problem,
        };
        if attempt == ATTEMPTS {
            return Err(problem);
        }
        println!("attempt {attempt} has failed: {problem}");
        std::thread::sleep(Duration::from_secs(5) * attempt);
        attempt += 1;
    }
}

fn try_run(command: &mut Command, deadline: Duration) -> Result<Output, String> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // The command has its own process group, because its descendants may hold the pipes open,
        // which are read to their end.
        .process_group(0)
        .spawn()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let pid = child.id() as libc::pid_t;
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let until = Instant::now() + deadline;
        let timed_out = ended
            .recv_timeout(deadline)
            .is_err_and(|err| err == std::sync::mpsc::RecvTimeoutError::Timeout && Instant::now() >= until);
        if timed_out {
            // SAFETY: kill touches no memory. The child is waited for only just before this thread is
            // notified.
            unsafe { libc::kill(-pid, libc::SIGKILL) };
        }
        timed_out
    });
    let output = child.wait_with_output().expect("output of a child");
    drop(done);
    match watchdog.join().expect("the watchdog") {
        true => Err(format!("{command:?} did not end within {deadline:?}; it wrote:\n{}", text(&output))),
        false => Ok(output),
    }
}

/// Returns both streams of a program's output as text.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_in_the_path_are_programs() {
        assert!(find_program("sh").is_some_and(|path| path.is_file()));
        assert_eq!(find_program("no-such-program"), None);
        // Each directory of PATH has this entry.
        assert_eq!(find_program("."), None);
    }
}

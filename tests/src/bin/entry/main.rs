//! A `cached` that is an entry of a ring, in place of a single server: every test of a server runs at the
//! entry of a ring with it.
//!
//! ```text
//! CACHED_TEST_SERVER=target/debug/entry CACHED_TEST_RING=third CACHED_TEST_PROGRAMS=target/debug \
//!     cargo test -p cached-tests --test it vectors::
//! ```
//!
//! `CACHED_TEST_RING` says what the entry owns: nothing (`none`), a third (`third`), or a share that comes and
//! goes (`moves`). The program takes the arguments of `cached`. It starts the other nodes in a process of their
//! own, and then becomes the entry, so that its number, memory and exit status are those of the server under test.

mod companions;

use cached_tests::program::workspace_programs;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Error, Result};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

/// The first argument of the process that runs the other nodes.
const COMPANIONS: &str = "companions";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some((first, arguments)) = arguments.split_first()
        && first == COMPANIONS
    {
        return companions::run(arguments);
    }
    let Err(error) = become_entry(&arguments);
    eprintln!("an entry of a ring: {error}");
    ExitCode::FAILURE
}

/// Starts the other nodes, and executes `cached` as the entry.
fn become_entry(arguments: &[OsString]) -> Result<Infallible> {
    let mut companions = Command::new(std::env::current_exe()?)
        .arg(COMPANIONS)
        .args(companions::shared(arguments))
        // Their server is `cached`, not this program.
        .env_remove("CACHED_TEST_SERVER")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut configuration = String::new();
    BufReader::new(companions.stdout.take().expect("a pipe")).read_line(&mut configuration)?;
    let Some(configuration) = configuration.strip_suffix('\n') else {
        return Err(Error::other("the other nodes have not started"));
    };
    // The companions end when this pipe closes, which is at the end of the entry.
    let alive = companions.stdin.take().expect("a pipe");
    // SAFETY: the descriptor is open; the call only lets it stay open in the program that follows.
    if unsafe { libc::fcntl(alive.as_raw_fd(), libc::F_SETFD, 0) } == -1 {
        return Err(Error::last_os_error());
    }
    let mut entry = Command::new(workspace_programs().join("cached"));
    Err(entry.arg("--config").arg(configuration).args(arguments).exec())
}

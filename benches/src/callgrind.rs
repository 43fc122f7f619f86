//! Counts the user instructions of a program by valgrind. Such counts are reproducible on a busy
//! machine, where times are not.
//!
//! A figure per operation comes from two runs that differ only in the number of operations, so that
//! one-time costs cancel out: [`Callgrind::each`].

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::server::find_program;

/// Valgrind's tool that counts instructions.
#[derive(Clone, Debug)]
pub struct Callgrind {
    valgrind: PathBuf,
}

impl Callgrind {
    /// Returns the tool of `valgrind`, a path or a name to look up in `PATH`.
    ///
    /// # Errors
    /// Fails if the tool does not exist.
    pub fn find(valgrind: &Path) -> Result<Self> {
        Ok(Self { valgrind: find_program(valgrind, "install valgrind, or give its path")? })
    }

    /// Runs this program with `arguments`, and returns the instructions of all of its threads, from
    /// start to end.
    ///
    /// # Errors
    /// Returns an error if the run fails, or nothing was counted.
    pub fn of_this_program(&self, arguments: &[impl AsRef<OsStr>]) -> Result<u64> {
        let directory = tempfile::tempdir().context("a directory for callgrind's output")?;
        let output = directory.path().join("callgrind.out");
        let status = Command::new(&self.valgrind)
            .args(["--tool=callgrind", "--fair-sched=yes", "-q"])
            .arg(format!("--callgrind-out-file={}", output.display()))
            .arg(std::env::current_exe().context("finding this program")?)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context("valgrind")?;
        ensure!(status.success(), "the run under valgrind ended with {status}");
        let text = fs::read_to_string(&output).context("reading callgrind's output")?;
        total(&text).context("callgrind wrote no total")
    }

    /// Returns the instructions per operation: the difference between runs with `2 × count` and
    /// `count` operations. `arguments` returns the arguments of each run.
    ///
    /// # Errors
    /// Returns the errors of [`of_this_program`](Self::of_this_program).
    pub fn each(&self, count: u64, arguments: impl Fn(u64) -> Vec<String>) -> Result<f64> {
        let of = |count| self.of_this_program(&arguments(count));
        Ok((of(2 * count)? as f64 - of(count)? as f64) / count as f64)
    }
}

/// Returns the number of the `totals:` or `summary:` line of callgrind's output.
#[must_use]
pub fn total(text: &str) -> Option<u64> {
    let number = |name| text.lines().rev().find_map(|line| line.strip_prefix(name));
    number("totals: ").or_else(|| number("summary: "))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::total;

    #[test]
    fn totals_are_found() {
        assert_eq!(total("events: Ir\nsummary: 12\nfn=(1)\n1 5\ntotals: 17\n"), Some(17));
        assert_eq!(total("events: Ir\nsummary: 12\n"), Some(12));
        assert_eq!(total("events: Ir\n"), None);
    }
}

//! Runs a server under callgrind and reads how many instructions it took.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use cached_benches::load::Target;
use cached_benches::server::ServerSpec;

/// Instructions of `server` from start to end, all threads, with `load` in between.
pub(crate) fn count_instructions(
    valgrind: &Path,
    server: &Path,
    load: impl FnOnce(Target) -> Result<()>,
) -> Result<u64> {
    let directory = tempfile::tempdir().context("a directory for callgrind's output")?;
    let output = directory.path().join("callgrind.out");
    let spec = ServerSpec {
        wrapper: vec![
            valgrind.into(),
            "--tool=callgrind".into(),
            // The scheduler of valgrind runs one thread at a time; fairly, so that none starves the measured one.
            "--fair-sched=yes".into(),
            format!("--callgrind-out-file={}", output.display()).into(),
        ],
        memory_mib: 64,
        connections_max: 64,
        ..ServerSpec::new("the server", server)
    };
    let server = spec.start()?;
    load(server.target())?;
    let status = server.stop()?;
    ensure!(status.success(), "the server ended with {status} on SIGTERM");
    let text = fs::read_to_string(&output).context("callgrind wrote nothing")?;
    total(&text).context("callgrind's output has no total")
}

/// The number of the `totals:` or `summary:` line.
fn total(text: &str) -> Option<u64> {
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

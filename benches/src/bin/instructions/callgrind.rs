//! Runs a server under callgrind and reads how many instructions it took.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use cached_benches::callgrind::total;
use cached_benches::cpu;
use cached_benches::load::Target;
use cached_benches::server::ServerSpec;

/// Open files that the server may have, and connections that it is configured to take. memcached sets both its limits of open
/// files to `-c`, which valgrind allows only where that is the soft limit already.
const DESCRIPTORS_MAX: u64 = 256;

/// Instructions from start to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instructions {
    /// Of the thread that took the most: the one that serves the connection, when there is enough load.
    pub(crate) of_busiest: u64,
    /// Of all threads, the ones that work in the background too.
    pub(crate) of_all: u64,
}

/// Instructions of `server` from start to end, with `load` in between. With `memory_file_in` its items are in a file in that
/// directory.
pub(crate) fn count_instructions(
    valgrind: &Path,
    server: &Path,
    memory_file_in: Option<&Path>,
    load: impl FnOnce(Target) -> Result<()>,
) -> Result<Instructions> {
    let directory = tempfile::tempdir().context("a directory for callgrind's output")?;
    let output = directory.path().join("callgrind.out");
    let memory =
        memory_file_in.map(tempfile::tempdir_in).transpose().context("a directory for the memory file")?;
    let memory_file = memory.iter().flat_map(|memory| ["-e".into(), memory.path().join("memory").into()]);
    let spec = ServerSpec {
        wrapper: vec![
            valgrind.into(),
            "--tool=callgrind".into(),
            // One thread runs at a time under valgrind; fairly, so that none starves the measured one.
            "--fair-sched=yes".into(),
            "--separate-threads=yes".into(),
            format!("--callgrind-out-file={}", output.display()).into(),
        ],
        memory_mib: 64,
        connections_max: DESCRIPTORS_MAX as usize,
        extra: memory_file.collect(),
        ..ServerSpec::new("the server", server)
    };
    cpu::limit_descriptors(DESCRIPTORS_MAX)?;
    let server = spec.start()?;
    load(server.target())?;
    let status = server.stop()?;
    ensure!(status.success(), "the server ended with {status} on SIGTERM");
    let mut totals = Vec::new();
    for entry in fs::read_dir(directory.path())? {
        let text = fs::read_to_string(entry?.path()).context("reading callgrind's output")?;
        totals.extend(total(&text));
    }
    let of_busiest = *totals.iter().max().context("callgrind wrote no totals")?;
    Ok(Instructions { of_busiest, of_all: totals.iter().sum() })
}

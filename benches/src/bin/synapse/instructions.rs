//! User instructions per request, client and server together, under callgrind: two runs in one process that differ
//! in the number of requests, so that what happens once falls out. Repeats to a percent on any machine, however busy;
//! excludes what the kernel does.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use crate::service;
use crate::shape::{Kind, Operation, Shape};

/// Requests of the shorter run; the longer one has twice as many.
const REQUESTS: u64 = 2_000;

/// One run.
#[derive(Args)]
pub(crate) struct PlayOptions {
    #[arg(long)]
    kind: Kind,
    #[arg(long)]
    operation: Operation,
    #[arg(long)]
    bytes: usize,
    #[arg(long)]
    depth: usize,
    #[arg(long)]
    requests: u64,
}

impl PlayOptions {
    /// Plays it.
    ///
    /// # Errors
    /// When either side fails.
    pub(crate) fn run(&self) -> Result<()> {
        service::play(self.kind, &shape(self.operation, self.bytes, self.depth), self.requests)
    }
}

fn shape(operation: Operation, bytes: usize, depth: usize) -> Shape {
    Shape { operation, bytes, depth, duration: Duration::ZERO, working_set_bytes: 4 << 20 }
}

/// Prints a line for each of a few shapes and every service.
///
/// # Errors
/// When valgrind is missing or a run fails.
pub(crate) fn print() -> Result<()> {
    for (bytes, depth) in [(4 << 10, 1), (4 << 10, 32), (64 << 10, 8)] {
        for operation in [Operation::Read, Operation::Write] {
            let shape = shape(operation, bytes, depth);
            for kind in Kind::built() {
                let each =
                    (count(kind, &shape, 2 * REQUESTS)? - count(kind, &shape, REQUESTS)?) / REQUESTS as f64;
                println!("{shape:<18} {kind:<12} {each:>9.0} user instructions per request, both sides");
            }
        }
    }
    Ok(())
}

/// Instructions of a whole run.
fn count(kind: Kind, shape: &Shape, requests: u64) -> Result<f64> {
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("callgrind.out");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--fair-sched=yes", "-q"]);
    command
        .arg(format!("--callgrind-out-file={}", output.display()))
        .arg(std::env::current_exe()?)
        .arg("play");
    for (name, value) in [
        ("--kind", name(kind)?),
        ("--operation", name(shape.operation)?),
        ("--bytes", shape.bytes.to_string()),
        ("--depth", shape.depth.to_string()),
        ("--requests", requests.to_string()),
    ] {
        command.args([name, &value]);
    }
    let status =
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().context("valgrind is needed")?;
    ensure!(status.success(), "{kind} under valgrind ended with {status}");
    let text = fs::read_to_string(&output).context("callgrind's output")?;
    let totals = text.lines().rev().find_map(|line| line.strip_prefix("totals: "));
    let totals = totals.or_else(|| text.lines().find_map(|line| line.strip_prefix("summary: ")));
    Ok(totals.context("callgrind wrote no total")?.trim().parse()?)
}

fn name(value: impl ValueEnum) -> Result<String> {
    Ok(value.to_possible_value().context("it has a name")?.get_name().to_owned())
}

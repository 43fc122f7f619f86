//! User instructions per request, client and server together, under callgrind. Two runs in one
//! process differ only in the number of requests, so one-time costs cancel out. Results are
//! reproducible to within a percent on any machine, however busy, but exclude the kernel's work.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use cached_benches::callgrind::Callgrind;
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
    /// Performs the run.
    ///
    /// # Errors
    /// Returns an error if either side fails.
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
/// Returns an error if valgrind is missing or a run fails.
pub(crate) fn print() -> Result<()> {
    let callgrind = Callgrind::find(Path::new("valgrind"))?;
    for (bytes, depth) in [(4 << 10, 1), (4 << 10, 32), (64 << 10, 8)] {
        for operation in [Operation::Read, Operation::Write] {
            let shape = shape(operation, bytes, depth);
            for kind in Kind::built() {
                let of = |requests| callgrind.of_this_program(&arguments(kind, &shape, requests)?);
                let each = (of(2 * REQUESTS)? as f64 - of(REQUESTS)? as f64) / REQUESTS as f64;
                println!("{shape:<18} {kind:<12} {each:>9.0} user instructions per request, both sides");
            }
        }
    }
    Ok(())
}

/// Returns the arguments of a run.
fn arguments(kind: Kind, shape: &Shape, requests: u64) -> Result<Vec<String>> {
    let operands = [
        ("--kind", name(kind)?),
        ("--operation", name(shape.operation)?),
        ("--bytes", shape.bytes.to_string()),
        ("--depth", shape.depth.to_string()),
        ("--requests", requests.to_string()),
    ];
    let words = operands.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
    Ok(std::iter::once("play".to_owned()).chain(words).collect())
}

fn name(value: impl ValueEnum) -> Result<String> {
    Ok(value.to_possible_value().context("it has a name")?.get_name().to_owned())
}

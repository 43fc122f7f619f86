//! The costs and benefits of the journal: each figure as a ratio to another one measured in the
//! same run on the same disk.
//!
//! ```text
//! cargo run --release --manifest-path benches/Cargo.toml --bin journal -- --dir DIR          # about 3 minutes
//! cargo run --release --manifest-path benches/Cargo.toml --bin journal -- --dir DIR --only commit --seconds 1
//! ```
//!
//! | part | question | bar |
//! |---|---|---|
//! | `commit` | group commit compared with an ideal one: the same blocks by one thread that writes and syncs | 0.85 alone, 0.6 at 16 and 64 writers, goal 0.8 |
//! | `commit` | bytes written per byte of payload, in batches of 16 × 4 KiB | 1.10 |
//! | `cpu` | CPU time of a journaled write of 4 KiB compared with a cached one, a CRC and a share of the write | 1.5 |
//! | `rados` | journaled write-back compared with write-through over a one-node Ceph, 16 writers | 10 |
//! | `replay` | reading and verifying a full journal compared with a sequential read of its files | 0.7 |
//! | `replay` | the same until everything is applied to a cache, which serves during that time | none |
//!
//! Writers are tasks, like the connections of a server; each thread polls its own.

mod cache;
#[path = "../rados/ceph.rs"]
#[allow(dead_code, reason = "of the other bench: here only the cluster is wanted")]
mod ceph;
mod commit;
mod disk;
#[path = "../rados/load.rs"]
#[allow(dead_code, reason = "of the other bench: here only some loads are wanted")]
mod load;
mod replay;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use cached_benches::args::parse_duration;
use cached_benches::machine::Machine;
use clap::Parser;

/// Measure the journal.
#[derive(Parser)]
struct Arguments {
    /// A directory on the disk to measure; created files are removed.
    #[arg(long)]
    dir: PathBuf,
    /// Only parts whose name contains this: commit, cpu, rados, replay.
    #[arg(long, default_value = "")]
    only: String,
    /// How long each measurement takes.
    #[arg(long, default_value = "2", value_parser = parse_duration)]
    seconds: Duration,
    /// The number of rounds, in which each measurement and its baseline alternate.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The threads that the writers share.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// The size of the journal in the part `replay`, in MiB.
    #[arg(long, default_value_t = 256)]
    replay_mib: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    println!("{}", Machine::read());
    let dir = arguments.dir.join(format!("journal-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    type Part = fn(&Arguments, &std::path::Path) -> Result<()>;
    let parts: [(&str, Part); 4] =
        [("commit", commit::run), ("cpu", cache::cpu), ("replay", replay::run), ("rados", cache::rados)];
    let mut outcome = Ok(());
    for (name, part) in parts {
        if outcome.is_ok() && name.contains(&arguments.only) {
            println!("--- {name}");
            outcome = part(&arguments, &dir);
        }
    }
    std::fs::remove_dir_all(&dir)?;
    outcome
}

/// Prints a ratio with its required value, which is a minimum with `is_least` and a maximum
/// without.
fn verdict(name: &str, ratio: f64, bar: f64, is_least: bool) {
    let is_met = if is_least { ratio >= bar } else { ratio <= bar };
    let word = if is_met { "pass" } else { "MISS" };
    println!("{name:<64} {ratio:>7.2}  bar {} {bar}: {word}", if is_least { ">=" } else { "<=" });
}

/// Returns how many operations happened per second, and the process's CPU time per operation, in
/// seconds.
fn measure(run: impl FnOnce() -> Result<u64>) -> Result<(f64, f64)> {
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let count = run()? as f64;
    Ok((count / begun.elapsed().as_secs_f64(), (cpu_seconds() - cpu) / count))
}

/// Returns the CPU time of all threads so far.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the median.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

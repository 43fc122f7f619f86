//! `instructions`: user instructions per request of a server, counted by valgrind; repeatable where time is not.
//!
//! Each figure comes from two fresh servers under callgrind that get the same preload on one connection, then N and
//! 2N requests: (run of 2N − run of N) ÷ N. Start, preload and end cancel out; the median of several differences is
//! printed. The figure is that of the busiest thread, the one that serves; what all threads took is printed beside it
//! and not gated, as background work goes by time, and time under valgrind means nothing.

mod baseline;
mod callgrind;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use cached_benches::figure::Figure;
use cached_benches::keyspace::{KeySpace, ValueBytes};
use cached_benches::load::{self, Limit, LoadSpec, Target};
use cached_benches::server::{find_program, workspace_cached};
use cached_benches::statistics::Spread;
use clap::Parser;

use baseline::Baseline;
use callgrind::count_instructions;

/// Counts user instructions per request of one server (cached, memcached, any that takes memcached's flags).
#[derive(Parser)]
#[command(name = "instructions", version)]
struct Options {
    /// The server's binary; this workspace's cached, built first, without it.
    #[arg(long)]
    server: Option<PathBuf>,
    /// Take this workspace's cached as it lies there.
    #[arg(long)]
    no_build: bool,
    /// valgrind.
    #[arg(long, default_value = "valgrind")]
    valgrind: PathBuf,
    /// Differences of which the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    /// Keys (requests for `one get` and `one set`) in the shorter of the two runs.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1_600..=10_000_000))]
    keys_per_run: u64,
    /// Have the server keep its items in a new memory file in this directory, which is removed afterwards.
    #[arg(long, value_name = "DIR")]
    memory_file_in: Option<PathBuf>,
    /// Only figures whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Compare with the figures in this file.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// How much above the baseline is too much, in percent; the run then fails.
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, requires = "baseline")]
    gate: f64,
    /// Write the figures to this file, as the next baseline.
    #[arg(long, value_name = "FILE")]
    write_baseline: Option<PathBuf>,
}

/// One thing counted.
struct Subject {
    name: &'static str,
    keys_per_get: usize,
    pipeline: usize,
    set_share: f64,
    /// The bar, for cached.
    bar: Option<f64>,
}

const SUBJECTS: &[Subject] = &[
    Subject { name: "one get", keys_per_get: 1, pipeline: 1, set_share: 0.0, bar: Some(1_900.0) },
    Subject { name: "one set", keys_per_get: 1, pipeline: 1, set_share: 1.0, bar: None },
    Subject { name: "16 gets pipelined", keys_per_get: 1, pipeline: 16, set_share: 0.0, bar: Some(600.0) },
    Subject {
        name: "multiget of 16, per key",
        keys_per_get: 16,
        pipeline: 1,
        set_share: 0.0,
        bar: Some(350.0),
    },
    Subject {
        name: "multiget of 100, per key",
        keys_per_get: 100,
        pipeline: 1,
        set_share: 0.0,
        bar: Some(350.0),
    },
];

/// Preloaded keys.
const KEYS: u64 = 1_000;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let server = match &options.server {
        Some(path) => find_program(path, "check --server")?,
        None => workspace_cached(options.no_build)?,
    };
    let valgrind = find_program(&options.valgrind, "install it, or give its path with --valgrind PATH")?;
    // Read first: a file that is not there should not cost minutes.
    let baseline = options.baseline.as_deref().map(Baseline::read).transpose()?;
    let mut figures = Vec::new();
    for subject in SUBJECTS.iter().filter(|subject| subject.name.contains(&options.only)) {
        let count = |factor: u64| {
            let requests = options.keys_per_run / subject.keys_per_get as u64;
            let load = |target| put_load(subject, target, requests * factor);
            count_instructions(&valgrind, &server, options.memory_file_in.as_deref(), load)
                .with_context(|| format!("`{}` under valgrind", subject.name))
        };
        let keys = options.keys_per_run / subject.keys_per_get as u64 * subject.keys_per_get as u64;
        let differences = (0..options.repeats)
            .map(|_| {
                let (longer, shorter) = (count(2)?, count(1)?);
                let per_key = |longer: u64, shorter: u64| (longer as f64 - shorter as f64) / keys as f64;
                Ok((per_key(longer.of_busiest, shorter.of_busiest), per_key(longer.of_all, shorter.of_all)))
            })
            .collect::<Result<Vec<_>>>()?;
        let spread = Spread::of(differences.iter().map(|both| both.0)).context("nothing was counted")?;
        let of_all = Spread::of(differences.iter().map(|both| both.1)).context("nothing was counted")?;
        let figure = Figure::new(subject.name, spread.median, "instructions");
        let bar = subject.bar.map(|bar| format!(" (bar for cached: {bar})")).unwrap_or_default();
        println!("{figure} [{:.0} {:.0}], all threads {:.0}{bar}", spread.min, spread.max, of_all.median);
        figures.push(figure);
    }
    if figures.is_empty() {
        bail!("no figure has a name with `{}` in it", options.only);
    }
    if let Some(path) = &options.write_baseline {
        Baseline::of(&figures).write(path)?;
    }
    baseline.map_or(Ok(()), |baseline| baseline.check(&figures, options.gate))
}

/// Preloads all keys and sends `requests` over one connection.
fn put_load(subject: &Subject, target: Target, requests: u64) -> Result<()> {
    let keys = KeySpace::new(0, KEYS, 20, ValueBytes::fixed(100), 0)?;
    let spec = LoadSpec {
        connections: 1,
        pipeline: subject.pipeline,
        keys_per_get: subject.keys_per_get,
        set_share: subject.set_share,
        limit: Limit::Requests(requests),
        stall_limit: std::time::Duration::from_secs(60),
        ..LoadSpec::new(target, keys)
    };
    load::store_all(&spec).context("preload")?;
    let report = load::run(&spec)?;
    if report.misses + report.refused > 0 {
        bail!("{} misses and {} refusals", report.misses, report.refused);
    }
    Ok(())
}

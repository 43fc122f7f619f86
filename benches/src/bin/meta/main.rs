//! `meta`: the misses of a cache-aside load drawn from Meta's published histograms, for cached and
//! memcached with equal `-m`.
//!
//! The load is like a website's: it reads a batch of keys, and sets those that were missed.
//! Popularity and value sizes are drawn from the given histogram files. Keys are sampled spatially
//! (Waldspurger et al., *SHARDS*, FAST '15) down to a number that this machine can serve; three
//! fifths of the keys have an expiry. Both servers get the same requests, one server after the
//! other; the first half is a warm-up and does not count.

mod client;
mod load;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use cached_benches::machine::Machine;
use cached_benches::server::{ServerSpec, find_program, workspace_cached};
use clap::Parser;

use load::Load;

/// Compares the misses of cached and memcached on a load drawn from Meta's histograms.
#[derive(Parser)]
#[command(name = "meta", version)]
struct Options {
    /// The popularity histogram: `….pop.json`, plain or compressed (`.zst`).
    popularity: PathBuf,
    /// The histogram of value sizes: `….sizes.json`, plain or compressed (`.zst`).
    sizes: PathBuf,
    /// cached's binary (default: this workspace's, which is built first).
    #[arg(long)]
    cached: Option<PathBuf>,
    /// memcached's binary.
    #[arg(long, default_value = "memcached")]
    memcached: PathBuf,
    /// Use this workspace's cached without building it.
    #[arg(long)]
    no_build: bool,
    /// The approximate number of keys.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    keys: u64,
    /// The number of requests, half of them for the warm-up.
    #[arg(long, default_value_t = 6_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    requests: u64,
    /// Memory limits of the servers, MiB.
    #[arg(long, value_delimiter = ',', default_values_t = [32usize, 64, 128])]
    memory_mib: Vec<usize>,
    /// Seed of keys and requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("meta: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let cached = match &options.cached {
        Some(path) => find_program(path, "check --cached")?,
        None => workspace_cached(options.no_build)?,
    };
    let memcached = find_program(&options.memcached, "install it, or give its path with --memcached PATH")?;
    let load = Load::read(&options.popularity, &options.sizes, options.keys, options.seed)?;
    println!("{}", Machine::read());
    println!(
        "{} keys, {} MiB of values, {} requests, seed {}",
        load.keys(),
        load.value_bytes() >> 20,
        options.requests,
        options.seed
    );
    for &memory_mib in &options.memory_mib {
        let ours = misses("cached", &cached, memory_mib, &load, options)?;
        let theirs = misses("memcached", &memcached, memory_mib, &load, options)?;
        println!(
            "-m {memory_mib:<5} miss ratio: cached {ours:.4}, memcached {theirs:.4}, ratio {:.3} ({})",
            ours / theirs,
            if ours < theirs { "fewer misses: pass" } else { "not fewer: miss" }
        );
    }
    Ok(())
}

/// Returns the share of requests missed after the warm-up, on a new server.
fn misses(name: &str, program: &Path, memory_mib: usize, load: &Load, options: &Options) -> Result<f64> {
    let spec = ServerSpec { memory_mib, ..ServerSpec::new(name, program) };
    let server = spec.start()?;
    let mut client = client::Client::connect(server.address()).with_context(|| format!("reaching {name}"))?;
    let mut requests = load.requests(options.seed);
    let mut counted = (0u64, 0u64);
    let mut sent = 0;
    while sent < options.requests {
        let batch: Vec<_> = requests.by_ref().take(client::BATCH).collect();
        let missed = client.get(&batch).with_context(|| format!("reading from {name}"))?;
        client.set(load, &batch, &missed).with_context(|| format!("writing to {name}"))?;
        sent += batch.len() as u64;
        if sent > options.requests / 2 {
            counted = (counted.0 + missed.len() as u64, counted.1 + batch.len() as u64);
        }
    }
    ensure!(counted.1 > 0, "too few requests");
    Ok(counted.0 as f64 / counted.1 as f64)
}

//! `compare`: compares cached and memcached under the same load with one command.
//!
//! For each scenario, both servers are started on one core and preloaded. Then they are measured
//! alternately, in pairs whose order alternates, from one load thread on another core. Ratios are
//! computed within each pair, so that slow changes of the machine cancel out; the median and the
//! range of the ratios are printed next to the required value.

mod measure;
mod memcaslap;
mod table;
mod tls;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cached_benches::args::{parse_bytes, parse_duration};
use cached_benches::canned::{Replies, serve};
use cached_benches::cpu;
use cached_benches::machine::Machine;
use cached_benches::scenario::{SCENARIOS, Scenario};
use cached_benches::server::{ServerSpec, find_program, workspace_cached};
use clap::Parser;
use serde::Serialize;

use measure::{Bench, Comparison};

/// Compares cached with memcached: CPU time per request and tail latency.
#[derive(Parser)]
#[command(name = "compare", version)]
struct Options {
    /// cached's binary (default: this workspace's, which is built first).
    #[arg(long)]
    cached: Option<PathBuf>,
    /// memcached's binary.
    #[arg(long, default_value = "memcached")]
    memcached: PathBuf,
    /// Use this workspace's cached without building it.
    #[arg(long)]
    no_build: bool,
    /// The number of pairs in each scenario.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Counted span of each run.
    #[arg(long, default_value = "1.5s", value_parser = parse_duration)]
    duration: Duration,
    /// Uncounted span before each run.
    #[arg(long, default_value = "300ms", value_parser = parse_duration)]
    warmup: Duration,
    /// Three short pairs of each scenario, for a first impression in less than a minute.
    #[arg(long)]
    quick: bool,
    /// Also run the scenarios without a required value.
    #[arg(long)]
    all: bool,
    /// Only scenarios whose name contains this; may be repeated.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Omit the canned server.
    #[arg(long)]
    no_floor: bool,
    /// Also run memcaslap's own 90/10 load, with this program.
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "memcaslap")]
    memcaslap: Option<PathBuf>,
    /// Core of the servers.
    #[arg(long)]
    server_cpu: Option<usize>,
    /// Core of the load.
    #[arg(long)]
    client_cpu: Option<usize>,
    /// Seed of keys, operations and arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write everything measured to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a plot to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Act as the canned server; for internal use.
    #[arg(long, hide = true, num_args = 3, value_names = ["ADDRESS", "KEY", "VALUE"])]
    serve_canned: Option<Vec<String>>,
}

/// All measurements, as written by `--json`.
#[derive(Serialize)]
struct Record<'a> {
    machine: &'a Machine,
    cached: &'a str,
    memcached: &'a str,
    pairs: u32,
    seconds: f64,
    seed: u64,
    comparisons: &'a [Comparison],
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match &options.serve_canned {
        Some(words) => serve_canned(words),
        None => run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve_canned(words: &[String]) -> Result<()> {
    let [address, key_bytes, value_bytes] = words else { anyhow::bail!("three words are needed") };
    let bytes = |word: &str| parse_bytes(word).map_err(anyhow::Error::msg);
    serve(address.parse()?, &Replies::new(bytes(key_bytes)?, bytes(value_bytes)?))
}

fn run(options: &Options) -> Result<()> {
    let cpus = cpu::usable_cpus()?;
    let server_cpu = options.server_cpu.or(cpus.first().copied()).context("no core to run on")?;
    let client_cpu = options.client_cpu.or(cpus.get(1).copied()).unwrap_or(server_cpu);
    if client_cpu == server_cpu {
        eprintln!("warning: server and load share core {server_cpu}; latencies mean little here");
    }
    let cached = match &options.cached {
        Some(path) => find_program(path, "check --cached")?,
        None => workspace_cached(options.no_build)?,
    };
    let memcached = find_program(&options.memcached, "install it, or give its path with --memcached PATH")?;
    // The machine is examined before pinning, which leaves this process one core.
    let machine = Machine::read();
    // Servers inherit this limit, and not all of them raise it themselves.
    cpu::reserve_descriptors(4_096)?;
    // Everything except the servers runs on the load's core.
    cpu::pin_current_thread(client_cpu).with_context(|| format!("pinning to core {client_cpu}"))?;
    let server = |name: &str, path| ServerSpec { cpu: Some(server_cpu), ..ServerSpec::new(name, path) };
    let bench = Bench {
        cached: server("cached", &cached),
        memcached: server("memcached", &memcached),
        with_floor: !options.no_floor,
        pairs: if options.quick { options.pairs.min(3) } else { options.pairs },
        warmup: if options.quick { Duration::from_millis(100) } else { options.warmup },
        measured: if options.quick { Duration::from_millis(300) } else { options.duration },
        server_cpu,
        client_cpu,
        seed: options.seed,
    };
    let versions = bench.versions()?;
    println!("{machine}");
    println!("cached {} against memcached {}; ratios below 1 are cached's favour", versions.0, versions.1);
    println!(
        "{} pairs of {:.2} s each, servers -t 1 on core {server_cpu}, load on core {client_cpu}, seed {}\n",
        bench.pairs,
        bench.measured.as_secs_f64(),
        bench.seed
    );
    let scenarios: Vec<&Scenario> = SCENARIOS
        .iter()
        .filter(|scenario| match options.only.is_empty() {
            true => options.all || !scenario.is_extra,
            false => options.only.iter().any(|part| scenario.name.contains(part.as_str())),
        })
        .collect();
    let is_tls =
        options.only.iter().any(|part| "TLS: full handshake, TLS: idle connection".contains(part.as_str()));
    ensure!(!scenarios.is_empty() || is_tls || options.memcaslap.is_some(), "no scenario has such a name");
    table::print_head();
    let mut comparisons = Vec::new();
    for scenario in scenarios {
        let comparison = bench.compare(scenario).with_context(|| format!("scenario `{}`", scenario.name))?;
        table::print_row(&comparison);
        comparisons.push(comparison);
    }
    type Connections = fn(&Bench) -> Result<Comparison>;
    let connections: [(&str, Connections); 2] =
        [("TLS: full handshake", tls::compare_handshakes), ("TLS: idle connection", tls::compare_idle)];
    for (name, compare) in connections {
        if options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str())) {
            let comparison = compare(&bench).context(name)?;
            table::print_row(&comparison);
            comparisons.push(comparison);
        }
    }
    if let Some(program) = &options.memcaslap {
        let program = find_program(program, "install libmemcached-tools")?;
        let comparison = memcaslap::compare(&bench, &program).context("memcaslap")?;
        table::print_row(&comparison);
        comparisons.push(comparison);
    }
    table::print_notes(&comparisons);
    if let Some(path) = &options.json {
        let record = Record {
            machine: &machine,
            cached: &versions.0,
            memcached: &versions.1,
            pairs: bench.pairs,
            seconds: bench.measured.as_secs_f64(),
            seed: bench.seed,
            comparisons: &comparisons,
        };
        let json = serde_json::to_string_pretty(&record)? + "\n";
        fs::write(path, json).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &options.svg {
        let svg = table::plot(&comparisons, &machine, &versions);
        fs::write(path, svg).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

//! Worker threads: `cached` compared with memcached, with 1 to as many threads as the machine has
//! cores.
//!
//! `cargo run --release --manifest-path benches/Cargo.toml --bin scaling -- --memcached PATH
//! [--threads 1,2,4,8,16]`
//!
//! Each server has as many cores as threads, as long as a quarter of the cores is left for the
//! load; with more threads, the load shares the cores with them. The load uses 100 000 keys of 20
//! bytes with values of 100 bytes, uniformly distributed, on 32 connections per server thread, in a
//! closed loop. Both servers run at the same time and are measured alternately, in a different
//! order in each round. The medians of the rounds are printed: keys per second, CPU time of the
//! server per key, and how busy the load's threads were. If these were always busy, the rate is
//! limited by them rather than by the server.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cached_benches::cpu;
use cached_benches::figure::Figure;
use cached_benches::keyspace::{KeySpace, ValueBytes};
use cached_benches::load::{self, Limit, LoadReport, LoadSpec};
use cached_benches::machine::Machine;
use cached_benches::scenario::KEY_BYTES;
use cached_benches::server::{Server, ServerSpec, find_program, workspace_cached};
use cached_benches::statistics::Spread;
use clap::Parser;

#[derive(Parser)]
#[command(about = "Throughput and CPU time of cached and memcached with 1 to 16 worker threads")]
struct Args {
    /// cached's binary (default: this workspace's, which is built first)
    #[arg(long)]
    cached: Option<PathBuf>,
    /// memcached's binary
    #[arg(long, default_value = "memcached")]
    memcached: PathBuf,
    /// Numbers of worker threads; numbers above the machine's cores are omitted
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Vec<u16>,
    /// Milliseconds of each measurement
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    milliseconds: u64,
    /// Rounds; the median is printed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
}

/// The requests of the clients.
struct Scenario {
    name: &'static str,
    keys_per_get: usize,
    pipeline: usize,
    set_share: f64,
}

const SCENARIOS: [Scenario; 4] = [
    Scenario { name: "one get", keys_per_get: 1, pipeline: 1, set_share: 0.0 },
    Scenario { name: "one set", keys_per_get: 1, pipeline: 1, set_share: 1.0 },
    Scenario { name: "16 pipelined 90/10", keys_per_get: 1, pipeline: 16, set_share: 0.1 },
    Scenario { name: "multiget of 100", keys_per_get: 100, pipeline: 1, set_share: 0.0 },
];

/// The number of keys, all of which are stored beforehand.
const KEYS: u64 = 100_000;
/// The number of connections for each thread of the server.
const CONNECTIONS: usize = 32;

fn main() -> Result<()> {
    let args = Args::parse();
    let cpus = cpu::usable_cpus()?;
    ensure!(cpus.len() >= 2, "server and load need a core each");
    let cached = match &args.cached {
        Some(path) => find_program(path, "check --cached")?,
        None => workspace_cached(false)?,
    };
    let memcached = find_program(&args.memcached, "install it, or give its path with --memcached PATH")?;
    cpu::reserve_descriptors(16_384)?;
    println!("{}; {} ms a measurement, {} rounds", Machine::read(), args.milliseconds, args.rounds);
    let mut of_one = None;
    for threads in
        args.threads.iter().map(|&threads| usize::from(threads)).filter(|&threads| threads <= cpus.len())
    {
        let (server_cpus, client_cpus) = divide(&cpus, threads);
        println!("{threads} threads on {} cores, the load on {} cores", server_cpus.len(), client_cpus.len());
        let start = |name: &str, program| start(name, program, threads, &server_cpus, &cpus);
        let servers = [start("cached", &cached)?, start("memcached", &memcached)?];
        for server in &servers {
            let loaded = load::preload(&spec(server, &SCENARIOS[0], &client_cpus, threads, &args, 0)?)?;
            ensure!(
                loaded.refused == 0 && loaded.missing == 0,
                "{}: {loaded:?} of {KEYS} keys",
                server.name()
            );
        }
        let rates = SCENARIOS
            .iter()
            .map(|scenario| compare(scenario, &servers, &client_cpus, threads, &args))
            .collect::<Result<Vec<_>>>()?;
        let of_one = of_one.get_or_insert_with(|| (threads, rates.clone()));
        for (scenario, (rates, first)) in SCENARIOS.iter().zip(rates.iter().zip(&of_one.1)) {
            for ((server, rate), first) in servers.iter().zip(rates).zip(first) {
                let name = format!(
                    "{}, {threads} threads: {}, rate of {} threads",
                    scenario.name,
                    server.name(),
                    of_one.0
                );
                println!("{}", Figure::new(name, rate / first, "x"));
            }
        }
    }
    Ok(())
}

/// Divides the cores between the server and the load, without overlap as long as the load has a
/// quarter of all cores.
fn divide(cpus: &[usize], threads: usize) -> (Vec<usize>, Vec<usize>) {
    let least = (cpus.len() / 4).max(1);
    if threads + least <= cpus.len() {
        return (cpus[..threads].to_vec(), cpus[threads..].to_vec());
    }
    (cpus.to_vec(), cpus.to_vec())
}

fn start(
    name: &str,
    program: &std::path::Path,
    threads: usize,
    server_cpus: &[usize],
    all: &[usize],
) -> Result<Server> {
    let spec = ServerSpec {
        connections_max: 8_192,
        // The last occurrence of the option counts.
        extra: [OsString::from("-t"), threads.to_string().into()].into(),
        ..ServerSpec::new(name, program)
    };
    cpu::restrict_current_thread(server_cpus)?;
    let server = spec.start();
    cpu::restrict_current_thread(all)?;
    server
}

fn spec(
    server: &Server,
    scenario: &Scenario,
    client_cpus: &[usize],
    threads: usize,
    args: &Args,
    seed: u64,
) -> Result<LoadSpec> {
    let keys = KeySpace::new(0, KEYS, KEY_BYTES, ValueBytes::fixed(100), 0)?;
    let measured = Duration::from_millis(args.milliseconds);
    Ok(LoadSpec {
        set_share: scenario.set_share,
        keys_per_get: scenario.keys_per_get,
        pipeline: scenario.pipeline,
        connections: CONNECTIONS * threads.max(client_cpus.len() / CONNECTIONS + 1),
        threads: client_cpus.len().min(CONNECTIONS * threads),
        cpus: client_cpus.to_vec(),
        limit: Limit::Time { warmup: measured / 5, measured },
        seed,
        server_pids: vec![server.pid()],
        ..LoadSpec::new(server.target(), keys)
    })
}

/// Measures a scenario; returns the keys per second of each server.
fn compare(
    scenario: &Scenario,
    servers: &[Server; 2],
    client_cpus: &[usize],
    threads: usize,
    args: &Args,
) -> Result<[f64; 2]> {
    let mut reports: [Vec<LoadReport>; 2] = Default::default();
    for round in 0..args.rounds {
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for at in order {
            let spec = spec(&servers[at], scenario, client_cpus, threads, args, u64::from(round) + 1)?;
            let report = load::run(&spec)
                .with_context(|| format!("{}, {threads} threads: {}", scenario.name, servers[at].name()))?;
            ensure!(report.misses == 0 && report.refused == 0, "{}: keys are missing", servers[at].name());
            reports[at].push(report);
        }
    }
    let median = |at: usize, figure: fn(&LoadReport) -> f64| {
        Spread::of(reports[at].iter().map(figure)).map_or(f64::NAN, |spread| spread.median)
    };
    let rate = [0, 1].map(|at| median(at, |report| report.keys_per_s));
    let cpu = [0, 1].map(|at| median(at, |report| report.server_cpu_ns_per_key.unwrap_or(f64::NAN)));
    let p99 = [0, 1].map(|at| median(at, |report| report.latency.p99_us));
    let print = |what: &str, value: f64, unit: &str| {
        println!("{}", Figure::new(format!("{}, {threads} threads: {what}", scenario.name), value, unit));
    };
    for (at, server) in servers.iter().enumerate() {
        print(&format!("{}, rate", server.name()), rate[at], "keys/s");
        print(&format!("{}, CPU per key", server.name()), cpu[at], "ns");
        print(&format!("{}, p99", server.name()), p99[at], "us");
        print(
            &format!("{}, the load busy", server.name()),
            median(at, |report| report.client_cpu_share),
            "of 1",
        );
    }
    print("rate, cached / memcached", rate[0] / rate[1], "x");
    print("CPU, cached / memcached", cpu[0] / cpu[1], "x");
    Ok(rate)
}

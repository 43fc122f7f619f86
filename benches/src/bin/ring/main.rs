//! `ring`: the CPU time of a request that passes through a node of a ring, compared with one `cached`
//! alone, with twemproxy in front of memcached, and with Valkey; and that of moving slots.
//!
//! Clients connect to an entry that owns nothing, so every key passes through two processes, as with a
//! proxy. A client of a Valkey cluster knows the owner of each key and asks it, so its figure is that
//! of one process, and an anchor rather than a bar. All servers run on one core, the load on another;
//! the subjects are measured in turn, forwards and backwards, and ratios are taken within each round.

mod moves;
mod subjects;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cached_benches::args::parse_duration;
use cached_benches::cpu;
use cached_benches::figure::Number;
use cached_benches::load::{self, Limit, LoadSpec};
use cached_benches::machine::Machine;
use cached_benches::scenario::Scenario;
use cached_benches::server::{find_program, workspace_cached};
use cached_benches::statistics::Spread;
use clap::Parser;

use subjects::{Programs, Subject};

/// Compares a ring with one cached, with twemproxy and memcached, and with Valkey: CPU time per key,
/// and bytes moved per second of CPU time.
#[derive(Parser)]
#[command(name = "ring", version)]
struct Options {
    /// cached's binary (default: this workspace's, which is built first).
    #[arg(long)]
    cached: Option<PathBuf>,
    /// memcached's binary.
    #[arg(long, default_value = "memcached")]
    memcached: PathBuf,
    /// twemproxy's binary.
    #[arg(long, default_value = "nutcracker")]
    nutcracker: PathBuf,
    /// Valkey's binary.
    #[arg(long, default_value = "valkey-server")]
    valkey: PathBuf,
    /// Rounds through all subjects.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Counted span of each run.
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    duration: Duration,
    /// Only scenarios whose name contains this; `moves` are the moves.
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
}

/// A load, and the maximum acceptable ratios of the ring.
struct Compared {
    load: Scenario,
    bar_alone: Option<f64>,
    bar_twemproxy: f64,
}

const fn compared(load: Scenario, bar_alone: Option<f64>) -> Compared {
    Compared { load, bar_alone, bar_twemproxy: 0.7 }
}

/// The maximum number of moves of each kind.
const MOVES_MAX: u32 = 3;

/// Single keys of 20 bytes with values of 100 bytes, of 100 000 keys, over 50 connections.
const ONE: Scenario = Scenario::BASE;
const COMPARED: [Compared; 6] = [
    compared(Scenario { name: "one get", ..ONE }, Some(3.0)),
    compared(Scenario { name: "one set", set_share: 1.0, ..ONE }, Some(3.0)),
    compared(Scenario { name: "16 gets pipelined", pipeline: 16, ..ONE }, Some(2.5)),
    compared(
        Scenario { name: "16 pipelined 90/10, Zipf", pipeline: 16, set_share: 0.1, zipf: Some(0.99), ..ONE },
        Some(2.5),
    ),
    compared(Scenario { name: "multiget of 100", keys_per_get: 100, ..ONE }, Some(2.0)),
    compared(Scenario { name: "4 KiB values", value_bytes: 4 << 10, keys: 20_000, ..ONE }, None),
];

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ring: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let cpus = cpu::usable_cpus()?;
    ensure!(cpus.len() >= 2, "servers and load need a core each");
    let (server_cpu, client_cpu) = (cpus[0], cpus[1]);
    let programs = Programs {
        cached: match &options.cached {
            Some(path) => find_program(path, "check --cached")?,
            None => workspace_cached(false)?,
        },
        memcached: find_program(
            &options.memcached,
            "give the path that benches/memcached prints with --memcached",
        )?,
        nutcracker: find_program(
            &options.nutcracker,
            "install Debian's nutcracker, or give its path with --nutcracker",
        )?,
        valkey: find_program(&options.valkey, "give the path that benches/valkey prints with --valkey")?,
        cpu: server_cpu,
    };
    let machine = Machine::read();
    cpu::reserve_descriptors(4_096)?;
    cpu::pin_current_thread(client_cpu).with_context(|| format!("pinning to core {client_cpu}"))?;
    println!("{machine}");
    println!(
        "{} rounds; servers with one thread each on core {server_cpu}, load on core {client_cpu}",
        options.rounds
    );
    let chosen: Vec<&Compared> =
        COMPARED.iter().filter(|compared| compared.load.name.contains(&options.only)).collect();
    let has_moves = "moves".contains(&options.only);
    ensure!(!chosen.is_empty() || has_moves, "no scenario has such a name");
    if !chosen.is_empty() {
        print_loads(&programs, &chosen, options, client_cpu)?;
    }
    if has_moves {
        print_moves(&programs, options.rounds, client_cpu)?;
    }
    Ok(())
}

fn print_loads(
    programs: &Programs,
    chosen: &[&Compared],
    options: &Options,
    client_cpu: usize,
) -> Result<()> {
    let subjects = [programs.alone()?, programs.entry()?, programs.twemproxy()?, programs.valkey()?];
    let [_, _, twemproxy, valkey] = &subjects;
    let memcached = twemproxy.servers[1].client()?.version()?;
    let info = valkey.servers[0].client()?.bulk("INFO server")?;
    let valkey = info.lines().find_map(|line| line.strip_prefix("valkey_version:")).unwrap_or("unknown");
    println!("memcached {memcached}, Valkey {valkey}; nanoseconds of CPU time per key, medians\n");
    println!(
        "{:<26} {:>7} {:>7} {:>10} {:>7}    {:<34} {:<34} ring ÷ Valkey",
        "load", "cached", "ring", "twemproxy+", "Valkey", "ring ÷ cached", "ring ÷ twemproxy+"
    );
    for Compared { load, bar_alone, bar_twemproxy } in chosen {
        let measured = measure(load, &subjects, options, client_cpu)?;
        let median =
            |at: usize| Spread::of(measured.iter().map(|round| round[at])).map(|spread| spread.median);
        let ratio = |at: usize| Spread::of(measured.iter().map(|round| round[1] / round[at]));
        let figure = |at: usize| median(at).map_or("-".to_owned(), |median| Number(median).to_string());
        println!(
            "{:<26} {:>7} {:>7} {:>10} {:>7}    {:<34} {:<34} {}",
            load.name,
            figure(0),
            figure(1),
            figure(2),
            figure(3),
            judged(ratio(0), *bar_alone),
            judged(ratio(2), Some(*bar_twemproxy)),
            judged(ratio(3), None),
        );
    }
    Ok(())
}

/// Returns the CPU time per key of each subject in each round.
fn measure(
    load: &Scenario,
    subjects: &[Subject; 4],
    options: &Options,
    client_cpu: usize,
) -> Result<Vec<[f64; 4]>> {
    let spec = |subject: &Subject, seed: u32| -> Result<LoadSpec> {
        let limit = Limit::Time { warmup: options.duration / 5, measured: options.duration };
        let target = subject.servers[0].target();
        let spec = load.load(target, client_cpu, &subject.pids(), limit, u64::from(seed))?;
        Ok(LoadSpec { protocol: subject.protocol, ..spec })
    };
    for subject in subjects {
        let stored = load::preload(&spec(subject, 0)?)
            .with_context(|| format!("{}: preloading {}", load.name, subject.name))?;
        ensure!(stored.refused == 0 && stored.missing == 0, "{}: {stored:?}", subject.name);
    }
    let mut rounds = Vec::new();
    for round in 1..=options.rounds {
        let mut figures = [0.0; 4];
        let mut order = [0, 1, 2, 3];
        if round % 2 == 0 {
            order.reverse();
        }
        for at in order {
            let subject = &subjects[at];
            let report = load::run(&spec(subject, round)?)
                .with_context(|| format!("{}: load on {}", load.name, subject.name))?;
            ensure!(report.misses == 0 && report.refused == 0, "{}: keys are missing", subject.name);
            figures[at] = report.server_cpu_ns_per_key.context("no CPU time")?;
        }
        rounds.push(figures);
    }
    Ok(rounds)
}

fn print_moves(programs: &Programs, rounds: u32, client_cpu: usize) -> Result<()> {
    println!("\nhalf of the slots move: MB of keys and values for each second of CPU time, medians\n");
    println!("{:<26} {:>7} {:>7}    ring ÷ Valkey (at least 1)", "items", "ring", "Valkey");
    for items in &moves::ITEMS {
        let mut moved = Vec::new();
        for _ in 0..rounds.min(MOVES_MAX) {
            moved.push((
                moves::ring(programs, items, client_cpu).context("moving slots of a ring")?,
                moves::valkey(programs, items, client_cpu).context("moving slots of Valkey")?,
            ));
        }
        let spread = |figure: fn(&(moves::Moved, moves::Moved)) -> f64| Spread::of(moved.iter().map(figure));
        let number = |spread: Option<Spread>, scale: f64| {
            spread.map_or("-".to_owned(), |spread| Number(spread.median * scale).to_string())
        };
        println!(
            "{:<26} {:>7} {:>7}    {}; {} and {} s",
            items.name,
            number(spread(|(ring, _)| ring.bytes_per_cpu_s), 1e-6),
            number(spread(|(_, valkey)| valkey.bytes_per_cpu_s), 1e-6),
            judged(spread(|(ring, valkey)| ring.bytes_per_cpu_s / valkey.bytes_per_cpu_s), None),
            number(spread(|(ring, _)| ring.seconds), 1.0),
            number(spread(|(_, valkey)| valkey.seconds), 1.0),
        );
    }
    Ok(())
}

/// Returns a ratio with its range, and whether it is at most `bar`.
fn judged(ratio: Option<Spread>, bar: Option<f64>) -> String {
    let Some(Spread { median, min, max }) = ratio else { return "-".to_owned() };
    let range = format!("{median:.2} ({min:.2}–{max:.2})");
    match bar {
        Some(bar) if median <= bar => format!("{range}, bar {bar}: met"),
        Some(bar) => format!("{range}, bar {bar}: missed"),
        None => range,
    }
}

//! `synapse`: the protocol on loopback, compared with raw sockets and gRPC in one run.
//!
//! Each scenario is a closed loop of one operation over one connection. Services are child
//! processes on a separate core, over the same working set. Each round goes through all of them,
//! and ratios are computed within a round. There is one line per figure, and no time is asserted.

#[cfg(feature = "grpc")]
mod grpc;
mod instructions;
mod iperf;
mod measure;
mod raw;
mod report;
mod scenario;
mod service;
mod shape;
mod slots;
mod wire;

use std::time::Duration;

use anyhow::{Context, Result};
use cached_benches::args::{parse_bytes, parse_duration};
use cached_benches::cpu;
use cached_benches::machine::Machine;
use clap::{Parser, Subcommand};

use report::Report;
use scenario::Scenario;
use service::Service;
use shape::Kind;

/// Compares synapse with raw TCP and gRPC.
#[derive(Parser)]
#[command(name = "synapse", version)]
struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// Rounds of each scenario; medians of their ratios are printed.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// The time for which each service is counted in a round, after a warm-up of a fifth of that
    /// time.
    #[arg(long, default_value = "250ms", value_parser = parse_duration)]
    duration: Duration,
    /// A first impression: 2 rounds of 200 ms.
    #[arg(long)]
    quick: bool,
    /// Only scenarios whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Only these services (raw is always measured).
    #[arg(long, value_delimiter = ',')]
    services: Vec<Kind>,
    /// The transport of the requests.
    #[arg(long, default_value = "64MiB", value_parser = parse_bytes)]
    working_set: usize,
    /// Do not pin to cores.
    #[arg(long)]
    no_pin: bool,
    /// Counts user instructions per request under valgrind instead, both sides together.
    #[arg(long)]
    instructions: bool,
    /// Writes every run as JSON.
    #[arg(long)]
    json: Option<std::path::PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Internal: act as a service under measurement.
    #[command(hide = true)]
    Serve(service::ServeOptions),
    /// Internal: run both sides, for this number of requests.
    #[command(hide = true)]
    Play(instructions::PlayOptions),
}

fn main() -> Result<()> {
    let mut options = Options::parse();
    match &options.command {
        Some(Command::Serve(serve)) => return service::serve(serve),
        Some(Command::Play(play)) => return play.run(),
        None => {}
    }
    if options.quick {
        (options.rounds, options.duration) = (2, Duration::from_millis(200));
    }
    println!("{}", Machine::read());
    if options.instructions {
        return instructions::print();
    }
    let cpus = pin(options.no_pin)?;
    let mut report = Report::default();
    for scenario in Scenario::all(options.working_set, options.duration) {
        if scenario.name().contains(&options.only) {
            measure(&scenario, &options, cpus, &mut report).with_context(|| scenario.name())?;
            report.print(&scenario);
        }
    }
    iperf_beside(&options, cpus)?;
    if let Some(path) = &options.json {
        report.write_json(path)?;
    }
    Ok(())
}

/// Returns the server's core and this process's, if there are two; pins the calling thread to the
/// latter.
fn pin(no_pin: bool) -> Result<Option<(usize, usize)>> {
    let [server, client, ..] = cpu::usable_cpus()?[..] else { return Ok(None) };
    if no_pin {
        return Ok(None);
    }
    cpu::pin_current_thread(client)?;
    Ok(Some((server, client)))
}

fn measure(
    scenario: &Scenario,
    options: &Options,
    cpus: Option<(usize, usize)>,
    report: &mut Report,
) -> Result<()> {
    let is_wanted =
        |kind: &Kind| *kind == Kind::Raw || options.services.is_empty() || options.services.contains(kind);
    let kinds: Vec<Kind> = Kind::built().into_iter().filter(is_wanted).collect();
    let services = kinds
        .iter()
        .map(|&kind| Service::start(kind, &scenario.shape, cpus.map(|(server, _)| server)))
        .collect::<Result<Vec<_>>>()?;
    for round in 0..options.rounds {
        // Every other round measures the services in reverse order, so that none is always the
        // first.
        let mut order: Vec<usize> = (0..kinds.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let sample = services[at].measure(&scenario.shape)?;
            report.add(scenario, round, kinds[at], sample);
        }
    }
    Ok(())
}

fn iperf_beside(options: &Options, cpus: Option<(usize, usize)>) -> Result<()> {
    for bytes in [64 << 10, 1 << 20] {
        let name = format!("iperf3, writes of {} KiB", bytes >> 10);
        if !name.contains(&options.only) && !options.only.is_empty() {
            continue;
        }
        match iperf::bandwidth(bytes, options.duration * options.rounds as u32, cpus)? {
            Some(rate) => println!("{name:<24} {:>8.0} MB/s", rate / 1e6),
            None => println!("{name:<24} skipped: iperf3 is not installed"),
        }
    }
    Ok(())
}

//! `memory`: the memory per item, and the number of items held after sizes shift and when half of
//! the items expire.
//!
//! Every server is newly started and filled by real sets. Items are counted by reading them back
//! with the correct value. CAS is on, as by default.

mod expiring;
mod items;
mod shift;
mod sizes;
mod subject;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use cached_benches::cpu;
use cached_benches::figure::Figure;
use cached_benches::machine::Machine;
use cached_benches::server::{find_program, workspace_cached};
use clap::{Parser, ValueEnum};
use serde::Serialize;

use subject::Subject;

/// Measures memory per item, size shifts and expiring loads, of cached and memcached.
#[derive(Parser)]
#[command(name = "memory", version)]
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
    /// The parts to measure (default: all).
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Measure only this server.
    #[arg(long, value_enum)]
    server: Option<Which>,
    /// Memory limit of the servers in `shift` and `expiring`, in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(64..=65_536))]
    memory_mib: u64,
    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The parts of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Bytes beyond key and value at 20 + 100 bytes, with 1.0 to 2.0 million items.
    Items,
    /// Memory beyond key and value for value sizes from 10 B to 1 MiB
    Sizes,
    /// Items held after the value size has changed from 100 B to 2 KiB to 300 B.
    Shift,
    /// Live items held when half of the items expire after two seconds.
    Expiring,
}

/// A server to measure.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    /// Ours.
    Cached,
    /// The peer.
    Memcached,
}

/// All measurements, as written by `--json`.
#[derive(Serialize)]
struct Record<'a> {
    machine: &'a Machine,
    servers: Vec<String>,
    figures: &'a [Figure],
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memory: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let mut subjects = Vec::new();
    if options.server != Some(Which::Memcached) {
        let path = match &options.cached {
            Some(path) => find_program(path, "check --cached")?,
            None => workspace_cached(options.no_build)?,
        };
        subjects.push(Subject::new("cached", &path)?);
    }
    if options.server != Some(Which::Cached) {
        let path = find_program(&options.memcached, "install it, or give its path with --memcached PATH")?;
        subjects.push(Subject::new("memcached", &path)?);
    }
    let machine = Machine::read();
    println!("{machine}");
    for subject in &subjects {
        println!("{} {}", subject.name, subject.version);
    }
    println!("{} cores usable\n", cpu::usable_cpus()?.len());
    let is_wanted = |part| options.only.is_empty() || options.only.contains(&part);
    let memory_mib = options.memory_mib as usize;
    let mut figures = Vec::new();
    if is_wanted(Part::Items) {
        items::measure(&subjects, &mut figures).context("items")?;
    }
    if is_wanted(Part::Sizes) {
        sizes::measure(&subjects, &mut figures).context("sizes")?;
    }
    if is_wanted(Part::Shift) {
        shift::measure(&subjects, memory_mib, &mut figures).context("shift")?;
    }
    if is_wanted(Part::Expiring) {
        expiring::measure(&subjects, memory_mib, &mut figures).context("expiring")?;
    }
    if let Some(path) = &options.json {
        let servers =
            subjects.iter().map(|subject| format!("{} {}", subject.name, subject.version)).collect();
        let record = Record { machine: &machine, servers, figures: &figures };
        let json = serde_json::to_string_pretty(&record)? + "\n";
        fs::write(path, json).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Prints a figure, with its required value if it has one, and records it.
fn print(figures: &mut Vec<Figure>, figure: Figure, bar: Option<Bar>) {
    let verdict = match bar {
        Some(bar) => format!(" {bar}: {}", if bar.is_met(figure.value) { "pass" } else { "miss" }),
        None => String::new(),
    };
    println!("{figure}{verdict}");
    figures.push(figure);
}

/// The required value of a figure.
#[derive(Clone, Copy)]
enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(bar) => value <= bar,
            Self::AtLeast(bar) => value >= bar,
        }
    }
}

impl std::fmt::Display for Bar {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtMost(bar) => write!(out, "(bar: at most {bar})"),
            Self::AtLeast(bar) => write!(out, "(bar: at least {bar})"),
        }
    }
}

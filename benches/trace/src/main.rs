//! `trace`: the misses of real traces under every policy, compared with LRU and the optimum.
//!
//! Three kinds of replay, distinguished by the policy's name: `s3fifo` is the policy as published;
//! `core:s3fifo` is cached's own code moving one object at a time; `kv:s3fifo` is the engine
//! itself, with regions and ghosts in a real arena.

mod decode;
mod engine;
mod made_up;
mod predict;
mod predict_mixed;
mod published;
mod report;
mod simulator;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cached_benches::args::parse_share;
use cached_benches::machine::Machine;
use cached_core::kv::policy;
use clap::Parser;
use serde::Serialize;

use decode::{Trace, synthetic_bytes};
use engine::Scale;
use published::Published;
use report::Outcome;
use simulator::engine_policy::EnginePolicy;
use simulator::{KINDS, belady_misses, misses};

/// Replays traces against eviction policies.
#[derive(Parser)]
#[command(name = "trace", version)]
struct Options {
    /// Traces: .be32, .lis or .csv, plain or compressed (.zst).
    #[arg(required_unless_present = "made_up", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also replay synthetic loads: popularity, recency, drift, scans, loops, bursts and others.
    #[arg(long)]
    made_up: bool,
    /// Policies: names, `core:` and `kv:` names, `core:*`, `kv:*` (default: all).
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
    /// Memory, as shares of the working set.
    #[arg(long, value_delimiter = ',', default_value = "0.1%,1%,10%,30%", value_parser = parse_share)]
    sizes: Vec<f64>,
    /// Count bytes instead of objects: the file's sizes, or synthetic ones between 64 B and 64 KiB.
    #[arg(long)]
    bytes: bool,
    /// Compare the miss ratios that the engine predicts for other amounts of memory with real runs;
    /// fail if they differ by more than 0.02 at twice the memory, or by more than 0.01 at the same
    /// memory.
    #[arg(long)]
    predict: bool,
    /// With --predict: replay all traces together, each in a namespace of one cache.
    #[arg(long, requires = "predict")]
    mixed: bool,
    /// With --predict: use the object cache, where each number of the trace is a bucket of 4 KiB.
    #[arg(long, requires = "predict")]
    objects: bool,
    /// The published figures to print for comparison, `miss-ratios.csv`.
    #[arg(long, value_name = "FILE")]
    miss_ratios: Option<PathBuf>,
    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the figures into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Everything measured, as written by `--json`.
#[derive(Serialize)]
struct Record<'a> {
    machine: &'a Machine,
    bytes: bool,
    outcomes: &'a [Outcome],
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trace: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let subjects = subjects(&options.policy)?;
    let published = match &options.miss_ratios {
        Some(path) => Published::read(path).with_context(|| format!("reading {}", path.display()))?,
        None => Published::default(),
    };
    let machine = Machine::read();
    println!("{machine}");
    let (mut outcomes, mut wrong) = (Vec::new(), 0);
    // The requested policies of the engine, or the default one.
    let mut policies: Vec<&str> = options.policy.iter().filter_map(|name| name.strip_prefix("kv:")).collect();
    if policies.is_empty() {
        policies.push(policy::NAMES[0]);
    }
    let read = |path: &PathBuf| Trace::read(path).with_context(|| format!("reading {}", path.display()));
    let made_up = if options.made_up { made_up::all() } else { Vec::new() };
    if options.predict && (options.mixed || options.objects) {
        let traces = options.files.iter().map(read).chain(made_up.into_iter().map(Ok));
        let traces = traces.collect::<Result<Vec<_>>>()?;
        let loads = if options.mixed { vec![&traces[..]] } else { traces.chunks(1).collect() };
        for traces in loads {
            wrong += predict_mixed::compare(traces, &options.sizes, &policies, options.objects)?;
        }
        ensure!(wrong == 0, "{wrong} predictions are beyond the bars");
        return Ok(());
    }
    for trace in options.files.iter().map(read).chain(made_up.into_iter().map(Ok)) {
        let trace = trace?;
        println!("\n{}: {} requests for {} objects", trace.name, trace.requests.len(), trace.objects);
        if options.predict {
            wrong += predict::compare(&trace, &options.sizes, &policies)?;
            continue;
        }
        report::print_head();
        for size in &options.sizes {
            measure(&trace, *size, options.bytes, &subjects, &published, &mut outcomes)
                .with_context(|| format!("{} at {}", trace.name, report::size_name(*size)))?;
        }
    }
    if options.predict {
        ensure!(wrong == 0, "{wrong} predictions are beyond the bars");
        return Ok(());
    }
    report::print_summary(&outcomes);
    if let Some(path) = &options.json {
        let record = Record { machine: &machine, bytes: options.bytes, outcomes: &outcomes };
        fs::write(path, serde_json::to_string_pretty(&record)? + "\n")
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &options.svg {
        let caption = format!("{machine}; {}", if options.bytes { "bytes" } else { "objects" });
        fs::write(path, report::plot(&outcomes, &caption))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Returns the requested policies, each by a name that can be run.
fn subjects(asked: &[String]) -> Result<Vec<String>> {
    let papers = KINDS.iter().map(|kind| kind.name.to_owned());
    let with = |prefix: &str| policy::NAMES.iter().map(|name| format!("{prefix}{name}")).collect::<Vec<_>>();
    let all: Vec<String> =
        papers.chain(["optimum".to_owned()]).chain(with("core:")).chain(with("kv:")).collect();
    if asked.is_empty() {
        return Ok(all);
    }
    let mut subjects = Vec::new();
    for name in asked {
        let prefix = name.strip_suffix('*');
        let found = all.iter().filter(|one| prefix.map_or(*one == name, |prefix| one.starts_with(prefix)));
        let before = subjects.len();
        subjects.extend(found.cloned());
        ensure!(subjects.len() > before, "no policy `{name}`; there are {}", all.join(", "));
    }
    Ok(subjects)
}

/// Runs all policies on one trace at one size.
fn measure(
    trace: &Trace,
    size: f64,
    bytes: bool,
    subjects: &[String],
    published: &Published,
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    let sizes = match (bytes, &trace.object_bytes) {
        (false, _) => vec![1; trace.objects],
        (true, Some(bytes)) => bytes.clone(),
        (true, None) => synthetic_bytes(trace.objects),
    };
    let capacity = ((sizes.iter().sum::<u64>() as f64 * size) as u64).max(1);
    let requests = trace.requests.len() as f64;
    let bounds = |capacity| {
        let mut lru = (KINDS[0].make)(capacity, sizes.clone());
        let lru = misses(&mut *lru, trace) as f64 / requests;
        (lru, belady_misses(trace, capacity, &sizes) as f64 / requests)
    };
    let in_simulation = bounds(capacity);
    let mut in_engine = None;
    for subject in subjects {
        let mut outcome = Outcome {
            trace: trace.name.clone(),
            size,
            capacity,
            policy: subject.clone(),
            miss_ratio: 0.0,
            lru: in_simulation.0,
            optimum: in_simulation.1,
            published: None,
            ns_per_request: 0.0,
            regions_walked: None,
        };
        let started;
        let missed = if let Some(name) = subject.strip_prefix("kv:") {
            if bytes {
                continue;
            }
            let (scale, (lru, optimum)) = match in_engine {
                Some(known) => known,
                None => {
                    let scale = Scale::for_capacity(capacity)?;
                    *in_engine.insert((scale, bounds(scale.capacity)))
                }
            };
            (outcome.capacity, outcome.lru, outcome.optimum) = (scale.capacity, lru, optimum);
            started = Instant::now();
            let replay = engine::replay(trace, &scale, name)?;
            outcome.regions_walked = Some(replay.regions_walked);
            replay.misses
        } else if let Some(name) = subject.strip_prefix("core:") {
            let policy = policy::by_name(name).context("a name from the engine's own list")?;
            let mut simulator = EnginePolicy::new(policy, capacity, sizes.clone());
            started = Instant::now();
            misses(&mut simulator, trace)
        } else if let Some(kind) = KINDS.iter().find(|kind| kind.name == subject) {
            if !bytes {
                outcome.published =
                    kind.published.and_then(|name| published.find(&trace.name, capacity, name));
            }
            let mut simulator = (kind.make)(capacity, sizes.clone());
            started = Instant::now();
            misses(&mut *simulator, trace)
        } else {
            if !bytes {
                outcome.published = published.find(&trace.name, capacity, "Belady");
            }
            started = Instant::now();
            belady_misses(trace, capacity, &sizes)
        };
        outcome.ns_per_request = started.elapsed().as_nanos() as f64 / requests;
        outcome.miss_ratio = missed as f64 / requests;
        report::print_row(&outcome);
        outcomes.push(outcome);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_asked_for_by_name() {
        let asked =
            |names: &[&str]| subjects(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(asked(&["lru", "kv:balanced"]).unwrap(), ["lru", "kv:balanced"]);
        assert_eq!(asked(&["core:*"]).unwrap().len(), policy::NAMES.len());
        assert_eq!(asked(&[]).unwrap().len(), KINDS.len() + 1 + 2 * policy::NAMES.len());
        assert!(asked(&["best"]).is_err());
    }

    #[test]
    fn all_policies_run_on_one_trace_in_objects_and_bytes() {
        let mut state = 1u32;
        let requests: Vec<u32> = (0..20_000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let share = f64::from(state >> 8) / f64::from(1u32 << 24);
                (share * share * 2_000.0) as u32
            })
            .collect();
        let trace = Trace { name: "t".to_owned(), requests, object_bytes: None, objects: 2_000 };
        let mut outcomes = Vec::new();
        for bytes in [false, true] {
            measure(&trace, 0.2, bytes, &subjects(&[]).unwrap(), &Published::default(), &mut outcomes)
                .unwrap();
        }
        for outcome in &outcomes {
            assert!(outcome.miss_ratio >= outcome.optimum, "better than the optimum: {outcome:?}");
            assert!(outcome.miss_ratio < 1.0, "{outcome:?}");
        }
    }

    /// Compares the figures with published ones of another simulator, if the traces are available:
    /// set `CACHED_TRACES` to the directory with `miss-ratios.csv`.
    #[test]
    fn exact_policies_agree_with_published_figures() {
        let Some(folder) = std::env::var_os("CACHED_TRACES").map(PathBuf::from) else { return };
        let published = Published::read(&folder.join("miss-ratios.csv")).unwrap();
        for file in ["kv/web12.be32.zst", "kv/web07.be32.zst", "block/OLTP.lis.zst"] {
            let trace = Trace::read(&folder.join(file)).unwrap();
            let subjects = ["lru", "fifo", "optimum"].map(str::to_owned);
            let mut outcomes = Vec::new();
            for size in [0.001, 0.01, 0.1, 0.3] {
                measure(&trace, size, false, &subjects, &published, &mut outcomes).unwrap();
            }
            let compared: Vec<_> = outcomes.iter().filter(|outcome| outcome.published.is_some()).collect();
            assert!(compared.len() >= 8, "{} figures of {}", compared.len(), trace.name);
            for outcome in compared {
                let published = outcome.published.unwrap_or_default();
                assert!((outcome.miss_ratio - published).abs() < 0.0002, "{outcome:?}");
            }
        }
    }
}

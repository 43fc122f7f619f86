//! `load`: sends a load to a memcached-compatible server and prints one figure per line.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use cached_benches::args::{parse_bytes, parse_duration, parse_share, parse_target, parse_value_bytes};
use cached_benches::keyspace::{KeySpace, ValueBytes, Verify};
use cached_benches::load::{self, Arrival, ArrivalKind, Expiry, KeyChoice, Limit, LoadSpec, Target};
use cached_benches::protocol::Protocol;
use clap::Parser;

/// Load generator for memcached-compatible servers.
///
/// Runs a closed loop, or with --rate an open loop, whose latencies count from the due time of each
/// request. Every value read is checked; a wrong reply ends the run with an error.
#[derive(Parser)]
#[command(name = "load", version)]
struct Options {
    /// Server: host:port, or the path of a unix socket.
    #[arg(default_value = "127.0.0.1:11211", value_parser = parse_target)]
    target: Target,
    /// Protocol.
    #[arg(long, value_enum, default_value = "text")]
    protocol: Protocol,
    /// Share of requests that are sets: 0 gets only, 1 sets only, 0.1 or 10% for a 90/10 mix.
    #[arg(long, default_value = "0", value_parser = parse_share)]
    sets: f64,
    /// Keys of each get.
    #[arg(long, default_value_t = 1)]
    multiget: usize,
    /// Requests that a connection sends together.
    #[arg(long, default_value_t = 1)]
    pipeline: usize,
    /// Connections, all threads together.
    #[arg(short, long, default_value_t = 50)]
    connections: usize,
    /// Threads.
    #[arg(short, long, default_value_t = 1)]
    threads: usize,
    /// Cores to pin the threads to, in turn, such as 1,2,3.
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Open loop at this many requests per second, all connections together.
    #[arg(long)]
    rate: Option<f64>,
    /// Spacing of the arrivals of an open loop.
    #[arg(long, value_enum, default_value = "poisson")]
    arrivals: ArrivalKind,
    /// The number of keys.
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Length of a key in bytes.
    #[arg(long, default_value = "20", value_parser = parse_bytes)]
    key_size: usize,
    /// Length of a value: 100, 4KiB, or a range such as 10-4KiB.
    #[arg(long, default_value = "100", value_parser = parse_value_bytes)]
    value_size: ValueBytes,
    /// Zipf exponent of the key frequencies (default: all keys are equally frequent).
    #[arg(long)]
    zipf: Option<f64>,
    /// Seconds after which stored items expire; 0 means never.
    #[arg(long, default_value_t = 0)]
    expiry: u32,
    /// Set all keys first, and read each one back.
    #[arg(long)]
    preload: bool,
    /// Minimum share of gets that must hit, otherwise the run fails (default with --preload: 1).
    #[arg(long, value_parser = parse_share)]
    hit_ratio_min: Option<f64>,
    /// How thoroughly values are checked.
    #[arg(long, value_enum, default_value = "ends")]
    verify: Verify,
    /// Counted span.
    #[arg(short, long, default_value = "5s", value_parser = parse_duration)]
    duration: Duration,
    /// Uncounted span before.
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    warmup: Duration,
    /// Send exactly this many requests, all counted, instead of running for a time.
    #[arg(short = 'n', long)]
    requests: Option<u64>,
    /// Seed of keys, operations and arrivals (default: from the clock); always printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Process whose CPU time and memory are measured; of several, the sums.
    #[arg(long, value_delimiter = ',')]
    server_pid: Vec<u32>,
    /// Fail if no reply arrives for this long.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    stall_limit: Duration,
    /// Also write the figures to this file; with -, print JSON instead of lines.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Options {
    fn spec(&self) -> Result<LoadSpec> {
        let seed = self.seed.unwrap_or_else(|| {
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64)
        });
        // The keys do not depend on the seed, so a later run can read what an earlier one has
        // stored.
        let keys = KeySpace::new(0, self.keys, self.key_size, self.value_size, 0)?;
        Ok(LoadSpec {
            protocol: self.protocol,
            key_choice: self.zipf.map_or(KeyChoice::Uniform, KeyChoice::Zipf),
            set_share: self.sets,
            keys_per_get: self.multiget,
            pipeline: self.pipeline,
            connections: self.connections,
            threads: self.threads,
            cpus: self.cpus.clone(),
            arrival: match self.rate {
                Some(requests_per_s) => Arrival::Open { requests_per_s, kind: self.arrivals },
                None => Arrival::Closed,
            },
            limit: match self.requests {
                Some(count) => Limit::Requests(count),
                None => Limit::Time { warmup: self.warmup, measured: self.duration },
            },
            expiry: Expiry { seconds: self.expiry, odd_only: false },
            verify: self.verify,
            seed,
            server_pids: self.server_pid.clone(),
            stall_limit: self.stall_limit,
            ..LoadSpec::new(self.target.clone(), keys)
        })
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let spec = options.spec()?;
    let is_json_only = options.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    if !is_json_only {
        println!("{:<52} {:>14}", "seed", spec.seed);
    }
    if options.preload {
        let preload = load::preload(&spec).context("preload")?;
        ensure!(
            preload.refused == 0,
            "preload: the server refused {} of {} sets",
            preload.refused,
            options.keys
        );
        ensure!(
            preload.missing == 0 || options.hit_ratio_min.is_some(),
            "preload: {} of {} keys are not there after it; give the server more memory, or allow misses with \
             --hit-ratio-min",
            preload.missing,
            options.keys
        );
    }
    let report = load::run(&spec)?;
    if !is_json_only {
        for figure in report.figures() {
            println!("{figure}");
        }
    }
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(&report)?;
        match is_json_only {
            true => println!("{json}"),
            false => fs::write(path, json + "\n").with_context(|| format!("writing {}", path.display()))?,
        }
    }
    let hit_ratio_min = options.hit_ratio_min.unwrap_or(if options.preload { 1.0 } else { 0.0 });
    if let Some(hit_ratio) = report.hit_ratio() {
        ensure!(hit_ratio >= hit_ratio_min, "hit ratio {hit_ratio:.4} is below {hit_ratio_min}");
    }
    ensure!(report.refused == 0, "the server refused {} requests", report.refused);
    Ok(())
}

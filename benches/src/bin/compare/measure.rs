//! Measures one scenario: newly started and preloaded servers, runs in alternating pairs, ratios
//! within each pair.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cached_benches::keyspace::Verify;
use cached_benches::load::{self, Limit, LoadReport, LoadSpec};
use cached_benches::scenario::{KEY_BYTES, Measure, Scenario, open_loop};
use cached_benches::server::{Greeting, Server, ServerSpec, free_address};
use cached_benches::statistics::Spread;
use serde::Serialize;

/// The settings of the measurements.
pub(crate) struct Bench {
    pub(crate) cached: ServerSpec,
    pub(crate) memcached: ServerSpec,
    pub(crate) with_floor: bool,
    pub(crate) pairs: u32,
    pub(crate) warmup: Duration,
    pub(crate) measured: Duration,
    pub(crate) server_cpu: usize,
    pub(crate) client_cpu: usize,
    pub(crate) seed: u64,
}

/// The results of a scenario.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    pub(crate) name: String,
    /// The unit of the three values: `ns` of CPU time per key, or `us` of latency.
    pub(crate) unit: &'static str,
    pub(crate) cached: Spread,
    pub(crate) memcached: Spread,
    pub(crate) canned: Option<Spread>,
    /// cached ÷ memcached, within each pair.
    pub(crate) ratio: Spread,
    pub(crate) bar: Option<f64>,
    /// (cached − canned) ÷ (memcached − canned), within each pair.
    pub(crate) ratio_over_floor: Option<Spread>,
    pub(crate) bar_over_floor: Option<f64>,
    /// The arrival rate of an open loop.
    pub(crate) requests_per_s_offered: Option<f64>,
    /// All runs, for further analysis.
    pub(crate) pairs: Vec<Pair>,
}

/// Consecutive runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Pair {
    pub(crate) cached: Option<LoadReport>,
    pub(crate) memcached: Option<LoadReport>,
    pub(crate) canned: Option<LoadReport>,
    /// The compared figure for cached, memcached and the canned server.
    pub(crate) figures: (f64, f64, Option<f64>),
}

impl Comparison {
    /// Summarises pairs.
    pub(crate) fn of(name: &str, unit: &'static str, pairs: Vec<Pair>) -> Result<Self> {
        let spread = |figure: fn(&Pair) -> Option<f64>| Spread::of(pairs.iter().filter_map(figure));
        Ok(Self {
            name: name.to_owned(),
            unit,
            cached: spread(|pair| Some(pair.figures.0)).context("no figure of cached")?,
            memcached: spread(|pair| Some(pair.figures.1)).context("no figure of memcached")?,
            canned: spread(|pair| pair.figures.2),
            ratio: spread(|pair| Some(pair.figures.0 / pair.figures.1)).context("no ratio")?,
            bar: None,
            ratio_over_floor: spread(|pair| {
                let (cached, memcached, canned) = (pair.figures.0, pair.figures.1, pair.figures.2?);
                // A figure at or below the lower bound cannot be compared: it is noise, or the
                // bound is wrong.
                (memcached > canned).then(|| (cached - canned) / (memcached - canned))
            }),
            bar_over_floor: None,
            requests_per_s_offered: None,
            pairs,
        })
    }
}

impl Bench {
    /// Returns the versions that cached and memcached report.
    pub(crate) fn versions(&self) -> Result<(String, String)> {
        let version = |spec: &ServerSpec| -> Result<String> {
            let server = spec.start()?;
            let version = server.client()?.version()?;
            // A server that does not end on request is killed, and not worth measuring.
            server.stop()?;
            Ok(version)
        };
        Ok((version(&self.cached)?, version(&self.memcached)?))
    }

    /// Measures a scenario.
    pub(crate) fn compare(&self, scenario: &Scenario) -> Result<Comparison> {
        let cached = self.start(&self.cached, scenario)?;
        let memcached = self.start(&self.memcached, scenario)?;
        let mut comparison = match scenario.measure {
            Measure::CpuPerKey => self.compare_cpu(scenario, &cached, &memcached)?,
            Measure::TailLatency => self.compare_tail(scenario, &cached, &memcached)?,
        };
        comparison.bar = scenario.bar;
        comparison.bar_over_floor = scenario.bar_over_floor;
        Ok(comparison)
    }

    fn compare_cpu(&self, scenario: &Scenario, cached: &Server, memcached: &Server) -> Result<Comparison> {
        let canned =
            (self.with_floor && scenario.has_floor()).then(|| self.start_canned(scenario)).transpose()?;
        let mut pairs = Vec::new();
        for pair in 0..self.pairs {
            let spec = |server: &Server| self.load(scenario, server, self.measured, pair);
            let (of_cached, of_memcached) =
                in_turn(pair, || run(spec(cached)?, cached), || run(spec(memcached)?, memcached))?;
            let of_canned = match &canned {
                Some(canned) => Some(run(LoadSpec { verify: Verify::Length, ..spec(canned)? }, canned)?),
                None => None,
            };
            let cpu_ns = |report: &LoadReport| report.server_cpu_ns_per_key.context("no CPU time");
            let figures =
                (cpu_ns(&of_cached)?, cpu_ns(&of_memcached)?, of_canned.as_ref().map(cpu_ns).transpose()?);
            pairs.push(Pair {
                cached: Some(of_cached),
                memcached: Some(of_memcached),
                canned: of_canned,
                figures,
            });
        }
        Comparison::of(scenario.name, "ns", pairs)
    }

    fn compare_tail(&self, scenario: &Scenario, cached: &Server, memcached: &Server) -> Result<Comparison> {
        let maximum = |server: &Server| -> Result<f64> {
            let runs = (0..3)
                .map(|pair| {
                    Ok(run(self.load(scenario, server, self.measured / 2, pair)?, server)?.requests_per_s)
                })
                .collect::<Result<Vec<f64>>>()?;
            Ok(Spread::of(runs).context("no throughput")?.median)
        };
        let requests_per_s = maximum(cached)?.min(maximum(memcached)?) / 2.0;
        let mut pairs = Vec::new();
        for pair in 0..self.pairs {
            let spec = |server: &Server| -> Result<LoadSpec> {
                let arrival = open_loop(requests_per_s);
                // Few requests determine the tail, so its measurement takes twice as long.
                Ok(LoadSpec { arrival, ..self.load(scenario, server, self.measured * 2, pair)? })
            };
            let (of_cached, of_memcached) =
                in_turn(pair, || run(spec(cached)?, cached), || run(spec(memcached)?, memcached))?;
            let figures = (of_cached.latency.p99_us, of_memcached.latency.p99_us, None);
            pairs.push(Pair {
                cached: Some(of_cached),
                memcached: Some(of_memcached),
                canned: None,
                figures,
            });
        }
        let comparison = Comparison::of(scenario.name, "us", pairs)?;
        Ok(Comparison { requests_per_s_offered: Some(requests_per_s), ..comparison })
    }

    fn load(&self, scenario: &Scenario, server: &Server, measured: Duration, pair: u32) -> Result<LoadSpec> {
        let limit = Limit::Time { warmup: self.warmup, measured };
        let seed = self.seed.wrapping_mul(1_000).wrapping_add(u64::from(pair));
        scenario.load(server.target(), self.client_cpu, &[server.pid()], limit, seed)
    }

    /// Starts a server with all keys of the scenario in it.
    fn start(&self, spec: &ServerSpec, scenario: &Scenario) -> Result<Server> {
        let server = if scenario.is_tls { spec.with_tls()?.start()? } else { spec.start()? };
        let preload = load::preload(&self.load(scenario, &server, self.measured, 0)?)
            .with_context(|| format!("preloading {}", spec.name))?;
        ensure!(
            preload.refused == 0 && preload.missing == 0,
            "{}: of {} keys {} were refused and {} are missing after the preload",
            spec.name,
            scenario.keys,
            preload.refused,
            preload.missing
        );
        Ok(server)
    }

    fn start_canned(&self, scenario: &Scenario) -> Result<Server> {
        let address = free_address()?;
        let own = std::env::current_exe().context("finding this program")?;
        let mut words = vec![own.into_os_string(), OsString::from("--serve-canned")];
        words.extend(
            [address.to_string(), KEY_BYTES.to_string(), scenario.value_bytes.to_string()].map(Into::into),
        );
        Server::spawn("canned", &words, Some(self.server_cpu), address, Greeting::MEMCACHED)
    }
}

/// The number of runs without a counted request after which the measurement fails.
const ATTEMPTS_MAX: u32 = 3;

/// Performs one run, in which every key must be found.
///
/// A pause of the machine (a suspended virtual machine, a lost core) can cover a short run
/// entirely. Such a run says nothing about the server and is repeated, with a note.
fn run(spec: LoadSpec, server: &Server) -> Result<LoadReport> {
    let name = server.name();
    for attempt in 1..=ATTEMPTS_MAX {
        let report = load::run(&spec).with_context(|| format!("load on {name}"))?;
        if report.requests == 0 {
            let seconds = report.seconds;
            eprintln!(
                "note: {name} answered nothing in a span of {seconds:.3} s, run {attempt} of {ATTEMPTS_MAX}"
            );
            continue;
        }
        ensure!(report.misses == 0, "{name} lost {} of {} keys", report.misses, report.keys);
        ensure!(report.refused == 0, "{name} refused {} requests", report.refused);
        return Ok(report);
    }
    bail!("{name} answered nothing in {ATTEMPTS_MAX} runs")
}

/// Runs both functions; in even pairs, the first one runs first.
pub(crate) fn in_turn<T>(
    pair: u32,
    first: impl FnOnce() -> Result<T>,
    second: impl FnOnce() -> Result<T>,
) -> Result<(T, T)> {
    if pair.is_multiple_of(2) {
        let of_first = first()?;
        Ok((of_first, second()?))
    } else {
        let of_second = second()?;
        Ok((first()?, of_second))
    }
}

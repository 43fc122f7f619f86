//! The output: for each scenario and service the medians, the ratio to raw TCP in the same round,
//! and the required value.

use std::path::Path;

use anyhow::{Context, Result};
use cached_benches::machine::Machine;
use cached_benches::statistics::Spread;
use serde::Serialize;

use crate::measure::Sample;
use crate::scenario::{Measure, Scenario};
use crate::shape::Kind;

/// Every run so far.
#[derive(Default)]
pub(crate) struct Report {
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Run {
    scenario: String,
    round: usize,
    service: String,
    #[serde(skip)]
    kind: Option<Kind>,
    rate: f64,
    ns_each: f64,
    client_cpu_ns: f64,
    server_cpu_ns: f64,
}

impl Report {
    /// Adds a run.
    pub(crate) fn add(&mut self, scenario: &Scenario, round: usize, kind: Kind, sample: Sample) {
        self.runs.push(Run {
            scenario: scenario.name(),
            round,
            service: kind.to_string(),
            kind: Some(kind),
            rate: sample.rate,
            ns_each: sample.ns_each,
            client_cpu_ns: sample.client_ns,
            server_cpu_ns: sample.server_ns,
        });
    }

    /// Prints the lines of one scenario.
    pub(crate) fn print(&self, scenario: &Scenario) {
        for kind in Kind::built() {
            let runs = self.of(scenario, kind);
            let figure = |value: fn(&Run) -> f64| Spread::of(runs.iter().map(|&run| value(run)));
            let (Some(rate), Some(ns), Some(client), Some(server)) = (
                figure(|run| run.rate),
                figure(|run| run.ns_each),
                figure(|run| run.client_cpu_ns),
                figure(|run| run.server_cpu_ns),
            ) else {
                continue;
            };
            let main = match scenario.measure {
                Measure::RoundTrip => format!("{:>9.1} µs", ns.median / 1e3),
                Measure::Rate if scenario.shape.bytes > 4096 => {
                    format!("{:>7.0} MB/s", rate.median * scenario.shape.bytes as f64 / 1e6)
                }
                Measure::Rate => format!("{:>9.0} /s", rate.median),
            };
            println!(
                "{:<18} {kind:<12} {main:<12} CPU {:>7.0} + {:>7.0} ns (client + server) {}",
                scenario.name(),
                client.median,
                server.median,
                self.verdict(scenario, kind)
            );
        }
    }

    /// Returns the ratio to raw TCP within the rounds, and whether it meets the required value.
    fn verdict(&self, scenario: &Scenario, kind: Kind) -> String {
        if kind == Kind::Raw {
            return String::new();
        }
        let raw = self.of(scenario, Kind::Raw);
        let ratio = |run: &&Run| {
            let base = raw.iter().find(|base| base.round == run.round)?;
            Some(match scenario.measure {
                Measure::RoundTrip => run.ns_each / base.ns_each,
                Measure::Rate => run.rate / base.rate,
            })
        };
        let Some(spread) = Spread::of(self.of(scenario, kind).iter().filter_map(ratio)) else {
            return String::new();
        };
        let Spread { median, min, max } = spread;
        let text = format!("ratio to raw {median:.2} ({min:.2}–{max:.2})");
        let is_kept = match scenario.measure {
            Measure::RoundTrip => median <= scenario.bar,
            Measure::Rate => median >= scenario.bar,
        };
        let sign = if scenario.measure == Measure::RoundTrip { "≤" } else { "≥" };
        match kind {
            Kind::Synapse => {
                format!("{text}, bar {sign} {:.2}: {}", scenario.bar, if is_kept { "pass" } else { "miss" })
            }
            _ => text,
        }
    }

    fn of(&self, scenario: &Scenario, kind: Kind) -> Vec<&Run> {
        let name = scenario.name();
        self.runs.iter().filter(|run| run.scenario == name && run.kind == Some(kind)).collect()
    }

    /// Writes all runs and the machine's description as JSON.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        let all = serde_json::json!({ "machine": Machine::read(), "runs": self.runs });
        std::fs::write(path, serde_json::to_vec_pretty(&all)?)
            .with_context(|| format!("writing {}", path.display()))
    }
}

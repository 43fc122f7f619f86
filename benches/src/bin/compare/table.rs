//! The comparison as a table and as a plot.

use cached_benches::figure::Number;
use cached_benches::machine::Machine;
use cached_benches::statistics::Spread;
use cached_benches::svg::{self, Row};

use crate::measure::Comparison;

pub(crate) fn print_head() {
    println!(
        "{:<24} {:>10} {:>10} {:>10}    {:>6} {:^15} {:>6}",
        "scenario", "cached", "memcached", "canned", "ratio", "range", "bar"
    );
}

pub(crate) fn print_row(comparison: &Comparison) {
    let figure = |spread: Spread| Number(spread.median).to_string();
    println!(
        "{:<24} {:>10} {:>10} {:>10} {} {}",
        comparison.name,
        figure(comparison.cached),
        figure(comparison.memcached),
        comparison.canned.map(figure).unwrap_or_default(),
        comparison.unit,
        ratio_and_bar(comparison.ratio, comparison.bar)
    );
    if let (Some(ratio), Some(bar)) = (comparison.ratio_over_floor, comparison.bar_over_floor) {
        println!("{:<24} {:>32} {:>2} {}", "  over the floor", "", "", ratio_and_bar(ratio, Some(bar)));
    }
}

fn ratio_and_bar(ratio: Spread, bar: Option<f64>) -> String {
    let range = format!("[{:.3} {:.3}]", ratio.min, ratio.max);
    let verdict = match bar {
        Some(bar) if ratio.median <= bar => format!("{bar:>6.2} pass"),
        Some(bar) => format!("{bar:>6.2} miss by {:.0} %", (ratio.median / bar - 1.0) * 100.0),
        None => format!("{:>6}", "-"),
    };
    format!("{:>6.3} {range:>15} {verdict}", ratio.median)
}

pub(crate) fn print_notes(comparisons: &[Comparison]) {
    println!(
        "\nns: CPU time of the server per key, user and kernel, median of the runs; us: 99th percentile."
    );
    println!("ratio: cached / memcached within each pair, median and range of the pairs.");
    println!("over the floor: (cached - canned) / (memcached - canned).");
    for comparison in comparisons {
        if let Some(rate) = comparison.requests_per_s_offered {
            println!("{}: {} requests/s, Poisson arrivals.", comparison.name, Number(rate));
        }
    }
    let idle: Vec<&str> =
        comparisons.iter().filter(|one| was_idle(one)).map(|one| one.name.as_str()).collect();
    if !idle.is_empty() {
        let names = idle.join(", ");
        println!(
            "a server was not busy all the time (the load or other work on its core was the limit): {names}."
        );
    }
}

/// Returns whether a server was idle for a tenth of the time or more in a closed loop.
fn was_idle(comparison: &Comparison) -> bool {
    comparison.requests_per_s_offered.is_none()
        && comparison
            .pairs
            .iter()
            .flat_map(|pair| [&pair.cached, &pair.memcached])
            .flatten()
            .any(|report| report.server_cpu_share.is_some_and(|share| share < 0.9))
}

pub(crate) fn plot(comparisons: &[Comparison], machine: &Machine, versions: &(String, String)) -> String {
    let rows: Vec<Row> = comparisons
        .iter()
        .map(|comparison| Row { name: comparison.name.clone(), ratio: comparison.ratio, bar: comparison.bar })
        .collect();
    let title =
        format!("cached {} against memcached {}: CPU time per key, p99 latency", versions.0, versions.1);
    svg::draw(&title, &machine.to_string(), &rows)
}

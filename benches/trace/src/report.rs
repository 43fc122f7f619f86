//! Figures as a table, their summary, and a plot.

use std::fmt::Write;

use serde::Serialize;

/// The results of one policy on one trace at one size.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Outcome {
    pub(crate) trace: String,
    /// The requested share of the working set.
    pub(crate) size: f64,
    /// The capacity in objects, or in byte mode in bytes.
    pub(crate) capacity: u64,
    pub(crate) policy: String,
    pub(crate) miss_ratio: f64,
    /// The miss ratios of exact LRU and Belady's optimum at the same capacity.
    pub(crate) lru: f64,
    pub(crate) optimum: f64,
    pub(crate) published: Option<f64>,
    /// Nanoseconds per request. This depends on the machine's load, so it is only an indication.
    pub(crate) ns_per_request: f64,
    /// The number of regions that the engine scanned.
    pub(crate) regions_walked: Option<u64>,
}

impl Outcome {
    /// Returns the share of the gap between LRU and the optimum that the policy closes; `None` if
    /// there is no gap.
    pub(crate) fn gap_closed(&self) -> Option<f64> {
        let gap = self.lru - self.optimum;
        (gap > 1e-9).then(|| (self.lru - self.miss_ratio) / gap)
    }

    /// Returns the relative difference in misses to LRU.
    pub(crate) fn over_lru(&self) -> f64 {
        self.miss_ratio / self.lru - 1.0
    }
}

pub(crate) fn print_head() {
    println!(
        "{:<10} {:>6} {:>11}  {:<14} {:>8} {:>9} {:>8} {:>8} {:>7}",
        "trace", "size", "capacity", "policy", "misses", "published", "gap", "vs LRU", "ns"
    );
}

pub(crate) fn print_row(outcome: &Outcome) {
    let percent = |share: f64| format!("{:+.1} %", share * 100.0);
    println!(
        "{:<10} {:>6} {:>11}  {:<14} {:>8.4} {:>9} {:>8} {:>8} {:>7.0}",
        outcome.trace,
        size_name(outcome.size),
        outcome.capacity,
        outcome.policy,
        outcome.miss_ratio,
        outcome.published.map(|ratio| format!("{ratio:.4}")).unwrap_or_default(),
        outcome.gap_closed().map(percent).unwrap_or_default(),
        percent(outcome.over_lru()),
        outcome.ns_per_request,
    );
}

pub(crate) fn size_name(size: f64) -> String {
    format!("{} %", (size * 1e6).round() / 1e4)
}

/// Prints the mean share of the gap that each policy closes at each size, over all traces, and the
/// policy's worst result.
pub(crate) fn print_summary(outcomes: &[Outcome]) {
    let (policies, sizes) = (policies(outcomes), sizes(outcomes));
    println!("\nmean share of the LRU-optimum gap closed, over the traces; and the worst against LRU");
    print!("{:<14}", "policy");
    sizes.iter().for_each(|size| print!(" {:>8}", size_name(*size)));
    println!("    all  worst vs LRU");
    for policy in policies {
        let of_policy = || outcomes.iter().filter(|outcome| outcome.policy == policy);
        print!("{policy:<14}");
        let mean = |shares: Vec<f64>| shares.iter().sum::<f64>() / shares.len().max(1) as f64 * 100.0;
        for size in &sizes {
            let here = of_policy().filter(|outcome| outcome.size == *size);
            print!(" {:>8.1}", mean(here.filter_map(Outcome::gap_closed).collect()));
        }
        print!(" {:>6.1}", mean(of_policy().filter_map(Outcome::gap_closed).collect()));
        let worst = of_policy().max_by(|a, b| a.over_lru().total_cmp(&b.over_lru()));
        match worst {
            Some(worst) => println!(
                "  {:+.1} % ({} at {})",
                worst.over_lru() * 100.0,
                worst.trace,
                size_name(worst.size)
            ),
            None => println!(),
        }
    }
}

fn policies(outcomes: &[Outcome]) -> Vec<&str> {
    let mut policies = Vec::new();
    for outcome in outcomes {
        if !policies.contains(&outcome.policy.as_str()) {
            policies.push(outcome.policy.as_str());
        }
    }
    policies
}

fn sizes(outcomes: &[Outcome]) -> Vec<f64> {
    let mut sizes: Vec<f64> = outcomes.iter().map(|outcome| outcome.size).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    sizes
}

const WIDTH: f64 = 900.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 92.0;
const ROW: f64 = 26.0;
const BOTTOM: f64 = 40.0;
/// The shares of the gap at the ends of the scale. A value outside the scale is drawn at its end.
const SCALE: (f64, f64) = (-0.4, 0.8);
const COLOURS: [&str; 12] = [
    "#7b8794", "#b0b8c1", "#8d6e63", "#5a83b5", "#26a69a", "#d9822b", "#8e44ad", "#3e8e6f", "#c0a016",
    "#c0392b", "#1f2933", "#e377c2",
];

/// Draws a row for every trace and size, with a dot for every policy at its closed share of the
/// gap.
pub(crate) fn plot(outcomes: &[Outcome], caption: &str) -> String {
    let policies = policies(outcomes);
    let mut rows: Vec<(&str, f64)> = Vec::new();
    for outcome in outcomes {
        if !rows.contains(&(outcome.trace.as_str(), outcome.size)) {
            rows.push((&outcome.trace, outcome.size));
        }
    }
    let height = TOP + ROW * rows.len() as f64 + BOTTOM;
    let x = |share: f64| {
        let share = share.clamp(SCALE.0, SCALE.1);
        LEFT + (WIDTH - LEFT - RIGHT) * (share - SCALE.0) / (SCALE.1 - SCALE.0)
    };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <style>text{{font:12px system-ui,sans-serif;fill:#1f2933}}.title{{font-size:16px;font-weight:600}}\
         .grid{{stroke:#e4e7eb}}.lru{{stroke:#7b8794;stroke-width:1.5}}.end{{text-anchor:end}}\
         .middle{{text-anchor:middle}}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text class=\"title\" x=\"16\" y=\"24\">Share of the gap between LRU and the optimum closed</text>\n"
    );
    // Writing into a String cannot fail.
    for (place, policy) in policies.iter().enumerate() {
        let (left, top) = (16.0 + 125.0 * (place % 7) as f64, 42.0 + 16.0 * (place / 7) as f64);
        let colour = COLOURS[place % COLOURS.len()];
        let _ = writeln!(out, "<circle cx=\"{left}\" cy=\"{top}\" r=\"5\" fill=\"{colour}\"/>");
        let _ = writeln!(out, "<text x=\"{}\" y=\"{}\">{policy}</text>", left + 9.0, top + 4.0);
    }
    for tick in -2..=4 {
        let share = f64::from(tick) * 0.2;
        let class = if tick == 0 { "lru" } else { "grid" };
        let _ = writeln!(
            out,
            "<line class=\"{class}\" x1=\"{0:.1}\" y1=\"{TOP}\" x2=\"{0:.1}\" y2=\"{1}\"/>\
             <text class=\"middle\" x=\"{0:.1}\" y=\"{2}\">{3:.0} %</text>",
            x(share),
            height - BOTTOM,
            TOP - 4.0,
            share * 100.0
        );
    }
    for (place, (trace, size)) in rows.iter().enumerate() {
        let middle = TOP + ROW * (place as f64 + 0.5);
        let _ = writeln!(
            out,
            "<text class=\"end\" x=\"{}\" y=\"{}\">{trace} {}</text>",
            LEFT - 10.0,
            middle + 4.0,
            size_name(*size)
        );
        for outcome in outcomes.iter().filter(|one| one.trace == *trace && one.size == *size) {
            let Some(share) = outcome.gap_closed() else { continue };
            let colour = policies.iter().position(|policy| *policy == outcome.policy).unwrap_or(0);
            let _ = writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{middle}\" r=\"5\" fill=\"{}\" fill-opacity=\"0.8\"><title>{}: {:.4}</title></circle>",
                x(share),
                COLOURS[colour % COLOURS.len()],
                outcome.policy,
                outcome.miss_ratio
            );
        }
    }
    let _ = writeln!(
        out,
        "<text x=\"16\" y=\"{}\">{}</text>\n</svg>",
        height - 14.0,
        caption.replace('&', "&amp;")
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(policy: &str, miss_ratio: f64) -> Outcome {
        Outcome {
            trace: "t".to_owned(),
            size: 0.01,
            capacity: 10,
            policy: policy.to_owned(),
            miss_ratio,
            lru: 0.5,
            optimum: 0.3,
            published: None,
            ns_per_request: 0.0,
            regions_walked: None,
        }
    }

    #[test]
    fn shares_are_of_the_gap() {
        assert!((outcome("a", 0.45).gap_closed().unwrap() - 0.25).abs() < 1e-9);
        assert!((outcome("a", 0.51).over_lru() - 0.02).abs() < 1e-9);
        assert_eq!(Outcome { optimum: 0.5, ..outcome("a", 0.5) }.gap_closed(), None);
        assert_eq!((size_name(0.001), size_name(0.3)), ("0.1 %".to_owned(), "30 %".to_owned()));
    }

    #[test]
    fn every_policy_has_a_dot_and_a_name() {
        let svg = plot(&[outcome("a", 0.4), outcome("b", 0.45)], "here & now");
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.contains("here &amp; now") && svg.ends_with("</svg>\n"));
    }
}

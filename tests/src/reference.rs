//! Compares the metrics reference, `docs/metrics.md`, with the metrics that programs report.
//!
//! The expected lines follow from the programs: help text, type and labels are declared with each
//! metric.

use std::collections::{BTreeMap, BTreeSet};

use crate::program::repository;

/// Compares the reference with one scrape of `/metrics`. Each metric that is `meant` must have its
/// line, and a line may lack its metric only if it `may_be_absent`.
///
/// # Panics
/// Panics if they differ. The message contains the lines that the reference lacks.
pub fn compare(scrape: &str, meant: impl Fn(&str) -> bool, may_be_absent: impl Fn(&str) -> bool) {
    let text = std::fs::read_to_string(repository().join("docs/metrics.md")).expect("docs/metrics.md");
    let name_of = |line: &str| Some(line.strip_prefix("| `")?.split(['`', '{']).next()?.to_owned());
    let documented = text.lines().filter_map(|line| Some((name_of(line)?, line.to_owned())));
    let documented: BTreeMap<String, String> = documented.filter(|(name, _)| meant(name)).collect();
    let mut shown = lines(scrape);
    shown.retain(|name, _| meant(name));
    let wrong: Vec<&String> = shown
        .iter()
        .filter(|(name, line)| documented.get(*name) != Some(*line))
        .map(|(_, line)| line)
        .collect();
    assert!(
        wrong.is_empty(),
        "docs/metrics.md should have:\n{}",
        wrong.iter().map(|line| format!("{line}\n")).collect::<String>()
    );
    let absent: Vec<&String> =
        documented.keys().filter(|name| !shown.contains_key(*name) && !may_be_absent(name)).collect();
    assert_eq!(absent, Vec::<&String>::new(), "docs/metrics.md names what is not there");
}

/// Returns the lines of the reference for the metrics of a scrape, by name.
fn lines(scrape: &str) -> BTreeMap<String, String> {
    let (mut helps, mut lines) = (BTreeMap::new(), BTreeMap::new());
    for line in scrape.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            helps.insert(name, help);
        }
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let labels = labels(scrape, name, kind == "histogram").into_iter().collect::<Vec<_>>().join(",");
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            let help = helps.get(name).expect("a help text stands before the type");
            lines.insert(name.to_owned(), format!("| `{name}{labels}` | {kind} | {help} |"));
        }
    }
    lines
}

/// Returns the label names of a metric's series.
fn labels<'a>(scrape: &'a str, name: &str, is_histogram: bool) -> BTreeSet<&'a str> {
    let suffix = if is_histogram { "_count{" } else { "{" };
    let series =
        scrape.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(suffix)?.rsplit_once("} "));
    // A value may contain a comma; the text after such a comma has no `="`.
    series
        .flat_map(|(labels, _)| labels.split(',').filter_map(|label| Some(label.split_once("=\"")?.0)))
        .collect()
}

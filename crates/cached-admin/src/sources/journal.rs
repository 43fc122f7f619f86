//! The journal's part of the document.

use cached_core::object::{JournalState, ObjectCache};
use cached_metrics::{Collect, Families, Number, Value};

use crate::status::document::{JournalCommits, JournalPart};

/// Returns the part of a cache's journal; `None` if it has none.
pub(super) fn part(cache: &ObjectCache) -> Option<JournalPart> {
    let health = cache.journal_health()?;
    let families = cache.families();
    let number = |name: &str| families.number(name).map_or(0, Number::to_u64);
    let millis = |name: &str| gauge(&families, name).map_or(0, |seconds| (seconds * 1000.0) as u64);
    Some(JournalPart {
        fill_bytes: number("cached_journal_fill_bytes"),
        capacity_bytes: number("cached_journal_capacity_bytes"),
        oldest_age_ms: millis("cached_journal_oldest_seconds"),
        failed: health.state != JournalState::Ok,
        records: number("cached_journal_records_total"),
        commit: commits(&families).unwrap_or_default(),
    })
}

fn gauge(families: &Families, name: &str) -> Option<f64> {
    match families.get(name)?.samples.first()?.value {
        Value::Gauge(value) => Some(value),
        _ => None,
    }
}

fn commits(families: &Families) -> Option<JournalCommits> {
    let sample = families.get("cached_journal_commit_seconds")?.samples.first()?;
    let Value::Histogram { buckets, sum, count } = &sample.value else { return None };
    let micros = |quantile: f64| quantile_secs(buckets, *count, quantile).map(|secs| (secs * 1e6).round());
    Some(JournalCommits {
        count: *count,
        sum_us: (sum * 1e6) as u64,
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        p999_us: micros(0.999),
    })
}

/// Returns a quantile: the upper bound of the bucket that has it, or the last bound.
fn quantile_secs(buckets: &[(f64, u64)], count: u64, quantile: f64) -> Option<f64> {
    let rank = (count as f64 * quantile).ceil().max(1.0) as u64;
    let found = buckets.iter().find(|(_, below)| *below >= rank).or(buckets.last());
    found.filter(|_| count > 0).map(|(bound, _)| *bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_bound_that_so_many_are_below() {
        let buckets = [(0.001, 0), (0.002, 50), (0.004, 98), (0.008, 99)];
        assert_eq!(quantile_secs(&buckets, 100, 0.5), Some(0.002));
        assert_eq!(quantile_secs(&buckets, 100, 0.51), Some(0.004));
        assert_eq!(quantile_secs(&buckets, 100, 0.99), Some(0.008));
        assert_eq!(quantile_secs(&buckets, 100, 1.0), Some(0.008), "above all bounds");
        assert_eq!(quantile_secs(&buckets, 0, 0.5), None);
    }
}

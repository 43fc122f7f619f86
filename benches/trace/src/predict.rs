//! Compares the engine's predictions for other amounts of memory with real runs.

use anyhow::{Context, Result};
use cached_core::insight::{FACTORS, Totals};

use crate::decode::Trace;
use crate::engine::{Scale, replay_into};
use crate::report::size_name;

/// The number of requests after which the samples are simulated. It is below the capacity of a
/// thread's queue.
pub(crate) const DRAIN_REQUESTS: u64 = 512;

/// Returns the maximum acceptable error at a factor; `None` if the error is only shown.
pub(crate) fn bar(factor: f64) -> Option<f64> {
    match factor {
        1.0 => Some(0.01),
        2.0 => Some(0.02),
        _ => None,
    }
}

/// Prints predictions and real runs for each share of the working set and each policy. Returns the
/// number of predictions with an unacceptable error.
pub(crate) fn compare(trace: &Trace, sizes: &[f64], policies: &[&str]) -> Result<usize> {
    let mut wrong = 0;
    for size in sizes {
        let scale = Scale::for_capacity(((trace.objects as f64 * size) as u64).max(1))?;
        for policy in policies {
            let kv = scale.store(policy, 1.0, true)?;
            let simulate = |requests, misses| {
                if requests % DRAIN_REQUESTS == 0 {
                    kv.take_samples(Some(Totals { requests, misses, ..Totals::default() }));
                }
            };
            let misses = replay_into(&kv, trace, &scale, simulate)?;
            let requests = trace.requests.len() as u64;
            kv.take_samples(Some(Totals { requests, misses, ..Totals::default() }));
            let curve = kv.miss_ratio_curve().context("the engine has no curve for this policy")?;
            println!(
                "{} of the working set, {policy}: {} objects, {:.1} MiB, {:.1} % of keys sampled, {} KiB",
                size_name(*size),
                scale.capacity,
                curve.memory_bytes as f64 / f64::from(1 << 20),
                curve.sampled_share * 100.0,
                kv.insight_bytes() >> 10,
            );
            println!("  memory   predicted  real     error");
            for factor in FACTORS {
                let predicted = curve.points.iter().find(|point| point.factor == factor);
                let predicted = predicted.context("a point for each factor")?.miss_ratio;
                let Ok(real) = scale.store(policy, factor, false) else {
                    println!("  x {factor:<6} {predicted:<10.4} (too small to run)");
                    continue;
                };
                let missed =
                    if factor == 1.0 { misses } else { replay_into(&real, trace, &scale, |_, _| ())? };
                let real = missed as f64 / requests as f64;
                let error = predicted - real;
                let is_wrong = bar(factor).is_some_and(|bar| error.abs() > bar);
                wrong += usize::from(is_wrong);
                let mark = if is_wrong { "  beyond the bar" } else { "" };
                println!("  x {factor:<6} {predicted:<10.4} {real:<8.4} {error:+.4}{mark}");
            }
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_of_a_small_load_are_within_the_bars() {
        let load = crate::made_up::all().into_iter().find(|load| load.name == "zipf-0.9").unwrap();
        assert_eq!(compare(&load, &[0.2], &["balanced"]).unwrap(), 0);
    }
}

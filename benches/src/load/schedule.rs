//! The due times of an open loop's requests, drawn in advance and independent of the server.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The distribution of arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ArrivalKind {
    /// Equal gaps.
    Fixed,
    /// Exponentially distributed gaps, as between requests of many independent users.
    Poisson,
}

/// An endless sequence of due times, in nanoseconds since the start of the run.
#[derive(Debug)]
pub(super) struct Schedule {
    kind: ArrivalKind,
    gap_ns: f64,
    next_ns: f64,
    random: SmallRng,
}

impl Schedule {
    /// Creates a schedule with `arrivals_per_s` on average. `phase` (0 to 1) delays the first
    /// arrival, so that the threads do not send simultaneously.
    pub(super) fn new(kind: ArrivalKind, arrivals_per_s: f64, phase: f64, seed: u64) -> Self {
        let gap_ns = 1e9 / arrivals_per_s;
        Self { kind, gap_ns, next_ns: gap_ns * phase, random: SmallRng::seed_from_u64(seed) }
    }

    /// Returns when the next request is due.
    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns as u64
    }

    /// Advances to the next request.
    pub(super) fn advance(&mut self) {
        self.next_ns += match self.kind {
            ArrivalKind::Fixed => self.gap_ns,
            // `random` is below 1, so the logarithm's argument is above 0.
            ArrivalKind::Poisson => -self.gap_ns * (1.0 - self.random.random::<f64>()).ln(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(kind: ArrivalKind, count: usize) -> Vec<u64> {
        let mut schedule = Schedule::new(kind, 10_000.0, 0.0, 11);
        (0..count)
            .map(|_| {
                let due = schedule.next_ns();
                schedule.advance();
                due
            })
            .collect()
    }

    #[test]
    fn fixed_arrivals_do_not_drift() {
        let times = times(ArrivalKind::Fixed, 100_001);
        assert_eq!(times[1], 100_000);
        assert!(times[100_000].abs_diff(10_000_000_000) <= 1_000);
    }

    #[test]
    fn poisson_arrivals_have_the_mean_and_the_spread_of_an_exponential() {
        let times = times(ArrivalKind::Poisson, 100_001);
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean / 100_000.0 - 1.0).abs() < 0.02, "mean {mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "deviation {}", variance.sqrt());
    }
}

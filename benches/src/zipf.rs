//! Zipf-distributed ranks by rejection-inversion (Hörmann and Derflinger, 1996): exact, O(1), no table.
//!
//! Rank `k` of `1..=count` has a probability proportional to `k^-exponent`. A uniform number is
//! mapped through the inverse of the density's integral, rounded, and rejected depending on the
//! rounding: at worst about one draw in ten.

use rand::Rng;

/// A sampler of ranks. It is cheap to copy, and keeps no random state.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    count: f64,
    exponent: f64,
    integral_first: f64,
    integral_last: f64,
    acceptance: f64,
}

impl Zipf {
    /// Returns a sampler over `count` ranks.
    ///
    /// # Panics
    /// Panics if `count` is 0, or `exponent` is not a positive finite number.
    pub fn new(count: u64, exponent: f64) -> Self {
        assert!(count > 0, "a Zipf distribution needs at least one rank");
        assert!(exponent.is_finite() && exponent > 0.0, "the Zipf exponent must be positive");
        let count = count as f64;
        Self {
            count,
            exponent,
            integral_first: integral(1.5, exponent) - 1.0,
            integral_last: integral(count + 0.5, exponent),
            acceptance: 2.0 - integral_inverse(integral(2.5, exponent) - density(2.0, exponent), exponent),
        }
    }

    /// Draws a rank, from 0 (the most frequent) to `count - 1`.
    pub fn sample(&self, random: &mut impl Rng) -> u64 {
        loop {
            let uniform: f64 = random.random();
            let area = self.integral_last + uniform * (self.integral_first - self.integral_last);
            let x = integral_inverse(area, self.exponent);
            let rank = x.round().clamp(1.0, self.count);
            let inside = rank - x <= self.acceptance
                || area >= integral(rank + 0.5, self.exponent) - density(rank, self.exponent);
            if inside {
                return rank as u64 - 1;
            }
        }
    }
}

/// Returns `x^-exponent`.
fn density(x: f64, exponent: f64) -> f64 {
    (-exponent * x.ln()).exp()
}

/// Returns the integral of the density from 1 to `x`; at exponent 1 it is `ln x`.
fn integral(x: f64, exponent: f64) -> f64 {
    let log = x.ln();
    expm1_over_x((1.0 - exponent) * log) * log
}

/// Returns the inverse of [`integral`].
fn integral_inverse(area: f64, exponent: f64) -> f64 {
    let t = (area * (1.0 - exponent)).max(-1.0);
    (ln1p_over_x(t) * area).exp()
}

/// Returns `(e^x - 1) / x`, also for x close to 0.
fn expm1_over_x(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x * 0.5 * (1.0 + x / 3.0) }
}

/// Returns `ln(1 + x) / x`, also for x close to 0.
fn ln1p_over_x(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x * (0.5 - x / 3.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    /// Returns the chi-squared statistic of the observed counts against the exact probabilities.
    fn chi_squared(count: u64, exponent: f64, draws: u64) -> f64 {
        let zipf = Zipf::new(count, exponent);
        let mut random = SmallRng::seed_from_u64(42);
        let mut seen = vec![0_u64; usize::try_from(count).unwrap()];
        for _ in 0..draws {
            seen[usize::try_from(zipf.sample(&mut random)).unwrap()] += 1;
        }
        let weight_sum: f64 = (1..=count).map(|k| (k as f64).powf(-exponent)).sum();
        seen.iter()
            .zip(1..=count)
            .map(|(&seen, k)| {
                let expected = draws as f64 * (k as f64).powf(-exponent) / weight_sum;
                (seen as f64 - expected).powi(2) / expected
            })
            .sum()
    }

    #[test]
    fn frequencies_are_those_of_the_distribution() {
        // 49 degrees of freedom: above 85.4 in one of a thousand samples.
        for exponent in [0.5, 0.99, 1.0, 1.3, 2.0] {
            let chi = chi_squared(50, exponent, 200_000);
            assert!(chi < 85.4, "exponent {exponent}: chi-squared {chi}");
        }
    }

    #[test]
    fn one_rank_and_many_ranks_stay_in_range() {
        let mut random = SmallRng::seed_from_u64(7);
        assert_eq!(Zipf::new(1, 1.0).sample(&mut random), 0);
        let zipf = Zipf::new(100_000_000, 0.9);
        assert!((0..10_000).all(|_| zipf.sample(&mut random) < 100_000_000));
    }
}

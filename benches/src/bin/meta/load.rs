//! Keys, value sizes, lifetimes and requests, drawn from histograms. Equal seeds give equal
//! results.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use cached_benches::files::read_plain_or_zst;
use rand::distr::Uniform;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;

/// The largest value drawn. Together with key and header, it fits memcached's default item limit.
const VALUE_BYTES_MAX: usize = 512 << 10;
/// Lifetimes in seconds, 0 for unlimited. Each key has one of these lifetimes.
const LIFETIMES_SECS: [u32; 5] = [0, 0, 60, 10, 2];

/// `popularityBuckets[i]` keys share `popularityWeights[i]` of the requests evenly; `oneHits` of
/// all requests are for keys that are requested only once.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Popularity {
    one_hits: f64,
    popularity_buckets: Vec<u64>,
    popularity_weights: Vec<u64>,
}

/// `valSizeRangeProbability[i]` of the values are at most `valSizeRange[i]` bytes, and larger than
/// the previous size.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sizes {
    val_size_range: Vec<usize>,
    val_size_range_probability: Vec<u64>,
}

/// The requests, and the properties of the keys.
pub(crate) struct Load {
    one_hits: f64,
    /// Cumulative weight and number of keys up to the end of each bucket.
    weights: Vec<(f64, u64)>,
    sizes: Vec<(u64, usize)>,
    seed: u64,
}

impl Load {
    /// Reads the histograms and samples about `keys` keys.
    pub(crate) fn read(popularity: &Path, sizes: &Path, keys: u64, seed: u64) -> Result<Load> {
        let popularity: Popularity = read_json(popularity)?;
        let sizes: Sizes = read_json(sizes)?;
        ensure!(
            popularity.popularity_buckets.len() == popularity.popularity_weights.len()
                && sizes.val_size_range.len() == sizes.val_size_range_probability.len(),
            "a histogram has more bounds than weights, or fewer"
        );
        let all: u64 = popularity.popularity_buckets.iter().sum();
        ensure!(all > 0, "the popularity file has no keys");
        let rate = (keys as f64 / all as f64).min(1.0);
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut weight, mut kept) = (0.0, 0u64);
        let mut weights = Vec::new();
        for (bucket, total) in popularity.popularity_buckets.iter().zip(&popularity.popularity_weights) {
            // Each key is kept with the same probability, whatever its popularity, so the shape
            // stays the same.
            let expected = *bucket as f64 * rate;
            let sampled = expected.floor() as u64 + u64::from(rng.random_bool(expected.fract()));
            if sampled > 0 {
                weight += *total as f64 * sampled as f64 / *bucket as f64;
                kept += sampled;
                weights.push((weight, kept));
            }
        }
        let mut cumulated = 0;
        let sizes = sizes
            .val_size_range_probability
            .iter()
            .zip(sizes.val_size_range)
            .map(|(probability, bytes)| {
                cumulated += probability;
                (cumulated, bytes.min(VALUE_BYTES_MAX))
            })
            .collect::<Vec<_>>();
        ensure!(cumulated > 0 && !weights.is_empty(), "a histogram is empty");
        Ok(Load { one_hits: popularity.one_hits, weights, sizes, seed })
    }

    /// Returns the number of keys that are requested more than once.
    pub(crate) fn keys(&self) -> u64 {
        self.weights.last().map_or(0, |(_, keys)| *keys)
    }

    /// Returns the size of all their values, in bytes.
    pub(crate) fn value_bytes(&self) -> u64 {
        (0..self.keys()).map(|key| self.value_of(key).0 as u64).sum()
    }

    /// Returns a key in the form in which it is sent.
    pub(crate) fn name(key: u64) -> String {
        format!("meta:{key:016x}")
    }

    /// Returns a key's value size and lifetime, which never change.
    pub(crate) fn value_of(&self, key: u64) -> (usize, u32) {
        let mut rng = SmallRng::seed_from_u64(self.seed ^ key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let last = self.sizes.len() - 1;
        let drawn = rng.random_range(0..self.sizes[last].0);
        let at = self.sizes.partition_point(|(cumulated, _)| *cumulated <= drawn).min(last);
        let above = at.checked_sub(1).map_or(0, |before| self.sizes[before].1);
        let bytes = rng.random_range(above.min(self.sizes[at].1)..=self.sizes[at].1);
        (bytes, LIFETIMES_SECS[rng.random_range(0..LIFETIMES_SECS.len())])
    }

    /// Returns an endless stream of keys.
    pub(crate) fn requests(&self, seed: u64) -> impl Iterator<Item = u64> + '_ {
        let mut rng = SmallRng::seed_from_u64(seed.rotate_left(17));
        let total = self.weights.last().map_or(1.0, |(weight, _)| *weight);
        let weight = Uniform::new(0.0, total).expect("the weights are positive");
        let mut once = self.keys();
        std::iter::repeat_with(move || {
            if rng.random_bool(self.one_hits.clamp(0.0, 1.0)) {
                once += 1;
                return once;
            }
            let drawn = rng.sample(weight);
            let at = self.weights.partition_point(|(weight, _)| *weight <= drawn).min(self.weights.len() - 1);
            let first = at.checked_sub(1).map_or(0, |before| self.weights[before].1);
            rng.random_range(first..self.weights[at].1)
        })
    }
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T> {
    let (_, text) = read_plain_or_zst(path)?;
    serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load { one_hits: 0.1, weights: vec![(50.0, 1), (100.0, 101)], sizes: vec![(1, 10), (4, 20)], seed: 3 }
    }

    #[test]
    fn requests_follow_the_weights() {
        let load = load();
        let keys: Vec<_> = load.requests(1).take(100_000).collect();
        let share = |is: &dyn Fn(u64) -> bool| keys.iter().filter(|key| is(**key)).count() as f64 / 1e5;
        assert!((share(&|key| key == 0) - 0.45).abs() < 0.01);
        assert!((share(&|key| (1..101).contains(&key)) - 0.45).abs() < 0.01);
        assert!((share(&|key| key > 101) - 0.1).abs() < 0.01);
        assert!(
            load.requests(1).take(1000).eq(keys.into_iter().take(1000)),
            "the same seed, the same requests"
        );
    }

    #[test]
    fn values_follow_the_sizes() {
        let load = load();
        let sizes: Vec<_> = (0..10_000).map(|key| load.value_of(key).0).collect();
        let small = sizes.iter().filter(|bytes| **bytes < 10).count();
        assert!((2_000..3_000).contains(&small), "{small} of 10000 below 10 bytes");
        assert!(sizes.iter().all(|bytes| *bytes <= 20));
        assert_eq!(load.value_of(7), load.value_of(7));
    }
}

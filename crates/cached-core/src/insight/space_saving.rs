//! The most frequent of many names, in a bounded amount of memory: space-saving (Metwally et al., ICDT'05).
//!
//! Each of a fixed number of counters belongs to one name. A name without a counter takes over the one with
//! the lowest count, and its count: so a count is never too low, and too high by at most what was taken over.

use super::report::Hot;
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// The counters, as a binary heap with the lowest count on top.
pub struct SpaceSaving {
    heap: Vec<Hot>,
    places: HashMap<Box<[u8]>, usize, RandomState>,
    counters_max: usize,
    total: u64,
}

impl SpaceSaving {
    /// Returns a sketch with `counters_max` counters, at least one.
    #[must_use]
    pub fn new(counters_max: usize) -> SpaceSaving {
        let counters_max = counters_max.max(1);
        SpaceSaving { heap: Vec::new(), places: HashMap::default(), counters_max, total: 0 }
    }

    /// Counts one occurrence of a name.
    pub fn count(&mut self, name: &[u8]) {
        self.total += 1;
        if let Some(&at) = self.places.get(name) {
            self.heap[at].count += 1;
            self.sink(at);
        } else if self.heap.len() < self.counters_max {
            let at = self.heap.len();
            self.heap.push(Hot { name: name.into(), count: 1, error: 0 });
            self.places.insert(name.into(), at);
            self.rise(at);
        } else {
            let lowest = &mut self.heap[0];
            self.places.remove(&lowest.name);
            *lowest = Hot { name: name.into(), count: lowest.count + 1, error: lowest.count };
            self.places.insert(name.into(), 0);
            self.sink(0);
        }
    }

    /// Returns the `count` most frequent names, the most frequent first.
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<Hot> {
        let mut all = self.heap.clone();
        all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        all.truncate(count);
        all
    }

    /// Returns the number of occurrences counted, those before a halving by half.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Halves all counts, so that what is past counts less and less.
    pub fn halve(&mut self) {
        self.total /= 2;
        // The order stays a heap's.
        for hot in &mut self.heap {
            (hot.count, hot.error) = (hot.count / 2, hot.error / 2);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = SpaceSaving::new(self.counters_max);
    }

    fn rise(&mut self, mut at: usize) {
        while at > 0 && self.heap[at].count < self.heap[(at - 1) / 2].count {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let children = [2 * at + 1, 2 * at + 2].into_iter().filter(|child| *child < self.heap.len());
            let Some(child) = children.min_by_key(|child| self.heap[*child].count) else { return };
            if self.heap[at].count <= self.heap[child].count {
                return;
            }
            self.swap(at, child);
            at = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for at in [a, b] {
            if let Some(place) = self.places.get_mut(&self.heap[at].name) {
                *place = at;
            }
        }
    }
}

impl std::fmt::Debug for SpaceSaving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (counters, total) = (self.heap.len(), self.total);
        f.debug_struct("SpaceSaving").field("counters", &counters).field("total", &total).finish()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    /// Ranks of a Zipf distribution with exponent 1.
    fn zipf(names: usize) -> impl FnMut(&mut SmallRng) -> usize {
        let mut sums: Vec<f64> = Vec::with_capacity(names);
        for rank in 1..=names {
            sums.push(sums.last().copied().unwrap_or(0.0) + 1.0 / rank as f64);
        }
        move |random| {
            let at = random.random::<f64>() * sums[names - 1];
            sums.partition_point(|sum| *sum <= at)
        }
    }

    #[test]
    fn the_top_20_of_a_zipf_distribution_are_found() {
        let (mut sketch, mut random) = (SpaceSaving::new(1024), SmallRng::seed_from_u64(5));
        let mut sample = zipf(1_000_000);
        for _ in 0..2_000_000 {
            sketch.count(format!("key:{}", sample(&mut random)).as_bytes());
        }
        let top = sketch.top(20);
        let right = top.iter().filter(|hot| {
            let rank: usize = std::str::from_utf8(&hot.name[4..]).unwrap().parse().unwrap();
            rank < 20
        });
        assert!(right.count() >= 19, "{top:?}");
        assert!(top.windows(2).all(|pair| pair[0].count >= pair[1].count));
    }

    #[test]
    fn counts_are_never_too_low_and_too_high_by_the_error_at_most() {
        let (mut sketch, mut random) = (SpaceSaving::new(32), SmallRng::seed_from_u64(6));
        let (mut sample, mut exact) = (zipf(500), HashMap::<Box<[u8]>, u64>::new());
        for n in 0..50_000 {
            let name = sample(&mut random).to_string().into_bytes().into_boxed_slice();
            sketch.count(&name);
            *exact.entry(name).or_default() += 1;
            if n % 1000 == 0 {
                for (at, hot) in sketch.heap.iter().enumerate() {
                    assert_eq!(sketch.places[&hot.name], at);
                    assert!(at == 0 || sketch.heap[(at - 1) / 2].count <= hot.count, "not a heap");
                }
            }
        }
        let all = sketch.top(100);
        assert_eq!((all.len(), sketch.places.len(), sketch.total()), (32, 32, 50_000));
        for hot in all {
            let exact = exact[&hot.name];
            assert!(hot.count >= exact && hot.count - hot.error <= exact, "{hot:?}, exactly {exact}");
        }
        sketch.halve();
        assert_eq!(sketch.total(), 25_000);
        sketch.clear();
        assert!(sketch.top(1).is_empty());
    }
}

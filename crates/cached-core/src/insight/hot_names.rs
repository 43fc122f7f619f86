//! Hot names, counted by space-saving sketches from one request in about 256.
//!
//! Requests are sampled rather than names, because a hot name has many requests. The gap between
//! two samples varies, so that a client that requests names in a cycle is not always sampled at the
//! same one. A thread drops its sample if another thread is using the sketches.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

use blocker::Timestamp;
use foldhash::fast::RandomState;

use super::{Hot, HotNames};
use crate::sync::{AtomicU64, Mutex, Ordering, lock, try_lock};

/// The average number of requests between two samples of a thread.
pub(crate) const GAP: u32 = 256;
/// The counters of the sketches.
const NAMES_MAX: usize = 1024;
const GROUPS_MAX: usize = 256;
/// The interval at which all counts are halved.
const HALVING: Duration = Duration::from_secs(300);

thread_local! {
    /// The number of requests until the next sample, and the random state for the gap after it.
    static NEXT: Cell<(u32, u32)> = const { Cell::new((1, 1)) };
}

/// The sketches, and the time of the next sample.
pub(crate) struct HotSketch {
    /// The counts; `None` if sampling is off.
    counts: Option<Mutex<Counts>>,
    dropped: AtomicU64,
}

struct Counts {
    names: SpaceSaving,
    groups: SpaceSaving,
    /// The time of the first request that still counts, and the number of all requests before it.
    since: Mark,
    halved: Mark,
}

/// A time, and the number of all requests until then.
#[derive(Clone, Copy)]
struct Mark {
    at: Timestamp,
    requests: u64,
}

impl HotSketch {
    /// Returns sketches that count from `now` on; without `is_on`, they do nothing.
    pub(crate) fn new(is_on: bool, now: Timestamp) -> HotSketch {
        let start = Mark { at: now, requests: 0 };
        let counts = || Counts {
            names: SpaceSaving::new(NAMES_MAX),
            groups: SpaceSaving::new(GROUPS_MAX),
            since: start,
            halved: start,
        };
        HotSketch { counts: is_on.then(|| Mutex::new(counts())), dropped: AtomicU64::new(0) }
    }

    /// Returns whether to sample the request that a thread is starting.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.counts.is_some()
            && NEXT.with(|next| {
                let (left, random) = next.get();
                next.set((left.wrapping_sub(1), random));
                left <= 1
            })
    }

    /// Counts a sampled request for the name and the group that `of` returns, and chooses the
    /// thread's next sample.
    #[cold]
    #[inline(never)]
    pub(crate) fn sample<N: AsRef<[u8]>>(&self, of: impl FnOnce() -> (N, N)) {
        NEXT.with(|next| {
            let random = next.get().1.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            next.set((GAP / 2 + (random >> 16) % (GAP + 1), random));
        });
        let Some(counts) = &self.counts else { return };
        match try_lock(counts) {
            Some(mut counts) => {
                let (name, group) = of();
                counts.names.count(name.as_ref());
                counts.groups.count(group.as_ref());
            }
            None => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Halves the counts if this is due. `requests` is the number of all requests since the start.
    pub(crate) fn age(&self, now: Timestamp, requests: u64) {
        let Some(counts) = &self.counts else { return };
        let counts = &mut *lock(counts);
        if now.since(counts.halved.at) >= HALVING {
            counts.names.halve();
            counts.groups.halve();
            (counts.since, counts.halved) = (counts.halved, Mark { at: now, requests });
        }
    }

    /// Returns the `count` hottest names and groups; `None` if sampling is off.
    pub(crate) fn report(&self, count: usize, now: Timestamp, requests: u64) -> Option<HotNames> {
        let counts = lock(self.counts.as_ref()?);
        let seconds = now.since(counts.since.at).as_secs_f64().max(1e-3);
        Some(HotNames {
            names: counts.names.top(count),
            groups: counts.groups.top(count),
            sampled: counts.names.total(),
            dropped: self.dropped.load(Ordering::Relaxed),
            per_sec: requests.saturating_sub(counts.since.requests) as f64 / seconds,
        })
    }
}

/// Returns the memory, in bytes, for names and groups of at most `name_bytes_max` bytes. The sketch
/// stores each of them twice.
pub(crate) const fn bytes_max(name_bytes_max: usize) -> usize {
    (NAMES_MAX + GROUPS_MAX) * (2 * name_bytes_max + 128)
}

// Finds the most frequent of many names in a limited amount of memory, by the space-saving
// algorithm (Metwally et al., ICDT'05).
//
// Each of a fixed number of counters belongs to one name. A name without a counter takes over the
// counter with the lowest count, including that count. Therefore a count is never too low, and too
// high by at most the count that was taken over.

/// The counters, as a binary heap with the lowest count on top.
#[derive(Debug)]
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
        all.sort_unstable_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        all.truncate(count);
        all
    }

    /// Returns the number of occurrences counted; halving halves this number too.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Halves all counts, so that older requests count less and less.
    pub fn halve(&mut self) {
        self.total /= 2;
        // The entries remain in heap order.
        for hot in &mut self.heap {
            (hot.count, hot.error) = (hot.count / 2, hot.error / 2);
        }
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

#[cfg(all(test, not(shuttle)))]
mod hot_names_tests {
    use super::super::Hot;
    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp(secs * 1_000_000_000)
    }

    fn count(hot: &HotSketch, name: &str) -> bool {
        let due = hot.is_due();
        if due {
            hot.sample(|| (name.as_bytes().to_vec(), b"vm".to_vec()));
        }
        due
    }

    #[test]
    fn one_request_in_about_256_is_counted_whatever_the_order() {
        let (hot, off) = (HotSketch::new(true, at(0)), HotSketch::new(false, at(0)));
        assert!(!(0..1000).any(|_| off.is_due()) && off.report(1, at(1), 1).is_none());
        // Every eighth request is for one name, and the others cycle through 256 names. The samples
        // must not all hit the same name.
        let name = |n: u64| if n.is_multiple_of(8) { "hot".to_owned() } else { format!("k{}", n % 256) };
        let samples = (0..256_000).filter(|n| count(&hot, &name(*n))).count();
        assert!((850..1200).contains(&samples), "{samples}");
        let report = hot.report(5, at(100), 256_000).unwrap();
        assert_eq!((report.sampled, report.dropped, report.per_sec), (samples as u64, 0, 2560.0));
        assert_eq!((&*report.names[0].name, report.names.len()), (&b"hot"[..], 5));
        let share = |of: &Hot| of.count as f64 / report.sampled as f64;
        assert!(
            (share(&report.names[0]) - 0.125).abs() < 0.04 && share(&report.names[1]) < 0.04,
            "{report:?}"
        );
        assert_eq!((&*report.groups[0].name, report.groups[0].count), (&b"vm"[..], report.sampled));
    }

    #[test]
    fn counts_are_halved_after_a_while_and_rates_stay() {
        let hot = HotSketch::new(true, at(0));
        (0..10).for_each(|_| hot.sample(|| (b"a", b"g")));
        hot.age(at(299), 2990);
        assert_eq!(hot.report(1, at(299), 2990).unwrap().sampled, 10);
        hot.age(at(300), 3000);
        let report = hot.report(1, at(300), 3000).unwrap();
        assert_eq!((report.sampled, report.names[0].count, report.per_sec), (5, 5, 10.0));
        hot.age(at(600), 6000);
        assert_eq!(hot.report(1, at(600), 6000).unwrap().per_sec, 10.0, "of the last five minutes");
        assert_eq!(hot.report(1, at(700), 9000).unwrap().per_sec, 15.0, "and of what came since");
    }

    #[test]
    fn a_thread_that_meets_another_one_drops_its_sample() {
        let hot = HotSketch::new(true, at(0));
        let inside = lock(hot.counts.as_ref().unwrap());
        hot.sample(|| -> (&[u8], &[u8]) { panic!("it has no room to count") });
        drop(inside);
        let report = hot.report(1, at(1), 1).unwrap();
        assert_eq!((report.dropped, report.sampled), (1, 0));
    }
}

#[cfg(all(test, not(shuttle)))]
mod space_saving_tests {
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
    }
}

//! Replacement policies as published, one object at a time, with which the engine is compared.
//!
//! Objects are numbered, so every list is index-linked and every table an array. A size of 1 for all
//! objects gives the object-count mode, in which capacity counts objects; otherwise it counts bytes.

mod arc;
mod belady;
mod clock;
pub(crate) mod engine_policy;
mod lirs;
mod lists;
mod lru;
mod s3fifo;
mod sieve;
mod twoq;
mod wtinylfu;

use crate::decode::Trace;

pub(crate) use belady::belady_misses;

/// A policy that manages one cache.
pub(crate) trait Simulator {
    /// Requests an object; returns whether it was a hit. Afterwards the object is cached, unless it
    /// is larger than the cache or the policy rejects it.
    fn request(&mut self, object: u32) -> bool;
    /// Returns the total size of the cached objects.
    #[cfg(test)]
    fn used(&self) -> u64;
}

/// A policy's name, and the function that creates it for a capacity and objects of given sizes.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// The policy's name in `miss-ratios.csv`, if it is listed.
    pub(crate) published: Option<&'static str>,
    pub(crate) make: fn(u64, Vec<u64>) -> Box<dyn Simulator>,
}

/// All policies except Belady's optimum, which must know future requests.
pub(crate) const KINDS: &[Kind] = &[
    Kind { name: "lru", published: Some("LRU"), make: |c, s| Box::new(lru::Queue::lru(c, s)) },
    Kind { name: "fifo", published: Some("FIFO"), make: |c, s| Box::new(lru::Queue::fifo(c, s)) },
    Kind { name: "mru", published: None, make: |c, s| Box::new(lru::Queue::mru(c, s)) },
    Kind { name: "clock", published: Some("Clock"), make: |c, s| Box::new(clock::Clock::new(c, s)) },
    Kind { name: "sieve", published: Some("Sieve"), make: |c, s| Box::new(sieve::Sieve::new(c, s)) },
    Kind { name: "2q", published: Some("TwoQ"), make: |c, s| Box::new(twoq::TwoQ::new(c, s)) },
    Kind { name: "arc", published: Some("ARC"), make: |c, s| Box::new(arc::Arc::new(c, s)) },
    Kind { name: "lirs", published: Some("LIRS"), make: |c, s| Box::new(lirs::Lirs::new(c, s)) },
    Kind { name: "s3fifo", published: Some("S3FIFO"), make: |c, s| Box::new(s3fifo::S3Fifo::new(c, s)) },
    Kind {
        name: "wtinylfu",
        published: Some("WTinyLFU"),
        make: |c, s| Box::new(wtinylfu::WTinyLfu::new(c, s)),
    },
];

/// Returns the misses of a whole trace.
pub(crate) fn misses(simulator: &mut dyn Simulator, trace: &Trace) -> u64 {
    trace.requests.iter().filter(|object| !simulator.request(**object)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns random requests in which some objects are much more frequent than others.
    fn skewed(requests: usize, objects: u32) -> Vec<u32> {
        let mut state = 88_172_645_463_325_252u64;
        (0..requests)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let share = (state % 1_000_000) as f64 / 1e6;
                (share * share * share * f64::from(objects)) as u32
            })
            .collect()
    }

    fn run(kind: &Kind, requests: &[u32], capacity: u64, sizes: &[u64]) -> u64 {
        let mut cache = (kind.make)(capacity, sizes.to_vec());
        let mut misses = 0;
        for object in requests {
            misses += u64::from(!cache.request(*object));
            assert!(cache.used() <= capacity, "{} holds {} of {capacity}", kind.name, cache.used());
        }
        misses
    }

    #[test]
    fn capacity_is_kept_and_used_in_objects_and_in_bytes() {
        let requests = skewed(20_000, 500);
        let sizes: Vec<u64> = (0..500).map(|object| 1 + object * 7 % 40).collect();
        for kind in KINDS {
            let all = run(kind, &requests, 50, &[1; 500]);
            assert!((6_000..19_000).contains(&all), "{}: {all} misses", kind.name);
            run(kind, &requests, 900, &sizes);
            // An object larger than the cache is not cached.
            run(kind, &[0, 1, 0, 1], 30, &[1, 31]);
        }
    }

    #[test]
    fn everything_that_fits_is_missed_once() {
        let requests = skewed(5_000, 100);
        let distinct = requests.iter().collect::<std::collections::HashSet<_>>().len() as u64;
        for kind in KINDS {
            // W-TinyLFU reserves a share for its window, so the capacity lets the rest hold all
            // objects.
            let capacity = if kind.name == "wtinylfu" { 20_000 } else { 1_500 };
            assert_eq!(run(kind, &requests, capacity, &[1; 100]), distinct, "{}", kind.name);
        }
    }

    #[test]
    fn scans_and_loops_tell_policies_apart() {
        let kind = |name| KINDS.iter().find(|kind| kind.name == name).unwrap();
        let looping: Vec<u32> = (0..10_000).map(|n| n % 110).collect();
        assert_eq!(run(kind("lru"), &looping, 100, &[1; 110]), 10_000, "LRU loses all of a loop");
        assert!(run(kind("mru"), &looping, 100, &[1; 110]) < 1_500);
        // A hot set requested three times, then a scan as long as the memory, repeatedly.
        let scanned: Vec<u32> = (0..50)
            .flat_map(|round| {
                let scan = 60 + round * 100;
                (0..180).map(|n| n % 60).chain(scan..scan + 100)
            })
            .collect();
        for name in ["arc", "lirs", "s3fifo", "wtinylfu", "sieve"] {
            let (smart, lru) = (kind(name), kind("lru"));
            let sizes = vec![1; 5_060];
            assert!(run(smart, &scanned, 100, &sizes) < run(lru, &scanned, 100, &sizes) * 9 / 10, "{name}");
        }
    }
}

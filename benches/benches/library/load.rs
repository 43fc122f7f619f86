//! The load: the keys and their order, and the checks of the replies.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use cached_benches::cpu::{pin_current_thread, usable_cpus};
use cached_benches::process::CpuClock;
use cached_benches::zipf::Zipf;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::subject::Subject;

/// The number of keys that are requested.
const KEYS: u64 = 1_000_000;
/// The number of items for which every cache has space.
pub(crate) const ENTRIES: u64 = 100_000;
/// The number of requests that are drawn in advance and repeated.
const DRAWN: usize = 1 << 22;
/// The number of requests per set.
const SET_EVERY: u32 = 10;
const SET: u32 = 1 << 31;
const SEED: u64 = 0x00ca_c4ed;

/// The two kinds of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Items {
    /// Keys of 8 bytes and values of 64 bytes.
    Small,
    /// Keys of 20 bytes and values of 100 bytes.
    Medium,
}

impl Items {
    pub(crate) const ALL: [Items; 2] = [Items::Small, Items::Medium];

    pub(crate) fn key_bytes(self) -> usize {
        match self {
            Items::Small => 8,
            Items::Medium => 20,
        }
    }

    pub(crate) fn value_bytes(self) -> usize {
        match self {
            Items::Small => 64,
            Items::Medium => 100,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Items::Small => "key8_value64",
            Items::Medium => "key20_value100",
        }
    }
}

/// The clock that times a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimedBy {
    /// The mean of the threads' CPU clocks.
    ThreadCpu,
    /// The wall clock.
    Wall,
}

/// The results of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    gets: u64,
    hits: u64,
}

impl Tally {
    pub(crate) fn hit_share(self) -> f64 {
        self.hits as f64 / self.gets as f64
    }
}

/// A sequence of requests, drawn before the measurement begins.
pub(crate) struct Load {
    pub(crate) items: Items,
    /// A rank, and a bit that marks a set.
    requests: Vec<u32>,
}

impl Load {
    pub(crate) fn new(items: Items) -> Load {
        let zipf = Zipf::new(KEYS, 1.0);
        let mut random = SmallRng::seed_from_u64(SEED);
        let requests = (0..DRAWN)
            .map(|_| {
                let rank = zipf.sample(&mut random) as u32;
                if random.random_ratio(1, SET_EVERY) { rank | SET } else { rank }
            })
            .collect();
        Load { items, requests }
    }

    /// Runs `ops` requests, starting at request `from`.
    ///
    /// # Errors
    /// Fails if a value does not belong to its key, which makes the run void.
    pub(crate) fn run<S: Subject>(&self, subject: &S, from: usize, ops: usize) -> Result<Tally> {
        match self.items {
            Items::Small => self.run_sized::<S, 8, 64>(subject, from, ops),
            Items::Medium => self.run_sized::<S, 20, 100>(subject, from, ops),
        }
    }

    fn run_sized<S: Subject, const KEY: usize, const VALUE: usize>(
        &self,
        subject: &S,
        from: usize,
        ops: usize,
    ) -> Result<Tally> {
        let mut tally = Tally::default();
        let mut wrong = 0u64;
        let mut value = [0x5a; VALUE];
        let mut at = from % DRAWN;
        for _ in 0..ops {
            let request = self.requests[at];
            at = (at + 1) % DRAWN;
            let key = key::<KEY>(request & !SET);
            if request & SET == 0 {
                tally.gets += 1;
                let found = subject.get(&key, |found: &[u8]| {
                    // Comparing the start and the end detects a truncated value.
                    found.len() == VALUE && found[..8] == key[..8] && found[VALUE - 1] == key[7]
                });
                if let Some(right) = found {
                    tally.hits += 1;
                    wrong += u64::from(!right);
                    continue;
                }
            }
            value[..8].copy_from_slice(&key[..8]);
            value[VALUE - 1] = key[7];
            subject.set(&key, &value);
        }
        if wrong > 0 {
            bail!("{}: {wrong} values were not their key's", S::NAME);
        }
        Ok(tally)
    }

    /// Returns the time of `ops` requests on each of `threads` threads, each with its own range of
    /// requests and its own core.
    ///
    /// # Errors
    /// Returns the errors of [`Load::run`], and an error if there are fewer cores than threads.
    pub(crate) fn time<S: Subject>(
        &self,
        subject: &S,
        ops: u64,
        threads: usize,
        by: TimedBy,
    ) -> Result<Duration> {
        let cores = usable_cpus()?;
        if cores.len() < threads {
            bail!("{threads} threads want as many cores, and there are {}", cores.len());
        }
        let ops = usize::try_from(ops)?;
        let start = &Barrier::new(threads);
        let times = thread::scope(|scope| {
            let handles: Vec<_> = (0..threads)
                .map(|thread| {
                    let core = cores[thread];
                    scope.spawn(move || -> Result<Duration> {
                        pin_current_thread(core)?;
                        let clock = CpuClock::of_this_thread();
                        start.wait();
                        let (wall, cpu) = (Instant::now(), clock.now_ns()?);
                        // Criterion's calls start at the same position. The offset keeps the
                        // samples of a long run from being identical.
                        self.run(subject, thread * (DRAWN / 2) + ops, ops)?;
                        Ok(match by {
                            TimedBy::ThreadCpu => Duration::from_nanos(clock.now_ns()? - cpu),
                            TimedBy::Wall => wall.elapsed(),
                        })
                    })
                })
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect::<Result<Vec<_>>>()
        })?;
        Ok(times.iter().sum::<Duration>() / u32::try_from(threads)?)
    }
}

/// Returns the key of a rank. Frequent keys are not close to each other.
#[inline]
fn key<const KEY: usize>(rank: u32) -> [u8; KEY] {
    let mut key = [b'k'; KEY];
    let id = u64::from(rank).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key[..8].copy_from_slice(&id.to_le_bytes());
    if KEY >= 16 {
        key[KEY - 8..].copy_from_slice(&id.rotate_left(29).to_le_bytes());
    }
    key
}

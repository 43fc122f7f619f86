//! Samples of the server's requests: hot keys ([`HotKeys`]) and slow requests ([`WatchedStep`]).
//!
//! The engine samples keys for predicted miss ratios ([`cached_core::insight`]). A single thread
//! evaluates all samples and watches the workers for slow requests.

use super::heartbeat::HeartbeatState;
use crate::locks::{HOT, Lock};
use cached_admin::insight::documents::{HotKey, HotPrefix, HotReport};
use cached_admin::insight::slow::SlowLog;
use cached_core::insight::SpaceSaving;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// The parts of request sampling that requests and reports share.
#[derive(Debug)]
pub(crate) struct Insight {
    /// Whether keys are sampled.
    pub(crate) is_on: bool,
    pub(crate) hot: HotKeys,
    pub(crate) slow: Arc<SlowLog>,
}

// Hot keys and prefixes: one get in about 256 is sampled and counted by space-saving sketches.
// Requests are sampled, not keys, because a hot key accounts for many requests. The gap between two
// samples varies, so that a client that requests its keys in turn is not always sampled at the same
// key. A worker queues the sampled keys, and the insight thread counts them.

/// The average number of requests between two samples.
pub(crate) const GAP: u64 = 256;
/// The maximum size of the keys queued for one worker, in bytes.
const QUEUE_BYTES_MAX: usize = 32 << 10;
/// The number of counters in a sketch.
const KEYS_MAX: usize = 1024;
const PREFIXES_MAX: usize = 256;
/// The interval after which all counts are halved.
const HALVING: Duration = Duration::from_secs(300);

/// The number of gets of its worker after which the next key is sampled.
#[derive(Debug)]
pub(crate) struct NextSample(AtomicU64);

impl Default for NextSample {
    fn default() -> Self {
        // Sampling is switched off.
        NextSample(AtomicU64::new(u64::MAX))
    }
}

impl NextSample {
    /// Starts sampling.
    pub(crate) fn start(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// Returns whether the next sample is due after `gets` gets.
    #[inline]
    pub(crate) fn is_reached(&self, gets: u64) -> bool {
        gets >= self.0.load(Ordering::Relaxed)
    }

    /// Schedules the next sample, after a gap of half to one and a half times the mean. Returns how
    /// many of the latest gets came after the one that was due to be sampled.
    fn advance(&self, gets: u64) -> u64 {
        let reached = self.0.load(Ordering::Relaxed);
        let gap = GAP / 2 + (gets.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % (GAP + 1);
        self.0.store(gets + gap, Ordering::Relaxed);
        gets.saturating_sub(reached)
    }
}

/// The sampled keys of one worker that have not been counted: for each key, a byte with its length,
/// followed by its bytes.
#[repr(align(128))]
#[derive(Debug)]
struct Queue {
    keys: Mutex<Vec<u8>>,
    dropped: AtomicU64,
}

/// The queues and the sketches.
#[derive(Debug)]
pub(crate) struct HotKeys {
    queues: Box<[Queue]>,
    counts: Lock<Counts>,
    delimiter: u8,
}

#[derive(Debug)]
struct Counts {
    keys: SpaceSaving,
    prefixes: SpaceSaving,
    /// The number of gets of all workers, halved whenever the counts are halved.
    gets: u64,
    gets_seen: u64,
    since: Instant,
    halved_at: Instant,
}

impl HotKeys {
    /// Returns sketches for the keys of `workers` workers, whose prefixes end with `delimiter`.
    pub(crate) fn new(workers: usize, delimiter: u8) -> HotKeys {
        let queue =
            || Queue { keys: Mutex::new(Vec::with_capacity(QUEUE_BYTES_MAX)), dropped: AtomicU64::new(0) };
        let now = Instant::now();
        let counts = Counts {
            keys: SpaceSaving::new(KEYS_MAX),
            prefixes: SpaceSaving::new(PREFIXES_MAX),
            gets: 0,
            gets_seen: 0,
            since: now,
            halved_at: now,
        };
        let queues = (0..workers).map(|_| queue()).collect();
        HotKeys { queues, counts: Lock::ranked(counts, &HOT), delimiter }
    }

    /// Queues one of the keys of a worker's latest gets, and schedules the next sample. Never
    /// blocks; a key that does not fit into the queue is dropped.
    #[cold]
    #[inline(never)]
    pub(crate) fn sample(&self, worker: usize, next: &NextSample, gets: u64, keys: &[&[u8]]) {
        let after = usize::try_from(next.advance(gets)).unwrap_or(usize::MAX);
        let Some(key) = keys.get(keys.len().saturating_sub(1).saturating_sub(after)) else { return };
        let (Some(queue), Ok(length)) = (self.queues.get(worker), u8::try_from(key.len())) else { return };
        // A panic leaves at most one key of the queue incomplete, and ends the server.
        let mut queued = match queue.keys.try_lock() {
            Ok(queued) => queued,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                queue.dropped.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        if queued.len() + 1 + key.len() > QUEUE_BYTES_MAX {
            queue.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queued.push(length);
        queued.extend_from_slice(key);
    }

    /// Counts the queued keys, and returns their number. `gets` is the number of all gets since
    /// startup.
    pub(crate) fn take(&self, gets: u64, now: Instant) -> usize {
        let mut counts = self.counts.lock();
        let mut taken = Vec::with_capacity(QUEUE_BYTES_MAX);
        let mut count = 0;
        for queue in &self.queues {
            let mut queued = queue.keys.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            std::mem::swap(&mut *queued, &mut taken);
            drop(queued);
            let mut rest = &taken[..];
            while let Some((length, tail)) = rest.split_first() {
                let Some((key, tail)) = tail.split_at_checked(usize::from(*length)) else { break };
                rest = tail;
                count += 1;
                counts.keys.count(key);
                if let Some(end) = key.iter().position(|byte| *byte == self.delimiter) {
                    counts.prefixes.count(&key[..end]);
                }
            }
            taken.clear();
        }
        counts.gets += gets.saturating_sub(counts.gets_seen);
        counts.gets_seen = gets;
        if now.saturating_duration_since(counts.halved_at) >= HALVING {
            counts.halved_at = now;
            counts.keys.halve();
            counts.prefixes.halve();
            counts.gets /= 2;
            // Half of the gets remain, in half of the time.
            let half = now.saturating_duration_since(counts.since) / 2;
            counts.since = now.checked_sub(half).unwrap_or(now);
        }
        count
    }

    /// Returns the `count` hottest keys and prefixes.
    pub(crate) fn report(&self, count: usize, now: Instant) -> HotReport {
        let counts = self.counts.lock();
        let sampled = counts.keys.total();
        let seconds = now.saturating_duration_since(counts.since).as_secs_f64().max(1e-3);
        let rate = counts.gets as f64 / seconds;
        let shown = |hot| HotKey::new(hot, sampled, rate);
        HotReport {
            keys: counts.keys.top(count).iter().map(shown).collect(),
            prefixes: counts.prefixes.top(count).iter().map(shown).map(HotPrefix::from).collect(),
            sampled,
            dropped: self.queues.iter().map(|queue| queue.dropped.load(Ordering::Relaxed)).sum(),
        }
    }
}

/// Returns the maximum memory for the keys of `workers` workers, in bytes: a key has up to 250
/// bytes, and is stored twice.
pub(crate) fn hot_keys_bytes_max(workers: usize) -> usize {
    const ENTRY_BYTES_MAX: usize = 2 * 250 + 128;
    (KEYS_MAX + PREFIXES_MAX) * ENTRY_BYTES_MAX + (workers + 1) * QUEUE_BYTES_MAX
}

// Slow steps of workers. A request in one of memcached's protocols does not read the clock.
// Instead, the insight thread reads each worker's heartbeat every 25 to 50 ms. A step that lasts
// longer than the threshold is recorded, with the connection and the command, once it has ended.
// Requests to the object store are measured individually.

/// The observation of one worker's current step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchedStep {
    last: HeartbeatState,
    since: Instant,
}

impl WatchedStep {
    pub(crate) fn new(now: Instant) -> WatchedStep {
        WatchedStep { last: HeartbeatState::default(), since: now }
    }

    /// Compares the heartbeat at `now` with the previous one. Returns the step that has ended
    /// since, and the time for which it was observed.
    pub(crate) fn check(
        &mut self,
        state: HeartbeatState,
        now: Instant,
    ) -> Option<(HeartbeatState, Duration)> {
        // The activity can change within a step.
        if state.is_same_step(self.last) {
            self.last = state;
            return None;
        }
        let ended = (self.last, now.saturating_duration_since(self.since));
        (self.last, self.since) = (state, now);
        (!ended.0.is_idle()).then_some(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::heartbeat::{Activity, Heartbeat};

    #[test]
    fn keys_are_sampled_once_in_about_256_gets_and_counted() {
        let (hot, next) = (HotKeys::new(1, b':'), NextSample::default());
        assert!(!next.is_reached(1 << 60), "off until it is started");
        next.start();
        let mut samples = 0;
        for gets in 1..=256_000u64 {
            // Every eighth get is for one key; the others cycle through 256 keys, and samples must
            // not always hit the same one.
            let key = if gets % 8 == 0 { "hot:1".to_owned() } else { format!("k{}", gets % 256) };
            if next.is_reached(gets) {
                samples += 1;
                hot.sample(0, &next, gets, &[key.as_bytes()]);
            }
            if gets % 1000 == 0 {
                hot.take(gets, Instant::now());
            }
        }
        assert!((850..1200).contains(&samples), "{samples}");
        let report = hot.report(5, Instant::now());
        assert_eq!((report.keys[0].key.as_str(), report.keys.len(), report.dropped), ("hot:1", 5, 0));
        assert!((report.keys[0].share - 0.125).abs() < 0.03, "{report:?}");
        assert!(report.keys[1].share < 0.04, "{report:?}");
        assert_eq!(report.prefixes.len(), 1);
        assert_eq!((report.prefixes[0].prefix.as_str(), report.keys[0].bytes.as_deref()), ("hot", None));
    }

    #[test]
    fn the_key_that_was_reached_within_a_batch_is_taken_and_a_full_queue_drops() {
        let (hot, next) = (HotKeys::new(1, b':'), NextSample::default());
        next.start();
        // The first of the three gets was due to be sampled.
        hot.sample(0, &next, 3, &[b"\xff", b"b", b"c"]);
        assert!(!next.is_reached(3 + GAP / 2 - 1) && next.is_reached(3 + GAP * 3 / 2));
        hot.take(3, Instant::now());
        let report = hot.report(1, Instant::now());
        assert_eq!((report.keys[0].share, report.keys[0].bytes.as_deref()), (1.0, Some("ff")));
        let long = [b'k'; 250];
        let fits = QUEUE_BYTES_MAX / 251;
        (0..fits as u64 + 2).for_each(|gets| hot.sample(0, &next, gets, &[&long]));
        assert_eq!(hot.report(1, Instant::now()).dropped, 2);
        assert_eq!(hot.take(1000, Instant::now()), fits);
        assert_eq!(hot.take(1000, Instant::now()), 0);
    }

    #[test]
    fn counts_are_halved_after_a_while_and_rates_stay() {
        let (hot, next) = (HotKeys::new(1, b':'), NextSample::default());
        let start = Instant::now();
        (0..100).for_each(|gets| hot.sample(0, &next, gets, &[b"a:1"]));
        hot.take(6400, start + HALVING);
        let report = hot.report(1, start + HALVING);
        assert_eq!(report.sampled, 50);
        let rate = 6400.0 / HALVING.as_secs_f64();
        assert!((report.keys[0].per_sec - rate).abs() < rate / 20.0, "{report:?}");
    }

    #[test]
    fn steps_are_timed_from_when_they_are_first_seen_to_when_they_have_ended() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let heartbeat = Heartbeat::default();
        let mut watched = WatchedStep::new(start);
        assert_eq!(watched.check(heartbeat.read(), at(10)), None);
        heartbeat.begin(1, 9, Activity::Serving);
        assert_eq!(watched.check(heartbeat.read(), at(20)), None);
        heartbeat.set_activity(Activity::FlushAll);
        assert_eq!(watched.check(heartbeat.read(), at(120)), None);
        let step = heartbeat.read();
        heartbeat.begin(2, 9, Activity::Serving);
        assert_eq!(watched.check(heartbeat.read(), at(170)), Some((step, Duration::from_millis(150))));
        let step = heartbeat.read();
        heartbeat.set_idle();
        assert_eq!(watched.check(heartbeat.read(), at(180)), Some((step, Duration::from_millis(10))));
        assert_eq!(watched.check(heartbeat.read(), at(9_000)), None, "idle time is none");
        heartbeat.begin(3, 9, Activity::Serving);
        assert_eq!(watched.check(heartbeat.read(), at(9_001)), None);
    }
}

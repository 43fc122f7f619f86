//! The width of the gate: the number of requests in flight, controlled by the store's latency.
//!
//! A store has no configured capacity. The gate is widened while requests wait for it. It is
//! narrowed while the median latency of recent requests is more than twice the measured minimum:
//! then requests queue in the store and not here, where they can be ordered. Loads and changes, and
//! small and large requests, are measured separately.
//!
//! The minimum is forgotten after a while, or a single lucky request would narrow the gate forever.
//! To measure it again, the gate is narrowed to half for a single window of each epoch; and with a
//! single request in flight, the measured latency is the minimum by definition.

use std::time::Duration;

use blocker::Timestamp;

use super::classes::Lane;

/// The minimum number of responses in a window.
const WINDOW_ANSWERS: u32 = 16;
/// The minimum duration of a window.
const WINDOW: Duration = Duration::from_millis(20);
/// The time after which the minimum latency is measured again.
const EPOCH: Duration = Duration::from_secs(10);
/// The minimum number of responses of one kind for a median.
const ANSWERS_MIN: u32 = 8;
/// The gate is narrowed if the median latency exceeds the minimum by this factor.
const SLOW: f64 = 2.0;
/// Requests of more bytes than this are large.
const LARGE_BYTES: u64 = 64 << 10;
/// The kinds of requests: loads and changes, small and large.
const KINDS: usize = 4;
/// The number of histogram buckets per power of two of nanoseconds.
const PARTS: u32 = 8;
const BUCKETS: usize = 48 * PARTS as usize;

/// See the module.
pub(super) struct Width {
    /// The upper limit of the width.
    pub(super) max: u32,
    now: u32,
    kinds: [Kind; KINDS],
    answers: u32,
    window_began: Timestamp,
    epoch_began: Timestamp,
    /// The highest number of requests in flight in this window.
    peak: u32,
    /// Whether requests have waited because of the width in this window.
    has_queued: bool,
    /// The width before it was narrowed for a window to measure the minimum.
    probing: Option<u32>,
}

/// The latencies of one kind of requests.
struct Kind {
    /// The number of responses in this window, by latency.
    counts: Box<[u32; BUCKETS]>,
    answers: u32,
    /// The minimum latency of this window.
    least_now: u64,
    /// The minimum latency; `None` before the first window.
    least: Option<u64>,
}

impl Default for Kind {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), answers: 0, least_now: u64::MAX, least: None }
    }
}

fn bucket(nanos: u64) -> usize {
    let nanos = nanos.max(1 << PARTS.ilog2());
    let power = nanos.ilog2();
    let part = (nanos >> (power - PARTS.ilog2())) as u32 % PARTS;
    ((power * PARTS + part) as usize).min(BUCKETS - 1)
}

/// Returns the lowest latency that is counted in a bucket.
fn least_of(bucket: usize) -> u64 {
    let (power, part) = (bucket as u32 / PARTS, bucket as u64 % u64::from(PARTS));
    (u64::from(PARTS) + part) << (power - PARTS.ilog2())
}

impl Kind {
    fn note(&mut self, nanos: u64) {
        self.counts[bucket(nanos)] += 1;
        self.answers += 1;
        self.least_now = self.least_now.min(nanos);
    }

    /// Returns the ratio of this window's median latency to the minimum, if both are known.
    fn slowness(&self) -> Option<f64> {
        let least = self.least.filter(|_| self.answers >= ANSWERS_MIN)?.min(self.least_now);
        let mut before = 0;
        let middle = self.counts.iter().position(|count| {
            before += count;
            before > self.answers / 2
        })?;
        Some(least_of(middle) as f64 / least.max(1) as f64)
    }

    fn end_window(&mut self, is_least_unknown: bool) {
        if self.answers > 0 {
            let before = self.least.filter(|_| !is_least_unknown).unwrap_or(u64::MAX);
            self.least = Some(before.min(self.least_now));
            self.counts.fill(0);
        }
        (self.answers, self.least_now) = (0, u64::MAX);
    }
}

impl Width {
    /// Returns a width that is at its maximum.
    pub(super) fn new(max: u32, now: Timestamp) -> Self {
        Self {
            max: max.max(1),
            now: max.max(1),
            kinds: Default::default(),
            answers: 0,
            window_began: now,
            epoch_began: now,
            peak: 0,
            has_queued: false,
            probing: None,
        }
    }

    /// Returns the maximum number of requests in flight at present.
    pub(super) fn get(&self) -> u32 {
        self.now
    }

    /// Changes the upper limit of the width.
    pub(super) fn set_max(&mut self, max: u32) {
        let was_widest = self.now == self.max;
        self.max = max.max(1);
        self.now = if was_widest { self.max } else { self.now.min(self.max) };
        self.probing = self.probing.map(|width| width.min(self.max));
    }

    /// Records the start of a request; `under_way` is the number in flight, including it.
    pub(super) fn note_begun(&mut self, under_way: u32) {
        self.peak = self.peak.max(under_way);
    }

    /// Records that a request waits which a wider gate would admit.
    pub(super) fn note_queued(&mut self) {
        self.has_queued = true;
    }

    /// Records the response to a request; `under_way` is the number in flight, including it.
    pub(super) fn note_answer(
        &mut self,
        (lane, bytes): (Lane, u64),
        latency: Duration,
        under_way: u32,
        now: Timestamp,
    ) {
        self.note_begun(under_way);
        let kind = 2 * usize::from(lane != Lane::Load) + usize::from(bytes > LARGE_BYTES);
        self.kinds[kind].note(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        self.answers += 1;
        if self.answers >= WINDOW_ANSWERS && now.since(self.window_began) >= WINDOW {
            self.end_window(now);
        }
    }

    fn end_window(&mut self, now: Timestamp) {
        let is_alone = self.peak <= 1;
        let slowness = self.kinds.iter().filter_map(Kind::slowness).fold(0.0, f64::max);
        let has_probed = self.probing.is_some();
        if let Some(width) = self.probing.take() {
            self.now = width;
        } else if slowness > SLOW && !is_alone {
            // An unused width is not a limit, so the used part is narrowed.
            let used = self.now.min(self.peak.max(1));
            self.now = (used - (used / 4).max(1)).max(1);
        } else if self.has_queued {
            self.now = self.now.saturating_add((self.now / 8).max(1)).min(self.max);
        }
        self.kinds.iter_mut().for_each(|kind| kind.end_window(has_probed || is_alone));
        if !has_probed && now.since(self.epoch_began) >= EPOCH {
            self.epoch_began = now;
            let used = self.now.min(self.peak.max(1));
            self.probing = Some(self.now);
            self.now = (used / 2).max(1);
        }
        (self.answers, self.window_began, self.peak, self.has_queued) = (0, now, 0, false);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;

    /// A store that serves `at_once` requests at a time, each for the time `service`.
    struct Store {
        at_once: u32,
        service: Duration,
    }

    /// Makes `callers` send requests one after the other for a while; returns the mean width in the
    /// second half, and the number of responses. Requests beyond the store's capacity wait in the
    /// store.
    fn run(width: &mut Width, store: &Store, callers: u32, from: Timestamp, seconds: u64) -> (f64, u64) {
        let end = from + Duration::from_secs(seconds);
        let mut places: BinaryHeap<Reverse<Timestamp>> = (0..store.at_once).map(|_| Reverse(from)).collect();
        let mut under_way = BinaryHeap::new();
        let (mut now, mut sum, mut count, mut answers) = (from, 0.0, 0, 0);
        while now < end {
            while under_way.len() < callers.min(width.get()) as usize {
                let Reverse(free) = places.pop().expect("a place");
                let done = free.max(now) + store.service;
                places.push(Reverse(done));
                under_way.push(Reverse((done, now)));
                width.note_begun(under_way.len() as u32);
            }
            if callers > width.get() {
                width.note_queued();
            }
            let with_it = under_way.len() as u32;
            let Reverse((done, begun)) = under_way.pop().expect("there are callers");
            now = done;
            width.note_answer((Lane::Load, 4096), done.since(begun), with_it, now);
            answers += 1;
            if now.since(from) > Duration::from_secs(seconds) / 2 {
                (sum, count) = (sum + f64::from(width.get()), count + 1);
            }
        }
        (sum / f64::from(count), answers)
    }

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn it_narrows_to_what_the_store_does_at_once_and_loses_no_throughput() {
        let mut width = Width::new(256, Timestamp(0));
        let store = Store { at_once: 16, service: MILLI };
        let (mean, answers) = run(&mut width, &store, 200, Timestamp(0), 10);
        assert!((16.0..64.0).contains(&mean), "{mean}");
        assert!(answers >= 150_000, "{answers}, at most 160 000");
    }

    #[test]
    fn it_widens_again_when_the_store_does_more() {
        let mut width = Width::new(256, Timestamp(0));
        let slow = Store { at_once: 2, service: MILLI };
        let (narrow, _) = run(&mut width, &slow, 200, Timestamp(0), 5);
        assert!(narrow < 16.0, "{narrow}");
        let fast = Store { at_once: 128, service: MILLI };
        let (wide, _) = run(&mut width, &fast, 200, Timestamp(5_000_000_000), 10);
        assert!(wide > 100.0, "{wide}");
    }

    #[test]
    fn a_store_that_has_become_slower_by_itself_is_soon_used_in_full_again() {
        let mut width = Width::new(64, Timestamp(0));
        run(&mut width, &Store { at_once: 64, service: MILLI }, 60, Timestamp(0), 5);
        assert_eq!(width.get(), 64, "it never had to be narrowed");
        let slower = Store { at_once: 64, service: 4 * MILLI };
        let (mean, _) = run(&mut width, &slower, 60, Timestamp(5_000_000_000), 20);
        assert!(mean > 40.0, "{mean}");
    }

    #[test]
    fn it_stays_between_one_and_the_most() {
        let mut width = Width::new(8, Timestamp(0));
        let mut now = Timestamp(0);
        for turn in 0..10_000_u64 {
            now = now + MILLI;
            width.note_begun((turn % 8) as u32 + 1);
            if turn % 3 == 0 {
                width.note_queued();
            }
            let latency = MILLI * (1 + (turn * turn % 97) as u32);
            width.note_answer((Lane::Change, turn % 100_000), latency, 1, now);
            assert!((1..=8).contains(&width.get()));
        }
        width.set_max(2);
        assert!(width.get() <= 2);
        width.set_max(0);
        assert_eq!(width.get(), 1);
    }

    #[test]
    fn latencies_are_told_apart_by_an_eighth() {
        for nanos in [1, 8, 9, 1000, 123_456, 5_000_000_000, u64::MAX] {
            let least = least_of(bucket(nanos));
            assert!(least <= nanos.max(8) && nanos < 1 << 47 || nanos > least, "{nanos}: {least}");
            assert!(nanos >= 1 << 47 || nanos.max(8) - least <= least / 8, "{nanos}: {least}");
        }
    }
}

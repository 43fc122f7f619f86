//! Counts and latencies of one thread.

use anyhow::Result;
use hdrhistogram::Histogram;

use super::replies::Done;

/// The longest latency that is distinguished. Longer latencies count as this one.
const LATENCY_NS_MAX: u64 = 600_000_000_000;
/// Significant decimal digits of a latency.
const LATENCY_DIGITS: u8 = 3;

/// Returns an empty latency histogram, from 1 ns to ten minutes in steps below 0.1 %.
pub(super) fn latency_histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS)?)
}

/// The requests answered while the window was open, and their latencies.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) requests: u64,
    pub(super) sets: u64,
    pub(super) refused: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) latency_ns: Histogram<u64>,
}

impl Tally {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { requests: 0, sets: 0, refused: 0, hits: 0, misses: 0, latency_ns: latency_histogram()? })
    }

    /// Counts a request.
    pub(super) fn count(&mut self, done: Done) {
        self.requests += 1;
        self.refused += u64::from(done.is_refused);
        if done.is_set {
            self.sets += 1;
        } else {
            self.hits += u64::from(done.hits);
            self.misses += u64::from(done.keys - done.hits);
        }
    }

    /// Adds a latency.
    pub(super) fn record(&mut self, latency_ns: u64) {
        self.latency_ns.saturating_record(latency_ns.max(1));
    }
}

//! What an arbiter shows of itself.

use super::Half;
use crate::sync::{AtomicU64, Ordering};
use blocker::metrics::{Collect, Families, Label, Value};

/// The numbers of an arbiter, which any thread may read.
#[derive(Debug)]
pub struct ArbiterMetrics {
    bytes_min: [u64; 2],
    bytes: [AtomicU64; 2],
    gain_nanos: [AtomicU64; 2],
    /// From which half memory went.
    given_bytes: [AtomicU64; 2],
    moves: AtomicU64,
    failures: AtomicU64,
}

impl ArbiterMetrics {
    pub(super) fn new(bytes_min: [u64; 2]) -> ArbiterMetrics {
        let zero = || [AtomicU64::new(0), AtomicU64::new(0)];
        ArbiterMetrics {
            bytes_min,
            bytes: zero(),
            gain_nanos: zero(),
            given_bytes: zero(),
            moves: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    pub(super) fn look(&self, bytes: [u64; 2], gain_nanos: [u64; 2]) {
        for at in 0..2 {
            self.bytes[at].store(bytes[at], Ordering::Relaxed);
            self.gain_nanos[at].store(gain_nanos[at], Ordering::Relaxed);
        }
    }

    pub(super) fn begin(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn moved(&self, from: Half, bytes: u64) {
        self.given_bytes[from as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a failure; returns whether it is the first.
    pub(super) fn failed(&self) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Returns the memory that a half has, in bytes, as it was last seen.
    #[must_use]
    pub fn bytes(&self, half: Half) -> u64 {
        self.bytes[half as usize].load(Ordering::Relaxed)
    }

    /// Returns the least memory that a half has, in bytes.
    #[must_use]
    pub fn bytes_min(&self, half: Half) -> u64 {
        self.bytes_min[half as usize]
    }

    /// Returns what more memory would have saved a half lately, in nanoseconds of misses.
    #[must_use]
    pub fn gain_nanos(&self, half: Half) -> u64 {
        self.gain_nanos[half as usize].load(Ordering::Relaxed)
    }

    /// Returns the memory that has moved from a half to the other since the start, in bytes.
    #[must_use]
    pub fn given_bytes(&self, half: Half) -> u64 {
        self.given_bytes[half as usize].load(Ordering::Relaxed)
    }

    /// Returns how many moves have begun.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// Returns how often the system did not take memory back, so that it could not move.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

impl Collect for ArbiterMetrics {
    fn collect(&self, into: &mut Families) {
        for half in Half::BOTH {
            let labels = || -> Vec<Label> { vec![("half", half.to_string()).into()] };
            let help = "The memory that items and objects have of what they share.";
            into.sample("cached_shared_memory_bytes", help, labels(), Value::Gauge(self.bytes(half) as f64));
            let help = "The least memory that items and objects have.";
            let least = Value::Gauge(self.bytes_min(half) as f64);
            into.sample("cached_shared_memory_least_bytes", help, labels(), least);
            let help = "Misses that a quarter more of the memory would have saved lately, by what they cost.";
            let gain = Value::Gauge(self.gain_nanos(half) as f64 / 1e9);
            into.sample("cached_shared_memory_gain_seconds", help, labels(), gain);
            let help = "Memory that has moved to the other half.";
            let given = Value::Counter(self.given_bytes(half));
            into.sample("cached_shared_memory_given_bytes_total", help, labels(), given);
        }
        let help = "Moves of memory between items and objects.";
        into.counter("cached_shared_memory_moves_total", help, self.moves());
        let help = "Memory that the system did not take back, so that it could not move.";
        into.counter("cached_shared_memory_failures_total", help, self.failures());
    }
}

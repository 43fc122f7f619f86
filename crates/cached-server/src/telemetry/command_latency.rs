//! Request latency by command, of one worker: what a sample of its turns has taken.
//!
//! A turn is one wait for events and the connections served after it. No request reads a clock: only of a turn that is timed,
//! about one in 64 steps and at least one each second, the worker reads it when the wait ends and after each connection. The
//! requests of that connection have taken the time in between, because their replies leave together.

use cached_metrics::{Latency, LatencySnapshot};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A kind of command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Get,
    Set,
    Touch,
    Delete,
    Incr,
    Decr,
    Flush,
}

impl Kind {
    pub(crate) const ALL: [Kind; 7] =
        [Kind::Get, Kind::Set, Kind::Touch, Kind::Delete, Kind::Incr, Kind::Decr, Kind::Flush];

    /// Returns the name that metrics show.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Get => "get",
            Kind::Set => "set",
            Kind::Touch => "touch",
            Kind::Delete => "delete",
            Kind::Incr => "incr",
            Kind::Decr => "decr",
            Kind::Flush => "flush",
        }
    }
}

/// The latencies of one worker.
#[derive(Debug, Default)]
pub(crate) struct CommandLatency {
    kinds: [Latency; Kind::ALL.len()],
}

impl CommandLatency {
    /// Counts these numbers of commands of each kind, each of which took `duration`.
    pub(crate) fn observe(&self, duration: Duration, commands: [u64; Kind::ALL.len()]) {
        for (latency, count) in self.kinds.iter().zip(commands) {
            if count > 0 {
                latency.observe_many(duration, count);
            }
        }
    }

    /// Returns the distribution of one kind.
    pub(crate) fn snapshot(&self, kind: Kind) -> LatencySnapshot {
        self.kinds[kind as usize].snapshot()
    }

    /// Returns the distribution of all kinds together.
    pub(crate) fn sum(&self) -> LatencySnapshot {
        let mut sum = LatencySnapshot::default();
        self.kinds.iter().for_each(|latency| sum.add(&latency.snapshot()));
        sum
    }
}

/// The number of the step from which on the next turn is timed: one word that the worker reads once in each turn and each step,
/// in a cache line of its own counters.
#[derive(Debug)]
pub(crate) struct NextTimed(AtomicU64);

impl Default for NextTimed {
    fn default() -> Self {
        NextTimed(AtomicU64::new(NextTimed::SOON))
    }
}

impl NextTimed {
    /// The turn that runs is timed.
    const RUNNING: u64 = 0;
    /// The next turn is to be timed, whatever its number.
    const SOON: u64 = 1;

    /// Requests that the next turn is timed. Called once a second, so that a worker with few requests has measurements too.
    pub(crate) fn request(&self) {
        if self.0.load(Ordering::Relaxed) != Self::RUNNING {
            // The worker may begin a timed turn meanwhile, which then is not measured; the next one is.
            self.0.store(Self::SOON, Ordering::Relaxed);
        }
    }

    /// Returns whether something changes at this step: a timed turn begins, or has ended.
    #[inline]
    pub(crate) fn is_due(&self, step: u64) -> bool {
        step >= self.0.load(Ordering::Relaxed)
    }

    /// Begins a timed turn.
    pub(crate) fn begin(&self) {
        self.0.store(Self::RUNNING, Ordering::Relaxed);
    }

    /// Ends it. The next one begins at `step`, or earlier if that is requested.
    pub(crate) fn end(&self, step: u64) {
        self.0.store(step.max(Self::SOON), Ordering::Relaxed);
    }

    /// Returns whether the turn that runs is timed.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::RUNNING
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_counted_under_its_kind() {
        let latency = CommandLatency::default();
        latency.observe(Duration::from_micros(5), [3, 1, 0, 2, 1, 0, 0]);
        let counts = Kind::ALL.map(|kind| (kind.name(), latency.snapshot(kind).count()));
        let expected =
            [("get", 3), ("set", 1), ("touch", 0), ("delete", 2), ("incr", 1), ("decr", 0), ("flush", 0)];
        assert_eq!(counts, expected);
        assert_eq!(latency.sum().count(), 7);
    }
}

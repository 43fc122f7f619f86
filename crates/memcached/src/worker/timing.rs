//! Times some iterations of a worker's loop: about one in 64 steps, and the first of each second.

use crate::connections::ConnInfo;
use crate::telemetry::counters::{Counters, KINDS, Totals};
use blocker::trace::{AttributeValue, SpanKind, Tracer};
use cached_admin::insight::slow::SlowRequest;
use std::time::{Duration, Instant};

/// The minimum number of steps between two timed iterations. Up to twice as many are added at
/// random.
const STEPS_MIN: u64 = 32;

/// The commands of a connection that were executed in a timed iteration.
pub(super) struct Served {
    /// The time since the wait for events ended.
    pub(super) took: Duration,
    /// The number of commands of each kind.
    pub(super) commands: [u64; KINDS.len()],
}

/// The measurement of an iteration.
#[derive(Debug)]
pub(super) struct Timing {
    /// The time at which the wait for events ended.
    start: Instant,
    /// The worker's counts after the connection that was served last.
    before: Totals,
    random: u32,
}

impl Timing {
    /// Returns the timing of a worker; `seed` makes it differ from that of other workers.
    pub(super) fn new(seed: usize) -> Timing {
        Timing { start: Instant::now(), before: Totals::default(), random: seed as u32 }
    }

    /// Begins a timed iteration at `step`, or ends the current one, whichever is due.
    #[cold]
    pub(super) fn begin_or_end(&mut self, step: u64, counters: &Counters) {
        if counters.next_timed.is_running() {
            // Irregular intervals, so that no rhythm of the clients decides which of their requests
            // are measured.
            self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let more = u64::from(self.random >> 16) % (2 * STEPS_MIN);
            counters.next_timed.end(step + STEPS_MIN + more);
            return;
        }
        counters.next_timed.begin();
        self.before = counters.totals();
        self.start = Instant::now();
    }

    /// Counts and returns the requests of a connection that was served in a timed iteration.
    #[cold]
    pub(super) fn served(&mut self, counters: &Counters) -> Served {
        let totals = counters.totals();
        let (took, commands) = (self.start.elapsed(), totals.since(&self.before).commands());
        counters.latency.observe(took, commands);
        self.before = totals;
        Served { took, commands }
    }
}

// Spans of memcached's protocols. Requests are not timed individually, so a span covers everything
// that one connection was served in a timed iteration. The tracer samples a share of these spans;
// slow requests are all recorded.

/// The names of the attributes that hold the numbers of commands, in the order of [`KINDS`].
const COUNTS: [&str; KINDS.len()] = [
    "memcached.get",
    "memcached.set",
    "memcached.touch",
    "memcached.delete",
    "memcached.incr",
    "memcached.decr",
    "memcached.flush",
];

/// Records, if it is sampled, the span of the connection `info` in step `step` of a worker.
pub(super) fn record_iteration(tracer: &Tracer, worker: usize, step: u64, info: &ConnInfo, served: &Served) {
    let counts = COUNTS.into_iter().zip(served.commands).filter(|(_, count)| *count > 0);
    let mut attributes: Vec<(&str, AttributeValue)> =
        counts.map(|(name, count)| (name, AttributeValue::Number(count))).collect();
    if attributes.is_empty() || !tracer.is_sampled() {
        return;
    }
    attributes.push(("client.address", info.client().into()));
    attributes.push(("memcached.request_id", format!("{worker}.{step}").into()));
    tracer.record("memcached.turn", SpanKind::Server, served.took, attributes);
}

/// Records a slow step of a worker.
pub(crate) fn record_slow(tracer: &Tracer, worker: usize, took: Duration, slow: &SlowRequest) {
    let mut attributes: Vec<(&str, AttributeValue)> =
        vec![("memcached.command", slow.command.into()), ("memcached.worker", (worker as u64).into())];
    if let Some(client) = &slow.client {
        attributes.push(("client.address", client.clone().into()));
    }
    tracer.record("memcached.slow", SpanKind::Server, took, attributes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timed_iteration_counts_what_was_served_in_it_and_nothing_else() {
        let (counters, mut timing) = (Counters::default(), Timing::new(1));
        let counted = || counters.latency.sum().count();
        let mut timed = 0;
        for step in 1..=6400 {
            if counters.next_timed.is_due(step) {
                timing.begin_or_end(step, &counters);
            }
            counters.gets.add(2);
            if counters.next_timed.is_running() {
                timing.served(&counters);
                timed += 1;
            }
            assert_eq!(counted(), 2 * timed);
        }
        assert!((6400 / 97..=6400 / 33).contains(&timed), "{timed} of 6400 steps");
    }

    #[test]
    fn a_request_makes_the_next_iteration_a_timed_one() {
        let (counters, mut timing) = (Counters::default(), Timing::new(2));
        // The first iteration is timed; the second ends that timing.
        for step in 1..=2 {
            timing.begin_or_end(step, &counters);
        }
        assert!(!counters.next_timed.is_due(3));
        counters.next_timed.request();
        assert!(counters.next_timed.is_due(3));
        timing.begin_or_end(3, &counters);
        assert!(counters.next_timed.is_running());
        counters.next_timed.request();
        assert!(counters.next_timed.is_running(), "a timed iteration is not disturbed");
    }

    #[test]
    fn the_counts_are_named_as_the_commands_are() {
        let names = KINDS.map(|kind| format!("memcached.{kind}"));
        assert_eq!(names, COUNTS);
    }
}

//! Times some of a worker's turns: about one in 64 steps, and the first of each second.

use crate::telemetry::command_latency::Kind;
use crate::telemetry::counters::{Counters, Totals};
use std::time::{Duration, Instant};

/// The steps between two timed turns: at least these, and up to twice as many more.
const STEPS_MIN: u64 = 32;

/// What a connection was served in a timed turn.
pub(super) struct Served {
    /// The time since the end of the wait for events.
    pub(super) took: Duration,
    /// The number of commands of each kind.
    pub(super) commands: [u64; Kind::ALL.len()],
}

/// The measurement of a turn.
#[derive(Debug)]
pub(super) struct Timing {
    /// When the wait for events ended.
    start: Instant,
    /// What the worker had counted when its last connection had been served.
    before: Totals,
    random: u32,
}

impl Timing {
    /// Returns the timing of a worker; `seed` distinguishes it from those of others.
    pub(super) fn new(seed: usize) -> Timing {
        Timing { start: Instant::now(), before: Totals::default(), random: seed as u32 }
    }

    /// Begins a timed turn at `step`, or ends the last one, whichever is due.
    #[cold]
    pub(super) fn turn(&mut self, step: u64, counters: &Counters) {
        if counters.next_timed.is_running() {
            // Irregular, so that no rhythm of the clients decides which of their requests are measured.
            self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let more = u64::from(self.random >> 16) % (2 * STEPS_MIN);
            counters.next_timed.end(step + STEPS_MIN + more);
            return;
        }
        counters.next_timed.begin();
        self.before = counters.totals();
        self.start = Instant::now();
    }

    /// Counts the requests of a connection that has been served in a timed turn, and returns them.
    #[cold]
    pub(super) fn served(&mut self, counters: &Counters) -> Served {
        let totals = counters.totals();
        let (took, commands) = (self.start.elapsed(), totals.since(&self.before).commands());
        counters.latency.observe(took, commands);
        self.before = totals;
        Served { took, commands }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timed_turn_counts_what_was_served_in_it_and_nothing_else() {
        let (counters, mut timing) = (Counters::default(), Timing::new(1));
        let counted = || counters.latency.sum().count();
        let mut timed = 0;
        for step in 1..=6400 {
            if counters.next_timed.is_due(step) {
                timing.turn(step, &counters);
            }
            counters.get_cmds.add(2);
            if counters.next_timed.is_running() {
                timing.served(&counters);
                timed += 1;
            }
            assert_eq!(counted(), 2 * timed);
        }
        assert!((6400 / 97..=6400 / 33).contains(&timed), "{timed} of 6400 steps");
    }

    #[test]
    fn a_request_makes_the_next_turn_a_timed_one() {
        let (counters, mut timing) = (Counters::default(), Timing::new(2));
        // The first turn is timed, and the second ends that.
        for step in 1..=2 {
            timing.turn(step, &counters);
        }
        assert!(!counters.next_timed.is_due(3));
        counters.next_timed.request();
        assert!(counters.next_timed.is_due(3));
        timing.turn(3, &counters);
        assert!(counters.next_timed.is_running());
        counters.next_timed.request();
        assert!(counters.next_timed.is_running(), "a timed turn is not disturbed");
    }
}

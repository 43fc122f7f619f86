//! The counters of each worker, which need neither a shared cache line nor a locked instruction.
//!
//! A [`Counters`] belongs to one worker, the only thread that adds to it; other threads only read.
//! `stats reset` therefore cannot write zeroes: it stores the counts of that moment, and later
//! reports subtract them.

use super::heartbeat::Heartbeat;
use super::insight::NextSample;
use cached_metrics::{LabelledMetric, Latency, LatencySnapshot, counters};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that only one thread increases and any thread may read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only for the worker that owns the counter.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        // There is only one writer, so a plain load and store suffice, without a locked
        // instruction.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Adds one.
    #[inline]
    pub(crate) fn bump(&self) {
        self.add(1);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one worker.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    /// The worker's heartbeat, placed beside its counters, in cache lines that no other thread
    /// writes.
    pub(crate) heartbeat: Heartbeat,
    /// Determines which of the worker's loop iterations are timed.
    pub(crate) next_timed: NextTimed,
    /// Determines when the next get is sampled for the hot keys.
    pub(crate) next_sample: NextSample,
    /// The number of the worker.
    pub(crate) worker: usize,
    counts: Totals<Counter>,
    /// The latency of the worker's requests.
    pub(crate) latency: CommandLatency,
}

impl Deref for Counters {
    type Target = Totals<Counter>;

    #[inline]
    fn deref(&self) -> &Totals<Counter> {
        &self.counts
    }
}

/// The kinds of results of each command, as memcached's exporter distinguishes them.
pub(crate) const COMMANDS: LabelledMetric<2> = LabelledMetric::new(
    "cached_commands_total",
    ["command", "status"],
    "Commands of memcached's protocols, by result: hit, miss, badval (a cas with another value); a retrieval \
     counts once for each key.",
);
const REFUSED: LabelledMetric<1> = LabelledMetric::new(
    "cached_stores_refused_total",
    ["reason"],
    "Values that were not stored: too_large, no_memory.",
);
const HANDSHAKES: LabelledMetric<1> = LabelledMetric::new(
    "cached_tls_handshakes_total",
    ["result"],
    "TLS handshakes of clients of memcached's protocols: full, resumed, failed.",
);

impl Totals {
    /// Returns the number of commands of each kind, in the order of [`KINDS`]. A retrieval counts
    /// once for each key.
    pub(crate) fn commands(&self) -> [u64; KINDS.len()] {
        [
            self.gets,
            self.sets,
            self.touches,
            self.delete_hits + self.delete_misses,
            self.incr_hits + self.incr_misses,
            self.decr_hits + self.decr_misses,
            self.flushes,
        ]
    }
}

counters! {
    /// The numbers that workers count: one worker's in a `Totals<Counter>`, the sums over all
    /// workers in a `Totals`. The names of the fields are keys of `/status.json`.
    #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Totals<C = u64> {
        /// Keys of retrievals.
        gets,
        /// Keys of retrievals that were found.
        get_hits => COMMANDS.of(["get", "hit"]),
        /// Keys of retrievals that were not found.
        get_misses => COMMANDS.of(["get", "miss"]),
        /// Items that a retrieval found expired.
        get_expired,
        /// Items that a retrieval found flushed.
        get_flushed,
        /// Stores whose value was not refused for its size.
        sets,
        /// `flush_all`.
        flushes => COMMANDS.of(["flush", "hit"]),
        /// Touches, including those by `gat`.
        touches,
        /// Touches that found their item.
        touch_hits => COMMANDS.of(["touch", "hit"]),
        /// Touches that found no item.
        touch_misses => COMMANDS.of(["touch", "miss"]),
        /// `me`.
        meta_cmds,
        /// Deletions that found their item.
        delete_hits => COMMANDS.of(["delete", "hit"]),
        /// Deletions that found no item.
        delete_misses => COMMANDS.of(["delete", "miss"]),
        /// Increments that found their item.
        incr_hits => COMMANDS.of(["incr", "hit"]),
        /// Increments that found no item.
        incr_misses => COMMANDS.of(["incr", "miss"]),
        /// Decrements that found their item.
        decr_hits => COMMANDS.of(["decr", "hit"]),
        /// Decrements that found no item.
        decr_misses => COMMANDS.of(["decr", "miss"]),
        /// Compare-and-store commands whose CAS value matched.
        cas_hits => COMMANDS.of(["cas", "hit"]),
        /// Compare-and-store commands that found no item.
        cas_misses => COMMANDS.of(["cas", "miss"]),
        /// Compare-and-store commands that found another CAS value.
        cas_badval => COMMANDS.of(["cas", "badval"]),
        /// Values refused because they exceeded the size limit of items.
        refused_too_large => REFUSED.of(["too_large"]),
        /// Values refused for lack of memory.
        refused_no_memory => REFUSED.of(["no_memory"]),
        /// Attempts of clients to authenticate.
        auth_cmds => "cached_authentications_total",
        /// Attempts to authenticate with a wrong user or password.
        auth_errors => "cached_authentications_failed_total",
        /// Datagrams that were requests.
        udp_requests => "cached_datagrams_total",
        /// Datagrams dropped: malformed requests, and replies for which the system had no room.
        udp_dropped => "cached_datagrams_dropped_total",
        /// Bytes received from clients.
        received_bytes => "cached_received_bytes_total",
        /// Bytes sent to clients.
        sent_bytes => "cached_sent_bytes_total",
        /// Times that a connection with more to do had to wait for the others.
        conn_yields => "cached_connection_yields_total",
        /// TLS handshakes that were complete and did not resume a session.
        tls_handshakes_full => HANDSHAKES.of(["full"]),
        /// TLS handshakes that resumed a session.
        tls_handshakes_resumed => HANDSHAKES.of(["resumed"]),
        /// TLS handshakes that failed or timed out.
        tls_handshake_failures => HANDSHAKES.of(["failed"]),
        /// TLS connections that failed after their handshake: cut off, or with invalid records.
        tls_failures => "cached_tls_failures_total",
    }
}

impl Totals {
    /// Adds the counters of one worker.
    pub(crate) fn add(&mut self, worker: &Counters) {
        worker.zip(self, |counter, sum| *sum += counter.get());
    }

    /// Returns the counts since `before`.
    pub(crate) fn since(&self, before: &Totals) -> Totals {
        let mut since = *self;
        before.zip(&mut since, |before, now| *now = now.wrapping_sub(*before));
        since
    }

    /// Returns the number of `cas` commands.
    pub(crate) fn cas(&self) -> u64 {
        self.cas_hits + self.cas_misses + self.cas_badval
    }
}

impl Counters {
    /// Returns the counts of this worker.
    pub(crate) fn totals(&self) -> Totals {
        self.map(Counter::get)
    }

    /// Returns the counters of the worker with this number.
    pub(crate) fn of_worker(worker: usize) -> Counters {
        Counters { worker, ..Counters::default() }
    }

    /// Counts gets of `keys` keys. Returns the total number of gets if one of these keys must be
    /// sampled for the hot keys.
    #[inline]
    pub(crate) fn count_gets(&self, keys: u64) -> Option<u64> {
        self.gets.add(keys);
        let gets = self.gets.get();
        self.next_sample.is_reached(gets).then_some(gets)
    }
}

// Request latency by command, from a sample of the worker's loop iterations. An iteration is one
// wait for events and the connections served after it. Requests do not read the clock: in a timed
// iteration, about one in 64 steps and at least one each second, the worker reads the clock when
// the wait ends and after each connection, or once for all connections of a bundle. All requests in
// between are assigned the time that has passed since the wait, because their replies are sent
// together.

/// The kinds of commands whose latency is measured, by their names in metrics.
pub(crate) const KINDS: [&str; 7] = ["get", "set", "touch", "delete", "incr", "decr", "flush"];

/// The latencies of one worker.
#[derive(Debug, Default)]
pub(crate) struct CommandLatency {
    kinds: [Latency; KINDS.len()],
}

impl CommandLatency {
    /// Counts the commands of each kind, each of which took `duration`.
    pub(crate) fn observe(&self, duration: Duration, commands: [u64; KINDS.len()]) {
        for (latency, count) in self.kinds.iter().zip(commands) {
            if count > 0 {
                latency.observe_many(duration, count);
            }
        }
    }

    /// Returns the distribution for one kind, an index of [`KINDS`].
    pub(crate) fn snapshot(&self, kind: usize) -> LatencySnapshot {
        self.kinds[kind].snapshot()
    }

    /// Returns the distribution for all kinds together.
    pub(crate) fn sum(&self) -> LatencySnapshot {
        let mut sum = LatencySnapshot::default();
        self.kinds.iter().for_each(|latency| sum.add(&latency.snapshot()));
        sum
    }
}

/// The number of the step from which the next loop iteration is timed. It is one word, in a cache
/// line of the worker's own counters, that the worker reads once in each iteration and each step.
#[derive(Debug)]
pub(crate) struct NextTimed(AtomicU64);

impl Default for NextTimed {
    fn default() -> Self {
        NextTimed(AtomicU64::new(NextTimed::SOON))
    }
}

impl NextTimed {
    /// The current iteration is timed.
    const RUNNING: u64 = 0;
    /// The next iteration must be timed, whatever its number.
    const SOON: u64 = 1;

    /// Requests that the next iteration be timed. The caller does so once a second, so that a
    /// worker with few requests is measured too.
    pub(crate) fn request(&self) {
        if self.0.load(Ordering::Relaxed) != Self::RUNNING {
            // The worker may begin a timed iteration at the same moment. That iteration is then not
            // measured, but the next one is.
            self.0.store(Self::SOON, Ordering::Relaxed);
        }
    }

    /// Returns whether a timed iteration begins or has ended at this step.
    #[inline]
    pub(crate) fn is_due(&self, step: u64) -> bool {
        step >= self.0.load(Ordering::Relaxed)
    }

    /// Begins a timed iteration.
    pub(crate) fn begin(&self) {
        self.0.store(Self::RUNNING, Ordering::Relaxed);
    }

    /// Ends a timed iteration. The next one begins at `step`, or earlier if that is requested.
    pub(crate) fn end(&self, step: u64) {
        self.0.store(step.max(Self::SOON), Ordering::Relaxed);
    }

    /// Returns whether the current iteration is timed.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::RUNNING
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_counted_from_the_last_reset() {
        let workers = [Counters::default(), Counters::default()];
        workers[0].get_hits.bump();
        workers[1].get_hits.add(4);
        let sum = |workers: &[Counters]| {
            let mut totals = Totals::default();
            workers.iter().for_each(|worker| totals.add(worker));
            totals
        };
        let before = sum(&workers);
        assert_eq!(before.get_hits, 5);
        workers[1].get_hits.bump();
        assert_eq!(sum(&workers).since(&before), Totals { get_hits: 1, ..Totals::default() });
    }

    #[test]
    fn each_command_is_counted_under_its_kind() {
        let latency = CommandLatency::default();
        latency.observe(Duration::from_micros(5), [3, 1, 0, 2, 1, 0, 0]);
        let counts: Vec<_> = KINDS
            .into_iter()
            .enumerate()
            .map(|(kind, name)| (name, latency.snapshot(kind).count()))
            .collect();
        let expected =
            [("get", 3), ("set", 1), ("touch", 0), ("delete", 2), ("incr", 1), ("decr", 0), ("flush", 0)];
        assert_eq!(counts, expected);
        assert_eq!(latency.sum().count(), 7);
    }
}

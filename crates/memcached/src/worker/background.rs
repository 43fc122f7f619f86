//! The background threads: the watchdog, and the threads that sample, sweep, move memory and put maps
//! of the ring in force.
//!
//! A panic of the sweeper or the arbiter ends the server, which cannot continue without them. A
//! panic of any other background thread does not affect clients.

use super::maps::{MapThread, PURGE_AFTER, Step};
use super::timing::record_slow;
use crate::ring::{RETRY, TICK};
use crate::shared::Shared;
use crate::telemetry::heartbeat::HeartbeatState;
use crate::telemetry::insight::WatchedStep;
use cached_admin::insight::slow::SlowRequest;
use cached_core::arbiter::Arbiter;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A thread that ends when this is dropped.
pub(crate) struct BackgroundThread {
    end: End,
    thread: Option<JoinHandle<()>>,
}

/// A flag that asks a thread to end.
#[derive(Clone, Default)]
struct End(Arc<AtomicBool>);

impl End {
    fn is_requested(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Waits for `interval` at most. Returns whether the thread should continue.
    fn wait(&self, interval: Duration) -> bool {
        if !self.is_requested() {
            thread::park_timeout(interval);
        }
        !self.is_requested()
    }
}

impl BackgroundThread {
    fn start(name: &str, body: impl FnOnce(&End) + Send + 'static) -> io::Result<BackgroundThread> {
        let end = End::default();
        let requested = end.clone();
        // Of one type, because the library's code is compiled for each type of closure that a thread runs.
        let body: Box<dyn FnOnce() + Send> = Box::new(move || body(&requested));
        let thread = thread::Builder::new().name(name.into()).spawn(body)?;
        Ok(BackgroundThread { end, thread: Some(thread) })
    }

    /// Starts the watchdog of the workers and the acceptor.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub(crate) fn watchdog(shared: Arc<Shared>) -> io::Result<BackgroundThread> {
        BackgroundThread::start("cached-watchdog", move |end| watch(&shared, end))
    }

    /// Starts the thread that evaluates samples and finds slow requests.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub(crate) fn insight(shared: Arc<Shared>) -> io::Result<BackgroundThread> {
        BackgroundThread::start("cached-insight", move |end| sample(&shared, end))
    }

    /// Starts the thread that removes the items of flushed prefixes. The thread sleeps until
    /// [`Shared::flush_prefix`] wakes it.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub(crate) fn sweep(shared: &Arc<Shared>) -> io::Result<BackgroundThread> {
        let own = shared.clone();
        let started = BackgroundThread::start("cached-sweep", move |end| {
            fail_on_panic(&own, "the thread that sweeps prefixes", || sweep(&own, end));
        })?;
        if let Some(thread) = &started.thread {
            // Set only once, because a server runs only once.
            let _ = shared.sweeper.set(thread.thread().clone());
        }
        Ok(started)
    }

    /// Starts the thread that puts maps of the ring in force, if the server belongs to a ring. The
    /// thread runs every [`TICK`], and as soon as
    /// [`Ring::set_map`](crate::ring::Ring::set_map) wakes it.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub(crate) fn ring(shared: &Arc<Shared>) -> io::Result<Option<BackgroundThread>> {
        if shared.ring.is_none() {
            return Ok(None);
        }
        let own = shared.clone();
        let started = BackgroundThread::start("cached-ring", move |end| {
            fail_on_panic(&own, "the thread that puts maps in force", || follow_maps(&own, end));
        })?;
        if let (Some(ring), Some(thread)) = (&shared.ring, &started.thread) {
            // Set only once, because a server runs only once.
            let _ = ring.thread.set(thread.thread().clone());
        }
        Ok(Some(started))
    }

    /// Starts the thread that moves memory between items and objects, if they share it.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub(crate) fn arbiter(shared: &Arc<Shared>) -> io::Result<Option<BackgroundThread>> {
        let cache = shared.objects.get().and_then(|objects| objects.cache());
        let (Some(memory), Some(cache)) = (shared.settings.shared_memory, cache) else { return Ok(None) };
        let arbiter = Arbiter::new(shared.kv.clone(), &cache, memory);
        // Set only once, because a server runs only once.
        let _ = shared.arbiter.set(arbiter.metrics());
        let own = shared.clone();
        let started = BackgroundThread::start("cached-arbiter", move |end| {
            fail_on_panic(&own, "the thread that moves memory", || arbitrate(arbiter, end));
        })?;
        Ok(Some(started))
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.end.0.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread itself has recorded any panic that matters.
            let _ = thread.join();
        }
    }
}

fn fail_on_panic(shared: &Shared, thread: &str, body: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(body)) {
        shared.fail_by_panic(thread, &*payload);
    }
}

fn follow_maps(shared: &Shared, end: &End) {
    let Some(ring) = &shared.ring else { return };
    let mut maps = MapThread::new(shared, ring, PURGE_AFTER);
    while !end.is_requested() {
        match maps.step(&|| end.is_requested()) {
            Step::Done => {}
            Step::Idle => _ = end.wait(if ring.has_waiting() { RETRY } else { TICK }),
            Step::Ended => return,
        }
    }
}

/// The interval at which the arbiter compares both halves of shared memory. The amount of memory
/// that moves depends on the stored data, not on this interval.
const ARBITER_INTERVAL: Duration = Duration::from_millis(100);

fn arbitrate(mut arbiter: Arbiter, end: &End) {
    while !end.is_requested() {
        arbiter.look();
        while arbiter.step() && !end.is_requested() {
            // Moving memory is never urgent.
            thread::yield_now();
        }
        end.wait(ARBITER_INTERVAL);
    }
}

fn sweep(shared: &Shared, end: &End) {
    while !end.is_requested() {
        let is_handed_over = shared.is_handed_over.lock();
        if *is_handed_over {
            return;
        }
        if shared.kv.sweep_prefixes() {
            continue;
        }
        drop(is_handed_over);
        if shared.kv.prefix_flushes().pending == 0 {
            // Returns immediately if a flush was requested in the meantime.
            thread::park();
        } else {
            // The maintenance of every second holds a slice of the index.
            thread::yield_now();
        }
    }
}

/// The interval at which samples are collected while there are any. A queue can hold the samples of
/// one interval at 40 000 samples a second.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// The maximum interval, used when there are no requests.
const SAMPLE_INTERVAL_IDLE: Duration = Duration::from_secs(1);
/// The minimum interval at which workers are checked for slow requests. They are checked at least
/// twice within the threshold.
const SLOW_WATCH_MIN: Duration = Duration::from_millis(25);

/// Evaluates samples: simulates other amounts of memory, counts hot keys, and finds slow requests.
fn sample(shared: &Shared, end: &End) {
    let mut steps = vec![WatchedStep::new(Instant::now()); shared.settings.threads];
    let mut interval = SAMPLE_INTERVAL;
    while end.wait(interval) {
        let slow = shared.insight.slow.threshold();
        let watch = slow.map(|threshold| (threshold / 2).clamp(SLOW_WATCH_MIN, SAMPLE_INTERVAL_IDLE));
        let idle =
            if shared.take_samples() { SAMPLE_INTERVAL } else { (interval * 2).min(SAMPLE_INTERVAL_IDLE) };
        interval = watch.map_or(idle, |watch| idle.min(watch));
        if watch.is_some() {
            record_slow_steps(shared, &mut steps);
        }
    }
}

/// Records the slow steps of workers.
fn record_slow_steps(shared: &Shared, steps: &mut [WatchedStep]) {
    let now = Instant::now();
    for (index, step) in steps.iter_mut().enumerate() {
        let Some((state, took)) = step.check(shared.counters(index).heartbeat.read(), now) else { continue };
        shared.insight.slow.record(took, || {
            let slow = SlowRequest {
                unix_ms: 0,
                listener: "memcached",
                client: shared.client_of(state.fd()),
                command: state.activity(),
                key: None,
                bytes: None,
                total_us: 0,
                store_us: None,
            };
            if let Some(tracer) = shared.tracer.get() {
                record_slow(tracer, index, took, &slow);
            }
            slow
        });
    }
}

/// The interval at which the heartbeats are read.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// A warning is logged when a worker has been in one step for this long. Each further warning comes
/// after twice the time of the one before.
const WORKER_TIMEOUT: Duration = Duration::from_secs(2);

/// The equivalent for the acceptor's thread, whose heartbeat changes once a second.
const ACCEPTOR_TIMEOUT: Duration = Duration::from_secs(5);

/// A thread that the watchdog monitors.
struct WatchedThread {
    name: String,
    /// The time without progress after which the first warning is logged.
    timeout: Duration,
    last: HeartbeatState,
    since: Duration,
    /// The time without progress after which the next warning is logged.
    next: Duration,
}

/// A report about a thread.
#[derive(Debug, PartialEq, Eq)]
enum Finding {
    /// The thread has made no progress for this long.
    Stalled(Duration),
    /// The thread makes progress again, after this long.
    Resumed(Duration),
}

impl WatchedThread {
    fn new(name: String, timeout: Duration, now: Duration) -> WatchedThread {
        WatchedThread { name, timeout, last: HeartbeatState::default(), since: now, next: timeout }
    }

    /// Compares the heartbeat at `now` with the last one.
    fn check(&mut self, state: HeartbeatState, now: Duration) -> Option<Finding> {
        let stalled = now.saturating_sub(self.since);
        if state != self.last || state.is_idle() {
            let was_reported = self.next > self.timeout;
            (self.last, self.since, self.next) = (state, now, self.timeout);
            return was_reported.then_some(Finding::Resumed(stalled));
        }
        if stalled < self.next {
            return None;
        }
        self.next = stalled.max(self.timeout) * 2;
        Some(Finding::Stalled(stalled))
    }

    /// Returns how long the thread has made no progress, or zero if that is too short to be
    /// reported.
    fn stalled(&self, now: Duration) -> Duration {
        let stalled = now.saturating_sub(self.since);
        if self.last.is_idle() || stalled < self.timeout { Duration::ZERO } else { stalled }
    }

    /// Disregards the time up to `now`, unless the thread has already been reported.
    fn ignore_until(&mut self, now: Duration) {
        if self.next == self.timeout {
            self.since = now;
        }
    }
}

/// The watchdog. A worker waits only for events, and a step takes at most milliseconds: a worker
/// that stays in one step for seconds is blocked by a lock, by the system or by a defect, which
/// nothing else would report. The watchdog takes no lock that a worker takes.
fn watch(shared: &Shared, end: &End) {
    let start = Instant::now();
    let worker = |index| WatchedThread::new(format!("worker {index}"), WORKER_TIMEOUT, Duration::ZERO);
    let mut workers: Vec<WatchedThread> = (0..shared.settings.threads).map(worker).collect();
    let mut acceptor = WatchedThread::new("the acceptor's thread".into(), ACCEPTOR_TIMEOUT, Duration::ZERO);
    let mut last = Duration::ZERO;
    while end.wait(WATCH_INTERVAL) {
        let now = start.elapsed();
        // The watchdog is late too, so the whole process or the machine was stopped.
        let late = now.saturating_sub(last) > 2 * WATCH_INTERVAL;
        last = now;
        for (index, watched) in workers.iter_mut().enumerate() {
            report(watched, shared.counters(index).heartbeat.read(), now, late);
        }
        report(&mut acceptor, shared.acceptor_heartbeat.read(), now, late);
        for (watched, stalled) in workers.iter().chain([&acceptor]).zip(&shared.stalled_secs) {
            let secs = watched.stalled(now).as_secs();
            stalled.store(u32::try_from(secs).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
        if let Some(ring) = &shared.ring {
            let longest = workers.iter().map(|watched| watched.stalled(now)).max();
            ring.lease.note_stall(longest.unwrap_or_default());
        }
    }
}

fn report(watched: &mut WatchedThread, state: HeartbeatState, now: Duration, late: bool) {
    if late {
        watched.ignore_until(now);
    }
    let (finding, thread) = (watched.check(state, now), watched.name.as_str());
    match finding {
        Some(Finding::Stalled(time)) => {
            let (fd, activity) = (state.fd(), state.activity());
            tracing::error!(fd, "{thread} makes no progress: {} s in {activity}", time.as_secs());
        }
        Some(Finding::Resumed(time)) => {
            tracing::warn!("{thread} makes progress again, after {} s", time.as_secs());
        }
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::heartbeat::{Activity, Heartbeat};

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn busy(step: u64) -> HeartbeatState {
        let heartbeat = Heartbeat::default();
        heartbeat.begin(step, 9, Activity::Store);
        heartbeat.read()
    }

    #[test]
    fn a_stalled_worker_is_reported_at_growing_intervals() {
        let mut watched = WatchedThread::new("worker 0".into(), secs(2), secs(0));
        let reported: Vec<u64> =
            (1..=40).filter(|now| watched.check(busy(1), secs(*now)).is_some()).collect();
        assert_eq!(reported, [3, 5, 9, 17, 33], "seen in second 1 for the first time");
        assert_eq!((watched.stalled(secs(40)), watched.stalled(secs(2))), (secs(39), secs(0)));
        assert_eq!(watched.check(busy(2), secs(41)), Some(Finding::Resumed(secs(40))));
        assert_eq!(watched.stalled(secs(41)), secs(0));
        assert_eq!(watched.check(busy(2), secs(42)), None);
        assert_eq!(watched.check(busy(2), secs(43)), Some(Finding::Stalled(secs(2))));
    }

    #[test]
    fn progress_and_idle_time_are_not_reported() {
        let mut watched = WatchedThread::new("worker 0".into(), secs(2), secs(0));
        for now in 1..100 {
            let state = if now % 10 < 5 { HeartbeatState::default() } else { busy(now) };
            assert_eq!(watched.check(state, secs(now)), None);
        }
    }

    #[test]
    fn time_in_which_the_whole_process_was_stopped_does_not_count() {
        let mut watched = WatchedThread::new("worker 0".into(), secs(2), secs(0));
        assert_eq!(watched.check(busy(1), secs(1)), None);
        watched.ignore_until(secs(500));
        assert_eq!(watched.check(busy(1), secs(500)), None);
        assert_eq!(watched.check(busy(1), secs(502)), Some(Finding::Stalled(secs(2))));
    }
}

//! The watchdog: logs which worker makes no progress, and what it is doing.
//!
//! A worker waits for nothing but events, and a step takes milliseconds at most. One that is in the same step
//! for seconds is held up by a lock, by the system, or by a defect; its clients wait meanwhile, and nothing
//! else would report it. The watchdog has a thread of its own and takes no lock that a worker takes.

use crate::shared::Shared;
use crate::telemetry::heartbeat::HeartbeatState;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often the heartbeats are read.
const INTERVAL: Duration = Duration::from_secs(1);

/// For how long a worker may be in one step before a line is logged. Each following line comes after twice as
/// long.
const WORKER_TIMEOUT: Duration = Duration::from_secs(2);

/// The same for the acceptor's thread, whose heartbeat changes once a second.
const ACCEPTOR_TIMEOUT: Duration = Duration::from_secs(5);

/// A thread that is watched.
struct WatchedThread {
    name: String,
    /// After how long without progress the first line is logged.
    timeout: Duration,
    last: HeartbeatState,
    since: Duration,
    /// After how long without progress the next line is logged.
    next: Duration,
}

/// What is to be reported of a thread.
#[derive(Debug, PartialEq, Eq)]
enum Finding {
    /// It has made no progress for this long.
    Stalled(Duration),
    /// It makes progress again, after this long.
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

    /// Returns for how long it has made no progress; zero below the time at which that is reported.
    fn stalled(&self, now: Duration) -> Duration {
        let stalled = now.saturating_sub(self.since);
        if self.last.is_idle() || stalled < self.timeout { Duration::ZERO } else { stalled }
    }

    /// Ignores the time up to `now`, unless the thread has been reported already.
    fn ignore_until(&mut self, now: Duration) {
        if self.next == self.timeout {
            self.since = now;
        }
    }
}

/// The watchdog's thread; it ends when this is dropped.
pub(crate) struct Watchdog {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches the workers of a server and its acceptor.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub(crate) fn start(shared: Arc<Shared>) -> io::Result<Watchdog> {
        let (end, ended) = mpsc::channel();
        let body = move || watch(&shared, &ended);
        let thread = thread::Builder::new().name("cached-watchdog".into()).spawn(body)?;
        Ok(Watchdog { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the watchdog changes nothing for the server.
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared, ended: &mpsc::Receiver<()>) {
    let start = Instant::now();
    let worker = |index| WatchedThread::new(format!("worker {index}"), WORKER_TIMEOUT, Duration::ZERO);
    let mut workers: Vec<WatchedThread> = (0..shared.settings.threads).map(worker).collect();
    let mut acceptor = WatchedThread::new("the acceptor's thread".into(), ACCEPTOR_TIMEOUT, Duration::ZERO);
    let mut last = Duration::ZERO;
    while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let now = start.elapsed();
        // This thread is late as well: the whole process was stopped, or the machine was.
        let late = now.saturating_sub(last) > 2 * INTERVAL;
        last = now;
        for (index, watched) in workers.iter_mut().enumerate() {
            report(watched, shared.counters(index).heartbeat.read(), now, late);
        }
        report(&mut acceptor, shared.acceptor_heartbeat.read(), now, late);
        for (watched, stalled) in workers.iter().chain([&acceptor]).zip(&shared.stalled_secs) {
            let secs = watched.stalled(now).as_secs();
            stalled.store(u32::try_from(secs).unwrap_or(u32::MAX), Ordering::Relaxed);
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

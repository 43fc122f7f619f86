//! The thread that simulates, counts hot keys, and watches for slow requests.

use crate::shared::Shared;
use crate::telemetry::insight::slow::{SlowRequest, WatchedStep};
use crate::worker::record_slow;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often samples are taken while there are any. A queue holds what comes in that time at 40 000 samples a
/// second.
const INTERVAL: Duration = Duration::from_millis(50);
/// How often, at least, without requests.
const INTERVAL_IDLE: Duration = Duration::from_secs(1);
/// Workers are looked at at least twice within the threshold of slow requests, and this often at most.
const WATCH_MIN: Duration = Duration::from_millis(25);

/// The thread; it ends when this is dropped.
pub(crate) struct InsightThread {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl InsightThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub(crate) fn start(shared: Arc<Shared>) -> io::Result<InsightThread> {
        let (end, ended) = mpsc::channel();
        let body = move || run(&shared, &ended);
        let thread = thread::Builder::new().name("cached-insight".into()).spawn(body)?;
        Ok(InsightThread { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for InsightThread {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A panic of this thread changes nothing for the server's clients.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, ended: &mpsc::Receiver<()>) {
    let mut steps = vec![WatchedStep::new(Instant::now()); shared.settings.threads];
    let mut interval = INTERVAL;
    while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        let slow = shared.insight.slow.threshold();
        let watch = slow.map(|threshold| (threshold / 2).clamp(WATCH_MIN, INTERVAL_IDLE));
        let idle = if shared.take_samples() { INTERVAL } else { (interval * 2).min(INTERVAL_IDLE) };
        interval = watch.map_or(idle, |watch| idle.min(watch));
        if watch.is_some() {
            watch_workers(shared, &mut steps);
        }
    }
}

/// Records the steps of workers that have been slow.
fn watch_workers(shared: &Shared, steps: &mut [WatchedStep]) {
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

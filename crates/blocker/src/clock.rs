//! Time as something handed in, so that a test can step it.
//!
//! Deadlines are points on a clock's own scale; caller and backend must be given the same clock. What
//! this leaves out: the time of day.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::future::Future;
use std::ops::Add;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A point in time: nanoseconds since the clock's own start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// How long it is from `earlier` until this; nothing if it is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Saturates at the end of time.
impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Completes once its time has come. Dropping it forgets it.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where a backend gets the time from.
///
/// An implementor owes a `now` that never goes back, and sleeps that wake their task without anybody
/// polling them in between.
pub trait Clock: Send + Sync {
    /// The time.
    fn now(&self) -> Timestamp;
    /// Completes when `now` has reached `until`.
    fn sleep_until(&self, until: Timestamp) -> Sleep;

    /// Completes after `delay`.
    fn sleep(&self, delay: Duration) -> Sleep {
        self.sleep_until(self.now() + delay)
    }
}

/// The operating system's monotonic clock. Its first sleep starts one thread for the whole process.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// A clock that stands still until told otherwise.
#[derive(Clone, Default)]
pub struct ManualClock {
    shared: Arc<Mutex<Alarms>>,
}

impl ManualClock {
    /// A clock that shows 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the time on, and wakes whoever has slept until then.
    pub fn advance(&self, by: Duration) {
        let due = {
            let mut alarms = self.shared.lock();
            let now = alarms.now + by;
            alarms.advance_to(now)
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// When the next sleeper is due, if there is one: a test steps from one to the next.
    #[must_use]
    pub fn next_alarm(&self) -> Option<Timestamp> {
        self.shared.lock().heap.peek().map(|Reverse(alarm)| alarm.at)
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.shared.lock().now
    }

    fn sleep_until(&self, until: Timestamp) -> Sleep {
        let shared = Arc::clone(&self.shared);
        Box::pin(std::future::poll_fn(move |cx| shared.lock().poll_alarm(until, cx)))
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = Timers::get().start.elapsed();
        Timestamp::default() + since
    }

    fn sleep_until(&self, until: Timestamp) -> Sleep {
        Box::pin(SystemSleep { until })
    }
}

struct SystemSleep {
    until: Timestamp,
}

impl Future for SystemSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let timers = Timers::get();
        let now = SystemClock.now();
        let mut alarms = timers.alarms.lock();
        alarms.now = alarms.now.max(now);
        let poll = alarms.poll_alarm(self.until, cx);
        if poll.is_pending() {
            timers.ensure_thread(&mut alarms);
            timers.changed.notify_one();
        }
        poll
    }
}

/// Sleepers in the order in which they are due.
#[derive(Default)]
struct Alarms {
    now: Timestamp,
    heap: BinaryHeap<Reverse<Alarm>>,
    has_thread: bool,
}

struct Alarm {
    at: Timestamp,
    waker: Waker,
}

impl Alarms {
    /// A sleeper that is polled again leaves its older alarm behind: a spurious wake-up, no harm.
    fn poll_alarm(&mut self, until: Timestamp, cx: &Context<'_>) -> Poll<()> {
        if self.now >= until {
            return Poll::Ready(());
        }
        self.heap.push(Reverse(Alarm { at: until, waker: cx.waker().clone() }));
        Poll::Pending
    }

    fn advance_to(&mut self, now: Timestamp) -> Vec<Waker> {
        self.now = self.now.max(now);
        let mut due = Vec::new();
        while self.heap.peek().is_some_and(|Reverse(alarm)| alarm.at <= self.now) {
            due.extend(self.heap.pop().map(|Reverse(alarm)| alarm.waker));
        }
        due
    }
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}
impl Eq for Alarm {}
impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Alarm {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

/// The process's one timer thread and what it waits for.
struct Timers {
    start: Instant,
    alarms: Mutex<Alarms>,
    changed: Condvar,
}

impl Timers {
    fn get() -> &'static Self {
        static TIMERS: OnceLock<Timers> = OnceLock::new();
        TIMERS.get_or_init(|| Self {
            start: Instant::now(),
            alarms: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn ensure_thread(&'static self, alarms: &mut Alarms) {
        if !alarms.has_thread {
            let spawned = std::thread::Builder::new().name("blocker-timer".into()).spawn(|| self.run());
            // Without threads left the process cannot keep any deadline; nothing better than to stop.
            spawned.expect("a thread for the timers");
            alarms.has_thread = true;
        }
    }

    fn run(&self) {
        let mut alarms = self.alarms.lock();
        loop {
            let due = alarms.advance_to(SystemClock.now());
            if !due.is_empty() {
                parking_lot::MutexGuard::unlocked(&mut alarms, || due.into_iter().for_each(Waker::wake));
                continue;
            }
            match alarms.heap.peek().map(|Reverse(alarm)| alarm.at) {
                Some(at) => {
                    let delay = at.since(SystemClock.now());
                    self.changed.wait_for(&mut alarms, delay);
                }
                None => self.changed.wait(&mut alarms),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::block_on;

    #[test]
    fn a_manual_clock_wakes_sleepers_when_their_time_has_come() {
        let clock = ManualClock::new();
        let mut sleep = clock.sleep(Duration::from_secs(2));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(sleep.as_mut().poll(&mut cx).is_pending());
        assert_eq!(clock.next_alarm(), Some(Timestamp(2_000_000_000)));
        clock.advance(Duration::from_secs(1));
        assert!(sleep.as_mut().poll(&mut cx).is_pending());
        clock.advance(Duration::from_secs(1));
        assert!(sleep.as_mut().poll(&mut cx).is_ready());
        assert_eq!(clock.next_alarm(), None);
    }

    #[test]
    fn the_system_clock_wakes_sleepers_in_order_of_time() {
        let start = SystemClock.now();
        let long = SystemClock.sleep(Duration::from_millis(20));
        let short = SystemClock.sleep(Duration::from_millis(1));
        block_on(async {
            short.await;
            assert!(SystemClock.now().since(start) >= Duration::from_millis(1));
            long.await;
        });
        assert!(SystemClock.now().since(start) >= Duration::from_millis(20));
    }
}

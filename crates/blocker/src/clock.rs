//! Clocks are passed in, so that a test controls the time.
//!
//! Deadlines are points on a clock's own scale, in nanoseconds; caller and blocker must use the
//! same clock. The time of day is not part of a clock. (`cached-core` has another clock for items,
//! in whole seconds and without sleeps, because every hit reads the time and this clock would be
//! too slow.)
//!
//! ```
//! use std::time::Duration;
//! use blocker::{Clock, ManualClock};
//!
//! let clock = ManualClock::new();
//! let start = clock.now();
//! clock.advance(Duration::from_secs(3));
//! assert_eq!(clock.now().since(start), Duration::from_secs(3));
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Add;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A point in time: nanoseconds since the clock's own start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Returns the time from `earlier` to this timestamp; zero if `earlier` is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Saturates at the maximum time.
impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A future that completes when its time has come. Dropping the future cancels the sleep.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The source of time of a blocker.
///
/// `now` never goes backwards. A sleep wakes its task when it is due; before that, the task is not
/// polled.
pub trait Clock: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
    /// Returns a future that completes when `now` has reached `until`.
    fn sleep_until(&self, until: Timestamp) -> Sleep;

    /// Returns a future that completes after `delay`.
    fn sleep(&self, delay: Duration) -> Sleep {
        self.sleep_until(self.now() + delay)
    }
}

/// Waits for `future`, at most until `deadline`, if there is one. Returns `None` at the deadline.
pub async fn until<F: Future>(
    clock: &dyn Clock,
    deadline: Option<Timestamp>,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut timer = deadline.map(|deadline| clock.sleep_until(deadline));
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        let is_late = timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready());
        if is_late { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// The operating system's monotonic clock. Its first sleep starts one thread for the whole process.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// A clock that moves only by [`Self::advance`].
#[derive(Clone, Default)]
pub struct ManualClock {
    shared: Arc<Mutex<TimerQueue>>,
}

impl ManualClock {
    /// Returns a clock at 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock by `by`, and wakes the sleeps that are due.
    pub fn advance(&self, by: Duration) {
        let due = {
            let mut queue = self.shared.lock();
            let now = queue.now + by;
            queue.advance_to(now)
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// Returns the time of the next sleep, if there is one.
    #[must_use]
    pub fn next_timer(&self) -> Option<Timestamp> {
        self.shared.lock().next_timer()
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
        Box::pin(std::future::poll_fn(move |cx| shared.lock().poll_timer(until, cx)))
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = TimerThread::get().start.elapsed();
        Timestamp::default() + since
    }

    fn sleep_until(&self, until: Timestamp) -> Sleep {
        Box::pin(std::future::poll_fn(move |cx| {
            let thread = TimerThread::get();
            let now = SystemClock.now();
            let mut queue = thread.queue.lock();
            queue.now = queue.now.max(now);
            let poll = queue.poll_timer(until, cx);
            if poll.is_pending() {
                thread.ensure_running(&mut queue);
                thread.changed.notify_one();
            }
            poll
        }))
    }
}

/// Sleeps, ordered by their due time.
#[derive(Default)]
struct TimerQueue {
    now: Timestamp,
    /// The wakers by due time and number.
    timers: BTreeMap<(Timestamp, u64), Waker>,
    last_number: u64,
    has_thread: bool,
}

impl TimerQueue {
    /// A sleep that is polled again leaves its older timer behind, which causes only a spurious
    /// wake-up.
    fn poll_timer(&mut self, until: Timestamp, cx: &Context<'_>) -> Poll<()> {
        if self.now >= until {
            return Poll::Ready(());
        }
        self.last_number += 1;
        self.timers.insert((until, self.last_number), cx.waker().clone());
        Poll::Pending
    }

    fn next_timer(&self) -> Option<Timestamp> {
        self.timers.keys().next().map(|(at, _)| *at)
    }

    fn advance_to(&mut self, now: Timestamp) -> Vec<Waker> {
        self.now = self.now.max(now);
        let later = self.timers.split_off(&(self.now + Duration::from_nanos(1), 0));
        std::mem::replace(&mut self.timers, later).into_values().collect()
    }
}

/// The process's timer thread, and the sleeps that it wakes.
struct TimerThread {
    start: Instant,
    queue: Mutex<TimerQueue>,
    changed: Condvar,
}

impl TimerThread {
    fn get() -> &'static Self {
        static THREAD: OnceLock<TimerThread> = OnceLock::new();
        THREAD.get_or_init(|| Self {
            start: Instant::now(),
            queue: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn ensure_running(&'static self, queue: &mut TimerQueue) {
        if !queue.has_thread {
            let spawned = std::thread::Builder::new().name("blocker-timer".into()).spawn(|| self.run());
            // Without another thread the process cannot keep any deadline.
            spawned.expect("the system has no thread for the timers");
            queue.has_thread = true;
        }
    }

    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            let due = queue.advance_to(SystemClock.now());
            if !due.is_empty() {
                parking_lot::MutexGuard::unlocked(&mut queue, || due.into_iter().for_each(Waker::wake));
                continue;
            }
            match queue.next_timer() {
                Some(at) => {
                    self.changed.wait_for(&mut queue, at.since(SystemClock.now()));
                }
                None => self.changed.wait(&mut queue),
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
        assert_eq!(clock.next_timer(), Some(Timestamp(2_000_000_000)));
        clock.advance(Duration::from_secs(1));
        assert!(sleep.as_mut().poll(&mut cx).is_pending());
        clock.advance(Duration::from_secs(1));
        assert!(sleep.as_mut().poll(&mut cx).is_ready());
        assert_eq!(clock.next_timer(), None);
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

//! Time for the whole server: one counter of seconds, stepped by one ticker.
//!
//! No request reads the system's clock. The store and the workers read a [`TickClock`]; the
//! acceptor's thread advances it every second according to the monotonic clock, so that a change of
//! the wall clock neither expires nor revives items. Absolute expiry times are converted to seconds
//! of the counter with the wall clock as it was at startup, as in memcached.

use cached_core::clock::{Clock, Expiry, FIRST_SECOND, TickClock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Expiry times up to this many seconds (30 days) are relative; larger values are Unix times.
pub(crate) const RELATIVE_SECS_MAX: i64 = 60 * 60 * 24 * 30;

/// The server's clock.
#[derive(Debug)]
pub(crate) struct ServerClock {
    ticks: Arc<TickClock>,
    started: Instant,
    /// The value of the counter when the clock started.
    first_secs: u32,
    /// The Unix time that corresponds to 0 on the counter.
    origin_unix_secs: i64,
    /// The seconds by which tests have advanced the counter.
    shift_secs: AtomicI64,
    /// Whether tests have stopped the counter.
    paused: AtomicBool,
}

impl ServerClock {
    /// Returns a clock that starts now, at [`FIRST_SECOND`].
    pub(crate) fn new() -> ServerClock {
        ServerClock::starting_at(FIRST_SECOND)
    }

    /// Returns a clock that starts now, at `secs`, and thereby continues the clock of an earlier
    /// process.
    pub(crate) fn starting_at(secs: u32) -> ServerClock {
        let ticks = Arc::new(TickClock::starting_at(secs));
        let first_secs = ticks.now_secs();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        ServerClock {
            ticks,
            started: Instant::now(),
            first_secs,
            origin_unix_secs: unix.as_secs() as i64 - i64::from(first_secs),
            shift_secs: AtomicI64::new(0),
            paused: AtomicBool::new(false),
        }
    }

    /// Returns a clock that continues the clock of another process, which was `nanos` into the
    /// second `secs` when the system's [monotonic clock](monotonic_nanos) showed `then_nanos`.
    pub(crate) fn continuing(secs: u32, nanos: u32, then_nanos: u64) -> ServerClock {
        let since = Duration::from_nanos(monotonic_nanos().saturating_sub(then_nanos));
        let into = Duration::from_nanos(nanos.into()) + since;
        let started = Instant::now().checked_sub(into).unwrap_or_else(Instant::now);
        let clock = ServerClock { started, ..ServerClock::starting_at(secs) };
        let origin_unix_secs = clock.origin_unix_secs - into.as_secs() as i64;
        let clock = ServerClock { origin_unix_secs, ..clock };
        clock.tick();
        clock
    }

    /// Returns the counter, and the nanoseconds that have passed within its current second.
    pub(crate) fn position(&self) -> (u32, u32) {
        (self.now_secs(), self.started.elapsed().subsec_nanos())
    }

    /// Returns the Unix time of the start, in seconds.
    pub(crate) fn started_unix_secs(&self) -> u64 {
        u64::try_from(self.origin_unix_secs + i64::from(FIRST_SECOND)).unwrap_or(0)
    }

    /// Returns the counter, for use by the store.
    pub(crate) fn ticks(&self) -> Arc<TickClock> {
        self.ticks.clone()
    }

    /// Advances the counter to the current time. This is called once a second.
    pub(crate) fn tick(&self) {
        if self.paused.load(Ordering::Relaxed) {
            return;
        }
        let elapsed = self.started.elapsed().as_secs() as i64 + self.shift_secs.load(Ordering::Relaxed);
        // The clock never goes back, so that an expired item stays expired.
        let secs = u32::try_from(elapsed.max(0)).unwrap_or(u32::MAX / 2).min(u32::MAX / 2);
        self.ticks.set(self.first_secs.saturating_add(secs).max(self.now_secs()));
    }

    /// Advances the counter by `secs` immediately, even while it is stopped. This is for tests. The
    /// counter never moves back.
    pub(crate) fn shift(&self, secs: i32) {
        self.shift_secs.fetch_add(secs.into(), Ordering::Relaxed);
        if self.paused.load(Ordering::Relaxed) {
            self.ticks.set(self.now_secs().saturating_add(secs.max(0).cast_unsigned()).min(u32::MAX / 2));
        } else {
            self.tick();
        }
    }

    /// Stops the counter, or resumes it, for tests.
    pub(crate) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Returns the counter, in seconds.
    #[inline]
    pub(crate) fn now_secs(&self) -> u32 {
        self.ticks.now_secs()
    }

    /// Returns the seconds since the start.
    pub(crate) fn uptime_secs(&self) -> u32 {
        self.now_secs() - self.first_secs
    }

    /// Returns the current Unix time according to the counter.
    pub(crate) fn unix_secs(&self) -> i64 {
        self.origin_unix_secs + i64::from(self.now_secs())
    }

    /// Returns the Unix time of a second on the counter.
    pub(crate) fn unix_secs_of(&self, secs: u32) -> i64 {
        self.origin_unix_secs + i64::from(secs)
    }

    /// Returns the expiry for `exptime` in the text and meta protocols: 0 means never, a negative
    /// value means immediately, a value up to 30 days is relative, and a larger one is a Unix time.
    #[inline]
    pub(crate) fn expiry(&self, exptime: i32) -> Expiry {
        match exptime {
            0 => Expiry::NEVER,
            i32::MIN..0 => Expiry::PAST,
            _ => self.expiry_unsigned(exptime as u32),
        }
    }

    /// Returns the expiry for `exptime` in the binary protocol, which has no negative values.
    #[inline]
    pub(crate) fn expiry_unsigned(&self, exptime: u32) -> Expiry {
        if exptime == 0 {
            Expiry::NEVER
        } else if i64::from(exptime) <= RELATIVE_SECS_MAX {
            Expiry::after(self.now_secs(), exptime)
        } else {
            let secs = i64::from(exptime) - self.origin_unix_secs;
            if secs <= 0 { Expiry::PAST } else { Expiry::at(u32::try_from(secs).unwrap_or(u32::MAX)) }
        }
    }
}

/// Returns the system's monotonic clock, which is the same in all processes.
pub(crate) fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_follows_memcached() {
        let clock = ServerClock::new();
        let now = clock.now_secs();
        assert_eq!(clock.expiry(0), Expiry::NEVER);
        assert_eq!(clock.expiry(-1), Expiry::PAST);
        assert_eq!(clock.expiry(10), Expiry::at(now + 10));
        assert_eq!(clock.expiry(2_592_000), Expiry::at(now + 2_592_000), "30 days are relative");
        assert_eq!(clock.expiry(2_592_001), Expiry::PAST, "a moment in 1970");
        let soon = i32::try_from(clock.unix_secs()).unwrap() + 100;
        assert_eq!(clock.expiry(soon), Expiry::at(now + 100));
        assert_eq!(clock.expiry(soon - 200), Expiry::PAST);
    }

    #[test]
    fn binary_expiry_is_unsigned() {
        let clock = ServerClock::new();
        assert!(!clock.expiry_unsigned(u32::MAX).is_past(clock.now_secs()));
        assert_eq!(clock.expiry_unsigned(2_592_001), Expiry::PAST);
        assert_eq!(clock.expiry_unsigned(0), Expiry::NEVER);
    }

    #[test]
    fn uptime_starts_at_zero() {
        let begun = Instant::now();
        // The thread may stand still at any point.
        let passed = || begun.elapsed().as_secs() + 1;
        let clock = ServerClock::new();
        clock.tick();
        assert!(u64::from(clock.uptime_secs()) <= passed());
        assert_eq!(clock.unix_secs_of(clock.now_secs()), clock.unix_secs());
        let later = ServerClock::starting_at(1_000_000);
        later.tick();
        assert!(u64::from(later.uptime_secs()) <= passed() && later.now_secs() >= 1_000_000);
        let apart = (later.unix_secs() - clock.unix_secs()).unsigned_abs();
        assert!(apart <= passed(), "both show the present");
    }

    #[test]
    fn a_clock_that_is_stopped_is_moved_at_once_and_goes_on_from_there() {
        let clock = ServerClock::new();
        clock.pause(true);
        let before = clock.now_secs();
        clock.shift(5);
        clock.shift(2);
        clock.shift(-3);
        assert_eq!(clock.now_secs(), before + 7);
        clock.tick();
        assert_eq!(clock.now_secs(), before + 7);
        clock.pause(false);
        clock.tick();
        assert!(clock.now_secs() >= before + 7);
    }

    #[test]
    fn a_clock_continues_that_of_another_process() {
        let begun = Instant::now();
        let then = monotonic_nanos() - 5_600_000_000;
        let clock = ServerClock::continuing(1_000, 500_000_000, then);
        let (secs, nanos) = clock.position();
        assert!((1_006, 99_000_000) < (secs, nanos) && secs < 1_066, "{secs} {nanos}");
        let present = ServerClock::new().unix_secs();
        assert!((clock.unix_secs() - present).unsigned_abs() <= begun.elapsed().as_secs() + 1);
        assert!(clock.uptime_secs() >= 6);
    }
}

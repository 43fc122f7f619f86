//! Time, injected: whole seconds since the clock's own start.
//!
//! A cache needs no finer time than memcached's second, and reading the system's clock per request
//! costs more than the lookup. So the engine asks a [`Clock`]; a server steps one shared
//! [`TickClock`] once a second, a test steps it by hand, and an embedder who wants no timer at all
//! takes [`SystemClock`].

use crate::sync::{AtomicU32, Ordering};
use std::time::Duration;

/// Tells the engine what time it is.
///
/// Implementors owe: values never decrease, and start at [`FIRST_SECOND`] or above, because 0 means
/// *never* and 1 means *already expired* in an [`Expiry`].
pub trait Clock: Send + Sync + 'static {
    /// Seconds since the clock's start, at least [`FIRST_SECOND`].
    fn now_secs(&self) -> u32;
}

/// The smallest value a clock may return.
pub const FIRST_SECOND: u32 = 2;

/// A clock that stands still until somebody moves it: the server's ticker, or a test.
#[derive(Debug)]
pub struct TickClock(AtomicU32);

impl TickClock {
    /// A clock at [`FIRST_SECOND`].
    pub fn new() -> Self {
        TickClock(AtomicU32::new(FIRST_SECOND))
    }

    /// Moves the clock to `secs`; a value in the past is ignored.
    pub fn set(&self, secs: u32) {
        self.0.fetch_max(secs, Ordering::Relaxed);
    }

    /// Moves the clock forward by `secs`.
    pub fn advance(&self, secs: u32) {
        self.0.fetch_add(secs, Ordering::Relaxed);
    }
}

impl Default for TickClock {
    fn default() -> Self {
        TickClock::new()
    }
}

impl Clock for TickClock {
    fn now_secs(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reads the system's monotonic clock at every call: the coarse one, which the kernel steps every few milliseconds
/// and which costs 5 ns where the fine one costs 24.
#[derive(Debug)]
pub struct SystemClock {
    /// Since the system's own start.
    start: Duration,
}

impl SystemClock {
    /// A clock that starts now.
    pub fn new() -> Self {
        SystemClock { start: monotonic_coarse() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now_secs(&self) -> u32 {
        // A process that runs for 136 years keeps its last second.
        u32::try_from(monotonic_coarse().saturating_sub(self.start).as_secs())
            .unwrap_or(u32::MAX - FIRST_SECOND)
            .saturating_add(FIRST_SECOND)
    }
}

/// The kernel's coarse monotonic clock.
#[inline]
fn monotonic_coarse() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for one timespec.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    // Linux has had this clock since 2.6.32, and the place is valid: there is nothing else it could refuse.
    debug_assert_eq!(code, 0);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// When an item stops being readable, in the clock's seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Expiry(u32);

impl Expiry {
    /// The item lives until it is evicted or removed.
    pub const NEVER: Expiry = Expiry(0);
    /// The item is expired already; a store with it still replaces what was there.
    pub const PAST: Expiry = Expiry(1);

    /// Expires when the clock shows `secs`. 0 and 1 would collide with [`Expiry::NEVER`] and
    /// [`Expiry::PAST`]: they are taken as the past.
    pub fn at(secs: u32) -> Expiry {
        Expiry(secs.max(1))
    }

    /// Expires `secs` from `now`.
    pub fn after(now: u32, secs: u32) -> Expiry {
        Expiry::at(now.saturating_add(secs))
    }

    /// The raw form: 0 never, else the second at which the item is gone.
    pub fn as_secs(self) -> u32 {
        self.0
    }

    /// The raw form back: 0 never.
    pub fn from_secs(secs: u32) -> Expiry {
        Expiry(secs)
    }

    /// Whether an item with this expiry is gone at `now`.
    pub fn is_past(self, now: u32) -> bool {
        self.0 != 0 && self.0 <= now
    }

    /// Seconds left at `now`; `None` means it never expires.
    pub fn remaining_secs(self, now: u32) -> Option<u32> {
        (self.0 != 0).then(|| self.0.saturating_sub(now))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn expiry_never_collides_with_the_past() {
        assert!(!Expiry::NEVER.is_past(u32::MAX));
        assert!(Expiry::PAST.is_past(FIRST_SECOND));
        assert!(Expiry::at(0).is_past(FIRST_SECOND));
        assert_eq!(Expiry::after(10, 5).remaining_secs(12), Some(3));
        assert_eq!(Expiry::NEVER.remaining_secs(12), None);
    }

    #[test]
    fn the_system_clock_counts_whole_seconds_from_its_start() {
        let clock = SystemClock { start: monotonic_coarse().saturating_sub(Duration::from_millis(3_500)) };
        let passed = monotonic_coarse().saturating_sub(clock.start).as_secs() as u32;
        assert!(passed >= 3);
        assert!(
            (passed..passed + 60).contains(&(clock.now_secs() - FIRST_SECOND)),
            "unless this took a minute"
        );
        let future = SystemClock { start: clock.start + Duration::from_secs(1000) };
        assert_eq!(future.now_secs(), FIRST_SECOND);
    }

    #[test]
    fn a_tick_clock_never_goes_back() {
        let clock = TickClock::new();
        clock.set(100);
        clock.set(50);
        assert_eq!(clock.now_secs(), 100);
        clock.advance(1);
        assert_eq!(clock.now_secs(), 101);
    }
}

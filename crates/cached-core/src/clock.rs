//! Injected time, in whole seconds since the clock's start.
//!
//! A cache needs no finer time than memcached's second, and reading the system's precise clock in
//! every request costs more than a look-up. So the engine reads a [`Clock`]: a server advances a
//! shared [`TickClock`] once a second, a test advances one as needed, and a program without a timer
//! uses [`SystemClock`].

use crate::sync::{AtomicU32, Ordering};
use std::time::Duration;

/// The engine's source of time.
///
/// The values never decrease, and start at [`FIRST_SECOND`] or above, because 0 means
/// *never* and 1 means *already expired* in an [`Expiry`].
pub trait Clock: Send + Sync + 'static {
    /// Seconds since the clock's start, at least [`FIRST_SECOND`].
    fn now_secs(&self) -> u32;
}

/// The smallest value a clock may return.
pub const FIRST_SECOND: u32 = 2;

/// A clock that stands still until it is advanced: by the server's ticker, or by a test.
///
/// ```
/// use cached_core::clock::TickClock;
/// use cached_core::kv::{Kv, KvConfig};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// let clock = Arc::new(TickClock::new());
/// let kv = Kv::new(KvConfig { clock: clock.clone(), ..KvConfig::default() })?;
/// kv.set_for(b"k", b"v", Duration::from_secs(10))?;
/// clock.advance(10);
/// assert_eq!(kv.get(b"k"), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TickClock(AtomicU32);

impl TickClock {
    /// Creates a clock at [`FIRST_SECOND`].
    pub fn new() -> Self {
        TickClock::starting_at(FIRST_SECOND)
    }

    /// Creates a clock at `secs`, or at [`FIRST_SECOND`] if that is later.
    pub fn starting_at(secs: u32) -> Self {
        TickClock(AtomicU32::new(secs.max(FIRST_SECOND)))
    }

    /// Sets the clock to `secs`. An earlier value than the present one is ignored.
    pub fn set(&self, secs: u32) {
        self.0.fetch_max(secs, Ordering::Relaxed);
    }

    /// Advances the clock by `secs`.
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

/// A clock that reads the system's coarse monotonic time at every call. The kernel advances that
/// time every few milliseconds; reading it takes 5 ns instead of 24.
#[derive(Debug)]
pub struct SystemClock {
    /// The system's monotonic time when the clock was created.
    start: Duration,
    /// The clock's time at that moment, in seconds.
    first: u32,
}

impl SystemClock {
    /// Creates a clock that starts now, at [`FIRST_SECOND`].
    pub fn new() -> Self {
        SystemClock::starting_at(FIRST_SECOND)
    }

    /// Creates a clock that starts now, at `secs`, or at [`FIRST_SECOND`] if that is later.
    pub fn starting_at(secs: u32) -> Self {
        SystemClock { start: monotonic_coarse(), first: secs.max(FIRST_SECOND) }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now_secs(&self) -> u32 {
        // After 136 years, the clock stops at its maximum.
        u32::try_from(monotonic_coarse().saturating_sub(self.start).as_secs())
            .unwrap_or(u32::MAX)
            .saturating_add(self.first)
    }
}

/// Returns the kernel's coarse monotonic clock.
#[inline]
fn monotonic_coarse() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for one timespec.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    // Linux has had this clock since 2.6.32, and the address is valid, so the call has no other
    // error.
    debug_assert_eq!(code, 0);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// The time at which an item expires, in the clock's seconds.
///
/// ```
/// use cached_core::clock::Expiry;
///
/// let expiry = Expiry::after(100, 10);
/// assert!(!expiry.is_past(109) && expiry.is_past(110));
/// assert_eq!(expiry.remaining_secs(105), Some(5));
/// assert_eq!(Expiry::NEVER.remaining_secs(105), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Expiry(u32);

impl Expiry {
    /// The item stays until it is evicted or removed.
    pub const NEVER: Expiry = Expiry(0);
    /// The item has already expired. Storing an item with this expiry still replaces the old item.
    pub const PAST: Expiry = Expiry(1);

    /// Expires when the clock reaches `secs`. 0 counts as the past, since it stands for
    /// [`Expiry::NEVER`].
    #[must_use]
    pub fn at(secs: u32) -> Expiry {
        Expiry(secs.max(1))
    }

    /// Expires `secs` after `now`.
    #[must_use]
    pub fn after(now: u32, secs: u32) -> Expiry {
        Expiry::at(now.saturating_add(secs))
    }

    /// Expires `ttl` after `now`. Part of a second counts as a full one.
    #[must_use]
    pub fn after_duration(now: u32, ttl: Duration) -> Expiry {
        let secs = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        Expiry::after(now, u32::try_from(secs).unwrap_or(u32::MAX))
    }

    /// Returns the raw value: 0 for never, otherwise the second in which the item expires.
    #[must_use]
    pub fn as_secs(self) -> u32 {
        self.0
    }

    /// Returns the expiry of a raw value: 0 for never.
    #[must_use]
    pub fn from_secs(secs: u32) -> Expiry {
        Expiry(secs)
    }

    /// Returns whether an item with this expiry has expired at `now`.
    #[must_use]
    pub fn is_past(self, now: u32) -> bool {
        self.0 != 0 && self.0 <= now
    }

    /// Returns the seconds remaining at `now`; `None` for an item that never expires.
    #[must_use]
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
        let clock = SystemClock {
            start: monotonic_coarse().saturating_sub(Duration::from_millis(3_500)),
            ..SystemClock::new()
        };
        let passed = monotonic_coarse().saturating_sub(clock.start).as_secs() as u32;
        assert!(passed >= 3);
        assert!(
            (passed..passed + 60).contains(&(clock.now_secs() - FIRST_SECOND)),
            "unless the test took a minute"
        );
        let future = SystemClock { start: clock.start + Duration::from_secs(1000), ..SystemClock::new() };
        assert_eq!(future.now_secs(), FIRST_SECOND);
        assert_eq!(SystemClock { start: future.start, ..SystemClock::starting_at(77) }.now_secs(), 77);
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

//! Spares requests the wait for an endpoint that is away.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many failures in a row open it.
const FAILURES_MAX: u32 = 3;

/// How long it is open; then one request tries.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// A circuit breaker. After some failures in a row it admits one request each second, until one succeeds.
#[derive(Debug)]
pub(crate) struct Breaker {
    began: Instant,
    failures: AtomicU32,
    /// When the next request may try, in milliseconds since `began`.
    next_try: AtomicU64,
}

impl Breaker {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), failures: AtomicU32::new(0), next_try: AtomicU64::new(0) }
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns whether a request may try.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        if self.failures.load(Ordering::Relaxed) < FAILURES_MAX {
            return true;
        }
        let (now, next) = (self.millis(now), self.next_try.load(Ordering::Relaxed));
        let pause = u64::try_from(PAUSE.as_millis()).unwrap_or(u64::MAX);
        now >= next
            && self.next_try.compare_exchange(next, now + pause, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// States that a request has reached the endpoint.
    pub(crate) fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// States that one has not. Returns whether that has opened it.
    pub(crate) fn failed(&self, now: Instant) -> bool {
        let before = self.failures.fetch_add(1, Ordering::Relaxed);
        if before + 1 < FAILURES_MAX {
            return false;
        }
        // It stays there.
        self.failures.store(FAILURES_MAX, Ordering::Relaxed);
        let pause = u64::try_from(PAUSE.as_millis()).unwrap_or(u64::MAX);
        self.next_try.store(self.millis(now) + pause, Ordering::Relaxed);
        before + 1 == FAILURES_MAX
    }

    /// Returns whether it is open.
    pub(crate) fn is_open(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FAILURES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_that_is_away_is_tried_once_a_second() {
        let breaker = Breaker::new();
        let now = Instant::now();
        assert!(!breaker.failed(now) && !breaker.failed(now) && breaker.admits(now));
        breaker.succeeded();
        assert!(!breaker.failed(now) && !breaker.failed(now) && !breaker.is_open());
        assert!(breaker.failed(now) && breaker.is_open() && !breaker.admits(now));
        let later = now + PAUSE;
        // One alone.
        assert!(breaker.admits(later) && !breaker.admits(later));
        assert!(
            !breaker.failed(later) && !breaker.admits(later + PAUSE / 2) && breaker.admits(later + PAUSE)
        );
        breaker.succeeded();
        assert!(breaker.admits(later) && breaker.admits(later) && !breaker.is_open());
    }
}

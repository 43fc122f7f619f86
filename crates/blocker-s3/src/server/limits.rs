//! Limits on concurrent requests and payload bytes.
//!
//! The limit of concurrent requests is configured, and lower for a while after the server has asked
//! the client to slow down (429, 503 `SlowDown`). Each such response halves the limit, at most once
//! in [`HALVE_EVERY`], since the responses to one burst come together; the limit grows by one
//! whenever as many requests as the limit have been completed.

use std::sync::Arc;
use std::time::Duration;

use blocker::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// The minimum time between two halvings.
const HALVE_EVERY: Duration = Duration::from_secs(1);

/// The limit of concurrent requests.
pub(crate) struct Concurrency {
    permits: Arc<Semaphore>,
    max: usize,
    state: Mutex<State>,
}

struct State {
    /// The current limit.
    now: usize,
    /// The number of permits in use that will be destroyed when they are returned.
    owed: usize,
    /// The number of responses since the limit last changed.
    answered: usize,
    halved_at: Option<Timestamp>,
    /// The time at which the server last requested a lower rate.
    asked_at: Option<Timestamp>,
}

/// The permission for one request in flight, valid as long as this value exists.
pub(crate) struct Permit {
    limit: Arc<Concurrency>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut state = self.limit.state.lock();
        if state.owed > 0 {
            state.owed -= 1;
            permit.forget();
        }
    }
}

impl Concurrency {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let state = State { now: max, owed: 0, answered: 0, halved_at: None, asked_at: None };
        Arc::new(Self { permits: Arc::new(Semaphore::new(max)), max, state: Mutex::new(state) })
    }

    /// Waits for a permit.
    pub(crate) async fn permit(self: &Arc<Self>) -> Permit {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        Permit { limit: Arc::clone(self), permit }
    }

    /// Returns the current limit of requests.
    pub(crate) fn now(&self) -> usize {
        self.state.lock().now
    }

    /// Returns whether less than half of the permits are in use.
    pub(crate) fn is_half_free(&self) -> bool {
        self.permits.available_permits() >= self.now().div_ceil(2)
    }

    /// Records that the server has requested a lower rate.
    pub(crate) fn slow_down(&self, now: Timestamp) {
        let mut state = self.state.lock();
        state.asked_at = Some(now);
        if state.halved_at.is_some_and(|last| now.since(last) < HALVE_EVERY) {
            return;
        }
        let fewer = state.now - (state.now / 2).max(1);
        (state.halved_at, state.answered) = (Some(now), 0);
        state.now -= fewer;
        state.owed += fewer - self.permits.forget_permits(fewer);
    }

    /// Returns whether the server has requested a lower rate recently.
    pub(crate) fn is_asked_for_fewer(&self, now: Timestamp) -> bool {
        self.state.lock().asked_at.is_some_and(|last| now.since(last) < HALVE_EVERY)
    }

    /// Records that the server has responded to a request.
    pub(crate) fn answered(&self) {
        let mut state = self.state.lock();
        if state.now == self.max {
            return;
        }
        state.answered += 1;
        if state.answered < state.now {
            return;
        }
        (state.now, state.answered) = (state.now + 1, 0);
        if state.owed > 0 {
            state.owed -= 1;
        } else {
            self.permits.add_permits(1);
        }
    }
}

/// The unit of credits.
const UNIT_BYTES: u64 = 4096;

/// Credits for the payloads of concurrent operations. An operation that finds too few credits waits
/// for its turn. It takes all its credits once, before its first request, and holds them until it
/// ends, so no holder waits for more.
pub(crate) struct Credits {
    units: Semaphore,
    max: u32,
}

impl Credits {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let max = u32::try_from(bytes_max / UNIT_BYTES).unwrap_or(u32::MAX).max(1);
        let max = max.min(u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX));
        Self { units: Semaphore::new(max as usize), max }
    }

    /// Waits for credits for this many bytes, or for all credits if that is less.
    pub(crate) async fn take(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.max);
        if units == 0 {
            return None;
        }
        // The semaphore is never closed.
        self.units.acquire_many(units).await.ok()
    }
}

#[cfg(test)]
mod tests {

    use blocker::executor::{block_on, poll_times};

    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp(millis * 1_000_000)
    }

    /// Returns the number of further permits that can be taken.
    fn free(limit: &Arc<Concurrency>) -> usize {
        let mut permits = Vec::new();
        while let Some(permit) = poll_times(limit.permit(), 1, Duration::ZERO) {
            permits.push(permit);
        }
        permits.len()
    }

    #[test]
    fn the_limit_halves_and_grows_again() {
        let limit = Concurrency::new(16);
        assert_eq!(free(&limit), 16);
        let taken: Vec<Permit> = (0..12).map(|_| block_on(limit.permit())).collect();
        limit.slow_down(at(0));
        limit.slow_down(at(900));
        assert_eq!((limit.now(), free(&limit)), (8, 0), "one burst halves once");
        assert!(limit.is_asked_for_fewer(at(1899)) && !limit.is_asked_for_fewer(at(1900)));
        drop(taken);
        assert_eq!(free(&limit), 8);
        for (millis, now) in [(1000, 4), (2000, 2), (3000, 1), (4000, 1)] {
            limit.slow_down(at(millis));
            assert_eq!((limit.now(), free(&limit)), (now, now));
        }
        // The limit needs 1 + 2 + … + 15 responses.
        for _ in 0..119 {
            limit.answered();
        }
        assert_eq!((limit.now(), free(&limit)), (15, 15));
        (0..100).for_each(|_| limit.answered());
        assert_eq!((limit.now(), free(&limit)), (16, 16));
    }

    #[test]
    fn owed_permits_are_paid_by_growth_or_by_their_return() {
        let limit = Concurrency::new(8);
        let taken: Vec<Permit> = (0..8).map(|_| block_on(limit.permit())).collect();
        limit.slow_down(at(0));
        (0..4).for_each(|_| limit.answered());
        assert_eq!((limit.now(), free(&limit)), (5, 0));
        drop(taken);
        assert_eq!(free(&limit), 5);
    }

    #[test]
    fn what_finds_no_credits_waits_and_what_is_too_large_goes_alone() {
        let credits = Credits::new(1 << 20);
        let take = |bytes| poll_times(credits.take(bytes), 1, Duration::ZERO).flatten();
        let first = take((1 << 20) - 5000).expect("there are credits");
        assert!(take(1 << 20).is_none() && take(8192).is_none());
        let second = take(4096).expect("there are credits");
        let nothing = poll_times(credits.take(0), 1, Duration::ZERO);
        assert!(nothing.is_some(), "it waits for nothing");
        drop((first, second));
        let large = take(1 << 40).expect("there are credits");
        assert!(take(1).is_none());
        drop(large);
        assert!(take(1).is_some());
    }
}

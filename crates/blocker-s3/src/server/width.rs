//! How many requests are under way at once: as many as configured, and fewer for a while after the server has asked
//! for fewer (429, 503 `SlowDown`).
//!
//! Each such answer halves the width, at most once in [`HALVE_EVERY`], since the answers to one burst come
//! together; each time as many requests have been answered as the width is, it grows by one.

use std::sync::Arc;
use std::time::Duration;

use blocker::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The shortest time between two halvings.
const HALVE_EVERY: Duration = Duration::from_secs(1);

/// The places for requests.
pub(crate) struct Width {
    places: Arc<Semaphore>,
    max: usize,
    state: Mutex<State>,
}

struct State {
    /// The number of places that there are to be.
    now: usize,
    /// The number of places that are still taken and are to be given up when they are left.
    owed: usize,
    /// Requests answered since the width last changed.
    answered: usize,
    halved_at: Option<Timestamp>,
    /// When the server has last asked for fewer requests.
    asked_at: Option<Timestamp>,
}

/// A place, for as long as this lives.
pub(crate) struct Place {
    width: Arc<Width>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut state = self.width.state.lock();
        if state.owed > 0 {
            state.owed -= 1;
            permit.forget();
        }
    }
}

impl Width {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let state = State { now: max, owed: 0, answered: 0, halved_at: None, asked_at: None };
        Arc::new(Self { places: Arc::new(Semaphore::new(max)), max, state: Mutex::new(state) })
    }

    /// Waits for a place.
    pub(crate) async fn place(self: &Arc<Self>) -> Place {
        // It is never closed.
        let permit = Arc::clone(&self.places).acquire_owned().await.ok();
        Place { width: Arc::clone(self), permit }
    }

    /// The number of places that there are to be.
    pub(crate) fn now(&self) -> usize {
        self.state.lock().now
    }

    /// Whether less than half of the places are taken.
    pub(crate) fn is_half_free(&self) -> bool {
        self.places.available_permits() >= self.now().div_ceil(2)
    }

    /// The server has asked for fewer requests.
    pub(crate) fn slow_down(&self, now: Timestamp) {
        let mut state = self.state.lock();
        state.asked_at = Some(now);
        if state.halved_at.is_some_and(|last| now.since(last) < HALVE_EVERY) {
            return;
        }
        let fewer = state.now - (state.now / 2).max(1);
        (state.halved_at, state.answered) = (Some(now), 0);
        state.now -= fewer;
        state.owed += fewer - self.places.forget_permits(fewer);
    }

    /// Whether the server has asked for fewer requests just now.
    pub(crate) fn is_asked_for_fewer(&self, now: Timestamp) -> bool {
        self.state.lock().asked_at.is_some_and(|last| now.since(last) < HALVE_EVERY)
    }

    /// The server has answered a request.
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
            self.places.add_permits(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use blocker::executor::{block_on, poll_times};

    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp(millis * 1_000_000)
    }

    /// How many places can be taken beside those that are.
    fn free(width: &Arc<Width>) -> usize {
        let mut places = Vec::new();
        while let Some(place) = poll_times(width.place(), 1, Duration::ZERO) {
            places.push(place);
        }
        places.len()
    }

    #[test]
    fn the_width_halves_and_grows_again() {
        let width = Width::new(16);
        assert_eq!(free(&width), 16);
        let taken: Vec<Place> = (0..12).map(|_| block_on(width.place())).collect();
        width.slow_down(at(0));
        width.slow_down(at(900));
        assert_eq!((width.now(), free(&width)), (8, 0), "one burst halves once");
        assert!(width.is_asked_for_fewer(at(1899)) && !width.is_asked_for_fewer(at(1900)));
        drop(taken);
        assert_eq!(free(&width), 8);
        for (millis, now) in [(1000, 4), (2000, 2), (3000, 1), (4000, 1)] {
            width.slow_down(at(millis));
            assert_eq!((width.now(), free(&width)), (now, now));
        }
        // 1 + 2 + … + 15 answers.
        for _ in 0..119 {
            width.answered();
        }
        assert_eq!((width.now(), free(&width)), (15, 15));
        (0..100).for_each(|_| width.answered());
        assert_eq!((width.now(), free(&width)), (16, 16));
    }

    #[test]
    fn places_that_are_owed_are_paid_by_growth_or_when_they_are_left() {
        let width = Width::new(8);
        let taken: Vec<Place> = (0..8).map(|_| block_on(width.place())).collect();
        width.slow_down(at(0));
        (0..4).for_each(|_| width.answered());
        assert_eq!((width.now(), free(&width)), (5, 0));
        drop(taken);
        assert_eq!(free(&width), 5);
    }
}

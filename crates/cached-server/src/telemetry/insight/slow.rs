//! Slow steps of workers.
//!
//! A request of memcached's protocols reads no clock. A worker that is slow is found by its heartbeat: the
//! insight thread looks at it every 25 to 50 ms, and a step that has lasted longer than the threshold is
//! recorded when it has ended, with the connection and the command. Requests to the store of objects are
//! measured one by one.

use crate::telemetry::heartbeat::HeartbeatState;
use std::time::{Duration, Instant};

pub use cached_admin::insight::slow::{SlowLog, SlowReport, SlowRequest};

/// What is known of one worker's step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchedStep {
    last: HeartbeatState,
    since: Instant,
}

impl WatchedStep {
    pub(crate) fn new(now: Instant) -> WatchedStep {
        WatchedStep { last: HeartbeatState::default(), since: now }
    }

    /// Compares the heartbeat at `now` with the last one. Returns the step that has ended since, and how long
    /// it was seen.
    pub(crate) fn check(
        &mut self,
        state: HeartbeatState,
        now: Instant,
    ) -> Option<(HeartbeatState, Duration)> {
        // The activity changes within a step.
        if state.is_same_step(self.last) {
            self.last = state;
            return None;
        }
        let ended = (self.last, now.saturating_duration_since(self.since));
        (self.last, self.since) = (state, now);
        (!ended.0.is_idle()).then_some(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::heartbeat::{Activity, Heartbeat};

    #[test]
    fn steps_are_timed_from_when_they_are_first_seen_to_when_they_have_ended() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let heartbeat = Heartbeat::default();
        let mut watched = WatchedStep::new(start);
        assert_eq!(watched.check(heartbeat.read(), at(10)), None);
        heartbeat.begin(1, 9, Activity::Serving);
        assert_eq!(watched.check(heartbeat.read(), at(20)), None);
        heartbeat.set_activity(Activity::FlushAll);
        assert_eq!(watched.check(heartbeat.read(), at(120)), None);
        let step = heartbeat.read();
        heartbeat.begin(2, 9, Activity::Serving);
        assert_eq!(watched.check(heartbeat.read(), at(170)), Some((step, Duration::from_millis(150))));
        let step = heartbeat.read();
        heartbeat.set_idle();
        assert_eq!(watched.check(heartbeat.read(), at(180)), Some((step, Duration::from_millis(10))));
        assert_eq!(watched.check(heartbeat.read(), at(9_000)), None, "idle time is none");
        heartbeat.begin(3, 9, Activity::Serving);
        assert_eq!(watched.check(heartbeat.read(), at(9_001)), None);
    }
}

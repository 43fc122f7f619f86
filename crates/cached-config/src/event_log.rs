//! A store's events in the log.

use blocker::event::{Event, Subscription};
use std::time::{Duration, Instant};

/// The shortest time between two lines of a kind; events in between are counted.
const QUIET: Duration = Duration::from_secs(10);

/// Logs the events of the store called `name` until it is dropped: full, degraded, recovered, or lost and
/// found again. Lines of a kind are at least 10 s apart.
pub async fn log_events(mut events: Subscription, name: String) {
    let mut away = Rate::default();
    let mut trouble = Rate::default();
    // Whether a line reports trouble: then the recovery gets a line as well.
    let mut is_logged = false;
    while let Some(event) = events.recv().await {
        match event {
            Event::Missed => {
                if let Some(more) = away.admits(Instant::now()) {
                    tracing::warn!(
                        store = name,
                        times = more + 1,
                        "the connection to the store broke, or it restarted; clean copies are dropped"
                    );
                }
            }
            Event::Emptied => {
                tracing::error!(
                    store = name,
                    "the store was in memory and has come back without anything: all that was stored there is lost; clean \
                     copies are dropped, and what is dirty is stored again"
                );
            }
            Event::Full => {
                is_logged = true;
                tracing::warn!(store = name, "the store is full");
            }
            Event::Degraded(why) => {
                if let Some(more) = trouble.admits(Instant::now()) {
                    is_logged = true;
                    tracing::warn!(store = name, cause = %why, times = more + 1, "the store is in trouble");
                }
            }
            Event::Recovered if std::mem::take(&mut is_logged) => {
                tracing::info!(store = name, "the store works again");
            }
            Event::Fenced(scope, epoch) => {
                tracing::info!(store = name, ?scope, %epoch, "a newer writer has claimed a scope");
            }
            _ => {}
        }
    }
}

/// Admits an event once in a while, and counts the others.
#[derive(Default)]
pub(crate) struct Rate {
    last: Option<Instant>,
    held_back: u64,
}

impl Rate {
    /// Returns, if it is time for a line, how many events were held back since the last one.
    pub(crate) fn admits(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < QUIET) {
            self.held_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_flaps_is_logged_once_in_a_while_with_a_count() {
        let start = Instant::now();
        let mut rate = Rate::default();
        assert_eq!(rate.admits(start), Some(0));
        for millis in 1..=7 {
            assert_eq!(rate.admits(start + Duration::from_millis(millis)), None);
        }
        assert_eq!(rate.admits(start + QUIET), Some(7));
        assert_eq!(rate.admits(start + QUIET * 2), Some(0));
    }
}

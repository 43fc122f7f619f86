//! What a store says of itself, in the log.

use blocker::event::{Event, Subscription};
use std::time::{Duration, Instant};

/// At most one line of a kind within this time; what else comes is counted.
const QUIET: Duration = Duration::from_secs(10);

/// Logs news of the store called `name` until it is closed: that it is full, slow, well again, or was away.
pub async fn log_events(mut news: Subscription, name: String) {
    let mut away = Rate::default();
    let mut trouble = Rate::default();
    // Whether the log says that the store is in trouble: then it also says when that is over.
    let mut is_told = false;
    while let Some(event) = news.recv().await {
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
            Event::Full => {
                is_told = true;
                tracing::warn!(store = name, "the store is full");
            }
            Event::Degraded(why) => {
                if let Some(more) = trouble.admits(Instant::now()) {
                    is_told = true;
                    tracing::warn!(store = name, cause = %why, times = more + 1, "the store is in trouble");
                }
            }
            Event::Recovered if std::mem::take(&mut is_told) => {
                tracing::info!(store = name, "the store works again");
            }
            Event::Fenced(scope, epoch) => {
                tracing::info!(store = name, ?scope, %epoch, "a newer writer has claimed a scope");
            }
            _ => {}
        }
    }
}

/// Lets something through once in a while, and counts the rest.
#[derive(Default)]
pub(crate) struct Rate {
    last: Option<Instant>,
    held_back: u64,
}

impl Rate {
    /// Whether it is time: then how many were held back since the last.
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
    fn a_store_that_flaps_is_a_line_once_in_a_while_that_says_how_often() {
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

//! Lines that come too often from one place in the code: they are counted instead.

use super::Level;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;

/// How many lines of one place in the code are written within [`WINDOW`].
pub const LINES_MAX: u32 = 10;
/// The time after which the lines of a place are counted anew.
pub const WINDOW: Duration = Duration::from_secs(10);

/// The places in the code that have written lines. There are as many as the program has.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    places: HashMap<Identifier, Place>,
}

#[derive(Debug)]
struct Place {
    level: Level,
    target: &'static str,
    /// The message of the first line that was held back.
    message: String,
    since: Instant,
    lines: u32,
    held_back: u64,
}

/// How many lines were held back, and what they were.
#[derive(Debug, PartialEq)]
pub(super) struct HeldBack {
    pub(super) level: Level,
    pub(super) target: &'static str,
    pub(super) message: String,
    pub(super) count: u64,
}

impl Repeats {
    /// Returns, if a line of `place` may be written, how many were held back before it; counts it otherwise.
    pub(super) fn admit(
        &mut self,
        identifier: Identifier,
        now: Instant,
        (level, target): (Level, &'static str),
        message: &str,
    ) -> Option<u64> {
        let place = self.places.entry(identifier).or_insert_with(|| Place {
            level,
            target,
            message: String::new(),
            since: now,
            lines: 0,
            held_back: 0,
        });
        if now.saturating_duration_since(place.since) >= WINDOW {
            (place.since, place.lines) = (now, 0);
        }
        if place.lines < LINES_MAX {
            place.lines += 1;
            return Some(std::mem::take(&mut place.held_back));
        }
        if place.held_back == 0 {
            message.clone_into(&mut place.message);
        }
        place.held_back += 1;
        None
    }

    /// Returns what has been held back at places whose window has ended.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<HeldBack> {
        let overdue = self
            .places
            .values_mut()
            .filter(|place| place.held_back > 0 && now.saturating_duration_since(place.since) >= WINDOW);
        overdue
            .map(|place| HeldBack {
                level: place.level,
                target: place.target,
                message: std::mem::take(&mut place.message),
                count: std::mem::take(&mut place.held_back),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Callsite;

    fn identifier() -> Identifier {
        struct Here;
        impl Callsite for Here {
            fn set_interest(&self, _: tracing::subscriber::Interest) {}
            fn metadata(&self) -> &tracing::Metadata<'_> {
                unreachable!("an identifier needs none")
            }
        }
        static HERE: Here = Here;
        Identifier(&HERE)
    }

    #[test]
    fn what_is_held_back_is_counted_and_reported_once() {
        let (mut repeats, place, start) = (Repeats::default(), identifier(), Instant::now());
        let admit = |repeats: &mut Repeats, at: Duration, message: &str| {
            repeats.admit(place.clone(), start + at, (Level::Warn, "here"), message)
        };
        for _ in 0..LINES_MAX {
            assert_eq!(admit(&mut repeats, Duration::ZERO, "m"), Some(0));
        }
        for number in 0..7 {
            assert_eq!(admit(&mut repeats, WINDOW / 2, &format!("m{number}")), None);
        }
        assert_eq!(repeats.overdue(start + WINDOW / 2), []);
        let held_back = HeldBack { level: Level::Warn, target: "here", message: "m0".into(), count: 7 };
        assert_eq!(repeats.overdue(start + WINDOW), [held_back]);
        assert_eq!(repeats.overdue(start + WINDOW), []);
        assert_eq!(admit(&mut repeats, WINDOW, "m"), Some(0), "reported already");
        for _ in 0..LINES_MAX {
            admit(&mut repeats, WINDOW, "m");
        }
        assert_eq!(admit(&mut repeats, 2 * WINDOW, "m"), Some(1), "reported by the next line");
        assert_eq!(repeats.overdue(start + 9 * WINDOW), []);
    }
}

//! Receives events: decides which lines are suppressed, counts those, and keeps the last lines in a
//! limited amount of memory.

use std::collections::{HashMap, VecDeque};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::log::{Format, Level, LogTable, Record};

/// The lines of the log.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) table: Mutex<LogTable>,
    is_colored: bool,
    repeats: Mutex<Repeats>,
    pub(super) tail: Mutex<Tail>,
}

/// The lines as a subscriber layer.
pub(super) struct Handle(pub(super) Arc<Lines>);

impl<S: Subscriber> Layer<S> for Handle {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut record = Record::new(Level::of(*metadata.level()), metadata.target());
        // The event is recorded before the locks are taken, because recording runs the callers'
        // code.
        event.record(&mut record);
        if record.level <= Level::Info {
            let place = (record.level, record.target);
            let now = Instant::now();
            let Some(repeated) =
                self.0.repeats.lock().admit(metadata.callsite(), now, place, &record.message)
            else {
                return;
            };
            record.repeated = repeated;
        }
        self.0.write(record);
    }
}

impl Lines {
    pub(super) fn new(table: LogTable) -> Lines {
        Lines {
            table: Mutex::new(table),
            is_colored: std::io::stderr().is_terminal(),
            repeats: Mutex::default(),
            tail: Mutex::default(),
        }
    }

    /// Reports the number of lines suppressed at places whose window has ended.
    pub(super) fn report_repeats(&self, now: Instant) {
        let overdue = self.repeats.lock().overdue(now);
        overdue.into_iter().for_each(|record| self.write(record));
    }

    fn write(&self, record: Record) {
        let record = self.tail.lock().keep(record);
        let mut line = String::with_capacity(256);
        let format = self.table.lock().format;
        match format {
            Format::Text => record.write_text(&mut line, self.is_colored),
            Format::Json => record.write_json(&mut line),
        }
        // If standard error is closed, the failure cannot be reported. The tail is still kept.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

/// The maximum number of lines that one place in the code writes within [`WINDOW`].
pub const LINES_MAX: u32 = 10;
/// The time after which the count of a place starts again.
pub const WINDOW: Duration = Duration::from_secs(10);

/// The places in the code that have written lines. Their number is limited by the program.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    places: HashMap<Identifier, Place>,
}

#[derive(Debug)]
struct Place {
    level: Level,
    target: &'static str,
    /// The message of the first suppressed line.
    message: String,
    since: Instant,
    lines: u32,
    held_back: u64,
}

impl Repeats {
    /// If a line of `place` may be written, returns how many lines were suppressed before it.
    /// Otherwise counts the line as suppressed.
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

    /// Returns a line for each place whose window has ended and that has suppressed lines: the
    /// message of the first suppressed line, and their number.
    fn overdue(&mut self, now: Instant) -> Vec<Record> {
        let is_overdue =
            |place: &&mut Place| place.held_back > 0 && now.saturating_duration_since(place.since) >= WINDOW;
        let line = |place: &mut Place| Record {
            message: std::mem::take(&mut place.message),
            repeated: std::mem::take(&mut place.held_back),
            ..Record::new(place.level, place.target)
        };
        self.places.values_mut().filter(is_overdue).map(line).collect()
    }
}

/// The maximum number of lines kept in memory.
pub const TAIL_LINES: usize = 512;
/// The maximum size of the strings kept in memory, in bytes.
pub const TAIL_BYTES_MAX: usize = 256 << 10;

/// The last lines.
#[derive(Debug, Default)]
pub(super) struct Tail {
    records: VecDeque<Record>,
    bytes: usize,
    count: u64,
}

impl Tail {
    /// Numbers a line and keeps it, dropping the oldest ones if necessary.
    fn keep(&mut self, mut record: Record) -> Record {
        self.count += 1;
        record.id = self.count;
        self.bytes += record.text_bytes();
        self.records.push_back(record.clone());
        while self.records.len() > TAIL_LINES || self.bytes > TAIL_BYTES_MAX {
            let Some(oldest) = self.records.pop_front() else { break };
            self.bytes -= oldest.text_bytes();
        }
        record
    }

    /// Returns the kept lines with numbers above `after`, oldest first; all kept lines for `None`.
    pub(super) fn after(&self, after: Option<u64>) -> Vec<Record> {
        self.records.iter().filter(|record| after.is_none_or(|after| record.id > after)).cloned().collect()
    }
}

#[cfg(test)]
mod repeats_tests {
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
        let held_back = repeats.overdue(start + WINDOW);
        let [Record { level: Level::Warn, target: "here", message, repeated: 7, .. }] = &held_back[..] else {
            panic!("{held_back:?}")
        };
        assert_eq!(message, "m0");
        assert_eq!(repeats.overdue(start + WINDOW), []);
        assert_eq!(admit(&mut repeats, WINDOW, "m"), Some(0), "reported already");
        for _ in 0..LINES_MAX {
            admit(&mut repeats, WINDOW, "m");
        }
        assert_eq!(admit(&mut repeats, 2 * WINDOW, "m"), Some(1), "reported by the next line");
        assert_eq!(repeats.overdue(start + 9 * WINDOW), []);
    }
}

#[cfg(test)]
mod tail_tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn the_last_lines_are_kept_within_both_limits() {
        let mut tail = Tail::default();
        let line = |bytes| Record { message: "x".repeat(bytes), ..Record::new(Level::Info, "here") };
        for number in 1..=(TAIL_LINES as u64 + 10) {
            assert_eq!(tail.keep(line(1)).id, number);
        }
        let all = tail.after(None);
        assert_eq!((all.len(), all[0].id), (TAIL_LINES, 11));
        let newest = all[TAIL_LINES - 1].id;
        assert_eq!(
            tail.after(Some(newest - 2)).iter().map(|line| line.id).collect::<Vec<_>>(),
            [newest - 1, newest]
        );
        for _ in 0..100 {
            tail.keep(line(TAIL_BYTES_MAX / 10));
        }
        assert!((9..=10).contains(&tail.after(None).len()));
        tail.keep(line(2 * TAIL_BYTES_MAX));
        assert_eq!(tail.after(None).len(), 0);
        assert_eq!(tail.bytes, 0);
    }
}

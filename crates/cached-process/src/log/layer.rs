//! Where events come in: each becomes a record, which is written and kept unless it comes too often.

use super::record::Record;
use super::repeats::Repeats;
use super::tail::Tail;
use super::{Format, Level};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The lines of the log.
#[derive(Debug)]
pub(super) struct Lines {
    /// A [`Format`], as a number.
    pub(super) format: AtomicU8,
    is_colored: bool,
    repeats: Mutex<Repeats>,
    pub(super) tail: Tail,
}

/// The lines as a layer of a subscriber.
pub(super) struct Handle(pub(super) Arc<Lines>);

impl<S: Subscriber> Layer<S> for Handle {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut record = Record::new(Level::of(*metadata.level()), metadata.target());
        // Before the locks: it runs the callers' own code.
        event.record(&mut record);
        if record.level <= Level::Info {
            let place = (record.level, record.target);
            let now = Instant::now();
            let Some(repeated) = self.0.repeats().admit(metadata.callsite(), now, place, &record.message)
            else {
                return;
            };
            record.repeated = repeated;
        }
        self.0.write(record);
    }
}

impl Lines {
    pub(super) fn new(format: Format) -> Lines {
        Lines {
            format: AtomicU8::new(format as u8),
            is_colored: std::io::stderr().is_terminal(),
            repeats: Mutex::default(),
            tail: Tail::default(),
        }
    }

    /// Writes how many lines have been held back at places whose window has ended.
    pub(super) fn report_repeats(&self, now: Instant) {
        let overdue = self.repeats().overdue(now);
        for held_back in overdue {
            let mut record = Record::new(held_back.level, held_back.target);
            (record.message, record.repeated) = (held_back.message, held_back.count);
            self.write(record);
        }
    }

    fn write(&self, record: Record) {
        let record = self.tail.keep(record);
        let mut line = String::with_capacity(256);
        match Format::of_number(self.format.load(Ordering::Relaxed)) {
            Format::Text => record.write_text(&mut line, self.is_colored),
            Format::Json => record.write_json(&mut line),
        }
        // A closed standard error leaves nowhere to report that to; the tail is kept all the same.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    fn repeats(&self) -> std::sync::MutexGuard<'_, Repeats> {
        self.repeats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

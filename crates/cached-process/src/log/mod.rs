//! The log: one event is one line on standard error, as text or as JSON.
//!
//! Lines of one place in the code are limited: after [`LINES_MAX`] within [`WINDOW`] the others are counted,
//! and one line reports how many there were. Lines that an operator requests for debugging (levels `debug`
//! and `trace`) are not limited. The last [`TAIL_LINES`] lines are kept in memory, for those who have no
//! access to standard error.
//!
//! Requests are never logged one by one, and where the level excludes an event it costs one load.
//!
//! | module | content |
//! |---|---|
//! | `record` | an event as it is written: text, JSON |
//! | `lines` | where events come in; which lines are held back; the last lines |

mod lines;
mod record;

pub use lines::{LINES_MAX, TAIL_BYTES_MAX, TAIL_LINES, WINDOW};
pub use record::{Record, Value};

use lines::Lines;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::reload;

/// How much is logged: events of this level and of the levels above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something has failed, and will not work again by itself.
    Error,
    /// An operator should look.
    Warn,
    /// What an operator wants to have read afterwards: start, end, reload, the store's absence and return,
    /// refused clients.
    Info,
    /// Every connection.
    Debug,
    /// The logs of libraries.
    Trace,
}

impl Level {
    fn filter(self) -> LevelFilter {
        match self {
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
            Level::Trace => LevelFilter::TRACE,
        }
    }

    fn of(level: tracing::Level) -> Level {
        match level {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warn,
            tracing::Level::INFO => Level::Info,
            tracing::Level::DEBUG => Level::Debug,
            tracing::Level::TRACE => Level::Trace,
        }
    }

    /// Returns the level's name, as it is configured.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        }
    }
}

/// The form of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people: time, level, message, `key=value`.
    Text,
    /// A JSON object: `id`, `time`, `level`, `target`, `message`, and the event's own fields.
    Json,
}

impl Format {
    fn of_number(number: u8) -> Format {
        if number == Format::Json as u8 { Format::Json } else { Format::Text }
    }
}

/// `[log]`: the table of a configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct LogTable {
    /// How much is logged.
    pub level: Level,
    /// The form of the lines.
    pub format: Format,
}

impl Default for LogTable {
    fn default() -> Self {
        LogTable { level: Level::Info, format: Format::Text }
    }
}

/// The process's log. Clones are handles of the same log.
#[derive(Clone)]
pub struct Log {
    lines: Arc<Lines>,
    level: Arc<AtomicU8>,
    set_level: Arc<dyn Fn(Level) + Send + Sync>,
}

impl Log {
    /// Sends the events of all threads to standard error from now on.
    ///
    /// # Panics
    /// If the process has a log subscriber already.
    pub fn install(table: LogTable) -> Log {
        let lines = Arc::new(Lines::new(table.format));
        let (filter, handle) = reload::Layer::new(table.level.filter());
        tracing_subscriber::registry().with(lines::Handle(lines.clone()).with_filter(filter)).init();
        let set_level = move |level: Level| {
            // Fails only if the subscriber is gone.
            let _ = handle.modify(|filter| *filter = level.filter());
        };
        Log { lines, level: Arc::new(AtomicU8::new(table.level as u8)), set_level: Arc::new(set_level) }
    }

    /// Sets level and form of the lines.
    pub fn set(&self, table: LogTable) {
        self.lines.format.store(table.format as u8, Ordering::Relaxed);
        self.level.store(table.level as u8, Ordering::Relaxed);
        (self.set_level)(table.level);
    }

    /// Sets the level.
    pub fn set_level(&self, level: Level) {
        self.set(LogTable { level, ..self.table() });
    }

    /// Returns level and form of the lines.
    #[must_use]
    pub fn table(&self) -> LogTable {
        let levels = [Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Trace];
        let level = levels[usize::from(self.level.load(Ordering::Relaxed)).min(levels.len() - 1)];
        LogTable { level, format: Format::of_number(self.lines.format.load(Ordering::Relaxed)) }
    }

    /// Returns the last lines whose number is above `after`, the oldest first; `None` for all that are kept.
    #[must_use]
    pub fn tail(&self, after: Option<u64>) -> Vec<Record> {
        self.lines.tail.after(after)
    }

    /// Writes how many lines have been held back by places in the code whose window has ended. To be called
    /// about once a second.
    pub fn report_repeats(&self) {
        self.lines.report_repeats(Instant::now());
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("table", &self.table()).finish_non_exhaustive()
    }
}

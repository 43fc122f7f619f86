//! The log: one event is one line on standard error, as text or as JSON.
//!
//! Lines from one place in the code are limited: after [`LINES_MAX`] within [`WINDOW`], the others
//! are counted, and one line reports their number. Lines that an operator requests for debugging
//! (levels `debug` and `trace`) are not limited. The last [`TAIL_LINES`] lines are kept in memory,
//! for readers without access to standard error.
//!
//! Individual requests are never logged, and an event excluded by the level costs one load.
//!
//! | module | content |
//! |---|---|
//! | `record` | an event as it is written: text, JSON |
//! | `lines` | receiving events; suppressing lines; keeping the last lines |
//! | `outside` | lines before and beside the log, in its format |

mod lines;
mod outside;
mod record;

pub use lines::{LINES_MAX, TAIL_BYTES_MAX, TAIL_LINES, WINDOW};
pub(crate) use outside::print_panic;
pub use outside::{print_err, print_out};
pub use record::{Record, Value};

use lines::Lines;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::reload;

/// The log level: events of this level and of more severe ones are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A failure from which the program does not recover by itself.
    Error,
    /// An operator should investigate.
    Warn,
    /// Events that an operator may want to look up later: start, shutdown, reload, loss and return
    /// of the store, refused clients.
    #[default]
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
}

/// The format of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Lines for people: time, level, message, `key=value`.
    #[default]
    Text,
    /// A JSON object: `id`, `time`, `level`, `target`, `message`, and the event's own fields.
    Json,
}

/// The table `[log]` of a configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct LogTable {
    /// The log level.
    pub level: Level,
    /// The format of the lines.
    pub format: Format,
}

/// The process's log. Clones share the same log.
#[derive(Clone)]
pub struct Log {
    lines: Arc<Lines>,
    set_level: Arc<dyn Fn(Level) + Send + Sync>,
}

impl Log {
    /// Sends the events of all threads to standard error from now on.
    ///
    /// # Panics
    /// Panics if the process has a log subscriber already.
    pub fn install(table: LogTable) -> Log {
        table.format.use_outside();
        let lines = Arc::new(Lines::new(table));
        let (filter, handle) = reload::Layer::new(table.level.filter());
        tracing_subscriber::registry().with(lines::Handle(lines.clone()).with_filter(filter)).init();
        let set_level = move |level: Level| {
            // This fails only if the subscriber has been dropped.
            let _ = handle.modify(|filter| *filter = level.filter());
        };
        Log { lines, set_level: Arc::new(set_level) }
    }

    /// Sets the level and the format.
    pub fn set(&self, table: LogTable) {
        table.format.use_outside();
        *self.lines.table.lock() = table;
        (self.set_level)(table.level);
    }

    /// Sets the level.
    pub fn set_level(&self, level: Level) {
        self.set(LogTable { level, ..self.table() });
    }

    /// Returns the level and the format.
    #[must_use]
    pub fn table(&self) -> LogTable {
        *self.lines.table.lock()
    }

    /// Returns the last lines with numbers above `after`, oldest first; all kept lines for `None`.
    #[must_use]
    pub fn tail(&self, after: Option<u64>) -> Vec<Record> {
        self.lines.tail.lock().after(after)
    }

    /// Reports the number of lines suppressed at places in the code whose window has ended. This
    /// should be called about once a second.
    pub fn report_repeats(&self) {
        self.lines.report_repeats(Instant::now());
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("table", &self.table()).finish_non_exhaustive()
    }
}

//! The level of the log: `[log] level`, and what `-v` and the `verbosity` command add to it.
//!
//! | verbosity | the level is at least |
//! |---|---|
//! | 0 | that of `[log]`, `info` unless set |
//! | 1 (`-v`) | `info`: start and end, refused clients, the store's absence and return |
//! | 2 (`-vv`) | `debug`: every connection that is opened or closed |
//! | 3 (`-vvv`) | `trace`: the logs of libraries |
//!
//! Requests are never logged one by one.

use cached_process::log::{Level, Log, LogTable};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The verbosity, and the means of changing it.
#[derive(Clone, Debug)]
pub struct Logging {
    verbosity: Arc<AtomicU8>,
    log: Option<Log>,
    /// The configured level, below which no verbosity leads.
    base: Arc<AtomicU8>,
}

const LEVELS: [Level; 5] = [Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Trace];

impl Logging {
    /// Returns the means of changing `log`, which has the configured level `base` already.
    pub fn over(log: Log, base: Level, verbosity: u8) -> Logging {
        Logging {
            verbosity: Arc::new(AtomicU8::new(verbosity)),
            log: Some(log),
            base: Arc::new(AtomicU8::new(base as u8)),
        }
    }

    /// Leaves the process's logs to the program that embeds the server.
    pub fn embedded(verbosity: u8) -> Logging {
        let base = Arc::new(AtomicU8::new(Level::Info as u8));
        Logging { verbosity: Arc::new(AtomicU8::new(verbosity)), log: None, base }
    }

    /// Returns the level that `verbosity` leads to over the configured level `base`.
    pub(crate) fn level(base: Level, verbosity: u8) -> Level {
        match verbosity {
            0 => base,
            1 => base.max(Level::Info),
            2 => base.max(Level::Debug),
            _ => Level::Trace,
        }
    }

    /// Returns the verbosity, 0 to 3.
    pub fn verbosity(&self) -> u8 {
        self.verbosity.load(Ordering::Relaxed)
    }

    /// Sets the verbosity.
    pub fn set(&self, verbosity: u8) {
        self.verbosity.store(verbosity, Ordering::Relaxed);
        self.apply();
    }

    /// Sets the configured level and the form of the lines; the verbosity stays.
    pub(crate) fn configure(&self, table: LogTable) {
        self.base.store(table.level as u8, Ordering::Relaxed);
        if let Some(log) = &self.log {
            log.set(table);
        }
        self.apply();
    }

    fn apply(&self) {
        let base = LEVELS[usize::from(self.base.load(Ordering::Relaxed)).min(LEVELS.len() - 1)];
        if let Some(log) = &self.log {
            log.set_level(Logging::level(base, self.verbosity()));
        }
    }

    /// Writes how many lines were held back; called about once a second.
    pub(crate) fn report_repeats(&self) {
        if let Some(log) = &self.log {
            log.report_repeats();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verbosity_only_adds() {
        for (base, levels) in [
            (Level::Error, [Level::Error, Level::Info, Level::Debug, Level::Trace]),
            (Level::Info, [Level::Info, Level::Info, Level::Debug, Level::Trace]),
            (Level::Trace, [Level::Trace; 4]),
        ] {
            assert_eq!([0, 1, 2, 3].map(|verbosity| Logging::level(base, verbosity)), levels);
        }
    }
}

//! Logs: `-v` and the `verbosity` command.
//!
//! | level | shows |
//! |---|---|
//! | 0 | warnings and errors: an operator should look |
//! | 1 (`-v`) | connections refused, pauses, shutdown |
//! | 2 (`-vv`) | every connection that is opened or closed |
//! | 3 (`-vvv`) | the logs of libraries |
//!
//! Requests are never logged one by one.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::reload;

/// The verbosity, and the means of changing it.
#[derive(Clone)]
pub struct Logging {
    verbosity: Arc<AtomicU8>,
    apply: Option<Arc<dyn Fn(u8) + Send + Sync>>,
}

impl Logging {
    /// Sends the process's logs to standard error.
    ///
    /// # Panics
    /// If the process has a log subscriber already.
    pub fn install(verbosity: u8) -> Logging {
        let (filter, handle) = reload::Layer::new(level(verbosity));
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_target(false)
            .with_ansi(std::io::stderr().is_terminal());
        tracing_subscriber::registry().with(filter).with(lines).init();
        let apply = move |verbosity| {
            // Fails only if the subscriber is gone.
            let _ = handle.modify(|filter| *filter = level(verbosity));
        };
        Logging { verbosity: Arc::new(AtomicU8::new(verbosity)), apply: Some(Arc::new(apply)) }
    }

    /// Leaves the process's logs to the program that embeds the server.
    pub fn embedded(verbosity: u8) -> Logging {
        Logging { verbosity: Arc::new(AtomicU8::new(verbosity)), apply: None }
    }

    /// Returns the level, 0 to 3.
    pub fn verbosity(&self) -> u8 {
        self.verbosity.load(Ordering::Relaxed)
    }

    /// Sets the level.
    pub fn set(&self, verbosity: u8) {
        self.verbosity.store(verbosity, Ordering::Relaxed);
        if let Some(apply) = &self.apply {
            apply(verbosity);
        }
    }
}

impl std::fmt::Debug for Logging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Logging({})", self.verbosity())
    }
}

fn level(verbosity: u8) -> LevelFilter {
    match verbosity {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

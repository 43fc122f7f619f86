//! Logs: `-v` and the `verbosity` command.
//!
//! | level | shows |
//! |---|---|
//! | 0 | warnings: a person should look |
//! | 1 (`-v`) | connections refused, pauses, shutdown |
//! | 2 (`-vv`) | every connection that comes and goes |
//! | 3 (`-vvv`) | what the libraries below have to tell |
//!
//! Requests are never logged one by one.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::reload;

/// The verbosity, and how to change what is shown.
#[derive(Clone)]
pub struct Logging {
    verbosity: Arc<AtomicU8>,
    apply: Option<Arc<dyn Fn(u8) + Send + Sync>>,
}

impl Logging {
    /// Sends the process's logs to standard error. At most once per process.
    pub fn install(verbosity: u8) -> Logging {
        let (filter, handle) = reload::Layer::new(level(verbosity));
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_target(false)
            .with_ansi(std::io::stderr().is_terminal());
        tracing_subscriber::registry().with(filter).with(lines).init();
        let apply = move |verbosity| {
            // Fails only if the subscriber is gone, and then nobody reads.
            let _ = handle.modify(|filter| *filter = level(verbosity));
        };
        Logging { verbosity: Arc::new(AtomicU8::new(verbosity)), apply: Some(Arc::new(apply)) }
    }

    /// Leaves the process's logs to whoever embeds the server.
    pub fn embedded(verbosity: u8) -> Logging {
        Logging { verbosity: Arc::new(AtomicU8::new(verbosity)), apply: None }
    }

    /// The level, 0 to 3.
    pub fn verbosity(&self) -> u8 {
        self.verbosity.load(Ordering::Relaxed)
    }

    /// Shows more or less from now on.
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

//! What the program shows of itself in one document, with the history of the last hour.

pub mod document;
pub mod history;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use document::Document;
pub use history::History;

use crate::health::{Health, Stage};
use crate::process::{Process, start_unix_secs, unix_millis};
use document::HealthPart;

/// A part of the program that has something to show.
pub trait Source: Send + Sync {
    /// Writes its part. It reads counters and does not wait.
    fn fill(&self, document: &mut Document);
}

/// The document `/status.json`. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Status {
    inner: Arc<Inner>,
}

struct Inner {
    program: &'static str,
    version: &'static str,
    instance: String,
    host: String,
    started: Instant,
    health: Health,
    sources: Mutex<Vec<Arc<dyn Source>>>,
    history: Mutex<History>,
}

impl Status {
    /// Returns the document of a program without parts.
    #[must_use]
    pub fn new(program: &'static str, version: &'static str, health: Health) -> Status {
        let mut random = [0; 8];
        // Without randomness the process id and the time distinguish runs of the program.
        let instance = match getrandom::fill(&mut random) {
            Ok(()) => u64::from_ne_bytes(random),
            Err(_) => unix_millis() ^ u64::from(std::process::id()) << 44,
        };
        let inner = Inner {
            program,
            version,
            instance: format!("{instance:016x}"),
            host: synapse::host_name(),
            started: Instant::now(),
            health,
            sources: Mutex::default(),
            history: Mutex::new(History::new()),
        };
        Status { inner: Arc::new(inner) }
    }

    /// Adds a part.
    pub fn add(&self, source: impl Source + 'static) {
        self.inner.sources.lock().push(Arc::new(source));
    }

    /// Returns the document as it is at present.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut document = self.present();
        document.history = self.inner.history.lock().clone();
        document
    }

    /// Returns the document without its history.
    fn present(&self) -> Document {
        let inner = &*self.inner;
        let health = HealthPart {
            live: inner.health.not_live().is_empty(),
            started: inner.health.not_started().is_none(),
            reasons: inner.health.not_ready(),
            ready: false,
        };
        let mut document = Document {
            schema: 1,
            program: inner.program,
            version: inner.version,
            instance: inner.instance.clone(),
            host: inner.host.clone(),
            pid: std::process::id(),
            start_unix_ms: (start_unix_secs() * 1000.0) as u64,
            now_unix_ms: unix_millis(),
            uptime_secs: inner.started.elapsed().as_secs(),
            state: match inner.health.stage() {
                Stage::Starting => "starting",
                Stage::Serving => "serving",
                Stage::Draining => "draining",
            },
            health: HealthPart { ready: health.reasons.is_empty(), ..health },
            process: Process::read(),
            history: History::new(),
            ..Document::default()
        };
        // Outside of the lock: a source may take its time.
        let sources = inner.sources.lock().clone();
        sources.iter().for_each(|source| source.fill(&mut document));
        document
    }

    /// Adds a step to the history every ten seconds, for ever.
    pub(crate) async fn record_history(self) {
        let mut before = self.present();
        let mut steps = tokio::time::interval(Duration::from_secs(history::STEP_SECS));
        // A step that is late is longer; none is made up.
        steps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The first tick is immediate.
        steps.tick().await;
        loop {
            steps.tick().await;
            let now = self.present();
            history::add_step(&mut self.inner.history.lock(), &before, &now);
            before = now;
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status").field("program", &self.inner.program).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

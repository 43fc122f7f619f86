//! The document `/status.json`: the state of the program, and the history of the last hour in steps
//! of ten seconds, each with the counts within the step and the sizes at its end.

pub mod document;
pub mod ring;

pub use document::Document;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cached_metrics::LatencySnapshot;
use document::{HealthPart, Objects, S3Part, Store, micros};
use parking_lot::Mutex;
use serde::Serialize;

use crate::health::{Health, Stage};
use crate::process::{Process, start_unix_secs, unix_millis};

/// A part of the program that contributes to the document.
pub trait Source: Send + Sync {
    /// Fills in the source's part of the document. Reads counters and does not block.
    fn fill(&self, document: &mut Document);

    /// Returns whether the part is gone and contributes nothing any more: then it is forgotten.
    fn is_gone(&self) -> bool {
        false
    }
}

/// The document `/status.json`. It is cheap to clone; all clones share the same state.
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
        // If there is no randomness, the process ID and the time distinguish runs of the program.
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

    /// Adds a part, and forgets those that are gone.
    pub fn add(&self, source: impl Source + 'static) {
        let mut sources = self.inner.sources.lock();
        sources.retain(|source| !source.is_gone());
        sources.push(Arc::new(source));
    }

    /// Returns the current document.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut document = self.present();
        document.history = self.inner.history.lock().clone();
        document
    }

    /// Returns the document without its history.
    fn present(&self) -> Document {
        let inner = &*self.inner;
        let reasons = inner.health.not_ready();
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
            health: HealthPart {
                live: inner.health.not_live().is_empty(),
                ready: reasons.is_empty(),
                started: inner.health.not_started().is_none(),
                reasons,
            },
            process: Process::read(),
            memory_bytes_max: cached_process::memory::bytes_max(),
            descriptors_max: cached_config::descriptors_max(),
            history: History::new(),
            ..Document::default()
        };
        // Sources are called outside the lock, because a source may take some time.
        let sources = inner.sources.lock().clone();
        sources.iter().for_each(|source| source.fill(&mut document));
        document
    }

    /// Adds a step to the history every ten seconds, forever.
    pub(crate) async fn record_history(self) {
        let mut before = self.present();
        let mut steps = tokio::time::interval(Duration::from_secs(STEP_SECS));
        // A late step is longer; no step is added in its place.
        steps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The first tick is immediate.
        steps.tick().await;
        loop {
            steps.tick().await;
            let now = self.present();
            self.inner.history.lock().add(step(&before, &now), now.now_unix_ms);
            before = now;
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status").field("program", &self.inner.program).finish_non_exhaustive()
    }
}

/// The length of a step.
const STEP_SECS: u64 = 10;
/// The maximum number of steps that are kept: one hour.
const STEPS_MAX: usize = 360;

/// One value of a column.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(untagged)]
enum Cell {
    /// A count or a size.
    Whole(u64),
    /// A quantile.
    Fraction(f64),
    /// The value was not measured.
    Nothing,
}

/// The columns, all of the same length, oldest value first.
#[derive(Clone, Debug, Default, Serialize)]
pub struct History {
    step_secs: u64,
    end_unix_ms: u64,
    columns: BTreeMap<&'static str, VecDeque<Cell>>,
    #[serde(skip)]
    len: usize,
}

impl History {
    /// Returns a history without steps.
    fn new() -> History {
        History { step_secs: STEP_SECS, ..History::default() }
    }

    /// Adds a step that ended at `end_unix_ms`, and drops the oldest step if there are too many.
    fn add(&mut self, cells: Vec<(&'static str, Cell)>, end_unix_ms: u64) {
        for (name, cell) in cells {
            let column = self.columns.entry(name).or_default();
            // The part did not exist at the last step.
            column.resize(self.len, Cell::Nothing);
            column.push_back(cell);
        }
        self.len += 1;
        for column in self.columns.values_mut() {
            column.resize(self.len, Cell::Nothing);
            if self.len > STEPS_MAX {
                column.pop_front();
            }
        }
        self.len = self.len.min(STEPS_MAX);
        self.end_unix_ms = end_unix_ms;
    }
}

/// Returns the values of one step.
fn step(before: &Document, now: &Document) -> Vec<(&'static str, Cell)> {
    let cpu = |document: &Document| {
        ((document.process.cpu_user_secs + document.process.cpu_system_secs) * 1000.0) as u64
    };
    let count = |now: u64, before: Option<u64>| Cell::Whole(now.saturating_sub(before.unwrap_or(0)));
    let mut cells = vec![
        ("cpu_ms", count(cpu(now), Some(cpu(before)))),
        ("resident_bytes", Cell::Whole(now.process.resident_bytes)),
    ];
    if let Some(items) = &now.items {
        let was = before.items.as_ref();
        for key in ["gets", "get_hits", "sets", "received_bytes", "sent_bytes"] {
            cells.push((key, count(items.requests(key), was.map(|was| was.requests(key)))));
        }
        let latency = |command: &str| {
            let of = |document: &Document| {
                let found = document.latency.iter().find(|latency| latency.command == command);
                found.map(|latency| latency.distribution.0).unwrap_or_default()
            };
            of(now).since(&of(before))
        };
        cells.extend([
            ("evictions", count(items.store.evictions, was.map(|was| was.store.evictions))),
            ("items", Cell::Whole(items.store.items)),
            ("item_bytes", Cell::Whole(items.store.item_bytes)),
            ("get_p50_us", quantile(&latency("get"), 0.5)),
            ("get_p99_us", quantile(&latency("get"), 0.99)),
            ("set_p99_us", quantile(&latency("set"), 0.99)),
        ]);
    }
    if let Some(connections) = &now.connections {
        cells.push(("connections", Cell::Whole(connections.current)));
    }
    if let Some(Objects { counters, dirty_age_ms, .. }) = &now.objects {
        let was = before.objects.as_ref().map(|was| &was.counters);
        cells.extend([
            ("object_read_hits", count(counters.read_hits, was.map(|was| was.read_hits))),
            ("object_read_misses", count(counters.read_misses, was.map(|was| was.read_misses))),
            ("dirty_bytes", Cell::Whole(counters.dirty_bytes)),
            ("dirty_age_ms", Cell::Whole(*dirty_age_ms)),
        ]);
    }
    if let Some(store) = &now.store {
        let operation = |document: &Document, name: &str| {
            let mut operations = document.store.iter().flat_map(|store| &store.operations);
            let found = operations.find(|operation| operation.operation == name);
            found.map(|operation| operation.distribution.0).unwrap_or_default()
        };
        let between = |name: &str| operation(now, name).since(&operation(before, name));
        let errors = |store: &Store| store.operations.iter().map(|one| one.errors).sum::<u64>();
        let (reads, writes) = (between("read"), between("write"));
        cells.extend([
            ("store_reads", Cell::Whole(reads.count())),
            ("store_writes", Cell::Whole(writes.count())),
            ("store_errors", count(errors(store), before.store.as_ref().map(errors))),
            ("store_read_p99_us", quantile(&reads, 0.99)),
            ("store_write_p99_us", quantile(&writes, 0.99)),
        ]);
    }
    if let Some(s3) = &now.s3 {
        let was = before.s3.as_ref();
        cells.extend([
            ("s3_requests", count(s3.requests(), was.map(S3Part::requests))),
            ("s3_hits", count(s3.all_hits(), was.map(S3Part::all_hits))),
            ("s3_misses", count(s3.misses, was.map(|was| was.misses))),
        ]);
    }
    if let Some(synapse) = &now.synapse {
        let was = before.synapse.as_ref().map(|was| was.requests);
        cells.push(("synapse_requests", count(synapse.requests, was)));
    }
    cells
}

fn quantile(latency: &LatencySnapshot, quantile: f64) -> Cell {
    latency.quantile(quantile).map_or(Cell::Nothing, |duration| Cell::Fraction(micros(duration)))
}

#[cfg(test)]
mod tests;

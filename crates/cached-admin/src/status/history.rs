//! The last hour in steps of ten seconds: what was counted in each, and what was there at its end.

use std::collections::{BTreeMap, VecDeque};

use cached_metrics::LatencySnapshot;
use serde::{Serialize, Serializer};

use crate::status::document::{Document, Store, micros};

/// The length of a step.
pub const STEP_SECS: u64 = 10;
/// The number of steps that are kept: one hour.
pub const STEPS_MAX: usize = 360;

/// One value of a column.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Cell {
    /// A count or a size.
    Whole(u64),
    /// A quantile.
    Fraction(f64),
    /// Nothing was measured.
    Nothing,
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cell::Whole(number) => serializer.serialize_u64(*number),
            Cell::Fraction(number) => serializer.serialize_f64(*number),
            Cell::Nothing => serializer.serialize_none(),
        }
    }
}

/// The columns, all of the same length, oldest first.
#[derive(Clone, Debug, Default, Serialize)]
pub struct History {
    step_secs: u64,
    end_unix_ms: u64,
    columns: BTreeMap<&'static str, VecDeque<Cell>>,
    #[serde(skip)]
    len: usize,
}

impl History {
    /// Returns a history without a step.
    #[must_use]
    pub fn new() -> History {
        History { step_secs: STEP_SECS, ..History::default() }
    }

    /// Returns the number of steps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no step yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a column, oldest value first.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&VecDeque<Cell>> {
        self.columns.get(name)
    }

    /// Adds a step that ended at `end_unix_ms`, and drops the oldest one above the limit.
    pub(super) fn add(&mut self, cells: Vec<(&'static str, Cell)>, end_unix_ms: u64) {
        for (name, cell) in cells {
            let column = self.columns.entry(name).or_default();
            // The part has appeared since the last step.
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

/// Adds the step between two documents.
pub(super) fn add_step(history: &mut History, before: &Document, now: &Document) {
    history.add(step(before, now), now.now_unix_ms);
}

/// Returns the values of one step.
fn step(before: &Document, now: &Document) -> Vec<(&'static str, Cell)> {
    let mut cells = Vec::new();
    let cpu = |document: &Document| {
        ((document.process.cpu_user_secs + document.process.cpu_system_secs) * 1000.0) as u64
    };
    cells.push(("cpu_ms", Cell::Whole(cpu(now).saturating_sub(cpu(before)))));
    cells.push(("resident_bytes", Cell::Whole(now.process.resident_bytes)));
    let count = |now: u64, before: Option<u64>| Cell::Whole(now.saturating_sub(before.unwrap_or(0)));
    if let Some(items) = &now.items {
        let was = before.items.as_ref();
        for key in ["gets", "get_hits", "sets", "received_bytes", "sent_bytes"] {
            cells.push((key, count(items.requests(key), was.map(|was| was.requests(key)))));
        }
        cells.push(("evictions", count(items.store.evictions, was.map(|was| was.store.evictions))));
        cells.push(("items", Cell::Whole(items.store.items)));
        cells.push(("item_bytes", Cell::Whole(items.store.item_bytes)));
        let latency = |command: &str| {
            let of = |document: &Document| {
                let found = document.latency.iter().find(|latency| latency.command == command);
                found.map(|latency| latency.distribution.0).unwrap_or_default()
            };
            of(now).since(&of(before))
        };
        cells.push(("get_p50_us", quantile(&latency("get"), 0.5)));
        cells.push(("get_p99_us", quantile(&latency("get"), 0.99)));
        cells.push(("set_p99_us", quantile(&latency("set"), 0.99)));
    }
    if let Some(connections) = &now.connections {
        cells.push(("connections", Cell::Whole(connections.current)));
    }
    if let Some(objects) = &now.objects {
        let was = before.objects.as_ref();
        cells.push((
            "object_read_hits",
            count(objects.counters.read_hits, was.map(|was| was.counters.read_hits)),
        ));
        cells.push((
            "object_read_misses",
            count(objects.counters.read_misses, was.map(|was| was.counters.read_misses)),
        ));
        cells.push(("dirty_bytes", Cell::Whole(objects.counters.dirty_bytes)));
        cells.push(("dirty_age_ms", Cell::Whole(objects.dirty_age_ms)));
    }
    if let Some(store) = &now.store {
        let operation = |document: &Document, name: &str| {
            let store = document.store.as_ref();
            let found =
                store.and_then(|store| store.operations.iter().find(|operation| operation.operation == name));
            found.map(|operation| operation.distribution.0).unwrap_or_default()
        };
        let between = |name: &str| operation(now, name).since(&operation(before, name));
        let errors = |store: &Store| store.operations.iter().map(|one| one.errors).sum::<u64>();
        let (reads, writes) = (between("read"), between("write"));
        cells.push(("store_reads", Cell::Whole(reads.count())));
        cells.push(("store_writes", Cell::Whole(writes.count())));
        cells.push(("store_errors", count(errors(store), before.store.as_ref().map(errors))));
        cells.push(("store_read_p99_us", quantile(&reads, 0.99)));
        cells.push(("store_write_p99_us", quantile(&writes, 0.99)));
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

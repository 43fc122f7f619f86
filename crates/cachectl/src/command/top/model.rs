//! What the answers mean: rates from differences, ratios over the history, and what is at risk.

use std::collections::{BTreeMap, VecDeque};

use serde::Deserialize;

use crate::command::top::view::{age, bytes, count, printable};

/// Live rates are differences over about this time.
const WINDOW_MS: u64 = 10_000;

/// The answers of the last seconds, of one process.
#[derive(Default)]
pub(super) struct Model {
    answers: VecDeque<Status>,
}

/// Something that an operator should look at.
#[derive(Debug, PartialEq)]
pub(super) struct Risk {
    pub(super) is_bad: bool,
    pub(super) text: String,
}

impl Model {
    /// Takes an answer. Returns whether it is the first one of another process than the one before.
    pub(super) fn take(&mut self, status: Status) -> bool {
        let restarted = self.answers.back().is_some_and(|before| before.instance != status.instance);
        if restarted {
            self.answers.clear();
        }
        let from = status.now_unix_ms.saturating_sub(WINDOW_MS);
        self.answers.push_back(status);
        while self.answers.len() > 2 && self.answers[1].now_unix_ms <= from {
            self.answers.pop_front();
        }
        restarted
    }

    /// Returns the last answer.
    pub(super) fn now(&self) -> Option<&Status> {
        self.answers.back()
    }

    /// Returns the increase of a counter per second: between the answers, or in the history's last step. `None` if
    /// neither is known.
    pub(super) fn rate(&self, pick: impl Fn(&Status) -> Option<f64>, column: &str) -> Option<f64> {
        self.rise(pick).or_else(|| {
            let step_secs = self.now()?.history.as_ref()?.step_secs;
            let last = self.column(column)?.last().copied()??;
            (step_secs > 0.0).then(|| last / step_secs)
        })
    }

    /// Returns the increase per second between the oldest and the newest answer.
    pub(super) fn rise(&self, pick: impl Fn(&Status) -> Option<f64>) -> Option<f64> {
        let (first, last) = (self.answers.front()?, self.answers.back()?);
        let secs = last.now_unix_ms.checked_sub(first.now_unix_ms)? as f64 / 1e3;
        let rise = pick(last)? - pick(first)?;
        (secs > 0.0 && rise >= 0.0).then(|| rise / secs)
    }

    fn rose(&self, pick: impl Fn(&Status) -> Option<f64>) -> bool {
        self.rise(pick).is_some_and(|rise| rise > 0.0)
    }

    /// Returns a column of the history.
    pub(super) fn column(&self, name: &str) -> Option<&[Option<f64>]> {
        Some(self.now()?.history.as_ref()?.columns.get(name)?)
    }

    /// Returns the last known value of a column.
    pub(super) fn last_of(&self, name: &str) -> Option<f64> {
        self.column(name)?.iter().rev().flatten().copied().next()
    }

    fn sum(&self, name: &str) -> Option<f64> {
        Some(self.column(name)?.iter().flatten().sum())
    }

    /// Returns the hit ratio over the history: of items, or of object reads without items.
    pub(super) fn hit_ratio_hour(&self) -> Option<f64> {
        if self.now()?.items.is_some() {
            return ratio(self.sum("get_hits")?, self.sum("gets")?);
        }
        let (hits, misses) = (self.sum("object_read_hits")?, self.sum("object_read_misses")?);
        ratio(hits, hits + misses)
    }

    /// Returns the hit ratio in each step of the history, with the number of steps that `hit_ratio_hour` covers.
    pub(super) fn hit_ratios(&self) -> Vec<Option<f64>> {
        let pair = |hits: &str, others: &str, others_are_all: bool| {
            let (hits, others) = (self.column(hits)?, self.column(others)?);
            let one = |(hits, others): (&Option<f64>, &Option<f64>)| {
                let (hits, others) = ((*hits)?, (*others)?);
                ratio(hits, if others_are_all { others } else { hits + others })
            };
            Some(hits.iter().zip(others).map(one).collect())
        };
        pair("get_hits", "gets", true)
            .or_else(|| pair("object_read_hits", "object_read_misses", false))
            .unwrap_or_default()
    }

    /// Returns what an operator should look at, the worst first.
    pub(super) fn risks(&self) -> Vec<Risk> {
        let Some(now) = self.now() else { return Vec::new() };
        let mut found = Vec::new();
        let mut add = |is_bad, text: String| found.push(Risk { is_bad, text });
        if let Some(objects) = now.objects.as_ref().filter(|of| of.lost_bytes > 0 || of.lost_objects > 0) {
            let (lost, of) = (bytes(objects.lost_bytes), count(objects.lost_objects));
            add(
                true,
                format!("acknowledged data are lost: {lost} of {of} objects; `cachectl lost` lists them"),
            );
        }
        if now.journal.as_ref().is_some_and(|journal| journal.failed) {
            add(true, "the journal has failed: changes are not journaled".into());
        }
        for reason in &now.health.reasons {
            add(true, format!("not ready: {}", printable(reason, 200)));
        }
        if let Some(store) =
            now.store.as_ref().filter(|of| of.state == "away" && now.health.reasons.is_empty())
        {
            add(true, format!("the store has not answered for {}", age(store.away_ms as f64 / 1e3)));
        }
        if now.connections.as_ref().is_some_and(|of| of.accepting == Some(false)) {
            add(true, "no connections are accepted: the limit is reached, or no descriptors are left".into());
        }
        match now.objects.as_ref().map(|of| of.attach_state.as_str()) {
            Some("detached") => add(
                false,
                "the object cache is detached: requests go to the store; `cachectl cache attach` puts it back"
                    .into(),
            ),
            Some("storing" | "transit") => add(false, "the object cache is being detached".into()),
            _ => {}
        }
        if now.state == "draining" {
            add(false, "the server is draining".into());
        }
        if now.objects.as_ref().is_some_and(is_nearly_full_of_dirty) {
            add(
                false,
                "dirty data are at nine tenths of their limit or above: writers wait at the limit".into(),
            );
        }
        type Pick = fn(&Status) -> Option<f64>;
        let rises: [(&str, Pick); 3] = [
            ("flushes fail; they are repeated", |at| Some(at.objects.as_ref()?.flush_failures as f64)),
            ("connections are refused", |at| Some(at.connections.as_ref()?.refused as f64)),
            ("items are refused: memory is full", |at| Some(at.items.as_ref()?.refused_no_memory as f64)),
        ];
        for (text, pick) in rises {
            if self.rose(pick) {
                add(false, text.into());
            }
        }
        found
    }
}

fn is_nearly_full_of_dirty(objects: &Objects) -> bool {
    objects.dirty_limit_bytes > 0 && objects.dirty_bytes >= objects.dirty_limit_bytes / 10 * 9
}

pub(super) fn ratio(part: f64, all: f64) -> Option<f64> {
    (all > 0.0).then(|| part / all)
}

/// Returns the number of requests that the server has executed.
pub(super) fn requests(status: &Status) -> Option<f64> {
    let items = status.items.as_ref();
    let items = items.map(|of| of.gets + of.sets + of.touches + of.deletes + of.incrs + of.decrs);
    let synapse = status.synapse.as_ref().map(|of| of.requests);
    items.or(synapse).map(|_| (items.unwrap_or(0) + synapse.unwrap_or(0)) as f64)
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Status {
    pub(super) program: String,
    pub(super) version: String,
    pub(super) instance: String,
    pub(super) host: String,
    pub(super) pid: u64,
    pub(super) now_unix_ms: u64,
    pub(super) uptime_secs: f64,
    pub(super) state: String,
    pub(super) health: Health,
    pub(super) process: Process,
    pub(super) memory: Vec<Owner>,
    pub(super) shared_memory: Option<SharedMemory>,
    pub(super) items: Option<Items>,
    pub(super) latency: Vec<Latency>,
    pub(super) listeners: Vec<Listener>,
    pub(super) connections: Option<Connections>,
    pub(super) objects: Option<Objects>,
    pub(super) store: Option<Store>,
    pub(super) synapse: Option<Synapse>,
    pub(super) journal: Option<Journal>,
    pub(super) history: Option<History>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Health {
    pub(super) ready: bool,
    pub(super) reasons: Vec<String>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Process {
    pub(super) cpu_user_secs: f64,
    pub(super) cpu_system_secs: f64,
    pub(super) resident_bytes: u64,
    pub(super) threads: u64,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Owner {
    pub(super) owner: String,
    pub(super) used_bytes: u64,
    pub(super) limit_bytes: u64,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct SharedMemory {
    pub(super) halves: Vec<Half>,
    pub(super) moves: u64,
    pub(super) failures: u64,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Half {
    pub(super) half: String,
    pub(super) bytes: u64,
    pub(super) least_bytes: u64,
    pub(super) given_bytes: u64,
    pub(super) gain_us: f64,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Items {
    pub(super) count: u64,
    pub(super) bytes: u64,
    pub(super) limit_bytes: u64,
    pub(super) gets: u64,
    pub(super) get_hits: u64,
    pub(super) sets: u64,
    pub(super) touches: u64,
    pub(super) deletes: u64,
    pub(super) incrs: u64,
    pub(super) decrs: u64,
    pub(super) evictions: u64,
    pub(super) evicted_unfetched: u64,
    pub(super) refused_no_memory: u64,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Latency {
    pub(super) command: String,
    pub(super) count: u64,
    pub(super) p50_us: Option<f64>,
    pub(super) p90_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) p999_us: Option<f64>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Listener {
    pub(super) listener: String,
    pub(super) protocol: String,
    pub(super) connections: u64,
    pub(super) accepted: u64,
    pub(super) refused: u64,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Connections {
    pub(super) current: u64,
    pub(super) limit: u64,
    pub(super) refused: u64,
    pub(super) accepting: Option<bool>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Objects {
    pub(super) attach_state: String,
    pub(super) count: u64,
    pub(super) clean_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) dirty_bytes: u64,
    pub(super) dirty_limit_bytes: u64,
    pub(super) dirty_age_ms: u64,
    pub(super) dirty_age_limit_ms: u64,
    pub(super) read_hits: u64,
    pub(super) read_misses: u64,
    pub(super) writes_back: u64,
    pub(super) writes_through: u64,
    pub(super) flush_failures: u64,
    pub(super) lost_bytes: u64,
    pub(super) lost_objects: u64,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) namespaces_other: u64,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Namespace {
    pub(super) namespace: String,
    pub(super) write: String,
    pub(super) objects: u64,
    pub(super) cached_bytes: u64,
    pub(super) dirty_bytes: u64,
    pub(super) dirty_age_ms: u64,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Store {
    pub(super) backend: String,
    pub(super) state: String,
    pub(super) away_ms: u64,
    pub(super) operations: Vec<Operation>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Operation {
    pub(super) operation: String,
    pub(super) count: u64,
    pub(super) errors: u64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    pub(super) p999_us: Option<f64>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Synapse {
    pub(super) sessions: u64,
    pub(super) requests: u64,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct Journal {
    pub(super) fill_bytes: u64,
    pub(super) capacity_bytes: u64,
    pub(super) oldest_age_ms: u64,
    pub(super) failed: bool,
}

/// Columns of equal length, oldest first: increases within each step, or values at its end.
#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub(super) struct History {
    pub(super) step_secs: f64,
    pub(super) columns: BTreeMap<String, Vec<Option<f64>>>,
}

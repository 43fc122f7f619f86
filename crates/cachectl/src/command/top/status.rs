//! The parts of `/status.json` that are shown. A part that is not configured is absent; unknown keys are ignored.

use std::collections::BTreeMap;

use serde::Deserialize;

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

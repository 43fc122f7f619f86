//! The document `/status.json`.
//!
//! Units come last in a key (`_bytes`, `_secs`, `_ms`, `_us`). Counters are since the start of the
//! process. A part that the program does not have is absent. `schema` rises only when the meaning
//! of a key changes; new keys may appear.

use std::collections::BTreeMap;
use std::time::Duration;

use cached_core::kv::KvStats;
use cached_core::object::Counters;
use cached_metrics::LatencySnapshot;
use serde::{Serialize, Serializer};

use super::History;
use crate::process::Process;

/// The whole document.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Document {
    /// 1.
    pub schema: u32,
    /// `cached` or `synapsed`.
    pub program: &'static str,
    /// The program's version.
    pub version: &'static str,
    /// Different for each run of the program.
    pub instance: String,
    /// The host's name.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// When the process started, in milliseconds of Unix time.
    pub start_unix_ms: u64,
    /// When the document was made.
    pub now_unix_ms: u64,
    /// The time between them.
    pub uptime_secs: u64,
    /// `starting`, `serving` or `draining`.
    pub state: &'static str,
    /// What the probes report.
    pub health: HealthPart,
    /// What the system counts for the process.
    pub process: Process,
    /// Memory by owner.
    pub memory: Vec<Memory>,
    /// What moves between items and objects, if they share memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<SharedMemoryPart>,
    /// The byte-keyed store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<Items>,
    /// Request latency by command.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<CommandLatency>,
    /// The worker threads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerPart>,
    /// The listeners.
    pub listeners: Vec<ListenerPart>,
    /// The connections of memcached's listeners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<Connections>,
    /// The object cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<Objects>,
    /// The store behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<Store>,
    /// The synapse listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synapse: Option<Synapse>,
    /// The volumes in the object cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volumes: Option<VolumesPart>,
    /// The journal of the object cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal: Option<JournalPart>,
    /// Whether requests are sampled: without, `/mrc.json` and `/hot.json` have nothing.
    pub insight: bool,
    /// The last hour.
    pub history: History,
}

/// What the probes report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HealthPart {
    /// As `/livez`.
    pub live: bool,
    /// As `/readyz`.
    pub ready: bool,
    /// As `/startupz`.
    pub started: bool,
    /// Why the program is not ready, one line each.
    pub reasons: Vec<String>,
}

/// The memory of one owner, in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// The owner: items, index, connections, objects, …
    pub owner: &'static str,
    /// What it uses at present.
    pub used_bytes: u64,
    /// What it may use.
    pub limit_bytes: u64,
}

/// The memory that items and objects share, and what has moved of it since the start.
#[derive(Clone, Debug, Serialize)]
pub struct SharedMemoryPart {
    /// Items, and objects.
    pub halves: Vec<SharedHalf>,
    /// Moves that have begun.
    pub moves: u64,
    /// Times that the system did not take memory back, so that it could not move.
    pub failures: u64,
}

/// One half of shared memory.
#[derive(Clone, Debug, Serialize)]
pub struct SharedHalf {
    /// `items` or `objects`.
    pub half: &'static str,
    /// What it has.
    pub bytes: u64,
    /// The least that it has.
    pub least_bytes: u64,
    /// What it has given to the other one.
    pub given_bytes: u64,
    /// The misses that more memory would have saved it lately, by what they cost: memory moves to
    /// the half that would gain more.
    pub gain_us: f64,
}

/// The byte-keyed store: what it holds, and what its clients have done.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Items {
    /// What it holds.
    #[serde(flatten)]
    pub store: KvStats,
    /// The memory that items may take.
    pub limit_bytes: u64,
    /// What the workers have counted.
    #[serde(flatten)]
    pub requests: BTreeMap<&'static str, u64>,
}

impl Items {
    /// Returns the number of requests that are counted under this key.
    #[must_use]
    pub fn requests(&self, key: &str) -> u64 {
        self.requests.get(key).copied().unwrap_or(0)
    }
}

/// A distribution of latencies, in microseconds.
#[derive(Clone, Debug)]
pub struct Distribution(pub LatencySnapshot);

impl Distribution {
    /// Returns a quantile in microseconds, to a tenth.
    fn quantile_us(&self, quantile: f64) -> Option<f64> {
        self.0.quantile(quantile).map(micros)
    }
}

/// Returns a duration in microseconds, to a tenth.
pub(super) fn micros(duration: Duration) -> f64 {
    (duration.as_nanos() as f64 / 100.0).round() / 10.0
}

/// Its parts are those of what contains it.
impl Serialize for Distribution {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Parts {
            count: u64,
            sum_us: u64,
            p50_us: Option<f64>,
            p90_us: Option<f64>,
            p99_us: Option<f64>,
            p999_us: Option<f64>,
            buckets: Vec<(u64, u64)>,
        }
        let parts = Parts {
            count: self.0.count(),
            sum_us: u64::try_from(self.0.sum().as_micros()).unwrap_or(u64::MAX),
            p50_us: self.quantile_us(0.5),
            p90_us: self.quantile_us(0.9),
            p99_us: self.quantile_us(0.99),
            p999_us: self.quantile_us(0.999),
            buckets: self.0.octaves_us(),
        };
        parts.serialize(serializer)
    }
}

/// The latency of one kind of command, of a sample of all requests.
#[derive(Clone, Debug, Serialize)]
pub struct CommandLatency {
    /// The command.
    pub command: &'static str,
    /// The distribution.
    #[serde(flatten)]
    pub distribution: Distribution,
}

/// One worker thread.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerPart {
    /// Its number.
    pub worker: usize,
    /// Keys of retrievals.
    pub gets: u64,
    /// Stores.
    pub sets: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Whether it is inside a step at this moment.
    pub busy: bool,
    /// The 99th percentile of its requests' latency, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
}

impl WorkerPart {
    /// Returns the 99th percentile of a distribution, in microseconds.
    #[must_use]
    pub fn p99_us(latency: &LatencySnapshot) -> Option<f64> {
        latency.quantile(0.99).map(micros)
    }
}

/// One listening address.
#[derive(Clone, Debug, Serialize)]
pub struct ListenerPart {
    /// The address.
    pub listener: String,
    /// `memcached`, `synapse` or `nbd`.
    pub protocol: &'static str,
    /// Open connections.
    pub connections: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused.
    pub refused: u64,
}

/// The connections of memcached's listeners together.
#[derive(Clone, Debug, Serialize)]
pub struct Connections {
    /// Open connections.
    pub current: u64,
    /// The largest number of them.
    pub limit: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused because there were as many as allowed.
    pub refused: u64,
    /// Connections closed because they were idle.
    pub idle_closed: u64,
    /// Connections closed because together they held too much memory.
    pub memory_closed: u64,
    /// Whether new ones are accepted at this moment.
    pub accepting: bool,
}

/// The object cache.
#[derive(Clone, Debug, Serialize)]
pub struct Objects {
    /// `attached`, or what a detaching cache is doing.
    pub attach_state: &'static str,
    /// What it holds and has done.
    #[serde(flatten)]
    pub counters: Counters,
    /// The most data that may be dirty.
    pub dirty_limit_bytes: u64,
    /// The age of the oldest change that is not stored.
    pub dirty_age_ms: u64,
    /// The age at which the flush of a change begins.
    pub dirty_age_limit_ms: u64,
    /// The namespaces with the most dirty data, then with the most data.
    pub namespaces: Vec<NamespacePart>,
    /// The number of the others.
    pub namespaces_other: u64,
}

/// One namespace of the object cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamespacePart {
    /// Its name; what is not UTF-8 is replaced.
    pub namespace: String,
    /// `through`, `back` or `around`.
    pub write: &'static str,
    /// Objects in the cache.
    pub objects: u64,
    /// Their data in the cache.
    pub cached_bytes: u64,
    /// The dirty part of it.
    pub dirty_bytes: u64,
    /// The age of its oldest change that is not stored.
    pub dirty_age_ms: u64,
    /// Reads answered from the cache.
    pub read_hits: u64,
    /// Reads that had to read the store.
    pub read_misses: u64,
    /// Changes acknowledged as *cached*.
    pub writes_cached: u64,
    /// Changes acknowledged as *journaled*.
    pub writes_journaled: u64,
    /// Changes acknowledged as *replicated*.
    pub writes_replicated: u64,
    /// Changes acknowledged as *stored*.
    pub writes_stored: u64,
}

/// The volumes that clients have selected since the start.
#[derive(Clone, Debug, Serialize)]
pub struct VolumesPart {
    /// Those that have connections.
    pub connected: u64,
    /// Requests for volumes that are under way on the admin listener.
    pub jobs: u64,
    /// Those with the most connections, then with the most bytes.
    pub volumes: Vec<VolumePart>,
    /// The number of the others.
    pub volumes_other: u64,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VolumePart {
    /// Its name.
    pub volume: String,
    /// Connections that have it.
    pub connections: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// The bytes that reads have asked for.
    pub read_bytes: u64,
    /// The bytes of writes.
    pub written_bytes: u64,
}

/// The journal.
#[derive(Clone, Debug, Serialize)]
pub struct JournalPart {
    /// Space in use.
    pub fill_bytes: u64,
    /// Space that is ready for use.
    pub capacity_bytes: u64,
    /// The age of the oldest segment in use.
    pub oldest_age_ms: u64,
    /// Whether it is anything but in order.
    pub failed: bool,
    /// Records appended.
    pub records: u64,
    /// Its commits.
    pub commit: JournalCommits,
}

/// The commits of a journal; quantiles to within a factor of two.
#[derive(Clone, Debug, Default, Serialize)]
#[expect(missing_docs, reason = "as in the other distributions")]
pub struct JournalCommits {
    pub count: u64,
    pub sum_us: u64,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub p999_us: Option<f64>,
}

/// The store behind the object cache, or behind `synapsed`.
#[derive(Clone, Debug, Serialize)]
pub struct Store {
    /// What it is, in one line of a configuration.
    pub backend: String,
    /// `memory`, `file`, `rados`, `s3` or `synapse`.
    pub kind: &'static str,
    /// `serving`, or `away` if it answers nothing.
    pub state: &'static str,
    /// Since when it answers nothing; 0 if it serves.
    pub away_ms: u64,
    /// Its operations.
    pub operations: Vec<OperationPart>,
}

/// One operation of the store.
#[derive(Clone, Debug, Serialize)]
pub struct OperationPart {
    /// Its name.
    pub operation: &'static str,
    /// Those that failed.
    pub errors: u64,
    /// The latency of all.
    #[serde(flatten)]
    pub distribution: Distribution,
}

/// The synapse listener.
#[derive(Clone, Debug, Serialize)]
pub struct Synapse {
    /// Open connections.
    pub connections: u64,
    /// Sessions that are remembered.
    pub sessions: u64,
    /// Requests that arrived.
    pub requests: u64,
    /// Connections refused.
    pub refused: u64,
    /// Connections closed because their client broke the protocol.
    pub broken: u64,
    /// Connections closed because their client was silent.
    pub silent: u64,
    /// Requests answered by an outcome that was remembered.
    pub replays: u64,
}

//! The document `/status.json`.
//!
//! Units come last in a key (`_bytes`, `_secs`, `_ms`, `_us`). Counters start at the start of the
//! process. Parts that the program does not have are absent. `schema` increases only when the
//! meaning of a key changes; new keys may appear.

use std::collections::BTreeMap;
use std::time::Duration;

use cached_core::kv::KvStats;
use cached_core::object::Counters;
use cached_metrics::LatencySnapshot;
use serde::{Serialize, Serializer};

use super::History;
use super::ring::RingPart;
use crate::process::Process;

/// The whole document.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Document {
    /// The version of the schema, which is 1.
    pub schema: u32,
    /// `cached` or `synapsed`.
    pub program: &'static str,
    /// The program's version.
    pub version: &'static str,
    /// An identifier that differs for each run of the program.
    pub instance: String,
    /// The host's name.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// The time at which the process started, in milliseconds of Unix time.
    pub start_unix_ms: u64,
    /// The time at which the document was created.
    pub now_unix_ms: u64,
    /// The time between `start_unix_ms` and `now_unix_ms`.
    pub uptime_secs: u64,
    /// `starting`, `serving` or `draining`.
    pub state: &'static str,
    /// The state that the probes report.
    pub health: HealthPart,
    /// The system's counts for the process.
    pub process: Process,
    /// The sum of all limits of the process's memory, which the start prints; 0 before that.
    pub memory_bytes_max: u64,
    /// The number of file descriptors that the process may need: the sum of all limits of
    /// connections and open files.
    pub descriptors_max: u64,
    /// The memory of each owner.
    pub memory: Vec<Memory>,
    /// The memory that moves between items and objects, if they share memory.
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
    /// The ring of nodes to which the program belongs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring: Option<RingPart>,
    /// The object cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<Objects>,
    /// The store behind the object cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<Store>,
    /// The election of the host that writes to the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub election: Option<ElectionPart>,
    /// The synapse listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synapse: Option<Synapse>,
    /// The volumes in the object cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volumes: Option<VolumesPart>,
    /// The S3 sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Part>,
    /// The journal of the object cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal: Option<JournalPart>,
    /// Whether requests are sampled. If not, `/mrc.json` and `/hot.json` are empty.
    pub insight: bool,
    /// The history of the last hour.
    pub history: History,
}

/// The state that the probes report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HealthPart {
    /// The result of `/livez`.
    pub live: bool,
    /// The result of `/readyz`.
    pub ready: bool,
    /// The result of `/startupz`.
    pub started: bool,
    /// The reasons why the program is not ready, one line each.
    pub reasons: Vec<String>,
}

/// The election of the host that writes to the store.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ElectionPart {
    /// `leader`, `taking` while this host claims the store, or `standby`.
    pub role: &'static str,
    /// This host's name in the election.
    pub node: String,
    /// The address at which other hosts and clients reach this host.
    pub address: String,
    /// The epoch of this host's leadership.
    pub epoch: Option<u64>,
    /// The leader, if one is known.
    pub leader: Option<LeaderPart>,
    /// The time at which this host's role began, in milliseconds of Unix time; 0 without a role.
    pub since_unix_ms: u64,
    /// The reason for the last change of this host's role.
    pub reason: String,
    /// The time without a renewal after which another host takes over.
    pub lease_ms: u64,
    /// The time for which this host leads without a further renewal.
    pub lease_remaining_ms: u64,
    /// The number of changes of this host's role, by reason.
    pub changes: BTreeMap<&'static str, u64>,
    /// The error of the last operation of the registry, unless it has succeeded.
    pub registry_error: Option<String>,
    /// Acknowledged data that were not stored when a leadership of this host ended.
    pub lost_bytes: u64,
    /// The directories of this host's journals that were set aside: another host has claimed the
    /// store since.
    pub overtaken_journals: Vec<String>,
}

/// The leader of an election.
#[derive(Clone, Debug, Serialize)]
pub struct LeaderPart {
    /// The leader's name.
    pub node: String,
    /// The address at which clients reach the leader.
    pub address: String,
    /// The leader's epoch.
    pub epoch: u64,
}

/// The memory of one owner, in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// The owner: items, index, connections, objects, …
    pub owner: &'static str,
    /// The memory in use.
    pub used_bytes: u64,
    /// The maximum memory.
    pub limit_bytes: u64,
}

/// The memory that items and objects share, and its moves since startup.
#[derive(Clone, Debug, Serialize)]
pub struct SharedMemoryPart {
    /// The halves for items and for objects.
    pub halves: Vec<SharedHalf>,
    /// The number of moves that have begun.
    pub moves: u64,
    /// The number of times that memory could not move, because the system did not take it back.
    pub failures: u64,
}

/// One half of shared memory.
#[derive(Clone, Debug, Serialize)]
pub struct SharedHalf {
    /// `items` or `objects`.
    pub half: &'static str,
    /// The memory that the half has.
    pub bytes: u64,
    /// The minimum memory of the half.
    pub least_bytes: u64,
    /// The memory that the half has given to the other one.
    pub given_bytes: u64,
    /// The recent misses that more memory would have avoided, weighted by their cost: memory moves
    /// to the half that would gain more.
    pub gain_us: f64,
}

/// The byte-keyed store: its content, and the requests of its clients.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Items {
    /// The content of the store.
    #[serde(flatten)]
    pub store: KvStats,
    /// The maximum memory of items.
    pub limit_bytes: u64,
    /// The counts of the workers.
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
    /// Returns a quantile in microseconds, rounded to a tenth.
    fn quantile_us(&self, quantile: f64) -> Option<f64> {
        self.0.quantile(quantile).map(micros)
    }
}

/// Returns a duration in microseconds, rounded to a tenth.
pub(super) fn micros(duration: Duration) -> f64 {
    (duration.as_nanos() as f64 / 100.0).round() / 10.0
}

/// Serialized so that its fields become those of the containing value.
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

/// The latency of one kind of command, from a sample of all requests.
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
    /// The number of the worker.
    pub worker: usize,
    /// The number of keys retrieved.
    pub gets: u64,
    /// The number of stores.
    pub sets: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Whether the worker is currently within a step.
    pub busy: bool,
    /// The 99th percentile of the latency of the worker's requests, in microseconds.
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
    /// `memcached`, `synapse`, `http`, `nbd` or `s3`.
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
    /// The maximum number of open connections.
    pub limit: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused because the maximum was reached.
    pub refused: u64,
    /// Connections closed because they were idle.
    pub idle_closed: u64,
    /// Connections closed because all connections together held too much memory.
    pub memory_closed: u64,
    /// Whether new connections are currently accepted.
    pub accepting: bool,
}

/// The object cache.
#[derive(Clone, Debug, Serialize)]
pub struct Objects {
    /// `attached`, or the current step of a cache that is being detached.
    pub attach_state: &'static str,
    /// The content and the counts of the cache.
    #[serde(flatten)]
    pub counters: Counters,
    /// The maximum amount of dirty data.
    pub dirty_limit_bytes: u64,
    /// The age of the oldest change that is not stored.
    pub dirty_age_ms: u64,
    /// The age at which the flush of a change begins.
    pub dirty_age_limit_ms: u64,
    /// The namespaces with the most dirty data, then with the most data.
    pub namespaces: Vec<NamespacePart>,
    /// The number of other namespaces.
    pub namespaces_other: u64,
}

/// One namespace of the object cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamespacePart {
    /// The name of the namespace; invalid UTF-8 is replaced.
    pub namespace: String,
    /// `through`, `back` or `around`.
    pub write: &'static str,
    /// Objects in the cache.
    pub objects: u64,
    /// The data of the namespace in the cache.
    pub cached_bytes: u64,
    /// The dirty data of the namespace in the cache.
    pub dirty_bytes: u64,
    /// The age of the namespace's oldest change that is not stored.
    pub dirty_age_ms: u64,
    /// The age at which the flush of a change to the namespace begins.
    pub dirty_age_limit_ms: u64,
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
    /// The number of volumes that have connections.
    pub connected: u64,
    /// The number of requests for volumes in progress on the admin listener.
    pub jobs: u64,
    /// The volumes with the most connections, then with the most bytes.
    pub volumes: Vec<VolumePart>,
    /// The number of other volumes.
    pub volumes_other: u64,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VolumePart {
    /// The name of the volume.
    pub volume: String,
    /// The number of connections to the volume.
    pub connections: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// The bytes requested by reads.
    pub read_bytes: u64,
    /// The bytes of writes.
    pub written_bytes: u64,
}

/// The S3 sidecar. Its memory is that of the owner `s3`.
#[derive(Clone, Debug, Serialize)]
pub struct S3Part {
    /// The host and the port of the endpoint.
    pub endpoint: String,
    /// The state of the endpoint according to the last requests: `serving`, `slow` if it does not
    /// respond in time, or `away` if it cannot be reached.
    pub state: &'static str,
    /// The time since which the endpoint has not been reachable, in milliseconds; 0 unless it is
    /// `away`.
    pub away_ms: u64,
    /// Objects whose headers are cached.
    pub objects: u64,
    /// Reads served from memory: allowed by the endpoint, or here while the object is fresh.
    pub hits: u64,
    /// Reads served from memory after the endpoint has confirmed the object.
    pub revalidated: u64,
    /// Reads served from memory because the endpoint did not respond.
    pub stale: u64,
    /// Reads of objects that are known to be missing.
    pub absent: u64,
    /// Reads served by the endpoint, and cached.
    pub misses: u64,
    /// Requests that were only forwarded.
    pub passed: u64,
    /// Requests that the sidecar refused.
    pub refused: u64,
    /// Requests to which the endpoint did not respond.
    pub failed: u64,
    /// Bytes of bodies that came from memory.
    pub memory_bytes: u64,
    /// Bytes of bodies that came from the endpoint.
    pub endpoint_bytes: u64,
    /// The buckets with the most requests. The bucket `/others` stands for all those that are not
    /// counted individually.
    pub buckets: Vec<BucketPart>,
    /// The number of other buckets that are counted individually.
    pub buckets_other: u64,
}

impl S3Part {
    /// Returns the number of requests that were answered from memory.
    #[must_use]
    pub fn all_hits(&self) -> u64 {
        self.hits + self.revalidated + self.stale + self.absent
    }

    /// Returns the number of all requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.all_hits() + self.misses + self.passed + self.refused + self.failed
    }
}

/// One bucket of S3.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BucketPart {
    /// The name of the bucket.
    pub bucket: String,
    /// Requests answered from memory.
    pub hits: u64,
    /// Reads served by the endpoint, and cached.
    pub misses: u64,
    /// All other requests.
    pub others: u64,
    /// The memory for the bodies of the bucket's objects.
    pub cached_bytes: u64,
}

/// The journal.
#[derive(Clone, Debug, Serialize)]
pub struct JournalPart {
    /// The space in use.
    pub fill_bytes: u64,
    /// The space that is ready for use.
    pub capacity_bytes: u64,
    /// The age of the oldest segment in use.
    pub oldest_age_ms: u64,
    /// Whether the journal is in any abnormal condition.
    pub failed: bool,
    /// Records appended.
    pub records: u64,
    /// The commits of the journal.
    pub commit: JournalCommits,
}

/// The commits of a journal; quantiles are accurate to a factor of two.
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
    /// The description of the store, as a single configuration line.
    pub backend: String,
    /// `memory`, `file`, `rados`, `s3` or `synapse`.
    pub kind: &'static str,
    /// `serving`, or `away` if the store does not reply.
    pub state: &'static str,
    /// The time since which the store has not replied, in milliseconds; 0 if it serves.
    pub away_ms: u64,
    /// The operations of the store.
    pub operations: Vec<OperationPart>,
}

/// One operation of the store.
#[derive(Clone, Debug, Serialize)]
pub struct OperationPart {
    /// The name of the operation.
    pub operation: &'static str,
    /// The number of failed operations.
    pub errors: u64,
    /// The latency of all operations.
    #[serde(flatten)]
    pub distribution: Distribution,
}

/// The synapse listener.
#[derive(Clone, Debug, Serialize)]
pub struct Synapse {
    /// Open connections.
    pub connections: u64,
    /// Sessions that are kept.
    pub sessions: u64,
    /// Requests that arrived.
    pub requests: u64,
    /// Connections refused.
    pub refused: u64,
    /// Connections closed because their client broke the protocol.
    pub broken: u64,
    /// Connections closed because their client was silent.
    pub silent: u64,
    /// Requests that were answered with a remembered outcome.
    pub replays: u64,
}

//! The server's part of the admin listener: metrics, the server's part of the status, the liveness
//! of its threads, and the routes for items.
//!
//! The metrics have their own names and count from startup, whatever `stats reset` does; `exporter`
//! shows the same numbers under the names of memcached's exporter.
//!
//! | route | |
//! |---|---|
//! | `POST /flush-prefix` | removes the items whose keys begin with a prefix; logged with the client's address |
//! | `GET /ring.json` | the ring of nodes, with the owner of each slot |
//! | `GET /mrc.json`, `/hot.json`, `/slow.json` | predicted miss ratios; hot keys; slow requests |

mod exporter;

use super::insight::{self, MissRatios};
use super::ring;
use crate::connections::Endpoints;
use crate::shared::{ListenerInfo, Shared};
use crate::telemetry::counters::{COMMANDS, KINDS};
use cached_admin::insight::documents::hot_count;
use cached_admin::sources::Shown;
use cached_admin::status::document::{
    CommandLatency, Connections, Distribution, Document, Items, ListenerPart, Memory, SharedHalf,
    SharedMemoryPart, WorkerPart,
};
use cached_admin::{Access, AdminServer, Request, Response, blocking};
use cached_core::arbiter::{ArbiterMetrics, Half};
use cached_core::insight::Sampling;
use cached_core::kv::PrefixError;
use cached_metrics::{Collect, Families, Label, LabelledMetric, LatencySnapshot, Value};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The number of seconds without progress of a thread after which the process should be restarted.
const STALLED_SECS_MAX: u32 = 30;

/// A server as the admin listener sees it.
pub(crate) struct ServerSource {
    shared: Arc<Shared>,
}

impl ServerSource {
    /// Shows a server on the admin listener until the result is dropped.
    pub(crate) fn show(admin: &AdminServer, shared: &Arc<Shared>) -> Shown {
        let source = Arc::new(ServerSource { shared: shared.clone() });
        let watched = Arc::downgrade(&source);
        add_insight_routes(admin, shared);
        add_flush_route(admin, shared);
        admin.health().check_liveness(move || not_live(&watched.upgrade()?.shared));
        if shared.ring.is_some() {
            let watched = Arc::downgrade(shared);
            let noted = watched.clone();
            admin.health().note_readiness(move || ring::note(noted.upgrade()?.ring.as_ref()?));
            // A node that joins the ring later does not make this one unready.
            let was_ready = AtomicBool::new(false);
            admin.health().check_readiness(move || {
                if was_ready.load(Ordering::Relaxed) {
                    return None;
                }
                let reason = ring::not_ready(watched.upgrade()?.ring.as_ref()?);
                was_ready.store(reason.is_none(), Ordering::Relaxed);
                reason
            });
        }
        Shown::new(admin, &source)
    }
}

/// Returns the name of a thread that makes no progress, if there is one.
fn not_live(shared: &Shared) -> Option<String> {
    let stalled = shared.stalled_secs.iter().map(|secs| secs.load(Ordering::Relaxed)).enumerate();
    let (index, secs) =
        stalled.max_by_key(|(_, secs)| *secs).filter(|(_, secs)| *secs >= STALLED_SECS_MAX)?;
    let thread =
        if index < shared.settings.threads { format!("worker {index}") } else { "the acceptor".into() };
    Some(format!("{thread} has made no progress for {secs} s"))
}

impl Collect for ServerSource {
    fn collect(&self, into: &mut Families) {
        collect(&self.shared, into);
        exporter::collect(&self.shared, into);
        if let Some(arbiter) = self.shared.arbiter.get() {
            arbiter.collect(into);
        }
        insight::collect(&self.shared, into);
        if let Some(ring) = &self.shared.ring {
            ring::collect(ring, into);
        }
    }
}

impl cached_admin::status::Source for ServerSource {
    fn fill(&self, document: &mut Document) {
        fill(&self.shared, document);
    }
}

/// The body of the request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    prefix: String,
}

/// Adds the route. It works even with `-F`, which applies to clients, whereas this route requires
/// the listener's token.
fn add_flush_route(admin: &AdminServer, shared: &Arc<Shared>) {
    let shared = Arc::downgrade(shared);
    // With a memory file, this takes as long as sweeping all items.
    admin.routes().post("/flush-prefix", blocking(move |request| flush_prefix(&shared, request)));
}

fn flush_prefix(shared: &Weak<Shared>, request: &Request) -> Response {
    let Some(shared) = shared.upgrade() else { return Response::failure(503, "the server has ended") };
    if shared.ring.is_some() {
        return Response::failure(
            409,
            "this node has only a part of the ring's items; send the command flush_prefix to any node instead",
        );
    }
    let Body { prefix } = match serde_json::from_slice(&request.body) {
        Ok(body) => body,
        Err(error) => return Response::failure(400, format_args!("give {{\"prefix\": \"...\"}}: {error}")),
    };
    let is_handed_over = shared.is_handed_over.lock();
    if *is_handed_over {
        return Response::failure(503, "another process has taken over");
    }
    let done = shared.flush_prefix(prefix.as_bytes());
    drop(is_handed_over);
    let outcome = done.as_ref().map_or_else(ToString::to_string, |()| "done".into());
    tracing::info!(peer = %request.peer, prefix, outcome, "the admin listener flushes a prefix");
    match done {
        Ok(()) => Response::json(&json!({ "pending": shared.kv.prefix_flushes().pending })),
        Err(error @ PrefixError::Length) => Response::failure(400, error),
        Err(error @ PrefixError::TooMany) => Response::failure(503, error),
    }
}

/// Adds the routes. They show the state at the time of the request, and nothing once the server has
/// ended.
///
/// Keys are data of clients, so without a token only their first letters are shown, even on
/// loopback.
fn add_insight_routes(admin: &AdminServer, shared: &Arc<Shared>) {
    let add = |path: &str, answer: fn(&Shared, &Request) -> Response| {
        let shared = Arc::downgrade(shared);
        admin.routes().get_now(path, Access::Read, move |request| match shared.upgrade() {
            Some(shared) => answer(&shared, &request),
            None => Response::failure(503, "the server has ended"),
        });
    };
    add("/mrc.json", |shared, _| match MissRatios::new(shared) {
        Some(document) => Response::json(&document),
        None => Response::failure(503, "another process has taken over"),
    });
    add("/hot.json", |shared, request| match hot_count(request) {
        Ok(count) => Response::json(&insight::hot_document(shared, count, request.has_token)),
        Err(refused) => *refused,
    });
    add("/slow.json", |shared, request| shared.slow_requests().response(request));
    if shared.ring.is_some() {
        add("/ring.json", |shared, _| match &shared.ring {
            Some(ring) => Response::json(&ring::part(shared, ring, true)),
            None => Response::failure(404, "this server belongs to no ring"),
        });
    }
}

/// The range of request latencies shown, as powers of two of a microsecond: 1 µs to 4.2 s.
const LATENCY_OCTAVES: (u32, u32) = (0, 22);

const WORKER_COMMANDS: LabelledMetric<1> = LabelledMetric::new(
    "cached_worker_commands_total",
    ["command"],
    "Keys retrieved (get) and stored (set), by worker.",
);
const CLOSED: LabelledMetric<1> = LabelledMetric::new(
    "cached_connections_closed_total",
    ["reason"],
    "Connections closed by the server: idle (for too long), memory (they held too much).",
);

fn collect(shared: &Shared, into: &mut Families) {
    let totals = shared.sum();
    totals.collect(into);
    // A `cas` also counts as a store.
    into.measure(COMMANDS.of(["set", "hit"]), "", &totals.sets.saturating_sub(totals.cas()));
    latency(shared, into);
    workers(shared, into);
    items(shared, into);
    shared.kv.prefix_flushes().collect(into);
    memory(shared, into);
    restart(shared, into);
    connections(shared, into);
    tls(shared, into);
}

/// Returns the latency of each kind of request, with its name, on all workers.
fn latencies(shared: &Shared) -> impl Iterator<Item = (&'static str, LatencySnapshot)> {
    KINDS.into_iter().enumerate().map(|(kind, name)| {
        let mut sum = LatencySnapshot::default();
        for worker in 0..shared.settings.threads {
            sum.add(&shared.counters(worker).latency.snapshot(kind));
        }
        (name, sum)
    })
}

fn latency(shared: &Shared, into: &mut Families) {
    let (first, last) = LATENCY_OCTAVES;
    for (kind, sum) in latencies(shared) {
        let help = "The time from the end of a worker's wait for events to the reply, in seconds, of a sample of all \
                    requests: about one in 64 wake-ups of a worker, and at least one each second.";
        let labels = vec![("command", kind).into()];
        into.sample("cached_request_duration_seconds", help, labels, sum.value(first, last));
    }
    for worker in 0..shared.settings.threads {
        let help = "The same time by worker, of all commands together.";
        let value = shared.counters(worker).latency.sum().value(first, last);
        into.sample("cached_worker_request_duration_seconds", help, of_worker(worker), value);
    }
}

fn of_worker(worker: usize) -> Vec<Label> {
    vec![("worker", worker.to_string()).into()]
}

fn workers(shared: &Shared, into: &mut Families) {
    for worker in 0..shared.settings.threads {
        let (totals, mut own) = (shared.counters(worker).totals(), Families::new());
        own.measure(WORKER_COMMANDS.of(["get"]), "", &totals.gets);
        own.measure(WORKER_COMMANDS.of(["set"]), "", &totals.sets);
        let help = "Bytes received from clients, by worker.";
        own.measure("cached_worker_received_bytes_total", help, &totals.received_bytes);
        let help = "Bytes sent to clients, by worker.";
        own.measure("cached_worker_sent_bytes_total", help, &totals.sent_bytes);
        let secs = shared.stalled_secs.get(worker).map_or(0, |secs| secs.load(Ordering::Relaxed));
        let help =
            "The time without progress of a worker within one step; 0 is normal; from 30 on, /livez fails.";
        own.measure("cached_worker_stalled_seconds", help, &secs);
        into.append_labelled(&of_worker(worker), own);
    }
}

fn items(shared: &Shared, into: &mut Families) {
    shared.kv.stats().collect(into);
    let limits = shared.kv.limits();
    let limit = match shared.settings.shared_memory {
        Some(_) => limits.arena_bytes + limits.policy_bytes,
        None => shared.settings.memory_bytes,
    };
    into.gauge("cached_item_limit_bytes", "The maximum memory of items.", limit as u64);
}

/// Returns the used bytes and the limit for each use of memory.
fn memory_by_owner(shared: &Shared) -> [(&'static str, u64, u64); 3] {
    let (kv, limits) = (shared.kv.stats(), shared.kv.limits());
    let connections = shared.connections.buffer_bytes() as u64;
    let used_regions = u64::from(kv.regions - kv.regions_free);
    let region_bytes = kv.arena_bytes as u64 / u64::from(kv.regions.max(1));
    [
        ("items", used_regions * region_bytes, limits.arena_bytes as u64),
        ("index", kv.index_bytes as u64, limits.index_bytes_max as u64),
        ("connections", connections, shared.settings.connection_bytes_max as u64),
    ]
}

fn memory(shared: &Shared, into: &mut Families) {
    for (owner, used, limit) in memory_by_owner(shared) {
        let labels = || vec![("owner", owner).into()];
        let help = "Memory in use, by owner: items, index, connections.";
        into.sample("cached_memory_used_bytes", help, labels(), Value::Gauge(used as f64));
        let help = "The maximum memory of an owner.";
        into.sample("cached_memory_limit_bytes", help, labels(), Value::Gauge(limit as f64));
    }
}

/// Returns the address of a listener as metrics and the status show it.
fn listener_name(listener: &ListenerInfo) -> String {
    match &listener.endpoints {
        Endpoints::Tcp { peer, .. } => peer.to_string(),
        Endpoints::Unix { path } => format!("unix:{}", path.display()),
        Endpoints::Udp { local } => format!("udp:{local}"),
    }
}

/// Adds the numbers of items taken over from the previous process, if the memory is in a file.
fn restart(shared: &Shared, into: &mut Families) {
    let Some(restart) = shared.kv.restart() else { return };
    let help = "1 if nothing was taken over from the memory file.";
    into.measure("cached_restart_cold", help, &restart.cold.is_some());
    let help = "Items taken over from the memory file at the start.";
    into.measure("cached_restart_items", help, &restart.items);
    let help = "Items and regions of the memory file that were left out because they are damaged.";
    into.measure("cached_restart_damaged_items", help, &(restart.damaged_items + restart.damaged_regions));
    into.measure("cached_restart_seconds", "The duration of taking over the memory file.", &restart.took);
}

fn connections(shared: &Shared, into: &mut Families) {
    for listener in shared.listeners.get().into_iter().flatten() {
        let name = listener_name(listener);
        into.append_labelled(&[("listener", name).into()], listener.counts.families());
    }
    let help = "The maximum number of connections of all listeners of memcached's protocols together.";
    into.gauge("cached_connections_limit", help, shared.settings.connections_max as u64);
    into.measure(CLOSED.of(["idle"]), "", &shared.idle_kicks);
    into.measure(CLOSED.of(["memory"]), "", &shared.connections.closed_for_memory);
    let help = "Pauses in accepting connections, because no descriptor or no connection was free.";
    into.measure("cached_accept_pauses_total", help, &shared.listen_disabled);
    let paused = Duration::from_micros(shared.listen_disabled_micros.load(Ordering::Relaxed));
    let help = "The total duration of these pauses.";
    into.measure("cached_accept_paused_seconds_total", help, &paused);
}

fn tls(shared: &Shared, into: &mut Families) {
    let Some(tls) = &shared.tls else { return };
    let help = "The time since the certificates came into use.";
    into.measure("cached_tls_certificates_age_seconds", help, &tls.age());
    let help = "When the first certificate of the chain expires, in seconds since 1970.";
    into.measure("cached_tls_certificates_expiry_timestamp_seconds", help, &tls.expiry());
}

fn fill(shared: &Shared, document: &mut Document) {
    let owners = memory_by_owner(shared);
    document.memory.extend(owners.map(|(owner, used_bytes, limit_bytes)| Memory {
        owner,
        used_bytes,
        limit_bytes,
    }));
    document.shared_memory = shared.arbiter.get().map(|arbiter| shared_memory_part(arbiter));
    document.items = Some(items_part(shared));
    document.ring = shared.ring.as_ref().map(|ring| ring::part(shared, ring, false));
    document.insight = shared.settings.insight.sampling() != Sampling::Off;
    for (command, sum) in latencies(shared).filter(|(_, sum)| sum.count() > 0) {
        document.latency.push(CommandLatency { command, distribution: Distribution(sum) });
    }
    document.workers = (0..shared.settings.threads).map(|index| worker_part(shared, index)).collect();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    for listener in shared.listeners.get().into_iter().flatten() {
        document.listeners.push(ListenerPart {
            listener: listener_name(listener),
            protocol: "memcached",
            connections: listener.counts.open.load(Ordering::Relaxed) as u64,
            accepted: read(&listener.counts.accepted),
            refused: read(&listener.counts.refused),
        });
    }
    document.connections = Some(Connections {
        current: shared.connections.count() as u64,
        limit: shared.settings.connections_max as u64,
        accepted: read(&shared.connections.total),
        refused: read(&shared.connections.rejected),
        idle_closed: read(&shared.idle_kicks),
        memory_closed: read(&shared.connections.closed_for_memory),
        accepting: shared.accepting.load(Ordering::Relaxed),
    });
}

fn shared_memory_part(of: &ArbiterMetrics) -> SharedMemoryPart {
    let half = |half: Half| SharedHalf {
        half: half.name(),
        bytes: of.of(half).bytes.get() as u64,
        least_bytes: of.of(half).bytes_min,
        given_bytes: of.of(half).given_bytes.get(),
        gain_us: (of.of(half).gain_seconds.get() * 1e9).round() / 1e3,
    };
    let (moves, failures) = (of.counts.moves.get(), of.counts.failures.get());
    SharedMemoryPart { halves: Half::BOTH.map(half).into(), moves, failures }
}

fn items_part(shared: &Shared) -> Items {
    let totals = shared.sum();
    // Not collected, which would compile the code of a sort as well.
    let mut requests = BTreeMap::new();
    requests.extend(totals.fields().map(|(name, count)| (name, *count)).chain([
        ("deletes", totals.delete_hits + totals.delete_misses),
        ("incrs", totals.incr_hits + totals.incr_misses),
        ("decrs", totals.decr_hits + totals.decr_misses),
        ("cas", totals.cas()),
    ]));
    Items { store: shared.kv.stats(), limit_bytes: shared.settings.memory_bytes as u64, requests }
}

fn worker_part(shared: &Shared, index: usize) -> WorkerPart {
    let counters = shared.counters(index);
    let totals = counters.totals();
    WorkerPart {
        worker: index,
        gets: totals.gets,
        sets: totals.sets,
        received_bytes: totals.received_bytes,
        sent_bytes: totals.sent_bytes,
        busy: !counters.heartbeat.read().is_idle(),
        p99_us: WorkerPart::p99_us(&counters.latency.sum()),
    }
}

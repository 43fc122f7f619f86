//! Metrics of a server under names of their own: counts since the start, whatever `stats reset` does; and its part of
//! `/status.json`.

use crate::connections::{Endpoints, ListenerCounts};
use crate::shared::{ListenerInfo, Shared};
use crate::telemetry::counters::{Kind, Totals};
use cached_admin::status::document::{
    CommandLatency, Connections, Distribution, Document, Items, ListenerPart, Memory, SharedHalf,
    SharedMemoryPart, WorkerPart,
};
use cached_core::arbiter::{ArbiterMetrics, Half};
use cached_core::insight::Sampling;
use cached_metrics::{Families, Label, LatencySnapshot, Value};
use std::sync::atomic::{AtomicU64, Ordering};

/// The powers of two of a microsecond between which request latencies are shown: 1 µs to 4.2 s.
const LATENCY_OCTAVES: (u32, u32) = (0, 22);

pub(super) fn collect(shared: &Shared, into: &mut Families) {
    let totals = shared.sum();
    commands(&totals, into);
    latency(shared, into);
    workers(shared, into);
    items(shared, &totals, into);
    prefix_flushes(shared, into);
    memory(shared, into);
    restart(shared, into);
    connections(shared, &totals, into);
    tls(shared, &totals, into);
}

/// The kinds of results of each command, as memcached's exporter distinguishes them.
fn command_counts(totals: &Totals) -> [(&'static str, &'static str, u64); 15] {
    let cas = totals.cas_hits + totals.cas_misses + totals.cas_badval;
    [
        ("get", "hit", totals.get_hits),
        ("get", "miss", totals.get_misses),
        // A `cas` is counted as a store as well.
        ("set", "hit", totals.set_cmds.saturating_sub(cas)),
        ("cas", "hit", totals.cas_hits),
        ("cas", "miss", totals.cas_misses),
        ("cas", "badval", totals.cas_badval),
        ("touch", "hit", totals.touch_hits),
        ("touch", "miss", totals.touch_misses),
        ("delete", "hit", totals.delete_hits),
        ("delete", "miss", totals.delete_misses),
        ("incr", "hit", totals.incr_hits),
        ("incr", "miss", totals.incr_misses),
        ("decr", "hit", totals.decr_hits),
        ("decr", "miss", totals.decr_misses),
        ("flush", "hit", totals.flush_cmds),
    ]
}

fn commands(totals: &Totals, into: &mut Families) {
    let help = "Commands of memcached's protocols, by result; a retrieval counts once for each key.";
    for (command, status, count) in command_counts(totals) {
        let labels = vec![("command", command).into(), ("status", status).into()];
        into.sample("cached_commands_total", help, labels, Value::Counter(count));
    }
}

fn latency(shared: &Shared, into: &mut Families) {
    let (first, last) = LATENCY_OCTAVES;
    for kind in Kind::ALL {
        let mut sum = LatencySnapshot::default();
        for worker in 0..shared.workers() {
            sum.add(&shared.counters(worker).latency.snapshot(kind));
        }
        let help =
            "The time from the end of a worker's wait to the reply, in seconds, of a sample of all requests.";
        let labels = vec![("command", kind.name()).into()];
        into.sample("cached_request_duration_seconds", help, labels, sum.value(first, last));
    }
    for worker in 0..shared.workers() {
        let help = "The same time by worker, of all commands together.";
        let value = shared.counters(worker).latency.sum().value(first, last);
        into.sample("cached_worker_request_duration_seconds", help, of_worker(worker), value);
    }
}

fn of_worker(worker: usize) -> Vec<Label> {
    vec![("worker", worker.to_string()).into()]
}

fn workers(shared: &Shared, into: &mut Families) {
    for worker in 0..shared.workers() {
        let totals = shared.counters(worker).totals();
        for (command, count) in [("get", totals.get_cmds), ("set", totals.set_cmds)] {
            let mut labels = of_worker(worker);
            labels.push(("command", command).into());
            let help = "Keys retrieved and stored, by worker.";
            into.sample("cached_worker_commands_total", help, labels, Value::Counter(count));
        }
        let received = Value::Counter(totals.bytes_read);
        let help = "Bytes received from clients, by worker.";
        into.sample("cached_worker_received_bytes_total", help, of_worker(worker), received);
        let help = "Bytes sent to clients, by worker.";
        let sent = Value::Counter(totals.bytes_written);
        into.sample("cached_worker_sent_bytes_total", help, of_worker(worker), sent);
        let secs = shared.stalled_secs.get(worker).map_or(0, |secs| secs.load(Ordering::Relaxed));
        let help = "For how long a worker has made no progress within one step; 0 is normal.";
        into.sample("cached_worker_stalled_seconds", help, of_worker(worker), Value::Gauge(secs.into()));
    }
}

fn items(shared: &Shared, totals: &Totals, into: &mut Families) {
    let kv = shared.kv.stats();
    into.gauge("cached_items", "Items in the cache.", kv.items);
    into.gauge("cached_item_bytes", "Bytes of items with their headers.", kv.item_bytes);
    let help = "The memory that items may take.";
    let limits = shared.kv.limits();
    let limit = match shared.settings.shared_memory {
        Some(_) => limits.arena_bytes + limits.policy_bytes,
        None => shared.settings.memory_bytes,
    };
    into.gauge("cached_item_limit_bytes", help, limit as u64);
    into.counter("cached_items_stored_total", "Items ever stored.", kv.items_stored);
    into.counter("cached_items_evicted_total", "Items evicted to make room.", kv.evictions);
    let help = "Items evicted that had not been read.";
    into.counter("cached_items_evicted_unfetched_total", help, kv.evicted_unfetched);
    let help = "Items that expired without having been read.";
    into.counter("cached_items_expired_unfetched_total", help, kv.expired_unfetched);
    let help = "Expired items removed while room was made.";
    into.counter("cached_items_reclaimed_total", help, kv.reclaimed);
    let refused = [("too_large", totals.store_too_large), ("no_memory", totals.store_no_memory)];
    for (reason, count) in refused {
        let help = "Values that were not stored, by reason.";
        let labels = vec![("reason", reason).into()];
        into.sample("cached_stores_refused_total", help, labels, Value::Counter(count));
    }
    into.gauge("cached_regions", "Regions of the arena.", kv.regions.into());
    into.gauge("cached_regions_free", "Free regions of the arena.", kv.regions_free.into());
    into.gauge("cached_garbage_bytes", "Bytes of garbage in sealed regions.", kv.garbage_bytes);
    let help = "Regions walked by the reclaimer.";
    into.counter("cached_regions_reclaimed_total", help, kv.regions_reclaimed);
}

fn prefix_flushes(shared: &Shared, into: &mut Families) {
    let flushes = shared.kv.prefix_flushes();
    into.counter("cached_prefix_flushes_total", "Flushes of a prefix.", flushes.flushes);
    let help = "Flushes of a prefix that were refused because too many were pending.";
    into.counter("cached_prefix_flushes_refused_total", help, flushes.refused);
    let help = "Flushed prefixes whose items have not all been removed.";
    into.gauge("cached_prefix_flushes_pending", help, flushes.pending);
    let help = "Items removed after the flush of a prefix.";
    into.counter("cached_prefix_flush_items_removed_total", help, flushes.items_removed);
}

/// Returns the used bytes and the limit of each owner of memory.
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
        let help = "Memory in use, by owner.";
        into.sample("cached_memory_used_bytes", help, labels(), Value::Gauge(used as f64));
        let help = "The most memory that an owner may use.";
        into.sample("cached_memory_limit_bytes", help, labels(), Value::Gauge(limit as f64));
    }
}

/// Returns a listener's address as metrics and the status show it.
fn listener_name(listener: &ListenerInfo) -> String {
    match &listener.endpoints {
        Endpoints::Tcp { peer, .. } => peer.to_string(),
        Endpoints::Unix { path } => format!("unix:{}", path.display()),
        Endpoints::Udp { local } => format!("udp:{local}"),
    }
}

/// The items taken over from the previous process, if the memory is in a file.
fn restart(shared: &Shared, into: &mut Families) {
    let Some(restart) = shared.kv.restart() else { return };
    let gauges = [
        (
            "cached_restart_cold",
            "1 if nothing was taken over from the memory file.",
            f64::from(u8::from(restart.cold.is_some())),
        ),
        ("cached_restart_items", "Items taken over from the memory file at the start.", restart.items as f64),
        (
            "cached_restart_damaged_items",
            "Items and regions of the memory file that were left out because they are damaged.",
            (restart.damaged_items + restart.damaged_regions) as f64,
        ),
        ("cached_restart_seconds", "How long taking over the memory file took.", restart.took.as_secs_f64()),
    ];
    for (name, help, value) in gauges {
        into.sample(name, help, Vec::new(), Value::Gauge(value));
    }
}

fn connections(shared: &Shared, totals: &Totals, into: &mut Families) {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    for listener in shared.listeners.get().into_iter().flatten() {
        let labels = || vec![("listener", listener_name(listener)).into()];
        let ListenerCounts { open, accepted, refused } = &*listener.counts;
        let open = Value::Gauge(open.load(Ordering::Relaxed) as f64);
        into.sample("cached_connections", "Open connections, by listener.", labels(), open);
        let accepted = Value::Counter(read(accepted));
        let help = "Connections accepted, by listener.";
        into.sample("cached_connections_accepted_total", help, labels(), accepted);
        let help = "Connections refused because there were as many as allowed, by listener.";
        into.sample("cached_connections_refused_total", help, labels(), Value::Counter(read(refused)));
    }
    let help = "The largest number of connections of all listeners of memcached's protocols together.";
    into.gauge("cached_connections_limit", help, shared.settings.connections_max as u64);
    let closed = [("idle", shared.idle_kicks()), ("memory", read(&shared.connections.closed_for_memory))];
    for (reason, count) in closed {
        let help = "Connections closed by the server: idle for too long, or holding too much memory.";
        let labels = vec![("reason", reason).into()];
        into.sample("cached_connections_closed_total", help, labels, Value::Counter(count));
    }
    let help = "Attempts of clients to authenticate.";
    into.counter("cached_authentications_total", help, totals.auth_cmds);
    let help = "Attempts to authenticate with a wrong user or password.";
    into.counter("cached_authentications_failed_total", help, totals.auth_errors);
    into.counter("cached_datagrams_total", "Datagrams that were requests.", totals.udp_requests);
    let help = "Datagrams dropped: malformed requests, and replies for which the system had no room.";
    into.counter("cached_datagrams_dropped_total", help, totals.udp_dropped);
    let help = "Times that a connection with more to do had to wait for the others.";
    into.counter("cached_connection_yields_total", help, totals.conn_yields);
    into.counter("cached_received_bytes_total", "Bytes received from clients.", totals.bytes_read);
    into.counter("cached_sent_bytes_total", "Bytes sent to clients.", totals.bytes_written);
    let help = "Pauses in accepting, for lack of descriptors or of room.";
    into.counter("cached_accept_pauses_total", help, read(&shared.listen_disabled));
    let paused = Value::CounterFloat(read(&shared.listen_disabled_micros) as f64 / 1e6);
    let help = "The length of those pauses together.";
    into.sample("cached_accept_paused_seconds_total", help, Vec::new(), paused);
}

fn tls(shared: &Shared, totals: &Totals, into: &mut Families) {
    let Some(tls) = &shared.tls else { return };
    let results = [
        ("full", totals.tls_handshakes_full),
        ("resumed", totals.tls_handshakes_resumed),
        ("failed", totals.tls_handshake_failures),
    ];
    for (result, count) in results {
        let help = "TLS handshakes of clients of memcached's protocols, by result.";
        let labels = vec![("result", result).into()];
        into.sample("cached_tls_handshakes_total", help, labels, Value::Counter(count));
    }
    let help =
        "TLS connections that failed after their handshake: cut off, or with records that are not right.";
    into.counter("cached_tls_failures_total", help, totals.tls_failures);
    let help = "For how long the certificates have been in use.";
    let age = Value::Gauge(tls.age().as_secs_f64());
    into.sample("cached_tls_certificates_age_seconds", help, Vec::new(), age);
    if let Some(expiry) = tls.expiry() {
        let help = "When the first certificate of the chain expires, in seconds since 1970.";
        let expiry = Value::Gauge(expiry as f64);
        into.sample("cached_tls_certificates_expiry_timestamp_seconds", help, Vec::new(), expiry);
    }
}

pub(super) fn fill(shared: &Shared, document: &mut Document) {
    let owners = memory_by_owner(shared);
    document.memory.extend(owners.map(|(owner, used_bytes, limit_bytes)| Memory {
        owner,
        used_bytes,
        limit_bytes,
    }));
    document.shared_memory = shared.arbiter.get().map(|arbiter| shared_memory_part(arbiter));
    document.items = Some(items_part(shared));
    document.insight = shared.settings.sampling() != Sampling::Off;
    for kind in Kind::ALL {
        let mut sum = LatencySnapshot::default();
        for worker in 0..shared.workers() {
            sum.add(&shared.counters(worker).latency.snapshot(kind));
        }
        if sum.count() > 0 {
            let latency = CommandLatency { command: kind.name(), distribution: Distribution(sum) };
            document.latency.push(latency);
        }
    }
    document.workers = (0..shared.workers()).map(|index| worker_part(shared, index)).collect();
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
        idle_closed: shared.idle_kicks(),
        memory_closed: read(&shared.connections.closed_for_memory),
        accepting: shared.accepting.load(Ordering::Relaxed),
    });
}

fn shared_memory_part(of: &ArbiterMetrics) -> SharedMemoryPart {
    let half = |half: Half| SharedHalf {
        half: half.name(),
        bytes: of.bytes(half),
        least_bytes: of.bytes_min(half),
        given_bytes: of.given_bytes(half),
        gain_us: of.gain_nanos(half) as f64 / 1e3,
    };
    SharedMemoryPart { halves: Half::BOTH.map(half).into(), moves: of.moves(), failures: of.failures() }
}

fn items_part(shared: &Shared) -> Items {
    let (totals, kv) = (shared.sum(), shared.kv.stats());
    Items {
        count: kv.items,
        stored: kv.items_stored,
        bytes: kv.item_bytes,
        limit_bytes: shared.settings.memory_bytes as u64,
        gets: totals.get_cmds,
        get_hits: totals.get_hits,
        get_misses: totals.get_misses,
        get_expired: totals.get_expired,
        get_flushed: totals.get_flushed,
        sets: totals.set_cmds,
        touches: totals.touch_cmds,
        touch_hits: totals.touch_hits,
        deletes: totals.delete_hits + totals.delete_misses,
        delete_hits: totals.delete_hits,
        incrs: totals.incr_hits + totals.incr_misses,
        incr_hits: totals.incr_hits,
        decrs: totals.decr_hits + totals.decr_misses,
        decr_hits: totals.decr_hits,
        cas: totals.cas_hits + totals.cas_misses + totals.cas_badval,
        cas_hits: totals.cas_hits,
        cas_badval: totals.cas_badval,
        flushes: totals.flush_cmds,
        evictions: kv.evictions,
        evicted_unfetched: kv.evicted_unfetched,
        expired_unfetched: kv.expired_unfetched,
        reclaimed: kv.reclaimed,
        refused_too_large: totals.store_too_large,
        refused_no_memory: totals.store_no_memory,
        received_bytes: totals.bytes_read,
        sent_bytes: totals.bytes_written,
    }
}

fn worker_part(shared: &Shared, index: usize) -> WorkerPart {
    let counters = shared.counters(index);
    let totals = counters.totals();
    WorkerPart {
        worker: index,
        gets: totals.get_cmds,
        sets: totals.set_cmds,
        received_bytes: totals.bytes_read,
        sent_bytes: totals.bytes_written,
        busy: !counters.heartbeat.read().is_idle(),
        p99_us: WorkerPart::p99_us(&counters.latency.sum()),
    }
}

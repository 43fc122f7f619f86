//! A server's part of `/status.json`.

use super::families::{listener_name, memory_by_owner};
use crate::shared::Shared;
use crate::telemetry::command_latency::Kind;
use cached_admin::status::document::{
    CommandLatency, Connections, Distribution, Document, Items, ListenerPart, Memory, SharedHalf,
    SharedMemoryPart, WorkerPart,
};
use cached_core::arbiter::{ArbiterMetrics, Half};
use cached_core::insight::Sampling;
use cached_metrics::LatencySnapshot;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) fn fill(shared: &Shared, document: &mut Document) {
    let owners = memory_by_owner(shared);
    document.memory.extend(owners.map(|(owner, used_bytes, limit_bytes)| Memory {
        owner,
        used_bytes,
        limit_bytes,
    }));
    document.shared_memory = shared.arbiter.get().map(|arbiter| shared_memory(arbiter));
    document.items = Some(items(shared));
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
    document.workers = (0..shared.workers()).map(|index| worker(shared, index)).collect();
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

fn shared_memory(of: &ArbiterMetrics) -> SharedMemoryPart {
    let half = |half: Half| SharedHalf {
        half: half.name(),
        bytes: of.bytes(half),
        least_bytes: of.bytes_min(half),
        given_bytes: of.given_bytes(half),
        gain_us: of.gain_nanos(half) as f64 / 1e3,
    };
    SharedMemoryPart { halves: Half::BOTH.map(half).into(), moves: of.moves(), failures: of.failures() }
}

fn items(shared: &Shared) -> Items {
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

fn worker(shared: &Shared, index: usize) -> WorkerPart {
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

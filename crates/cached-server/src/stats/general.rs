//! Plain `stats`: memcached's names in memcached's order, and no others.
//!
//! Values of slabs, LRU threads and logs that this engine does not have are 0.

use super::Sink;
use crate::config::settings::MEMCACHED_VERSION;
use crate::shared::Shared;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) fn write(shared: &Shared, sink: &mut Sink<'_>) {
    let totals = shared.totals();
    let kv = shared.engine_stats();
    let connections = &shared.connections;
    let settings = &shared.settings;
    let watch = &shared.watch.counts;
    let logged = |count: &AtomicU64| count.load(Ordering::Relaxed);

    sink.put("pid", std::process::id());
    sink.put("uptime", shared.clock.uptime_secs());
    sink.put("time", shared.clock.unix_secs());
    sink.put("version", MEMCACHED_VERSION);
    // The name stays for programs that read it.
    sink.put("libevent", "none");
    sink.put("pointer_size", usize::BITS);
    let (user, system) = cpu_times();
    sink.put("rusage_user", user);
    sink.put("rusage_system", system);
    sink.put("max_connections", shared.live.connections_max());
    sink.put("curr_connections", connections.count());
    sink.put("total_connections", shared.connections_total());
    sink.put("rejected_connections", shared.connections_rejected());
    sink.put("connection_structures", connections.count_peak());
    sink.put("response_obj_oom", 0);
    sink.put("response_obj_count", 0);
    sink.put("response_obj_bytes", connections.buffer_bytes());
    sink.put("read_buf_count", settings.threads);
    sink.put("read_buf_bytes", settings.threads * crate::stream::INPUT_BUFFERS_BYTES);
    sink.put("read_buf_bytes_free", settings.threads * crate::stream::INPUT_BUFFERS_BYTES);
    sink.put("read_buf_oom", connections.closed_for_memory.load(Ordering::Relaxed));
    sink.put("reserved_fds", shared.reserved_descriptors());
    sink.put("cmd_get", totals.get_cmds);
    sink.put("cmd_set", totals.set_cmds);
    sink.put("cmd_flush", totals.flush_cmds);
    sink.put("cmd_touch", totals.touch_cmds);
    sink.put("cmd_meta", totals.meta_cmds);
    sink.put("get_hits", totals.get_hits);
    sink.put("get_misses", totals.get_misses);
    sink.put("get_expired", totals.get_expired);
    sink.put("get_flushed", totals.get_flushed);
    sink.put("delete_misses", totals.delete_misses);
    sink.put("delete_hits", totals.delete_hits);
    sink.put("incr_misses", totals.incr_misses);
    sink.put("incr_hits", totals.incr_hits);
    sink.put("decr_misses", totals.decr_misses);
    sink.put("decr_hits", totals.decr_hits);
    sink.put("cas_misses", totals.cas_misses);
    sink.put("cas_hits", totals.cas_hits);
    sink.put("cas_badval", totals.cas_badval);
    sink.put("touch_hits", totals.touch_hits);
    sink.put("touch_misses", totals.touch_misses);
    sink.put("store_too_large", totals.store_too_large);
    sink.put("store_no_memory", totals.store_no_memory);
    sink.put("auth_cmds", totals.auth_cmds);
    sink.put("auth_errors", totals.auth_errors);
    if shared.live.idle_timeout_secs() > 0 {
        sink.put("idle_kicks", shared.idle_kicks());
    }
    sink.put("bytes_read", totals.bytes_read);
    sink.put("bytes_written", totals.bytes_written);
    sink.put("limit_maxbytes", settings.memory_bytes);
    sink.put("accepting_conns", u8::from(shared.accepting.load(Ordering::Relaxed)));
    sink.put("listen_disabled_num", shared.listen_disabled.load(Ordering::Relaxed));
    sink.put("time_in_listen_disabled_us", shared.listen_disabled_micros.load(Ordering::Relaxed));
    sink.put("threads", settings.threads);
    sink.put("conn_yields", totals.conn_yields);
    sink.put("hash_power_level", (kv.index_bytes / 8).max(1).ilog2());
    sink.put("hash_bytes", kv.index_bytes);
    sink.put("hash_is_expanding", 0);
    if settings.inert.slab_reassign {
        sink.put("slab_reassign_rescues", 0);
        sink.put("slab_reassign_chunk_rescues", 0);
        sink.put("slab_reassign_inline_reclaim", 0);
        sink.put("slab_reassign_busy_items", 0);
        sink.put("slab_reassign_busy_deletes", 0);
        sink.put("slab_reassign_busy_nomem", 0);
        sink.put("slab_reassign_last_busy_status", "none");
        sink.put("slab_reassign_running", 0);
        sink.put("slabs_moved", 0);
    }
    if settings.inert.lru_crawler {
        sink.put("lru_crawler_running", 0);
        sink.put("lru_crawler_starts", 0);
    }
    if settings.inert.lru_maintainer {
        sink.put("lru_maintainer_juggles", 0);
    }
    sink.put("malloc_fails", 0);
    sink.put("log_worker_dropped", logged(&watch.worker_dropped));
    sink.put("log_worker_written", logged(&watch.worker_written));
    sink.put("log_watcher_skipped", logged(&watch.watcher_skipped));
    sink.put("log_watcher_sent", logged(&watch.watcher_sent));
    sink.put("log_watchers", logged(&watch.watchers));
    if let Some(tls) = &shared.tls {
        if tls.settings().session_tickets {
            sink.put("ssl_new_sessions", totals.tls_handshakes_full);
        }
        sink.put("ssl_handshake_errors", totals.tls_handshake_failures);
        sink.put("ssl_proto_errors", totals.tls_failures);
        sink.put("time_since_server_cert_refresh", tls.age().as_secs());
    }
    sink.put("unexpected_napi_ids", 0);
    sink.put("round_robin_fallback", 0);
    sink.put("bytes", kv.item_bytes);
    sink.put("curr_items", kv.items);
    sink.put("total_items", kv.items_stored);
    sink.put("slab_global_page_pool", kv.regions_free);
    sink.put("expired_unfetched", kv.expired_unfetched);
    sink.put("evicted_unfetched", kv.evicted_unfetched);
    if settings.inert.lru_maintainer {
        sink.put("evicted_active", 0);
    }
    sink.put("evictions", kv.evictions);
    sink.put("reclaimed", kv.reclaimed);
    sink.put("crawler_reclaimed", 0);
    sink.put("crawler_items_checked", 0);
    sink.put("lrutail_reflocked", 0);
    if settings.inert.lru_maintainer {
        sink.put("moves_to_cold", 0);
        sink.put("moves_to_warm", 0);
        sink.put("moves_within_lru", 0);
        sink.put("direct_reclaims", 0);
        sink.put("lru_bumps_dropped", 0);
    }
}

/// Returns the processor time used in user and in system mode, as seconds with six decimals.
fn cpu_times() -> (String, String) {
    // SAFETY: an all-zero `rusage` is a valid value of that plain C struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer leads to a local `rusage` that the call fills in.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let text = |time: libc::timeval| format!("{}.{:06}", time.tv_sec, time.tv_usec);
    (text(usage.ru_utime), text(usage.ru_stime))
}

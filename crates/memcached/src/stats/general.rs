//! Plain `stats`, `stats settings`, and the reports of items by size class: memcached's names in
//! memcached's order, and no others.
//!
//! Values and settings of features that this engine does not have (slabs, LRU threads, logs) are 0,
//! memcached's defaults, or the values that clients have set: programs find the names that they
//! expect, and nothing depends on the values.

use super::{Sink, Work};
use crate::settings::size_classes::{PAGE_BYTES, item_bytes};
use crate::settings::{
    ClientCertificates, Credentials, KeyFormat, MEMCACHED_VERSION, MinVersion, TlsSettings,
};
use crate::shared::Shared;
use cached_core::kv::ScanCursor;
use cached_proto::Protocol;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) fn write_general(shared: &Shared, sink: &mut Sink<'_>) {
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
    // The statistic is kept for programs that read it.
    sink.put("libevent", "none");
    sink.put("pointer_size", usize::BITS);
    let (user_secs, system_secs) = cached_admin::process::cpu_times();
    sink.put("rusage_user", format_args!("{user_secs:.6}"));
    sink.put("rusage_system", format_args!("{system_secs:.6}"));
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
    sink.put("cmd_get", totals.gets);
    sink.put("cmd_set", totals.sets);
    sink.put("cmd_flush", totals.flushes);
    sink.put("cmd_touch", totals.touches);
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
    sink.put("store_too_large", totals.refused_too_large);
    sink.put("store_no_memory", totals.refused_no_memory);
    sink.put("auth_cmds", totals.auth_cmds);
    sink.put("auth_errors", totals.auth_errors);
    if shared.live.idle_timeout_secs() > 0 {
        sink.put("idle_kicks", logged(&shared.idle_kicks));
    }
    sink.put("bytes_read", totals.received_bytes);
    sink.put("bytes_written", totals.sent_bytes);
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
        sink.put_zeros(&[
            "slab_reassign_rescues",
            "slab_reassign_chunk_rescues",
            "slab_reassign_inline_reclaim",
            "slab_reassign_busy_items",
            "slab_reassign_busy_deletes",
            "slab_reassign_busy_nomem",
        ]);
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
    sink.put_zeros(&["crawler_reclaimed", "crawler_items_checked", "lrutail_reflocked"]);
    if settings.inert.lru_maintainer {
        sink.put_zeros(&[
            "moves_to_cold",
            "moves_to_warm",
            "moves_within_lru",
            "direct_reclaims",
            "lru_bumps_dropped",
        ]);
    }
}

pub(super) fn write_settings(shared: &Shared, sink: &mut Sink<'_>) {
    let (settings, live) = (&shared.settings, &shared.live);
    // These are the values at startup, and those that clients may have changed since.
    let initial = &settings.inert;
    let current = shared.inert.lock().clone();
    let protocol = match settings.protocol {
        None => "auto-negotiate",
        Some(Protocol::Text) => "ascii",
        Some(Protocol::Binary) => "binary",
    };
    let yes_no = |yes: bool| if yes { "yes" } else { "no" };

    sink.put("maxbytes", settings.memory_bytes);
    sink.put("maxconns", live.connections_max());
    sink.put("tcpport", settings.port);
    sink.put("udpport", settings.udp_port);
    sink.put("inter", settings.interface.as_deref().unwrap_or("NULL"));
    sink.put("verbosity", shared.logging.verbosity());
    sink.put("oldest", 0);
    sink.put("evictions", if settings.evict { "on" } else { "off" });
    sink.put("domain_socket", shown(settings.unix_path.as_deref(), "NULL"));
    sink.put("umask", format_args!("{:o}", settings.unix_mask));
    sink.put("shutdown_command", yes_no(live.shutdown_command()));
    sink.put("growth_factor", format_args!("{:.2}", settings.classes.factor));
    sink.put("chunk_size", settings.classes.chunk_bytes_min);
    sink.put("num_threads", settings.threads);
    sink.put("num_threads_per_udp", settings.threads);
    sink.put("stat_key_prefix", shared.prefixes.delimiter());
    sink.put("detail_enabled", yes_no(shared.prefixes.is_on()));
    sink.put("reqs_per_event", live.requests_per_wake().unwrap_or(live.batches_per_wake()));
    sink.put("cas_enabled", yes_no(settings.cas));
    sink.put("tcp_backlog", settings.backlog);
    sink.put("binding_protocol", protocol);
    sink.put("auth_enabled_sasl", yes_no(settings.auth.sasl.is_some()));
    // memcached shows the name of the file here.
    sink.put("auth_enabled_ascii", shown(settings.auth.text.as_ref().map(Credentials::path), "no"));
    sink.put("item_size_max", settings.item_bytes_max);
    sink.put("maxconns_fast", yes_no(live.refuses_excess()));
    sink.put("hashpower_init", initial.hashpower_init);
    sink.put("slab_reassign", yes_no(initial.slab_reassign));
    sink.put("slab_automove", initial.slab_automove);
    sink.put("slab_automove_ratio", format_args!("{:.2}", initial.slab_automove_ratio));
    sink.put("slab_automove_window", initial.slab_automove_window);
    sink.put("slab_chunk_max", settings.classes.chunk_bytes_max);
    sink.put("lru_crawler", yes_no(current.lru_crawler));
    sink.put("lru_crawler_sleep", current.lru_crawler_sleep);
    sink.put("lru_crawler_tocrawl", current.lru_crawler_tocrawl);
    sink.put("tail_repair_time", initial.tail_repair_time);
    sink.put("flush_enabled", yes_no(live.flush_command()));
    sink.put("dump_enabled", yes_no(live.dump_commands()));
    sink.put("hash_algorithm", "foldhash");
    sink.put("lru_maintainer_thread", yes_no(initial.lru_maintainer));
    sink.put("lru_segmented", yes_no(current.lru_segmented));
    sink.put("hot_lru_pct", current.hot_lru_pct);
    sink.put("warm_lru_pct", current.warm_lru_pct);
    sink.put("hot_max_factor", format_args!("{:.2}", current.hot_max_factor));
    sink.put("warm_max_factor", format_args!("{:.2}", current.warm_max_factor));
    sink.put("temp_lru", yes_no(current.temp_lru));
    sink.put("temporary_ttl", current.temporary_ttl);
    sink.put("idle_timeout", initial.idle_timeout);
    sink.put("watcher_logbuf_size", settings.watcher_buffer_bytes);
    sink.put("worker_logbuf_size", settings.worker_buffer_bytes);
    sink.put("read_buf_mem_limit", live.connection_bytes_max());
    sink.put("track_sizes", yes_no(settings.track_sizes));
    sink.put("inline_ascii_response", "no");
    sink.put("ext_item_size", 512);
    sink.put("ext_item_age", u32::MAX);
    sink.put("ext_low_ttl", 0);
    sink.put("ext_recache_rate", 2000);
    sink.put("ext_wbuf_size", 4_194_304);
    sink.put("ext_compact_under", 0);
    sink.put("ext_drop_under", 0);
    sink.put("ext_max_sleep", 1_000_000);
    sink.put("ext_max_frag", "0.80");
    sink.put("slab_automove_freeratio", format_args!("{:.3}", initial.slab_automove_freeratio));
    sink.put("ext_drop_unread", "no");
    write_tls(shared, sink);
    sink.put("num_napi_ids", 0);
    sink.put("memory_file", shown(settings.memory_file.as_deref(), "(null)"));
    sink.put("client_flags_size", 4);
}

/// Returns a path as text, or `none` if there is no path.
fn shown(path: Option<&Path>, none: &str) -> String {
    path.map_or_else(|| none.to_owned(), |path| path.display().to_string())
}

/// Writes the settings of TLS, with memcached's defaults if TLS is off.
fn write_tls(shared: &Shared, sink: &mut Sink<'_>) {
    let settings = &shared.settings;
    let default = TlsSettings { session_tickets: false, ..TlsSettings::default() };
    let tls = settings.tls.as_ref().unwrap_or(&default);
    let path = |path: &Path| shown(Some(path).filter(|path| !path.as_os_str().is_empty()), "NULL");
    let yes_no = |yes: bool| if yes { "yes" } else { "no" };
    sink.put("ssl_enabled", yes_no(settings.tls.is_some()));
    sink.put("ssl_chain_cert", path(&tls.chain_file));
    sink.put("ssl_key", path(&tls.key_file));
    // OpenSSL uses these numbers for its verification modes.
    let mode = match tls.client_certificates {
        ClientCertificates::None => 0,
        ClientCertificates::Request => 1,
        ClientCertificates::Require => 3,
    };
    sink.put("ssl_verify_mode", mode);
    let format = match tls.key_format {
        KeyFormat::Pem => 1,
        KeyFormat::Der => 2,
    };
    sink.put("ssl_keyformat", format);
    sink.put("ssl_ciphers", "NULL");
    sink.put("ssl_ca_cert", path(&tls.ca_file));
    sink.put("ssl_wbuf_size", settings.inert.ssl_wbuf_size);
    sink.put("ssl_session_cache", yes_no(tls.session_tickets));
    sink.put("ssl_kernel_tls", "no");
    let version = match tls.min_version {
        MinVersion::Tls12 => "tlsv1.2",
        MinVersion::Tls13 => "tlsv1.3",
    };
    sink.put("ssl_min_version", version);
}

/// The maximum number of hash buckets that a report reads: some ten thousand items, about a
/// millisecond.
const HASH_BUCKETS_MAX: usize = 2048;

/// The step of `stats sizes`.
const SIZE_STEP_BYTES: usize = 32;

/// The items of one class.
#[derive(Debug, Default, Clone, Copy)]
struct Class {
    items: u64,
    bytes: u64,
    idle_secs_max: u32,
}

/// The sampled items by class, and by the size that they would have in memcached.
#[derive(Debug)]
struct Sample {
    /// The classes from 1 on; those without items were not found.
    classes: Vec<Class>,
    sizes: BTreeMap<usize, u64>,
}

impl Sample {
    fn take(shared: &Shared, work: &mut Work) -> Sample {
        let classes = vec![Class::default(); shared.size_classes.largest() as usize];
        let mut sample = Sample { classes, sizes: BTreeMap::new() };
        let mut seen = 0u64;
        let mut cursor = Some(ScanCursor::default());
        for _ in 0..HASH_BUCKETS_MAX {
            let Some(at) = cursor else { break };
            work.take(1);
            cursor = shared.kv.scan(at, |item| {
                seen += 1;
                let cas = shared.settings.cas;
                let bytes = item_bytes(item.key().len(), item.value_bytes(), item.client_flags(), cas);
                let class = &mut sample.classes[shared.size_classes.class_of(bytes) as usize - 1];
                class.items += 1;
                class.bytes += item.bytes();
                class.idle_secs_max = class.idle_secs_max.max(item.now().saturating_sub(item.last_access()));
                *sample.sizes.entry(bytes.next_multiple_of(SIZE_STEP_BYTES)).or_default() += 1;
            });
        }
        if cursor.is_some() {
            let items = shared.kv.stats().items;
            let scale = |count: u64| {
                u64::try_from(u128::from(count) * u128::from(items) / u128::from(seen.max(1)))
                    .unwrap_or(count)
            };
            for class in sample.classes.iter_mut().filter(|class| class.items > 0) {
                class.items = scale(class.items).max(1);
                class.bytes = scale(class.bytes);
            }
            sample.sizes.values_mut().for_each(|count| *count = scale(*count).max(1));
        }
        sample
    }

    /// Returns the classes that were found, by number.
    fn found(&self) -> impl Iterator<Item = (u32, &Class)> {
        (1..).zip(&self.classes).filter(|(_, class)| class.items > 0)
    }

    /// Returns the class under which counts of the whole cache are reported.
    fn largest(&self) -> Option<u32> {
        self.found().max_by_key(|(_, class)| class.items).map(|(number, _)| number)
    }
}

/// Writes `stats items`.
pub(super) fn write_items(shared: &Shared, sink: &mut Sink<'_>) {
    let sample = Sample::take(shared, sink.work);
    let kv = shared.engine_stats();
    let totals = shared.totals();
    let largest = sample.largest();
    let maintained = shared.settings.inert.lru_maintainer;
    for (number, class) in sample.found() {
        let whole = |count: u64| if largest == Some(number) { count } else { 0 };
        let mut put = |name: &str, value: u64| sink.put(&format!("items:{number}:{name}"), value);
        put("number", class.items);
        if maintained {
            put("number_hot", 0);
            put("number_warm", 0);
            put("number_cold", class.items);
            put("age_hot", 0);
            put("age_warm", 0);
        }
        put("age", class.idle_secs_max.into());
        put("mem_requested", class.bytes);
        put("evicted", whole(kv.evictions));
        put("evicted_nonzero", 0);
        put("evicted_time", 0);
        put("outofmemory", whole(totals.refused_no_memory));
        put("tailrepairs", 0);
        put("reclaimed", whole(kv.reclaimed));
        put("expired_unfetched", whole(kv.expired_unfetched));
        put("evicted_unfetched", whole(kv.evicted_unfetched));
        if maintained {
            put("evicted_active", 0);
        }
        put("crawler_reclaimed", 0);
        put("crawler_items_checked", 0);
        put("lrutail_reflocked", 0);
        if maintained {
            put("moves_to_cold", 0);
            put("moves_to_warm", 0);
            put("moves_within_lru", 0);
            put("direct_reclaims", 0);
            put("hits_to_hot", 0);
            put("hits_to_warm", 0);
            put("hits_to_cold", whole(totals.get_hits));
            put("hits_to_temp", 0);
        }
    }
}

/// Writes `stats slabs`. The number of pages is calculated from the bytes of the class.
pub(super) fn write_slabs(shared: &Shared, sink: &mut Sink<'_>) {
    let sample = Sample::take(shared, sink.work);
    let kv = shared.engine_stats();
    let totals = shared.totals();
    let largest = sample.largest();
    for (number, class) in sample.found() {
        let whole = |count: u64| if largest == Some(number) { count } else { 0 };
        let chunk_bytes = shared.size_classes.chunk_bytes(number);
        let chunks_per_page = (PAGE_BYTES / chunk_bytes) as u64;
        let pages = class.bytes.div_ceil(PAGE_BYTES as u64).max(1);
        let chunks = (chunks_per_page * pages).max(class.items);
        let mut put = |name: &str, value: u64| sink.put(&format!("{number}:{name}"), value);
        put("chunk_size", chunk_bytes as u64);
        put("chunks_per_page", chunks_per_page);
        put("total_pages", pages);
        put("total_chunks", chunks);
        put("used_chunks", class.items);
        put("free_chunks", chunks - class.items);
        put("free_chunks_end", 0);
        put("get_hits", whole(totals.get_hits));
        put("cmd_set", whole(totals.sets));
        put("delete_hits", whole(totals.delete_hits));
        put("incr_hits", whole(totals.incr_hits));
        put("decr_hits", whole(totals.decr_hits));
        put("cas_hits", whole(totals.cas_hits));
        put("cas_badval", whole(totals.cas_badval));
        put("touch_hits", whole(totals.touch_hits));
    }
    let region_bytes = kv.arena_bytes as u64 / u64::from(kv.regions.max(1));
    sink.put("active_slabs", sample.found().count());
    sink.put("total_malloced", u64::from(kv.regions - kv.regions_free) * region_bytes);
}

/// Writes `stats sizes`: the number of items of each size, in steps of 32 bytes.
pub(super) fn write_sizes(shared: &Shared, sink: &mut Sink<'_>) {
    if !shared.settings.track_sizes {
        return sink.put("sizes_status", "disabled");
    }
    for (bytes, count) in Sample::take(shared, sink.work).sizes {
        sink.put(&bytes.to_string(), count);
    }
}

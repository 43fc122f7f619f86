//! `stats settings`: memcached's names in memcached's order.
//!
//! Settings of parts that this engine does not have show memcached's defaults, or the values that clients
//! have set: programs that read them find the names they expect, and nothing depends on the values.

use super::Sink;
use crate::config::settings::{ClientCertificates, KeyFormat, MinVersion, TlsSettings};
use crate::shared::Shared;
use cached_proto::Protocol;
use std::path::Path;
use std::sync::atomic::Ordering;

pub(super) fn write(shared: &Shared, sink: &mut Sink<'_>) {
    let (settings, live) = (&shared.settings, &shared.live);
    // The values at the start, and those that clients may have changed since.
    let initial = &settings.inert;
    let current = &shared.inert;
    let protocol = match settings.protocol {
        None => "auto-negotiate",
        Some(Protocol::Text) => "ascii",
        Some(Protocol::Binary) => "binary",
    };
    let yes_no = |yes: bool| if yes { "yes" } else { "no" };
    let factor = |bits: u64| format!("{:.2}", f64::from_bits(bits));

    sink.put("maxbytes", settings.memory_bytes);
    sink.put("maxconns", live.connections_max());
    sink.put("tcpport", settings.port);
    sink.put("udpport", settings.udp_port);
    sink.put("inter", settings.interface.as_deref().unwrap_or("NULL"));
    sink.put("verbosity", shared.logging.verbosity());
    sink.put("oldest", 0);
    sink.put("evictions", if settings.evict { "on" } else { "off" });
    match &settings.unix_path {
        Some(path) => sink.put("domain_socket", path.display()),
        None => sink.put("domain_socket", "NULL"),
    }
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
    // memcached shows the file's name.
    match &settings.auth.text {
        Some(text) => sink.put("auth_enabled_ascii", text.path().display()),
        None => sink.put("auth_enabled_ascii", "no"),
    }
    sink.put("item_size_max", settings.item_bytes_max);
    sink.put("maxconns_fast", yes_no(live.refuses_excess()));
    sink.put("hashpower_init", initial.hashpower_init);
    sink.put("slab_reassign", yes_no(initial.slab_reassign));
    sink.put("slab_automove", initial.slab_automove);
    sink.put("slab_automove_ratio", format_args!("{:.2}", initial.slab_automove_ratio));
    sink.put("slab_automove_window", initial.slab_automove_window);
    sink.put("slab_chunk_max", settings.classes.chunk_bytes_max);
    sink.put("lru_crawler", yes_no(current.lru_crawler.load(Ordering::Relaxed)));
    sink.put("lru_crawler_sleep", current.lru_crawler_sleep.load(Ordering::Relaxed));
    sink.put("lru_crawler_tocrawl", current.lru_crawler_tocrawl.load(Ordering::Relaxed));
    sink.put("tail_repair_time", initial.tail_repair_time);
    sink.put("flush_enabled", yes_no(live.flush_command()));
    sink.put("dump_enabled", yes_no(live.dump_commands()));
    sink.put("hash_algorithm", "foldhash");
    sink.put("lru_maintainer_thread", yes_no(initial.lru_maintainer));
    sink.put("lru_segmented", yes_no(current.lru_segmented.load(Ordering::Relaxed)));
    sink.put("hot_lru_pct", current.hot_lru_pct.load(Ordering::Relaxed));
    sink.put("warm_lru_pct", current.warm_lru_pct.load(Ordering::Relaxed));
    sink.put("hot_max_factor", factor(current.hot_max_factor.load(Ordering::Relaxed)));
    sink.put("warm_max_factor", factor(current.warm_max_factor.load(Ordering::Relaxed)));
    sink.put("temp_lru", yes_no(current.temp_lru.load(Ordering::Relaxed)));
    sink.put("temporary_ttl", current.temporary_ttl.load(Ordering::Relaxed));
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
    match &settings.memory_file {
        Some(path) => sink.put("memory_file", path.display()),
        None => sink.put("memory_file", "(null)"),
    }
    sink.put("client_flags_size", 4);
}

/// The settings of TLS, with memcached's defaults where there is none.
fn write_tls(shared: &Shared, sink: &mut Sink<'_>) {
    let settings = &shared.settings;
    let default = TlsSettings { session_tickets: false, ..TlsSettings::default() };
    let tls = settings.tls.as_ref().unwrap_or(&default);
    let path = |path: &Path| match path.as_os_str().is_empty() {
        true => "NULL".to_owned(),
        false => path.display().to_string(),
    };
    let yes_no = |yes: bool| if yes { "yes" } else { "no" };
    sink.put("ssl_enabled", yes_no(settings.tls.is_some()));
    sink.put("ssl_chain_cert", path(&tls.chain_file));
    sink.put("ssl_key", path(&tls.key_file));
    // OpenSSL's numbers.
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

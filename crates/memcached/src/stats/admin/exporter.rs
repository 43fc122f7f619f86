//! The metrics of memcached's Prometheus exporter, with its names, types and labels, so that
//! dashboards and rules written for the exporter work.
//!
//! Like the exporter, this module derives the metrics from the reports `stats`, `stats settings`,
//! `stats items` and `stats slabs`, so each value is the one that the exporter would show. Values
//! that a report contains only for programs that read them (LRU threads, crawlers) are included.

use crate::shared::Shared;
use crate::stats;
use cached_metrics::{Families, Label, Value};

/// The form in which a number of a report is shown.
#[derive(Clone, Copy)]
enum Show {
    Counter,
    Gauge,
    /// A gauge that is 1 for `yes`.
    Flag,
}

use Show::{Counter, Flag, Gauge};

/// A number of a report: its name in the report, the name of the metric after `memcached_`, its
/// type, and its help text.
type Line = (&'static str, &'static str, Show, &'static str);

/// Defines a list with one line per row, whatever its length.
macro_rules! lines {
    ($list:ident: $($key:literal => $metric:literal, $show:ident, $help:literal;)*) => {
        const $list: &[Line] = &[$(($key, $metric, $show, $help)),*];
    };
}

// Figures of `stats`, and the totals of `stats slabs`.
lines! { GENERAL:
    "uptime" => "uptime_seconds", Counter, "Seconds since the start.";
    "time" => "time_seconds", Gauge, "The server's Unix time.";
    "rusage_user" => "process_user_cpu_seconds_total", Counter, "Processor time in user mode.";
    "rusage_system" => "process_system_cpu_seconds_total", Counter, "Processor time in the system.";
    "bytes" => "current_bytes", Gauge, "Bytes of items.";
    "limit_maxbytes" => "limit_bytes", Gauge, "The memory for items.";
    "curr_items" => "current_items", Gauge, "Items in the cache.";
    "total_items" => "items_total", Counter, "Items ever stored.";
    "bytes_read" => "read_bytes_total", Counter, "Bytes received from clients.";
    "bytes_written" => "written_bytes_total", Counter, "Bytes sent to clients.";
    "curr_connections" => "current_connections", Gauge, "Open connections.";
    "total_connections" => "connections_total", Counter, "Connections accepted.";
    "rejected_connections" => "connections_rejected_total", Counter, "Connections refused at the limit.";
    "conn_yields" => "connections_yielded_total", Counter, "Times that a connection waited for the others.";
    "listen_disabled_num" => "connections_listener_disabled_total", Counter, "Pauses in accepting.";
    "evictions" => "items_evicted_total", Counter, "Items evicted to make room.";
    "reclaimed" => "items_reclaimed_total", Counter, "Expired items removed while room was made.";
    "store_too_large" => "item_too_large_total", Counter, "Values above the size limit of items.";
    "store_no_memory" => "item_no_memory_total", Counter, "Values for which there was no memory.";
    "lru_crawler_starts" => "lru_crawler_starts_total", Counter, "Starts of memcached's LRU crawler; always 0.";
    "direct_reclaims" => "direct_reclaims_total", Counter, "Evictions by workers in memcached's LRU; always 0.";
    "crawler_items_checked" => "lru_crawler_items_checked_total", Counter, "Items the crawler read; always 0.";
    "crawler_reclaimed" => "lru_crawler_reclaimed_total", Counter, "Items the crawler removed; always 0.";
    "moves_to_cold" => "lru_crawler_moves_to_cold_total", Counter, "Moves to the cold LRU; always 0.";
    "moves_to_warm" => "lru_crawler_moves_to_warm_total", Counter, "Moves to the warm LRU; always 0.";
    "moves_within_lru" => "lru_crawler_moves_within_lru_total", Counter, "Moves within an LRU; always 0.";
    "total_malloced" => "malloced_bytes", Gauge, "Memory of regions in use.";
    "accepting_conns" => "accepting_connections", Gauge, "Whether connections are accepted.";
}

// Figures of `stats settings`; those of the LRU are shown only while the crawler is on.
lines! { SETTINGS:
    "maxconns" => "max_connections", Gauge, "The maximum number of connections.";
}
lines! { LRU_SETTINGS:
    "lru_crawler" => "lru_crawler_enabled", Flag, "The setting of that name; without effect.";
    "lru_crawler_sleep" => "lru_crawler_sleep", Gauge, "The setting of that name; without effect.";
    "lru_crawler_tocrawl" => "lru_crawler_to_crawl", Gauge, "The setting of that name; without effect.";
    "lru_maintainer_thread" => "lru_crawler_maintainer_thread", Flag, "The setting of that name; without effect.";
    "hot_lru_pct" => "lru_crawler_hot_percent", Gauge, "The setting of that name; without effect.";
    "warm_lru_pct" => "lru_crawler_warm_percent", Gauge, "The setting of that name; without effect.";
    "hot_max_factor" => "lru_crawler_hot_max_factor", Gauge, "The setting of that name; without effect.";
    "warm_max_factor" => "lru_crawler_warm_max_factor", Gauge, "The setting of that name; without effect.";
}

// Figures of `stats items`, for each size class.
lines! { ITEMS:
    "number" => "slab_current_items", Gauge, "Items of the size class.";
    "age" => "slab_items_age_seconds", Gauge, "The longest time since an item of the class was read.";
    "crawler_reclaimed" => "slab_items_crawler_reclaimed_total", Counter, "Items the crawler removed; always 0.";
    "evicted" => "slab_items_evicted_total", Counter, "Items evicted, at the class with the most items.";
    "evicted_nonzero" => "slab_items_evicted_nonzero_total", Counter, "Always 0.";
    "evicted_time" => "slab_items_evicted_time_seconds", Counter, "Always 0.";
    "evicted_unfetched" => "slab_items_evicted_unfetched_total", Counter, "Items evicted that had not been read.";
    "expired_unfetched" => "slab_items_expired_unfetched_total", Counter, "Items expired that had not been read.";
    "outofmemory" => "slab_items_outofmemory_total", Counter, "Values for which there was no memory.";
    "reclaimed" => "slab_items_reclaimed_total", Counter, "Expired items removed while room was made.";
    "tailrepairs" => "slab_items_tailrepairs_total", Counter, "Always 0.";
    "mem_requested" => "slab_mem_requested_bytes", Counter, "Bytes of the items of the size class.";
    "moves_to_cold" => "slab_items_moves_to_cold", Counter, "Always 0.";
    "moves_to_warm" => "slab_items_moves_to_warm", Counter, "Always 0.";
    "moves_within_lru" => "slab_items_moves_within_lru", Counter, "Always 0.";
    "number_hot" => "slab_hot_items", Gauge, "Always 0.";
    "number_warm" => "slab_warm_items", Gauge, "Always 0.";
    "number_cold" => "slab_cold_items", Gauge, "Items of the size class.";
    "number_temp" => "slab_temporary_items", Gauge, "Always 0.";
    "age_hot" => "slab_hot_age_seconds", Gauge, "Always 0.";
    "age_warm" => "slab_warm_age_seconds", Gauge, "Always 0.";
}

// Figures of `stats slabs`, for each size class.
lines! { SLABS:
    "chunk_size" => "slab_chunk_size_bytes", Gauge, "The size of memcached's chunks of the class.";
    "chunks_per_page" => "slab_chunks_per_page", Gauge, "The number of such chunks in a page of 1 MiB.";
    "total_pages" => "slab_current_pages", Gauge, "The number of pages that the class would take.";
    "total_chunks" => "slab_current_chunks", Gauge, "The number of chunks in these pages.";
    "used_chunks" => "slab_chunks_used", Gauge, "Items of the size class.";
    "free_chunks" => "slab_chunks_free", Gauge, "The number of unused chunks.";
    "free_chunks_end" => "slab_chunks_free_end", Gauge, "Always 0.";
}

const COMMANDS: (&str, &str) = ("memcached_commands_total", "Commands by result.");
const SLAB_COMMANDS: (&str, &str) =
    ("memcached_slab_commands_total", "Commands by result, at the size class with the most items.");
const LRU_HITS: (&str, &str) =
    ("memcached_slab_lru_hits_total", "Hits, at the size class with the most items.");

/// A name and its value in a report.
type Pair = (String, String);

pub(super) fn collect(shared: &Shared, into: &mut Families) {
    let mut general = stats::pairs(shared, b"");
    let (items, _) = by_class(stats::pairs(shared, b"items"));
    let (slabs, of_all_slabs) = by_class(stats::pairs(shared, b"slabs"));
    general.extend(of_all_slabs);
    let settings = stats::pairs(shared, b"settings");

    into.gauge("memcached_up", "Whether the server answers.", 1);
    let version = word(&general, "version").unwrap_or_default().to_owned();
    let labels = vec![("version", version).into()];
    into.sample("memcached_version", "The version of memcached that is reported.", labels, Value::Gauge(1.0));
    lines(into, &general, GENERAL, &[]);
    commands(into, COMMANDS, &general, None);

    lines(into, &settings, SETTINGS, &[]);
    if word(&settings, "lru_crawler") == Some("yes") {
        lines(into, &settings, LRU_SETTINGS, &[]);
    }
    for (class, numbers) in &items {
        let slab = Label::from(("slab", class.to_string()));
        lines(into, numbers, ITEMS, std::slice::from_ref(&slab));
        for (lru, name) in [
            ("hot", "hits_to_hot"),
            ("warm", "hits_to_warm"),
            ("cold", "hits_to_cold"),
            ("temporary", "hits_to_temp"),
        ] {
            if let Some(hits) = number(numbers, name) {
                let labels = vec![slab.clone(), ("lru", lru).into()];
                into.sample(LRU_HITS.0, LRU_HITS.1, labels, Value::CounterFloat(hits));
            }
        }
    }
    for (class, numbers) in &slabs {
        let slab = Label::from(("slab", class.to_string()));
        lines(into, numbers, SLABS, std::slice::from_ref(&slab));
        commands(into, SLAB_COMMANDS, numbers, Some(&slab));
    }
}

/// Writes the numbers of commands by result, as far as the report contains them.
fn commands(
    into: &mut Families,
    (name, help): (&'static str, &'static str),
    numbers: &[Pair],
    slab: Option<&Label>,
) {
    let mut put = |command: &'static str, status: &'static str, count: Option<f64>| {
        let Some(count) = count else { return };
        let mut labels = vec![("command", command).into(), ("status", status).into()];
        labels.extend(slab.cloned());
        into.sample(name, help, labels, Value::CounterFloat(count));
    };
    for command in ["get", "delete", "incr", "decr", "cas", "touch"] {
        put(command, "hit", number(numbers, &format!("{command}_hits")));
        put(command, "miss", number(numbers, &format!("{command}_misses")));
    }
    put("cas", "badval", number(numbers, "cas_badval"));
    put("flush", "hit", number(numbers, "cmd_flush"));
    // A `cas` also counts as a store.
    let cas = ["cas_misses", "cas_hits", "cas_badval"].iter().filter_map(|name| number(numbers, name));
    let cas: f64 = cas.sum();
    put("set", "hit", number(numbers, "cmd_set").map(|sets| sets - cas));
}

/// Writes the numbers that the report contains.
fn lines(into: &mut Families, numbers: &[Pair], lines: &[Line], labels: &[Label]) {
    for (key, name, show, help) in lines {
        let value = match show {
            Counter => number(numbers, key).map(Value::CounterFloat),
            Gauge => number(numbers, key).map(Value::Gauge),
            Flag => word(numbers, key).map(|word| Value::Gauge(if word == "yes" { 1.0 } else { 0.0 })),
        };
        if let Some(value) = value {
            into.sample(format!("memcached_{name}"), *help, labels.to_vec(), value);
        }
    }
}

fn word<'a>(numbers: &'a [Pair], key: &str) -> Option<&'a str> {
    numbers.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

fn number(numbers: &[Pair], key: &str) -> Option<f64> {
    word(numbers, key)?.parse().ok()
}

/// Returns the numbers of each size class, and the numbers that belong to no class.
fn by_class(pairs: Vec<Pair>) -> (Vec<(u32, Vec<Pair>)>, Vec<Pair>) {
    let (mut classes, mut others) = (Vec::<(u32, Vec<Pair>)>::new(), Vec::new());
    for (name, value) in pairs {
        let rest = name.strip_prefix("items:").unwrap_or(&name);
        match rest.split_once(':').map(|(class, name)| (class.parse(), name)) {
            Some((Ok(class), name)) => {
                // In a report, the figures of a class are adjacent.
                if classes.last().is_none_or(|(last, _)| *last != class) {
                    classes.push((class, Vec::new()));
                }
                if let Some((_, numbers)) = classes.last_mut() {
                    numbers.push((name.to_owned(), value));
                }
            }
            _ => others.push((name, value)),
        }
    }
    (classes, others)
}

//! What is shown, as text: figures and tables, for the screen and for `--once` alike.

use serde_json::Value;

use super::format::{NONE, age, bytes, clock, cores, count, ms, percent, printable, rate, us};
use super::model::{Model, ratio, requests};
use super::status::Status;

/// The longest key, name or address that is shown, in characters.
const NAME_MAX: usize = 60;
/// The most rows of a table.
const ROWS_MAX: usize = 50;

/// A figure: its name, its value, and what belongs to it.
#[derive(Debug)]
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) detail: String,
}

/// A table of text. A column whose title begins with `>` is aligned to the right.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) columns: &'static [&'static str],
    pub(super) rows: Vec<Vec<String>>,
    /// What to say without rows, or below them.
    pub(super) note: String,
}

/// The other documents of the server, or why they are not there.
#[derive(Default, Clone)]
pub(super) struct Documents {
    pub(super) hot: Option<Result<Value, String>>,
    pub(super) mrc: Option<Result<Value, String>>,
    pub(super) slow: Option<Result<Value, String>>,
    pub(super) log: Option<Result<Value, String>>,
}

/// The pages of the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Page {
    Overview,
    Keys,
    Requests,
    Log,
}

impl Page {
    pub(super) const ALL: [Page; 4] = [Page::Overview, Page::Keys, Page::Requests, Page::Log];

    pub(super) fn name(self) -> &'static str {
        match self {
            Page::Overview => "overview",
            Page::Keys => "keys",
            Page::Requests => "requests",
            Page::Log => "log",
        }
    }
}

/// Returns one line about the server.
pub(super) fn header(status: &Status) -> String {
    let state = match (status.state.as_str(), status.health.ready) {
        ("draining", _) => "▼ draining",
        ("starting", _) => "… starting",
        (_, true) => "✓ ready",
        (_, false) => "▲ not ready",
    };
    let (program, version) = (printable(&status.program, 20), printable(&status.version, 20));
    let (host, up) = (printable(&status.host, NAME_MAX), age(status.uptime_secs));
    format!("{program} {version}  {state}  {host}  pid {}  up {up}", status.pid)
}

/// Returns the key figures.
pub(super) fn figures(model: &Model) -> Vec<Figure> {
    let Some(now) = model.now() else { return Vec::new() };
    let mut figures = Vec::new();
    let mut add = |name, value, detail| figures.push(Figure { name, value, detail });
    if now.items.is_some() || now.objects.is_some() {
        let recent = ratio_now(model);
        let recent = percent(recent.or_else(|| model.hit_ratios().last().copied().flatten()));
        let since_start = percent(hits_of(now).and_then(|(hits, all)| ratio(hits, all)));
        let name = if now.items.is_some() { "Hit ratio, 1 h" } else { "Reads hit, 1 h" };
        add(name, percent(model.hit_ratio_hour()), format!("now {recent}, since start {since_start}"));
    }
    let total = model.rise(requests).or_else(|| {
        let step = |column| model.rate(|_| None, column);
        let columns = ["gets", "sets", "synapse_requests"];
        columns.into_iter().filter_map(step).reduce(|all, one| all + one)
    });
    let mut detail = Vec::new();
    if now.items.is_some() {
        let gets = model.rate(|at| Some(at.items.as_ref()?.gets as f64), "gets");
        let sets = model.rate(|at| Some(at.items.as_ref()?.sets as f64), "sets");
        detail.push(format!("gets {}, sets {}", rate(gets), rate(sets)));
    }
    if now.synapse.is_some() {
        let objects = model.rate(|at| Some(at.synapse.as_ref()?.requests as f64), "synapse_requests");
        detail.push(format!("objects {}", rate(objects)));
    }
    add("Requests", rate(total), detail.join(", "));
    if let Some(items) = &now.items {
        let (half, nearly_all) = (us(model.last_of("get_p50_us")), us(model.last_of("get_p99_us")));
        add("Gets, p99", nearly_all, format!("p50 {half}"));
        let used = percent(ratio(items.bytes as f64, items.limit_bytes as f64));
        let detail = format!("{used} of {}, {} items", bytes(items.limit_bytes), count(items.count));
        add("Item memory", bytes(items.bytes), detail);
        let evictions = model.rate(|at| Some(at.items.as_ref()?.evictions as f64), "evictions");
        let detail =
            format!("{} since start, {} never read", count(items.evictions), count(items.evicted_unfetched));
        add("Evictions", rate(evictions), detail);
    }
    if let Some(objects) = &now.objects {
        let oldest = if objects.dirty_bytes > 0 {
            format!(", oldest {}, limit {}", ms(objects.dirty_age_ms), ms(objects.dirty_age_limit_ms))
        } else {
            String::new()
        };
        let detail = format!("of {}{oldest}", bytes(objects.dirty_limit_bytes));
        add("Dirty", bytes(objects.dirty_bytes), detail);
    }
    if let Some(journal) = &now.journal {
        let detail = format!("of {}, oldest {}", bytes(journal.capacity_bytes), ms(journal.oldest_age_ms));
        add("Journal", bytes(journal.fill_bytes), detail);
    }
    if let Some(connections) = &now.connections {
        let detail = format!("of {}, {} refused", count(connections.limit), count(connections.refused));
        add("Connections", count(connections.current), detail);
    }
    let busy = model.rise(|at| Some(at.process.cpu_user_secs + at.process.cpu_system_secs));
    let busy = busy.or_else(|| {
        let step_secs = now.history.as_ref()?.step_secs;
        ratio(model.last_of("cpu_ms")? / 1e3, step_secs)
    });
    let detail = format!("{} resident, {} threads", bytes(now.process.resident_bytes), now.process.threads);
    add("Processor", cores(busy), detail);
    figures
}

/// Returns hits and all reads since the start.
fn hits_of(status: &Status) -> Option<(f64, f64)> {
    match (&status.items, &status.objects) {
        (Some(items), _) => Some((items.get_hits as f64, items.gets as f64)),
        (None, Some(of)) => Some((of.read_hits as f64, (of.read_hits + of.read_misses) as f64)),
        (None, None) => None,
    }
}

fn ratio_now(model: &Model) -> Option<f64> {
    let hits = model.rise(|at| hits_of(at).map(|(hits, _)| hits))?;
    ratio(hits, model.rise(|at| hits_of(at).map(|(_, all)| all))?)
}

/// Returns the tables of a page.
pub(super) fn tables(page: Page, model: &Model, documents: &Documents) -> Vec<Table> {
    let Some(now) = model.now() else { return Vec::new() };
    match page {
        Page::Overview => overview(now),
        Page::Keys => {
            vec![curve(&documents.mrc), hot(&documents.hot), prefixes(&documents.hot), misses(&documents.hot)]
        }
        Page::Requests => vec![commands(now), slow(&documents.slow)],
        Page::Log => vec![log(&documents.log)],
    }
}

fn overview(now: &Status) -> Vec<Table> {
    let owner = |of: &super::status::Owner| {
        let share = percent(ratio(of.used_bytes as f64, of.limit_bytes as f64));
        vec![printable(&of.owner, NAME_MAX), bytes(of.used_bytes), bytes(of.limit_bytes), share]
    };
    let listener = |of: &super::status::Listener| {
        let counts = [of.connections, of.accepted, of.refused].map(count);
        [vec![printable(&of.listener, NAME_MAX), printable(&of.protocol, 20)], counts.into()].concat()
    };
    let mut tables = vec![
        Table {
            title: "Memory by owner",
            columns: &["owner", ">used", ">limit", ">share"],
            rows: now.memory.iter().map(owner).collect(),
            note: String::new(),
        },
        Table {
            title: "Listeners",
            columns: &["address", "protocol", ">open", ">accepted", ">refused"],
            rows: now.listeners.iter().map(listener).collect(),
            note: String::new(),
        },
    ];
    tables.extend(now.shared_memory.as_ref().map(shared_memory));
    if let Some(objects) = &now.objects {
        let namespace = |of: &super::status::Namespace| {
            let oldest = if of.dirty_bytes > 0 { ms(of.dirty_age_ms) } else { NONE.into() };
            let (cached, dirty) = (bytes(of.cached_bytes), bytes(of.dirty_bytes));
            let (name, write) = (printable(&of.namespace, NAME_MAX), printable(&of.write, 20));
            vec![name, write, count(of.objects), cached, dirty, oldest]
        };
        let others = objects.namespaces_other;
        let (clean, free) = (bytes(objects.clean_bytes), bytes(objects.free_bytes));
        let written = count(objects.writes_back + objects.writes_through);
        let mut note =
            format!("{} objects, {clean} clean, {free} free, {written} writes", count(objects.count));
        if others > 0 {
            note.push_str(&format!("; {others} more namespaces"));
        }
        tables.push(Table {
            title: "Namespaces",
            columns: &["namespace", "write", ">objects", ">cached", ">dirty", ">oldest"],
            rows: objects.namespaces.iter().take(ROWS_MAX).map(namespace).collect(),
            note,
        });
    }
    if let Some(store) = &now.store {
        let operation = |of: &super::status::Operation| {
            let times = [of.p50_us, of.p99_us, of.p999_us].map(us);
            [vec![printable(&of.operation, 20), count(of.count), count(of.errors)], times.into()].concat()
        };
        let backend = printable(&store.backend, NAME_MAX);
        let note = match store.state.as_str() {
            "away" => format!("▲ {backend}: away for {}", age(store.away_ms as f64 / 1e3)),
            _ => format!("✓ {backend}: serving"),
        };
        tables.push(Table {
            title: "Store, since start",
            columns: &["operation", ">count", ">errors", ">p50", ">p99", ">p99.9"],
            rows: store.operations.iter().map(operation).collect(),
            note,
        });
    }
    tables
}

fn shared_memory(of: &super::status::SharedMemory) -> Table {
    let half = |of: &super::status::Half| {
        let sizes = [of.bytes, of.least_bytes, of.given_bytes].map(bytes);
        [vec![printable(&of.half, 20)], sizes.into(), vec![us(Some(of.gain_us))]].concat()
    };
    let failed = match of.failures {
        0 => String::new(),
        failures => format!("; ▲ {} failed", count(failures)),
    };
    Table {
        title: "Memory of items and objects",
        columns: &["half", ">has", ">at least", ">gave", ">more would save"],
        rows: of.halves.iter().map(half).collect(),
        note: format!("{} moves since start{failed}", count(of.moves)),
    }
}

fn commands(now: &Status) -> Table {
    let row = |of: &super::status::Latency| {
        let times = [of.p50_us, of.p90_us, of.p99_us, of.p999_us].map(us);
        [vec![printable(&of.command, 20), count(of.count)], times.into()].concat()
    };
    Table {
        title: "Latency by command, since start",
        columns: &["command", ">measured", ">p50", ">p90", ">p99", ">p99.9"],
        rows: now.latency.iter().map(row).collect(),
        note: if now.latency.is_empty() { "None.".into() } else { String::new() },
    }
}

/// Returns a table of the rows that `document` has, or of none and the reason.
fn table_of(
    title: &'static str,
    columns: &'static [&'static str],
    document: &Option<Result<Value, String>>,
    rows: impl FnOnce(&Value) -> Vec<Vec<String>>,
) -> Table {
    let (rows, note) = match document {
        None => (Vec::new(), "Not known yet.".to_owned()),
        Some(Err(reason)) => (Vec::new(), reason.clone()),
        Some(Ok(document)) => {
            let rows = rows(document);
            let note = if rows.is_empty() { "None yet.".into() } else { String::new() };
            (rows, note)
        }
    };
    Table { title, columns, rows, note }
}

fn list<'a>(document: &'a Value, name: &str) -> &'a [Value] {
    document[name].as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value, longest: usize) -> String {
    value.as_str().map_or_else(|| NONE.to_owned(), |text| printable(text, longest))
}

fn curve(document: &Option<Result<Value, String>>) -> Table {
    table_of("Miss ratio at other sizes", &["for", ">memory", ">", ">misses", ""], document, |document| {
        let mut rows = Vec::new();
        // While the simulated caches are being filled there is nothing to say.
        let is_known = |curve: &&Value| curve["is_warm"] != false && curve["requests"] != 0;
        for curve in list(document, "curves").iter().filter(is_known) {
            let scope = text(&curve["scope"], NAME_MAX);
            for point in list(curve, "points").iter().take(ROWS_MAX) {
                let factor = point["factor"].as_f64().unwrap_or_default();
                let memory = point["memory_bytes"].as_u64().map_or_else(|| NONE.into(), bytes);
                let here = if factor == 1.0 { "◀ you are here" } else { "" };
                let misses = percent(point["miss_ratio"].as_f64());
                rows.push(vec![scope.clone(), memory, format!("{factor} ×"), misses, here.into()]);
            }
        }
        rows
    })
}

fn hot(document: &Option<Result<Value, String>>) -> Table {
    table_of("Hot keys", &["key", ">share", ">per second"], document, |document| {
        let row = |one: &Value| {
            let per_sec = rate(one["per_sec"].as_f64());
            vec![text(&one["key"], NAME_MAX), percent(one["share"].as_f64()), per_sec]
        };
        list(document, "keys").iter().take(20).map(row).collect()
    })
}

fn prefixes(document: &Option<Result<Value, String>>) -> Table {
    table_of("Hot prefixes", &["prefix", ">share", ">hit ratio"], document, |document| {
        let row = |one: &Value| {
            let hits = percent(one["hit_ratio"].as_f64());
            vec![text(&one["prefix"], NAME_MAX), percent(one["share"].as_f64()), hits]
        };
        list(document, "prefixes").iter().take(20).map(row).collect()
    })
}

fn misses(document: &Option<Result<Value, String>>) -> Table {
    table_of("Why gets missed", &["reason", ">misses", ">share"], document, |document| {
        let Some(reasons) = document["misses"].as_object() else { return Vec::new() };
        let all: u64 = reasons.values().filter_map(Value::as_u64).sum();
        let row = |(name, value): (&String, &Value)| {
            let value = value.as_u64()?;
            let share = percent(ratio(value as f64, all as f64));
            Some(vec![printable(&name.replace('_', " "), NAME_MAX), count(value), share])
        };
        reasons.iter().filter_map(row).take(ROWS_MAX).collect()
    })
}

fn slow(document: &Option<Result<Value, String>>) -> Table {
    let columns = &["time, UTC", "command", ">took", ">store", ">bytes", "key", "client"];
    table_of("Slow requests", columns, document, |document| {
        let row = |one: &Value| {
            let time = one["unix_ms"].as_u64().map_or_else(|| NONE.into(), clock);
            let size = one["bytes"].as_u64().map_or_else(|| NONE.into(), bytes);
            let times = [&one["total_us"], &one["store_us"]].map(|value| us(value.as_f64()));
            let [key, client] = [&one["key"], &one["client"]].map(|value| text(value, NAME_MAX));
            let [total, store] = times;
            vec![time, text(&one["command"], 20), total, store, size, key, client]
        };
        list(document, "requests").iter().take(ROWS_MAX).map(row).collect()
    })
}

fn log(document: &Option<Result<Value, String>>) -> Table {
    table_of("Log", &["time, UTC", "level", "message"], document, |document| {
        let row = |line: &Value| {
            let time = line["unix_ms"].as_u64().map_or_else(|| NONE.into(), clock);
            vec![time, text(&line["level"], 10), text(&line["message"], 500)]
        };
        list(document, "lines").iter().map(row).collect()
    })
}

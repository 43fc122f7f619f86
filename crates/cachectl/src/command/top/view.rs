//! Figures and tables as text, for both the screen and `--once`.

use serde_json::Value;

use crate::admin::list;
use crate::command::top::model::{Model, Part, ratio, requests, s3_hits};
use crate::command::top::storage;

/// The maximum length of a key, name or address that is shown, in characters.
pub(super) const NAME_MAX: usize = 60;
/// The maximum number of rows in a table.
pub(super) const ROWS_MAX: usize = 50;

/// A figure: its name, its value, and additional information.
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
    /// The text shown below the rows, or instead of them.
    pub(super) note: String,
}

/// The other documents of the server, or the reasons why they are missing.
#[derive(Default, Clone)]
pub(super) struct Documents {
    pub(super) hot: Option<Result<Value, String>>,
    pub(super) mrc: Option<Result<Value, String>>,
    pub(super) slow: Option<Result<Value, String>>,
    pub(super) log: Option<Result<Value, String>>,
    pub(super) volumes: Option<Result<Value, String>>,
}

/// The pages of the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Page {
    Overview,
    Keys,
    Requests,
    Log,
    Volumes,
    S3,
}

impl Page {
    pub(super) const ALL: [Page; 6] =
        [Page::Overview, Page::Keys, Page::Requests, Page::Log, Page::Volumes, Page::S3];

    pub(super) fn name(self) -> &'static str {
        match self {
            Page::Overview => "overview",
            Page::Keys => "keys",
            Page::Requests => "requests",
            Page::Log => "log",
            Page::Volumes => "volumes",
            Page::S3 => "S3",
        }
    }
}

/// Returns one line about the server.
pub(super) fn header(status: Part<'_>) -> String {
    let state = match (status.text("state"), is_ready(status)) {
        ("draining", _) => "▼ draining",
        ("starting", _) => "… starting",
        (_, true) => "✓ ready",
        (_, false) => "▲ not ready",
    };
    let (program, version) = (printable(status.text("program"), 20), printable(status.text("version"), 20));
    let host = printable(status.text("host"), NAME_MAX);
    let (pid, up) = (status.u64("pid"), age(status.f64("uptime_secs").unwrap_or_default()));
    format!("{program} {version}  {state}  {host}  pid {pid}  up {up}")
}

pub(super) fn is_ready(status: Part<'_>) -> bool {
    status.0["health"]["ready"] == true
}

/// Returns the key figures.
pub(super) fn figures(model: &Model) -> Vec<Figure> {
    let Some(now) = model.now() else { return Vec::new() };
    let mut figures = Vec::new();
    let mut add = |name, value, detail| figures.push(Figure { name, value, detail });
    let [items, objects, synapse] = ["items", "objects", "synapse"].map(|key| now.part(key));
    if items.is_some() || objects.is_some() {
        let recent = ratio_now(model);
        let recent = percent(recent.or_else(|| model.hit_ratios().last().copied().flatten()));
        let since_start = percent(hits_of(now).and_then(|(hits, all)| ratio(hits, all)));
        let name = if items.is_some() { "Hit ratio, 1 h" } else { "Reads hit, 1 h" };
        add(name, percent(model.hit_ratio_hour()), format!("now {recent}, since start {since_start}"));
    }
    if let Some(election) = now.part("election") {
        let leader = match election.part("leader") {
            Some(leader) => {
                let [node, address] = ["node", "address"].map(|key| printable(leader.text(key), NAME_MAX));
                format!("{node} at {address} leads, epoch {}", leader.u64("epoch"))
            }
            None => "no host leads".into(),
        };
        let reason = printable(election.text("reason"), NAME_MAX);
        add("Elected writer", printable(election.text("role"), NAME_MAX), format!("{leader}; {reason}"));
    }
    let total = model.rise(requests).or_else(|| {
        let step = |column| model.rate(|_| None, column);
        let columns = ["gets", "sets", "synapse_requests", "s3_requests"];
        columns.into_iter().filter_map(step).reduce(|all, one| all + one)
    });
    let mut detail = Vec::new();
    if items.is_some() {
        let gets = model.rate(|now| now.at("/items/gets"), "gets");
        let sets = model.rate(|now| now.at("/items/sets"), "sets");
        detail.push(format!("gets {}, sets {}", rate(gets), rate(sets)));
    }
    if synapse.is_some() {
        let objects = model.rate(|now| now.at("/synapse/requests"), "synapse_requests");
        detail.push(format!("objects {}", rate(objects)));
    }
    add("Requests", rate(total), detail.join(", "));
    if let Some(items) = items {
        let (half, nearly_all) = (us(model.last_of("get_p50_us")), us(model.last_of("get_p99_us")));
        add("Gets, p99", nearly_all, format!("p50 {half}"));
        let (used, limit) = (items.u64("bytes"), items.u64("limit_bytes"));
        let share = percent(ratio(used as f64, limit as f64));
        let detail = format!("{share} of {}, {} items", bytes(limit), count(items.u64("count")));
        add("Item memory", bytes(used), detail);
        let evictions = model.rate(|now| now.at("/items/evictions"), "evictions");
        let [all, unread] = ["evictions", "evicted_unfetched"].map(|key| count(items.u64(key)));
        add("Evictions", rate(evictions), format!("{all} since start, {unread} never read"));
    }
    if let Some(objects) = objects {
        let dirty = objects.u64("dirty_bytes");
        let [oldest, limit] = ["dirty_age_ms", "dirty_age_limit_ms"].map(|key| ms(objects.u64(key)));
        let oldest = if dirty > 0 { format!(", oldest {oldest}, limit {limit}") } else { String::new() };
        add("Dirty", bytes(dirty), format!("of {}{oldest}", bytes(objects.u64("dirty_limit_bytes"))));
    }
    if let Some(journal) = now.part("journal") {
        let (capacity, oldest) = (bytes(journal.u64("capacity_bytes")), ms(journal.u64("oldest_age_ms")));
        add("Journal", bytes(journal.u64("fill_bytes")), format!("of {capacity}, oldest {oldest}"));
    }
    if let Some(connections) = now.part("connections") {
        let [current, limit, refused] =
            ["current", "limit", "refused"].map(|key| count(connections.u64(key)));
        add("Connections", current, format!("of {limit}, {refused} refused"));
    }
    let cpu = |now: Part<'_>| Some(now.at("/process/cpu_user_secs")? + now.at("/process/cpu_system_secs")?);
    let busy = model.rise(cpu).or_else(|| ratio(model.last_of("cpu_ms")? / 1e3, model.step_secs()?));
    let process = now.part("process");
    let [resident, threads] =
        ["resident_bytes", "threads"].map(|key| process.map_or(0, |process| process.u64(key)));
    add("Processor", cores(busy), format!("{} resident, {threads} threads", bytes(resident)));
    if let Some((hits, all)) = s3_hits(now) {
        let sums = [model.sum("s3_hits"), model.sum("s3_misses")];
        let hour = sums[0].zip(sums[1]).and_then(|(hits, misses)| ratio(hits, hits + misses));
        let recent = model
            .rise(|at| s3_hits(at).map(|(hits, _)| hits))
            .and_then(|hits| ratio(hits, model.rise(|at| s3_hits(at).map(|(_, all)| all))?));
        let detail = format!("now {}, since start {}", percent(recent), percent(ratio(hits, all)));
        add("S3 hits, 1 h", percent(hour), detail);
    }
    figures
}

/// Returns the hits and all reads since startup.
fn hits_of(status: Part<'_>) -> Option<(f64, f64)> {
    match (status.part("items"), status.part("objects")) {
        (Some(items), _) => Some((items.u64("get_hits") as f64, items.u64("gets") as f64)),
        (None, Some(of)) => {
            let (hits, misses) = (of.u64("read_hits"), of.u64("read_misses"));
            Some((hits as f64, (hits + misses) as f64))
        }
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
        Page::Volumes => storage::volumes(model, &documents.volumes),
        Page::S3 => storage::s3(model),
    }
}

fn overview(now: Part<'_>) -> Vec<Table> {
    let owner = |of: Part<'_>| {
        let (used, limit) = (of.u64("used_bytes"), of.u64("limit_bytes"));
        let share = percent(ratio(used as f64, limit as f64));
        vec![printable(of.text("owner"), NAME_MAX), bytes(used), bytes(limit), share]
    };
    let listener = |of: Part<'_>| {
        let counts = ["connections", "accepted", "refused"].map(|key| count(of.u64(key)));
        let names = vec![printable(of.text("listener"), NAME_MAX), printable(of.text("protocol"), 20)];
        [names, counts.into()].concat()
    };
    let mut tables = vec![
        Table {
            title: "Memory by owner",
            columns: &["owner", ">used", ">limit", ">share"],
            rows: now.rows("memory").map(owner).collect(),
            note: String::new(),
        },
        Table {
            title: "Listeners",
            columns: &["address", "protocol", ">open", ">accepted", ">refused"],
            rows: now.rows("listeners").map(listener).collect(),
            note: String::new(),
        },
    ];
    tables.extend(now.part("shared_memory").map(shared_memory));
    if let Some(objects) = now.part("objects") {
        let namespace = |of: Part<'_>| {
            let dirty = of.u64("dirty_bytes");
            let oldest = if dirty > 0 { ms(of.u64("dirty_age_ms")) } else { NONE.into() };
            let (name, write) = (printable(of.text("namespace"), NAME_MAX), printable(of.text("write"), 20));
            vec![name, write, count(of.u64("objects")), bytes(of.u64("cached_bytes")), bytes(dirty), oldest]
        };
        let others = objects.u64("namespaces_other");
        let [clean, free] = ["clean_bytes", "free_bytes"].map(|key| bytes(objects.u64(key)));
        let written = count(objects.u64("writes_back") + objects.u64("writes_through"));
        let all = count(objects.u64("count"));
        let mut note = format!("{all} objects, {clean} clean, {free} free, {written} writes");
        if others > 0 {
            note.push_str(&format!("; {others} more namespaces"));
        }
        tables.push(Table {
            title: "Namespaces",
            columns: &["namespace", "write", ">objects", ">cached", ">dirty", ">oldest"],
            rows: objects.rows("namespaces").take(ROWS_MAX).map(namespace).collect(),
            note,
        });
    }
    if let Some(store) = now.part("store") {
        let operation = |of: Part<'_>| {
            let counts = ["count", "errors"].map(|key| count(of.u64(key)));
            let times = ["p50_us", "p99_us", "p999_us"].map(|key| us(of.f64(key)));
            [vec![printable(of.text("operation"), 20)], counts.into(), times.into()].concat()
        };
        let backend = printable(store.text("backend"), NAME_MAX);
        let note = match store.text("state") {
            "away" => format!("▲ {backend}: away for {}", age(store.u64("away_ms") as f64 / 1e3)),
            _ => format!("✓ {backend}: serving"),
        };
        tables.push(Table {
            title: "Store, since start",
            columns: &["operation", ">count", ">errors", ">p50", ">p99", ">p99.9"],
            rows: store.rows("operations").map(operation).collect(),
            note,
        });
    }
    tables
}

fn shared_memory(of: Part<'_>) -> Table {
    let half = |of: Part<'_>| {
        let sizes = ["bytes", "least_bytes", "given_bytes"].map(|key| bytes(of.u64(key)));
        [vec![printable(of.text("half"), 20)], sizes.into(), vec![us(of.f64("gain_us"))]].concat()
    };
    let failed = match of.u64("failures") {
        0 => String::new(),
        failures => format!("; ▲ {} failed", count(failures)),
    };
    Table {
        title: "Memory of items and objects",
        columns: &["half", ">has", ">at least", ">gave", ">more would save"],
        rows: of.rows("halves").map(half).collect(),
        note: format!("{} moves since start{failed}", count(of.u64("moves"))),
    }
}

fn commands(now: Part<'_>) -> Table {
    let row = |of: Part<'_>| {
        let times = ["p50_us", "p90_us", "p99_us", "p999_us"].map(|key| us(of.f64(key)));
        [vec![printable(of.text("command"), 20), count(of.u64("count"))], times.into()].concat()
    };
    let rows: Vec<_> = now.rows("latency").map(row).collect();
    Table {
        title: "Latency by command, since start",
        columns: &["command", ">measured", ">p50", ">p90", ">p99", ">p99.9"],
        note: if rows.is_empty() { "None.".into() } else { String::new() },
        rows,
    }
}

/// Returns a table of the rows that `document` contains, or an empty one with the reason.
pub(super) fn table_of(
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

pub(super) fn text(value: &Value, longest: usize) -> String {
    value.as_str().map_or_else(|| NONE.to_owned(), |text| printable(text, longest))
}

fn curve(document: &Option<Result<Value, String>>) -> Table {
    table_of("Miss ratio at other sizes", &["for", ">memory", ">", ">misses", ""], document, |document| {
        let mut rows = Vec::new();
        // Nothing is shown before the simulated caches are full.
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

pub(super) const NONE: &str = "–";

/// Formats a number with three significant digits, without an exponent.
fn digits(n: f64) -> String {
    let size = n.abs();
    if size >= 99.95 || n == 0.0 {
        format!("{n:.0}")
    } else if size >= 9.995 {
        format!("{n:.1}")
    } else {
        format!("{n:.2}")
    }
}

fn scaled(mut n: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while n.abs() >= base * 0.9995 && unit + 1 < units.len() {
        n /= base;
        unit += 1;
    }
    let number = if unit == 0 && n.fract() == 0.0 { format!("{n}") } else { digits(n) };
    if units[unit].is_empty() { number } else { format!("{number} {}", units[unit]) }
}

fn known(n: Option<f64>, write: impl FnOnce(f64) -> String) -> String {
    n.filter(|n| n.is_finite()).map_or_else(|| NONE.to_owned(), write)
}

pub(super) fn bytes(n: u64) -> String {
    scaled(n as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

pub(super) fn count(n: u64) -> String {
    if n >= 100_000 {
        return scaled(n as f64, 1000.0, &["", "k", "M", "G", "T", "P"]);
    }
    match n / 1000 {
        0 => n.to_string(),
        thousands => format!("{thousands},{:03}", n % 1000),
    }
}

/// Formats a rate per second.
pub(super) fn rate(n: Option<f64>) -> String {
    known(n, |n| {
        let number = if n > 0.0 && n < 99.5 { digits(n) } else { count(n.round().max(0.0) as u64) };
        format!("{number}/s")
    })
}

pub(super) fn cores(n: Option<f64>) -> String {
    known(n, |n| format!("{} cores", digits(n)))
}

pub(super) fn seconds(s: Option<f64>) -> String {
    known(s, |s| match s {
        0.0 => "0 s".to_owned(),
        s if s < 1e-6 => format!("{} ns", digits(s * 1e9)),
        s if s < 0.000_999_5 => format!("{} µs", digits(s * 1e6)),
        s if s < 0.9995 => format!("{} ms", digits(s * 1e3)),
        s if s < 120.0 => format!("{} s", digits(s)),
        s => age(s),
    })
}

pub(super) fn us(n: Option<f64>) -> String {
    seconds(n.map(|n| n / 1e6))
}

pub(super) fn ms(n: u64) -> String {
    seconds(Some(n as f64 / 1e3))
}

/// Formats a ratio, rounded down above 99.9 %, so that only a complete ratio is shown as 100 %.
pub(super) fn percent(r: Option<f64>) -> String {
    known(r, |r| {
        if r > 0.999 && r < 1.0 {
            format!("{:.2} %", (r * 10_000.0).floor() / 100.0)
        } else if r > 0.0 && r < 0.01 {
            format!("{:.2} %", r * 100.0)
        } else {
            format!("{:.1} %", r * 100.0)
        }
    })
}

/// Formats a duration in its two largest units.
pub(super) fn age(s: f64) -> String {
    let s = s.round().max(0.0) as u64;
    let (days, hours, minutes) = (s / 86_400, s / 3600 % 24, s / 60 % 60);
    if days > 0 {
        format!("{days} d {hours} h")
    } else if hours > 0 {
        format!("{hours} h {minutes} min")
    } else if minutes > 0 {
        format!("{minutes} min {} s", s % 60)
    } else {
        format!("{s} s")
    }
}

/// Formats the time of day in UTC, because the time zone of the terminal is not known here.
pub(super) fn clock(unix_ms: u64) -> String {
    let s = unix_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

/// Returns foreign text in which every character that would move other text, or would be invisible,
/// is escaped; at most `longest` characters.
pub(super) fn printable(text: &str, longest: usize) -> String {
    let mut shown = String::new();
    let mut letters = text.chars();
    for letter in letters.by_ref().take(longest) {
        if volumes::is_shown(letter) {
            shown.push(letter);
        } else if u32::from(letter) < 256 {
            shown.push_str(&format!("\\x{:02x}", u32::from(letter)));
        } else {
            shown.push_str(&format!("\\u{{{:x}}}", u32::from(letter)));
        }
    }
    if letters.next().is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let sizes: Vec<_> = [0, 1023, 1024, 60_113_920, 67_108_864, u64::MAX].map(bytes).into();
        assert_eq!(sizes, ["0 B", "1023 B", "1.00 KiB", "57.3 MiB", "64.0 MiB", "16384 PiB"]);
        let counts: Vec<_> = [0, 999, 1000, 99_999, 100_000, 999_999, 4_211_231].map(count).into();
        assert_eq!(counts, ["0", "999", "1,000", "99,999", "100 k", "1.00 M", "4.21 M"]);
        let times: Vec<_> = [0.0, 3.2, 999.6, 120_000.0, 5e6, 7.3e9].map(|us_| us(Some(us_))).into();
        assert_eq!(times, ["0 s", "3.20 µs", "1.00 ms", "120 ms", "5.00 s", "2 h 1 min"]);
        assert_eq!(rate(Some(0.25)), "0.25/s");
        assert_eq!(rate(Some(10_913.4)), "10,913/s");
    }

    #[test]
    fn only_all_is_a_hundred_percent() {
        let ratios: Vec<_> = [0.0, 0.0012, 0.866, 0.99996, 1.0].map(|r| percent(Some(r))).into();
        assert_eq!(ratios, ["0.0 %", "0.12 %", "86.6 %", "99.99 %", "100.0 %"]);
        assert_eq!(percent(None), NONE);
        assert_eq!(percent(Some(f64::NAN)), NONE);
    }

    #[test]
    fn foreign_text_moves_nothing() {
        assert_eq!(printable("a\u{1b}[2J\u{202e}b\0\u{9b}1m", 20), "a\\x1b[2J\\u{202e}b\\x00\\x9b1m");
        assert_eq!(printable("größe 鍵", 20), "größe 鍵");
        assert_eq!(printable("abcdef", 3), "abc…");
    }
}

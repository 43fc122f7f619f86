//! The tables of volumes and of the S3 sidecar.

use serde_json::Value;

use crate::admin::list;
use crate::command::top::model::{Model, Part, ratio, s3_hits};
use crate::command::top::view::{
    NAME_MAX, NONE, ROWS_MAX, Table, age, bytes, count, percent, printable, rate, table_of, text,
};

/// Returns the volumes of the document `/volumes`, with the rates of their clients.
pub(super) fn volumes(model: &Model, document: &Option<Result<Value, String>>) -> Vec<Table> {
    let columns = &["volume", ">size", ">used", ">snapshots", ">clients", ">reads", ">writes", "owner"];
    let mut table = table_of("Volumes", columns, document, |document| {
        let row = |of: &Value| {
            let name = of["name"].as_str().unwrap_or_default();
            let rate_of = |key: &str| {
                rate(model.rise(|at| at.part("volumes")?.row("volumes", "volume", name)?.f64(key)))
            };
            vec![
                printable(name, NAME_MAX),
                size(&of["size_bytes"]),
                size(&of["usage"]["referenced_bytes"]),
                number(&of["snapshot_count"]),
                number(&of["connections"]),
                rate_of("reads"),
                rate_of("writes"),
                text(&of["owner"], NAME_MAX),
            ]
        };
        list(document, "volumes").iter().take(ROWS_MAX).map(row).collect()
    });
    let Some(Ok(document)) = document else { return vec![table] };
    let others = document["volumes_other"].as_u64().unwrap_or_default();
    if others > 0 {
        table.note = format!("and {} more volumes", count(others));
    }
    let damaged = |of: &Value| vec![text(&of["name"], NAME_MAX), text(&of["error"], 200)];
    let damaged = Table {
        title: "Damaged volumes",
        columns: &["volume", "why"],
        rows: list(document, "damaged").iter().take(ROWS_MAX).map(damaged).collect(),
        note: String::new(),
    };
    let has_damaged = !damaged.rows.is_empty();
    std::iter::once(table).chain(has_damaged.then_some(damaged)).collect()
}

/// Returns the state of the S3 sidecar and its buckets.
pub(super) fn s3(model: &Model) -> Vec<Table> {
    let Some(now) = model.now() else { return Vec::new() };
    let Some(s3) = now.part("s3") else {
        return vec![Table {
            title: "S3",
            columns: &[],
            rows: Vec::new(),
            note: "This server has no [s3].".into(),
        }];
    };
    let endpoint = printable(s3.text("endpoint"), NAME_MAX);
    let state = match s3.text("state") {
        "serving" => format!("✓ {endpoint}: serving"),
        "slow" => format!("● {endpoint}: slow"),
        _ => format!("▲ {endpoint}: away for {}", age(s3.u64("away_ms") as f64 / 1e3)),
    };
    let since_start = s3_hits(now).and_then(|(hits, reads)| ratio(hits, reads));
    let sizes = [s3.u64("memory_bytes"), s3.u64("memory_bytes") + s3.u64("endpoint_bytes")].map(bytes);
    let counts = ["passed", "refused", "failed", "stale", "objects"].map(|key| count(s3.u64(key)));
    let rows = [
        ("hit ratio since start", percent(since_start)),
        ("body bytes from memory", format!("{} of {}", sizes[0], sizes[1])),
        ("forwarded", counts[0].clone()),
        ("refused", counts[1].clone()),
        ("failed", counts[2].clone()),
        ("served without the endpoint", counts[3].clone()),
        ("objects known", counts[4].clone()),
    ];
    let bucket = |of: Part<'_>| {
        let name = of.text("bucket");
        let shown = if name == "/others" { "(all others)".to_owned() } else { printable(name, NAME_MAX) };
        let counted = |now: Part<'_>, pick: fn(Part<'_>) -> u64| {
            Some(pick(now.part("s3")?.row("buckets", "bucket", name)?) as f64)
        };
        let recent = model
            .rise(|now| counted(now, hits))
            .and_then(|hits| ratio(hits, model.rise(|now| counted(now, reads))?));
        vec![
            shown,
            percent(ratio(hits(of) as f64, reads(of) as f64)),
            percent(recent),
            count(hits(of)),
            count(of.u64("misses")),
            count(of.u64("others")),
            bytes(of.u64("cached_bytes")),
        ]
    };
    let others = s3.u64("buckets_other");
    vec![
        Table {
            title: "S3 endpoint",
            columns: &["", ">"],
            rows: rows.map(|(name, value)| vec![name.to_owned(), value]).into(),
            note: state,
        },
        Table {
            title: "Buckets",
            columns: &["bucket", ">hit ratio", ">now", ">hits", ">misses", ">others", ">cached"],
            rows: s3.rows("buckets").take(ROWS_MAX).map(bucket).collect(),
            note: if others > 0 { format!("and {} more buckets", count(others)) } else { String::new() },
        },
    ]
}

fn hits(bucket: Part<'_>) -> u64 {
    bucket.u64("hits")
}

fn reads(bucket: Part<'_>) -> u64 {
    hits(bucket) + bucket.u64("misses")
}

fn size(value: &Value) -> String {
    value.as_u64().map_or_else(|| NONE.to_owned(), bytes)
}

fn number(value: &Value) -> String {
    value.as_u64().map_or_else(|| NONE.to_owned(), count)
}

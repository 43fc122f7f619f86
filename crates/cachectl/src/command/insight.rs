//! `mrc`, `hot`, `misses` and `slow`: reports of a running server about its requests, fetched from
//! its admin listener.

use serde_json::Value;

use crate::admin::{list, plain};
use crate::command::Call;
use crate::output::Failure;

/// The maximum number of characters of a name in a table.
const NAME_LETTERS: usize = 60;

pub(super) fn mrc(call: &Call<'_>, scope: Option<&str>) -> Result<(), Failure> {
    let mut document = call.admin()?.get("/mrc.json")?;
    if let (Some(scope), Some(curves)) = (scope, document["curves"].as_array_mut()) {
        curves.retain(|curve| curve["scope"] == scope);
    }
    call.output.write(curves(&document), &document)
}

pub(super) fn hot(call: &Call<'_>, count: u16) -> Result<(), Failure> {
    let document = call.admin()?.get(&format!("/hot.json?count={count}"))?;
    call.output.write(hot_text(&document), &document)
}

pub(super) fn misses(call: &Call<'_>) -> Result<(), Failure> {
    let document = call.admin()?.get("/hot.json?count=1")?;
    let mut reasons = document["misses"].clone();
    if let (Some(reasons), Value::Object(_)) = (reasons.as_object_mut(), &document["objects"]) {
        reasons.insert("objects".into(), document["objects"]["misses"].clone());
    }
    call.output.write(misses_text(&document), &reasons)
}

pub(super) fn slow(call: &Call<'_>) -> Result<(), Failure> {
    let document = call.admin()?.get("/slow.json")?;
    call.output.write(slow_text(&document), &document)
}

/// Returns a string that the server has received from its clients, without control characters, and
/// cut if it is long.
fn text(value: &Value) -> String {
    let text = value.as_str().unwrap_or("–");
    match text.char_indices().nth(NAME_LETTERS) {
        Some((end, _)) => plain(&text[..end]) + "…",
        None => plain(text),
    }
}

fn percent(value: &Value) -> String {
    value.as_f64().map_or_else(|| "–".into(), |ratio| format!("{:.2} %", ratio * 100.0))
}

fn mebibytes(value: &Value) -> String {
    value.as_f64().map_or_else(|| "–".into(), |bytes| format!("{:.1} MiB", bytes / f64::from(1 << 20)))
}

fn curves(document: &Value) -> String {
    let mut lines = Vec::new();
    for curve in list(document, "curves") {
        let (name, requests) = (text(&curve["scope"]), curve["requests"].as_u64().unwrap_or(0));
        let counted = percent(&curve["counted_miss_ratio"]);
        let memory = mebibytes(&curve["memory_bytes"]);
        lines.push(format!("{name}: {memory}, {requests} requests, {counted} missed"));
        if curve["is_warm"] == false {
            lines.push("  not known yet: the simulation is being filled".into());
            continue;
        }
        for point in list(curve, "points") {
            let factor = point["factor"].as_f64().unwrap_or(0.0);
            let here = if factor == 1.0 { "  <- the memory it has" } else { "" };
            let (memory, misses) = (mebibytes(&point["memory_bytes"]), percent(&point["miss_ratio"]));
            lines.push(format!("  {factor:>5} x {memory:>12}   {misses:>9} would miss{here}"));
        }
    }
    if lines.is_empty() {
        lines.push(
            "no curve: the server samples no requests (insight.enabled), or has no curve of this scope"
                .into(),
        );
    }
    lines.join("\n")
}

/// Returns the text of `show` for a document and for the part of the document about objects.
fn with_objects(document: &Value, heading: &str, show: fn(&Value) -> String) -> String {
    let mut text = show(document);
    if document["objects"].is_object() {
        text.push_str(heading);
        text.push_str(&show(&document["objects"]));
    }
    text
}

fn hot_text(document: &Value) -> String {
    with_objects(document, "\n\nobjects\n", hot_names)
}

fn hot_names(document: &Value) -> String {
    let rate =
        |one: &Value| one["per_sec"].as_f64().map_or_else(|| "–".into(), |rate| format!("{rate:.1}/s"));
    let mut lines = vec![format!("{:>9}  {:>12}  key", "of gets", "")];
    for one in list(document, "keys") {
        lines.push(format!("{:>9}  {:>12}  {}", percent(&one["share"]), rate(one), text(&one["key"])));
    }
    lines.push(format!("\n{:>9}  {:>12}  {:>9}  {:>12}  prefix", "of gets", "", "hit", "memory"));
    for one in list(document, "prefixes") {
        lines.push(format!(
            "{:>9}  {:>12}  {:>9}  {:>12}  {}",
            percent(&one["share"]),
            rate(one),
            percent(&one["hit_ratio"]),
            mebibytes(&one["item_bytes"]),
            text(&one["prefix"])
        ));
    }
    lines.join("\n")
}

fn misses_text(document: &Value) -> String {
    with_objects(document, "\nobjects\n", reasons)
}

fn reasons(document: &Value) -> String {
    let Some(reasons) = document["misses"].as_object() else {
        return "not known: the server samples no requests (insight.enabled)".into();
    };
    let all: u64 = reasons.values().filter_map(Value::as_u64).sum();
    let line = |(reason, count): (&String, &Value)| {
        let count = count.as_u64().unwrap_or(0);
        let share = count as f64 * 100.0 / all.max(1) as f64;
        format!("{count:>14}  {share:>6.2} %  {}", reason.replace('_', " "))
    };
    reasons.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn slow_text(document: &Value) -> String {
    let threshold = document["threshold_ms"].as_u64().unwrap_or(0);
    if threshold == 0 {
        return "slow requests are not recorded (insight.slow_request_ms is 0)".into();
    }
    let count = document["count"].as_u64().unwrap_or(0);
    let mut lines = vec![format!("{count} requests took {threshold} ms or longer since the start")];
    for one in list(document, "requests") {
        let took = one["total_us"].as_u64().unwrap_or(0) / 1000;
        let ended = one["unix_ms"].as_f64().unwrap_or(0.0) / 1000.0;
        let mut line =
            format!("{ended:.3}  {took:>8} ms  {}  {}", text(&one["listener"]), text(&one["command"]));
        for (name, value) in [("key", &one["key"]), ("from", &one["client"])] {
            if value.is_string() {
                line.push_str(&format!("  {name} {}", text(value)));
            }
        }
        lines.push(line);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_curve_shows_where_the_server_is() {
        let document = json!({ "curves": [
            { "scope": "items", "memory_bytes": 64 << 20, "requests": 1000, "counted_miss_ratio": 0.25, "is_warm": true,
              "points": [
                { "factor": 1.0, "memory_bytes": 64 << 20, "miss_ratio": 0.25 },
                { "factor": 2.0, "memory_bytes": 128 << 20, "miss_ratio": 0.125 } ] },
            { "scope": "objects", "memory_bytes": 1 << 20, "requests": 1, "is_warm": false, "points": [
                { "factor": 1.0, "memory_bytes": 1, "miss_ratio": 0.0 } ] } ] });
        let expected = "items: 64.0 MiB, 1000 requests, 25.00 % missed\n\
            \x20     1 x     64.0 MiB     25.00 % would miss  <- the memory it has\n\
            \x20     2 x    128.0 MiB     12.50 % would miss\n\
            objects: 1.0 MiB, 1 requests, – missed\n\
            \x20 not known yet: the simulation is being filled";
        assert_eq!(curves(&document), expected);
        assert!(curves(&json!({ "curves": [] })).starts_with("no curve"));
    }

    #[test]
    fn keys_of_clients_cannot_write_to_the_terminal() {
        let document = json!({ "keys": [{ "key": "a\u{1b}[2J", "share": 0.5, "per_sec": 10.0 }],
            "prefixes": [{ "prefix": "p".repeat(100), "share": 1.0, "hit_ratio": 0.5 }] });
        let shown = hot_text(&document);
        assert!(
            !shown.contains('\u{1b}') && shown.contains("a\u{fffd}[2J") && shown.contains("10.0/s"),
            "{shown}"
        );
        assert!(shown.ends_with('…') && shown.contains("50.00 %"), "{shown}");
    }

    #[test]
    fn misses_and_slow_requests_are_listed_or_said_to_be_unknown() {
        let document = json!({ "misses": { "evicted": 3, "never_seen": 1 } });
        assert_eq!(
            misses_text(&document),
            "             3   75.00 %  evicted\n             1   25.00 %  never seen"
        );
        assert!(misses_text(&json!({})).starts_with("not known"));
        let document = json!({ "misses": { "evicted": 1 }, "objects": { "misses": { "deleted": 2 },
            "keys": [{ "key": "vm/a", "share": 1.0 }] } });
        let expected = "             1  100.00 %  evicted\nobjects\n             2  100.00 %  deleted";
        assert_eq!(misses_text(&document), expected);
        let shown = hot_text(&document);
        assert!(shown.contains("\n\nobjects\n") && shown.contains("vm/a"), "{shown}");
        let document = json!({ "threshold_ms": 100, "count": 1, "requests": [
            { "unix_ms": 1500, "listener": "store", "command": "read", "key": "vm/a", "total_us": 250_000 }] });
        let expected =
            "1 requests took 100 ms or longer since the start\n1.500       250 ms  store  read  key vm/a";
        assert_eq!(slow_text(&document), expected);
        assert!(slow_text(&json!({ "threshold_ms": 0 })).contains("not recorded"));
    }
}

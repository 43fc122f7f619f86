//! Commands to a running program, sent to its admin listener: its configuration and reloads, its
//! health and shutdown, its object cache and its sidecar.

use std::time::{Duration, Instant};

use clap::Subcommand;
use serde_json::{Value, json};

use crate::admin::{Admin, list};
use crate::command::Call;
use crate::output::Failure;
use std::fmt::Write as _;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Shows the configuration in force, as far as its keys contain `key`.
pub(super) fn config(call: &Call<'_>, key: Option<&str>, changed: bool) -> Result<(), Failure> {
    let mut answer = call.admin()?.get("/config.json")?;
    if let Some(entries) = answer.get_mut("entries").and_then(Value::as_array_mut) {
        let wanted = key.unwrap_or_default();
        if !entries.iter().any(|entry| text(&entry["key"]).contains(wanted)) {
            return Err(Failure::no_match("key", wanted, entries.iter().map(|entry| text(&entry["key"]))));
        }
        entries.retain(|entry| {
            text(&entry["key"]).contains(wanted) && (!changed || entry["changed"] == Value::Bool(true))
        });
    }
    let mut shown = String::new();
    for entry in list(&answer, "entries") {
        let change = if entry["live"] == Value::Bool(true) { "live" } else { "restart" };
        let [key, value, origin] = ["key", "value", "origin"].map(|name| text(&entry[name]));
        // Writing to a String cannot fail.
        let _ = writeln!(shown, "{key} = {value}  # {origin}, {change}");
    }
    call.output.write(shown.trim_end(), &answer)
}

pub(super) fn reload(call: &Call<'_>) -> Result<(), Failure> {
    let answer = call.admin()?.post("/reload", &json!({}))?;
    call.output.write(text(&answer["text"]).trim_end(), &answer)
}

pub(super) fn drain(call: &Call<'_>) -> Result<(), Failure> {
    let answer = call.admin()?.post("/drain", &json!({}))?;
    call.output.write("the end was requested: the server is no longer ready", &answer)
}

pub(super) fn flush_prefix(call: &Call<'_>, prefix: &str) -> Result<(), Failure> {
    let answer = call.admin()?.post("/flush-prefix", &json!({ "prefix": prefix }))?;
    call.output.write(format!("no item whose key begins with {prefix:?} is served any more"), &answer)
}

#[derive(Subcommand)]
pub(crate) enum Cache {
    /// Show whether requests go to the cache (attached), to the store (detached), or are in
    /// transition from one to the other.
    Show,
    /// Detach the cache from the request path: all dirty data are stored, then requests go to the
    /// store.
    ///
    /// Requests continue, and none fails because of this. If --timeout passes first, the
    /// exit code is not 0, and the detachment continues in the background: while the store is
    /// unavailable, the cache responds as before. `cache attach` reverts it at any time. The
    /// detachment lasts until the server restarts; a server with objects.attached = false starts
    /// detached.
    Detach,
    /// Reattach the cache to the request path. It begins empty, with the current write modes.
    Attach,
}

impl Cache {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        // A single request waits for at most 20 seconds; `timeout` applies to all requests
        // together.
        let admin = call.admin()?;
        let (answer, lasts) = match self {
            Self::Show => (admin.get("/cache.json")?, ""),
            Self::Detach => (until_done(&admin, "/cache/detach", &json!({}), call.timeout)?, LASTS),
            Self::Attach => (until_done(&admin, "/cache/attach", &json!({}), call.timeout)?, ""),
        };
        call.output.write(format!("{}{lasts}", attachment(&answer)), &answer)
    }
}

/// Appended because the response does not state how long a detachment lasts: the server keeps no
/// record of it.
const LASTS: &str =
    "\nuntil the server restarts; objects.attached = false in its configuration holds beyond that";

fn attachment(of: &Value) -> String {
    let state = match of["state"].as_str().unwrap_or_default() {
        "attached" => "attached: requests go to the cache",
        "storing" => "being detached: dirty data are being stored, requests go to the cache as before",
        "transit" => "being detached: changes go to the store, reads to the cache",
        "detached" => "detached: requests go to the store",
        other => other,
    };
    let why = of["why"].as_str().map_or_else(String::new, |why| format!("; {why}"));
    format!("{state}; {} bytes cached, {} dirty{why}", of["cached_bytes"], of["dirty_bytes"])
}

/// Queries a probe, and fails if the answer is negative.
pub(super) fn health(call: &Call<'_>, live: bool, started: bool) -> Result<(), Failure> {
    let (path, yes, no) = match (live, started) {
        (true, _) => ("/livez", "live", "not live"),
        (_, true) => ("/startupz", "started", "not started"),
        _ => ("/readyz", "ready", "not ready"),
    };
    let admin = call.admin()?;
    let reasons = admin.probe(path)?;
    let value = json!({ "probe": path, "ok": reasons.is_empty(), "reasons": reasons });
    if reasons.is_empty() {
        return call.output.write(yes, &value);
    }
    let text: Vec<String> = reasons.iter().map(|reason| format!("{no}: {reason}")).collect();
    call.output.write(text.join("\n"), &value)?;
    Err(Failure::admin(format_args!("{}{path}", admin.url()), Some(503), no))
}

#[derive(Subcommand)]
pub(crate) enum S3 {
    /// Drop the cached state of objects from the sidecar: the next read of each object queries the
    /// endpoint.
    Invalidate {
        /// BUCKET, an object as BUCKET/KEY, or all objects whose keys begin with a prefix as
        /// BUCKET/PREFIX*.
        objects: String,
    },
}

impl S3 {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        let Self::Invalidate { objects } = self;
        let answer = call.admin()?.post("/s3/invalidate", &invalidation(objects)?)?;
        call.output.write(format!("the endpoint is queried for {objects} again"), &answer)
    }
}

/// Returns the request body for the objects that an argument names.
fn invalidation(objects: &str) -> Result<Value, Failure> {
    let (bucket, key) = objects.split_once('/').unwrap_or((objects, ""));
    if bucket.is_empty() || bucket.contains('*') {
        let forms = "BUCKET, BUCKET/KEY or BUCKET/PREFIX*";
        return Err(Failure::usage(format!("{objects:?} names no bucket; expected {forms}")));
    }
    Ok(match key.strip_suffix('*') {
        Some(prefix) => json!({ "bucket": bucket, "prefix": prefix }),
        None if key.is_empty() => json!({ "bucket": bucket }),
        None => json!({ "bucket": bucket, "key": key }),
    })
}

/// Repeats the request until the response reports completion, or `timeout` has nearly passed.
///
/// # Errors
/// Returns the reason why the operation is not complete, and the errors of [`Admin::post`].
pub(super) fn until_done(
    admin: &Admin,
    path: &str,
    body: &Value,
    timeout: Option<Duration>,
) -> Result<Value, Failure> {
    let began = Instant::now();
    loop {
        let mut body = body.clone();
        let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
        if let Some(left) = left {
            // The remaining time is reserved for the response.
            body["wait_ms"] = json!(u64::try_from(left.as_millis()).unwrap_or(u64::MAX) / 2);
        }
        let answer = admin.post(path, &body)?;
        if answer["done"] == Value::Bool(true) {
            return Ok(answer);
        }
        if left.is_some_and(|left| left < Duration::from_millis(500)) {
            let text = answer["why"].as_str().unwrap_or("it is not complete yet").to_owned();
            return Err(Failure::admin(format!("{}{path}", admin.url()), None, text));
        }
        // A response about a failure of the store may arrive immediately.
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod cache_tests {
    use super::*;

    #[test]
    fn the_state_is_shown_in_words() {
        let of = json!({"state": "storing", "why": "the store is away", "cached_bytes": 8192, "dirty_bytes": 4096});
        let wanted = "being detached: dirty data are being stored, requests go to the cache as before; 8192 bytes cached, \
                      4096 dirty; the store is away";
        assert_eq!(attachment(&of), wanted);
    }
}

#[cfg(test)]
mod s3_tests {
    use super::*;

    #[test]
    fn objects_are_named_as_a_path() {
        for (objects, right) in [
            ("media", json!({ "bucket": "media" })),
            ("media/", json!({ "bucket": "media" })),
            ("media/*", json!({ "bucket": "media", "prefix": "" })),
            ("media/a/b", json!({ "bucket": "media", "key": "a/b" })),
            ("media/a/b*", json!({ "bucket": "media", "prefix": "a/b" })),
            ("media/a*b", json!({ "bucket": "media", "key": "a*b" })),
        ] {
            assert_eq!(invalidation(objects).unwrap_or_default(), right, "{objects}");
        }
        assert!(invalidation("/key").is_err() && invalidation("*").is_err() && invalidation("").is_err());
    }
}

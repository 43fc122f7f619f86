//! Commands to a running program, sent to its admin listener: its configuration and reloads, its
//! health and shutdown, its object cache and its sidecar.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::admin::{Admin, list};
use crate::command::Call;
use crate::output::Failure;
use std::fmt::Write as _;

#[derive(Args)]
pub(crate) struct Config {
    /// Show only keys that contain this.
    key: Option<String>,

    /// Show only what the file or flags set.
    #[arg(long)]
    changed: bool,
}

#[derive(Args)]
pub(crate) struct Reload {}

#[derive(Args)]
pub(crate) struct Drain {}

#[derive(Args)]
pub(crate) struct FlushPrefix {
    /// What the keys begin with: 1 to 250 bytes.
    prefix: String,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl Config {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        let mut answer = call.admin()?.get("/config.json")?;
        if let Some(entries) = answer.get_mut("entries").and_then(Value::as_array_mut) {
            let wanted = self.key.as_deref().unwrap_or_default();
            entries.retain(|entry| {
                text(&entry["key"]).contains(wanted)
                    && (!self.changed || entry["changed"] == Value::Bool(true))
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
}

impl Reload {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        let answer = call.admin()?.post("/reload", &json!({}))?;
        call.output.write(text(&answer["text"]).trim_end(), &answer)
    }
}

impl Drain {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        let answer = call.admin()?.post("/drain", &json!({}))?;
        call.output.write("the end was requested: the server is no longer ready", &answer)
    }
}

impl FlushPrefix {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        let body = json!({ "prefix": self.prefix });
        let answer = call.admin()?.post("/flush-prefix", &body)?;
        let line = format!("no item of a key that begins with {:?} is served any more", self.prefix);
        call.output.write(&line, &answer)
    }
}

#[derive(Args)]
pub(crate) struct Cache {
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Subcommand)]
enum CacheCommand {
    /// Show whether requests go to the cache (attached), to the store (detached), or on the way
    /// from one to the other.
    Show,
    /// Take the cache out of the path of requests: everything is stored, then requests go to the
    /// store.
    ///
    /// Requests go on meanwhile, and none fails for it. If --timeout passes before, the exit code
    /// is not 0, and it goes on in the background: while the store is away, the cache answers as
    /// before. `cache attach` undoes it at any time. It holds until the server restarts; a server
    /// with objects.attached = false starts detached.
    Detach,
    /// Put the cache back into the path of requests. It begins empty, with the write modes that are
    /// set.
    Attach,
}

impl Cache {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        // A single request waits for at most 20 seconds; `timeout` applies to all requests
        // together.
        let admin = call.admin()?;
        let answer = match &self.command {
            CacheCommand::Show => admin.get("/cache.json")?,
            CacheCommand::Detach => until_done(&admin, "/cache/detach", &json!({}), call.timeout)?,
            CacheCommand::Attach => until_done(&admin, "/cache/attach", &json!({}), call.timeout)?,
        };
        let lasts = if matches!(self.command, CacheCommand::Detach) { LASTS } else { "" };
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
        "storing" => "being detached: what is dirty is stored, requests go to the cache as before",
        "transit" => "being detached: changes go to the store, reads to the cache",
        "detached" => "detached: requests go to the store",
        other => other,
    };
    let why = of["why"].as_str().map_or_else(String::new, |why| format!("; {why}"));
    format!("{state}; {} bytes cached, {} dirty{why}", of["cached_bytes"], of["dirty_bytes"])
}

#[derive(Args)]
pub(crate) struct Health {
    /// Ask whether the process makes progress; if not, only a restart helps.
    #[arg(long, conflicts_with = "started")]
    live: bool,

    /// Ask whether the start is complete.
    #[arg(long)]
    started: bool,
}

impl Health {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        let (path, yes, no) = match (self.live, self.started) {
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
        let what = format!("{}{path}", admin.url());
        Err(Failure::admin(what, Some(503), no))
    }
}

#[derive(Args)]
pub(crate) struct S3 {
    #[command(subcommand)]
    command: S3Command,
}

#[derive(Subcommand)]
enum S3Command {
    /// Drop the cached state of objects from the sidecar: the next read of each asks the endpoint.
    Invalidate {
        /// BUCKET, an object as BUCKET/KEY, or all whose keys begin with something as
        /// BUCKET/PREFIX*.
        objects: String,
    },
}

impl S3 {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        let S3Command::Invalidate { objects } = &self.command;
        let answer = call.admin()?.post("/s3/invalidate", &invalidation(objects)?)?;
        call.output.write(format!("the endpoint is asked for {objects} again"), &answer)
    }
}

/// Returns the request body for the objects that an argument names.
fn invalidation(objects: &str) -> Result<Value, Failure> {
    let (bucket, key) = objects.split_once('/').unwrap_or((objects, ""));
    if bucket.is_empty() || bucket.contains('*') {
        let right = "BUCKET, BUCKET/KEY or BUCKET/PREFIX* is right";
        return Err(Failure::usage(format!("{objects:?} names no bucket; {right}")));
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
/// The reason why the operation is not complete, and the errors of [`Admin::post`].
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
            // The rest is reserved for the response.
            body["wait_ms"] = json!(u64::try_from(left.as_millis()).unwrap_or(u64::MAX) / 2);
        }
        let answer = admin.post(path, &body)?;
        if answer["done"] == Value::Bool(true) {
            return Ok(answer);
        }
        if left.is_some_and(|left| left < Duration::from_millis(500)) {
            let text = answer["why"].as_str().unwrap_or("it is not done yet").to_owned();
            return Err(Failure::admin(format!("{}{path}", admin.url()), None, text));
        }
    }
}

#[cfg(test)]
mod cache_tests {
    use super::*;

    #[test]
    fn the_state_is_shown_in_words() {
        let of = json!({"state": "storing", "why": "the store is away", "cached_bytes": 8192, "dirty_bytes": 4096});
        let wanted = "being detached: what is dirty is stored, requests go to the cache as before; 8192 bytes cached, 4096 \
                      dirty; the store is away";
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

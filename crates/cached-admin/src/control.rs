//! The routes that every program has: probes, metrics, the document `/status.json` and the console;
//! and the routes that control the program, or show its configuration and its log.
//!
//! | route | |
//! |---|---|
//! | `POST /reload` | reads the configuration again; 422 if it is refused |
//! | `POST /drain` | requests the end in order |
//! | `GET /config.json` | the configuration in force: every key, its value, where that is from, whether it is live |
//! | `GET /log.json?after=ID` | the last lines of the log, those after a line |

use std::sync::Arc;

use cached_metrics::{Collect, Families, Registration, Registry, render};
use cached_process::Drain;
use cached_process::log::{self, Log, Record};
use cached_process::reload::{Change, Effective, Origin, ReloadReport, Reloader};
use serde_json::{Value, json};

use crate::health::Health;
use crate::listener::Counts;
use crate::process;
use crate::routes::{Access, Request, Response, Routes, blocking, shortened};
use crate::status::Status;

/// Metrics of the listener itself.
struct Own {
    counts: Arc<Counts>,
    program: &'static str,
    version: &'static str,
    health: Health,
}

impl Collect for Own {
    fn collect(&self, into: &mut Families) {
        let labels = vec![("program", self.program).into(), ("version", self.version).into()];
        let help = "The program and its version; the value is always 1.";
        into.sample("cached_build_info", help, labels, cached_metrics::Value::Gauge(1.0));
        let is_ready = self.health.not_ready().is_empty();
        into.measure("cached_ready", "1 if /readyz responds with 200, else 0.", &is_ready);
        process::collect(into);
        self.counts.collect(into);
    }
}

/// Registers the metrics of the listener itself.
pub(crate) fn register(
    registry: &Registry,
    counts: &Arc<Counts>,
    program: &'static str,
    version: &'static str,
    health: &Health,
) -> Registration {
    let own = Own { counts: Arc::clone(counts), program, version, health: health.clone() };
    registry.register(Arc::new(own), std::iter::empty::<(&str, &str)>())
}

/// Adds the routes.
pub(crate) fn add_common_routes(routes: &Routes, registry: &Registry, health: &Health, status: &Status) {
    let registry = registry.clone();
    routes.get_now("/metrics", Access::Read, move |request| {
        metrics(&registry, request.header("accept").unwrap_or_default())
    });
    let state = health.clone();
    routes.get_now("/livez", Access::Public, move |_| probe(&state.not_live()));
    let state = health.clone();
    routes.get_now("/readyz", Access::Public, move |_| {
        let response = probe(&state.not_ready());
        let notes = state.notes();
        match response.status == 200 && !notes.is_empty() {
            true => Response::text(format!("ok\n{}\n", notes.join("\n"))),
            false => response,
        }
    });
    let state = health.clone();
    routes.get_now("/startupz", Access::Public, move |_| probe(state.not_started().as_slice()));
    let status = status.clone();
    routes.get_now("/status.json", Access::Read, move |_| Response::json(&status.document()));
}

/// Returns 200, or 503 with one line for each reason.
fn probe(reasons: &[String]) -> Response {
    match reasons {
        [] => Response::text("ok\n"),
        reasons => Response::failure(503, reasons.join("\n")),
    }
}

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns all metrics in the format that the client prefers.
fn metrics(registry: &Registry, accept: &str) -> Response {
    let gathered = registry.gather();
    for error in &gathered.errors {
        tracing::debug!(cause = %error, "a metric was omitted");
    }
    if prefers_openmetrics(accept) {
        Response::new(200, OPENMETRICS, render::openmetrics(&gathered.families))
    } else {
        Response::new(200, PROMETHEUS, render::prometheus(&gathered.families))
    }
}

/// Returns whether OpenMetrics is accepted, and preferred at least as much as plain text.
fn prefers_openmetrics(accept: &str) -> bool {
    let quality = |wanted: &str| {
        let of = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next()?;
            if !name.eq_ignore_ascii_case(wanted) {
                return None;
            }
            let weight = parts.find_map(|part| part.strip_prefix("q="));
            Some(weight.map_or(1.0, |weight| weight.parse::<f64>().unwrap_or(0.0)))
        };
        accept.split(',').filter_map(of).fold(0.0, f64::max)
    };
    let open = quality("application/openmetrics-text");
    open > 0.0 && open >= quality("text/plain")
}

/// The content security policy: the page may load only its own files and send requests only to its
/// own origin, and may not evaluate strings as scripts or HTML.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// The path, the media type and the content of each file.
const FILES: [(&str, &str, &str); 14] = [
    ("/", HTML, include_str!("console/index.html")),
    ("/console/console.css", CSS, include_str!("console/console.css")),
    ("/console/icon.svg", IMAGE, include_str!("console/icon.svg")),
    ("/console/main.js", SCRIPT, include_str!("console/main.js")),
    ("/console/feed.js", SCRIPT, include_str!("console/feed.js")),
    ("/console/actions.js", SCRIPT, include_str!("console/actions.js")),
    ("/console/model.js", SCRIPT, include_str!("console/model.js")),
    ("/console/panels.js", SCRIPT, include_str!("console/panels.js")),
    ("/console/parts.js", SCRIPT, include_str!("console/parts.js")),
    ("/console/ring.js", SCRIPT, include_str!("console/ring.js")),
    ("/console/volumes.js", SCRIPT, include_str!("console/volumes.js")),
    ("/console/chart.js", SCRIPT, include_str!("console/chart.js")),
    ("/console/dom.js", SCRIPT, include_str!("console/dom.js")),
    ("/console/format.js", SCRIPT, include_str!("console/format.js")),
];

/// Adds the page and its files.
pub(crate) fn add_console_routes(routes: &Routes) {
    for (path, kind, content) in FILES {
        routes.get_now(path, Access::Public, move |_| response(kind, content));
    }
}

fn response(kind: &'static str, content: &'static str) -> Response {
    Response::new(200, kind, content)
        .header("content-security-policy", POLICY)
        .header("x-content-type-options", "nosniff")
        .header("x-frame-options", "DENY")
        .header("referrer-policy", "no-referrer")
        .header("cross-origin-opener-policy", "same-origin")
        // Files of two versions must not be mixed after an upgrade.
        .header("cache-control", "no-store")
}

/// Adds the routes for controlling one program.
pub fn add_routes(routes: &Routes, reloader: &Arc<Reloader>, drain: &Drain, log: &Log) {
    let read_again = Arc::clone(reloader);
    let reload = move |_: &Request| match read_again.reload() {
        ReloadReport { refused: Some(why), .. } => Response::failure(422, why),
        report => {
            let (changed, restart) = (changes(&report.changed), changes(&report.restart));
            let text = report.to_string();
            Response::json(&json!({
                "changed": changed, "files": report.files, "restart": restart, "text": text,
            }))
        }
    };
    // It reads files.
    routes.post("/reload", blocking(reload));
    let drain = drain.clone();
    routes.post_now("/drain", move |request| {
        tracing::info!(peer = %request.peer, "the admin listener requests the end");
        drain.request();
        Response::json(&json!({ "draining": true }))
    });
    let shown = Arc::clone(reloader);
    let show = move |_: &Request| Response::json(&document(&shown.effective()));
    // It waits while a reload reads files.
    routes.get("/config.json", Access::Read, blocking(show));
    let log = log.clone();
    routes.get_now("/log.json", Access::Read, move |request| {
        match request.query("after").map(|after| after.parse()).transpose() {
            Ok(after) => {
                let lines = log.tail(after);
                let next = lines.last().map(|line| line.id + 1);
                let has_token = request.has_token;
                let lines: Vec<Value> = lines.into_iter().map(|record| line(record, has_token)).collect();
                Response::json(&json!({ "next": next, "lines": lines }))
            }
            Err(_) => Response::failure(400, "after must be the ID of a line"),
        }
    });
}

/// Returns changes with their values in TOML; `null` for an absent value.
fn changes(changes: &[Change]) -> Vec<Value> {
    let text = |value: &Option<_>| value.as_ref().map(ToString::to_string);
    let one = |change: &Change| json!({ "key": change.key, "before": text(&change.before), "after": text(&change.after) });
    changes.iter().map(one).collect()
}

/// Returns the configuration in force, with values in TOML.
fn document(effective: &Effective) -> Value {
    let entries: Vec<Value> = effective
        .keys
        .iter()
        .map(|one| {
            json!({
                "key": one.key,
                "value": one.value.to_string(),
                "origin": one.origin,
                "changed": one.origin != Origin::Default,
                "live": one.is_live,
            })
        })
        .collect();
    json!({ "file": effective.file, "entries": entries })
}

/// The fields of events that contain names of clients: of objects, and of items.
const NAMES: [&str; 3] = ["object", "key", "prefix"];

/// Returns a line of the log, whose message is followed by the fields of the event. Names of
/// objects and items are data of clients, and are shown completely only with a token.
fn line(mut record: Record, has_token: bool) -> Value {
    for (key, value) in record.fields.iter_mut().filter(|_| !has_token) {
        if let log::Value::Text(name) = value
            && NAMES.contains(key)
            && !name.is_empty()
        {
            *name = shortened(name);
        }
    }
    json!({
        "id": record.id,
        "unix_ms": record.unix_ms,
        "level": record.level,
        "target": record.target,
        "message": record.text(),
    })
}

#[cfg(test)]
mod builtin_tests {
    use super::*;

    #[test]
    fn the_format_follows_the_accept_header() {
        // Prometheus 2.42 sends this header.
        assert!(prefers_openmetrics(
            "application/openmetrics-text;version=1.0.0;q=0.75,application/openmetrics-text;version=0.0.1;q=0.5,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
        ));
        assert!(prefers_openmetrics("application/openmetrics-text"));
        assert!(!prefers_openmetrics("text/plain, application/openmetrics-text; q=0.5"));
        assert!(!prefers_openmetrics("application/openmetrics-text; q=0"));
        assert!(!prefers_openmetrics("*/*"));
        assert!(!prefers_openmetrics(""));
    }

    #[test]
    fn a_probe_has_a_line_for_each_reason() {
        let failing = probe(&["a".into(), "b".into()]);
        assert_eq!((failing.status.as_u16(), &failing.body[..]), (503, &b"a\nb\n"[..]));
        assert_eq!(probe(&[]).status.as_u16(), 200);
    }
}

#[cfg(test)]
mod console_tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_refers_to_its_own_files_only() {
        let bytes: usize = FILES.iter().map(|(_, _, content)| content.len()).sum();
        assert!(bytes <= 80 << 10, "{bytes} bytes");
        for (path, _, content) in FILES {
            let foreign = content.replace("http://www.w3.org/2000/svg", "");
            assert!(!foreign.contains("://") && !foreign.contains("url("), "{path} refers to something else");
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                " style=",
                "new Function",
            ] {
                assert!(!content.contains(word), "{path} has {word}");
            }
            for quote in ["from \"./", "src=\"", "href=\"console/"] {
                for (at, _) in content.match_indices(quote) {
                    let name = content[at + quote.len()..].split('"').next().unwrap_or_default();
                    let name = name.trim_start_matches("console/");
                    let is_known = FILES.iter().any(|(path, _, _)| path.ends_with(&format!("/{name}")));
                    assert!(is_known, "{path} refers to {name}");
                }
            }
        }
    }

    #[test]
    fn every_file_forbids_foreign_content() {
        let response = response(SCRIPT, "");
        let policy = response.headers.get("content-security-policy").and_then(|value| value.to_str().ok());
        assert!(
            policy
                .is_some_and(|policy| policy.starts_with("default-src 'self'") && !policy.contains("unsafe"))
        );
        assert_eq!(
            response.headers.get("x-content-type-options").map(|value| value.as_bytes()),
            Some(&b"nosniff"[..])
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_objects_are_shown_whole_to_holders_of_the_token_alone() {
        let record = |field| Record {
            id: 1,
            time: String::new(),
            unix_ms: 2,
            level: log::Level::Warn,
            target: "here",
            message: "lost".into(),
            fields: vec![
                (field, log::Value::Text("vm/disk-of-a-client".into())),
                ("cause", log::Value::Text("the store".into())),
            ],
            repeated: 0,
        };
        let shown = |field, has_token| line(record(field), has_token)["message"].as_str().unwrap().to_owned();
        for field in ["object", "key", "prefix"] {
            let with = |name: &str| format!("lost {field}={name} cause=\"the store\"");
            assert_eq!(shown(field, true), with("vm/disk-of-a-client"));
            assert_eq!(shown(field, false), with("vm/disk-…"));
        }
    }
}

//! The routes that change a running program, and those that show its configuration and its log.
//!
//! | route | |
//! |---|---|
//! | `POST /reload` | reads the configuration again; 422 if it is refused |
//! | `POST /drain` | requests the end in order |
//! | `GET /config.json` | the configuration in force: every key, its value, where that is from, whether it is live |
//! | `GET /log.json?after=ID` | the last lines of the log, those after a line |

use std::sync::Arc;

use cached_process::drain::Drain;
use cached_process::log::{self, Log, Record};
use cached_process::reload::{Change, Effective, Origin, ReloadReport, Reloader};
use serde_json::{Value, json};

use crate::insight::documents::shortened;
use crate::routes::{Access, Response, Routes};

/// Adds the routes of one program.
pub fn add_routes(routes: &Routes, reloader: &Arc<Reloader>, drain: &Drain, log: &Log) {
    let read_again = Arc::clone(reloader);
    routes.post("/reload", move |_| {
        let reloader = Arc::clone(&read_again);
        async move {
            // Reading files may block.
            match tokio::task::spawn_blocking(move || reloader.reload()).await {
                Ok(ReloadReport { refused: Some(why), .. }) => Response::failure(422, why),
                Ok(report) => {
                    let (changed, restart) = (changes(&report.changed), changes(&report.restart));
                    let text = report.to_string();
                    Response::json(&json!({
                        "changed": changed, "files": report.files, "restart": restart, "text": text,
                    }))
                }
                Err(error) => {
                    Response::failure(500, format_args!("reading the configuration failed: {error}"))
                }
            }
        }
    });
    let drain = drain.clone();
    routes.post_now("/drain", move |request| {
        tracing::info!(peer = %request.peer(), "the admin listener requests the end");
        drain.request();
        Response::json(&json!({ "draining": true }))
    });
    let shown = Arc::clone(reloader);
    routes.get("/config.json", Access::Read, move |_| {
        let reloader = Arc::clone(&shown);
        async move {
            // A reload that reads files keeps it waiting.
            match tokio::task::spawn_blocking(move || document(&reloader.effective())).await {
                Ok(document) => Response::json(&document),
                Err(error) => {
                    Response::failure(500, format_args!("showing the configuration failed: {error}"))
                }
            }
        }
    });
    let log = log.clone();
    routes.get_now("/log.json", Access::Read, move |request| {
        match request.query("after").map(|after| after.parse()).transpose() {
            Ok(after) => {
                let lines = log.tail(after);
                let next = lines.last().map(|line| line.id + 1);
                let has_token = request.has_token();
                let lines: Vec<Value> = lines.into_iter().map(|record| line(record, has_token)).collect();
                Response::json(&json!({ "next": next, "lines": lines }))
            }
            Err(_) => Response::failure(400, "after must be the number of a line"),
        }
    });
}

/// Returns changes with their values in TOML; `null` where there is none.
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

/// Returns a line of the log; its message has the event's fields behind it. Names of objects are clients' data, and
/// shown whole with a token only.
fn line(mut record: Record, has_token: bool) -> Value {
    for (key, value) in record.fields.iter_mut().filter(|_| !has_token) {
        if let ("object", log::Value::Text(name)) = (*key, value) {
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
mod tests {
    use super::*;

    #[test]
    fn names_of_objects_are_shown_whole_to_holders_of_the_token_alone() {
        let record = Record {
            id: 1,
            time: String::new(),
            unix_ms: 2,
            level: log::Level::Warn,
            target: "here",
            message: "lost".into(),
            fields: vec![
                ("object", log::Value::Text("vm/disk-of-a-client".into())),
                ("cause", log::Value::Text("the store".into())),
            ],
            repeated: 0,
        };
        let shown = |has_token| line(record.clone(), has_token)["message"].as_str().unwrap().to_owned();
        assert_eq!(shown(true), "lost object=vm/disk-of-a-client cause=\"the store\"");
        assert_eq!(shown(false), "lost object=vm/disk-… cause=\"the store\"");
    }
}

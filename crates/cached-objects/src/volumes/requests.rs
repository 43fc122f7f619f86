//! The requests of the routes: each is a JSON body that states what to change. Also the JSON
//! descriptions of volumes.

use super::Managed;
use super::routes::{Failure, Outcome, Progress};
use blocker::WriteMode;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, IntoDeserializer, MapAccess};
use serde_json::de::SliceRead;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use volumes::{
    Change, DamagedVolume, Error, OpenOptions, ProblemKind, Report, Settings, SnapshotInfo, Usage, VolumeInfo,
};

/// The maximum number of extents in one response.
const EXTENTS_MAX: usize = 10_000;

/// The routes that change volumes: for each, the last part of its path, which is also the name of
/// its [`VolumeRequest`], and an example of the body.
pub(super) const CHANGES: [(&str, &str); 14] = [
    ("create", r#"{"name": "NAME", "size_bytes": 1073741824}"#),
    ("clone", r#"{"source": "NAME", "snapshot": "SNAPSHOT", "name": "NEW"}"#),
    ("resize", r#"{"name": "NAME", "size_bytes": 2147483648}"#),
    ("set", r#"{"name": "NAME", "settings": {"write": "back"}}"#),
    ("delete", r#"{"name": "NAME", "damaged": false}"#),
    ("flush", r#"{"name": "NAME"}"#),
    ("detach", r#"{"name": "NAME"}"#),
    ("hand-over", r#"{"name": "NAME", "to": "OWNER"}"#),
    ("take-over", r#"{"name": "NAME"}"#),
    ("flatten", r#"{"name": "NAME"}"#),
    ("snapshot", r#"{"volumes": ["NAME"], "snapshot": "SNAPSHOT"}"#),
    ("delete-snapshot", r#"{"name": "NAME", "snapshot": "SNAPSHOT"}"#),
    ("rollback", r#"{"name": "NAME", "snapshot": "SNAPSHOT"}"#),
    ("check", r#"{"repair": false}"#),
];

/// A request for a change.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum VolumeRequest {
    Create {
        name: String,
        size_bytes: u64,
        #[serde(default)]
        settings: Map<String, Value>,
    },
    Clone {
        source: String,
        snapshot: Option<String>,
        name: String,
    },
    Resize {
        name: String,
        size_bytes: u64,
        #[serde(default)]
        shrink: bool,
    },
    Set {
        name: String,
        settings: Map<String, Value>,
    },
    Delete {
        name: String,
        #[serde(default)]
        damaged: bool,
    },
    Flush {
        name: String,
    },
    Detach {
        name: String,
    },
    HandOver {
        name: String,
        to: String,
    },
    TakeOver {
        name: String,
    },
    Flatten {
        name: String,
    },
    Snapshot {
        volumes: Vec<String>,
        snapshot: String,
    },
    DeleteSnapshot {
        name: String,
        snapshot: String,
    },
    Rollback {
        name: String,
        snapshot: String,
    },
    Check {
        #[serde(default)]
        repair: bool,
    },
}

impl VolumeRequest {
    /// Parses the body of a request to the route whose path ends with `name`.
    pub(super) fn parse(name: &str, body: &[u8]) -> Result<VolumeRequest, serde_json::Error> {
        let mut body = serde_json::Deserializer::from_slice(body);
        let tagged = Tagged { name: Some(name), body: &mut body };
        let request = VolumeRequest::deserialize(MapAccessDeserializer::new(tagged))?;
        body.end()?;
        Ok(request)
    }

    /// Executes the request.
    pub(super) async fn run(self, managed: Arc<Managed>, progress: Arc<Progress>) -> Outcome {
        let (volumes, exports) = (&managed.volumes, &managed.served.volumes);
        match self {
            VolumeRequest::Create { name, size_bytes, settings } => {
                let settings = changed(Settings::default(), &settings)?;
                volumes.create(&name, size_bytes, settings).await?;
            }
            VolumeRequest::Clone { source, snapshot, name } => {
                volumes.clone_volume(&source, snapshot.as_deref(), &name).await?;
            }
            VolumeRequest::Resize { name, size_bytes, shrink } => {
                resize(&managed, &name, size_bytes, shrink).await?;
            }
            VolumeRequest::Set { name, settings } => {
                let change = |before| changed(before, &settings).map_err(|wrong| Error::Invalid(wrong.line));
                // A mistake is reported as such, even if the volume is in use.
                changed(Settings::default(), &settings)?;
                exports.while_unused(&name, volumes.set_with(&name, change)).await?;
            }
            VolumeRequest::Delete { name, damaged } => {
                exports.while_unused(&name, delete(&managed, &name, damaged)).await?;
                managed.served.counts.forget(&name);
            }
            VolumeRequest::Flush { name } => exports.store(&name).await?,
            VolumeRequest::Detach { name } => {
                // Running the operation detaches the volume; the operation checks that it exists.
                exports.while_unused(&name, volumes.info(&name)).await?;
            }
            VolumeRequest::HandOver { name, to } => exports.hand_over(&name, &to).await?,
            VolumeRequest::TakeOver { name } => {
                let taken = async {
                    let volume = volumes.open(&name, OpenOptions { take_over: true }).await?;
                    // The next connection attaches the volume.
                    volume.close().await
                };
                exports.while_unused(&name, taken).await?;
            }
            VolumeRequest::Flatten { name } => {
                volumes.flatten_with(&name, &|done, total| progress.set(done, total)).await?;
            }
            VolumeRequest::Snapshot { volumes: names, snapshot } => {
                if names.is_empty() {
                    return Err(Failure::new(400, "volumes: is empty; name at least one volume"));
                }
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                volumes.snapshot_together(&names, &snapshot).await?;
            }
            VolumeRequest::DeleteSnapshot { name, snapshot } => {
                volumes.delete_snapshot(&name, &snapshot).await?;
            }
            VolumeRequest::Rollback { name, snapshot } => {
                exports.while_unused(&name, volumes.rollback(&name, &snapshot)).await?;
            }
            VolumeRequest::Check { repair } => return Ok(report_json(&volumes.check(repair).await?)),
        }
        Ok(json!({ "done": true }))
    }
}

/// A map with one entry, the form in which serde reads an enum: the name of the variant, and its
/// fields. The fields are read from the text itself, not from a [`Value`], which would keep the last
/// of two equal keys instead of refusing them, and would not know the place of an error.
struct Tagged<'a, 'de> {
    name: Option<&'a str>,
    body: &'a mut serde_json::Deserializer<SliceRead<'de>>,
}

impl<'de> MapAccess<'de> for Tagged<'_, 'de> {
    type Error = serde_json::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> serde_json::Result<Option<K::Value>> {
        self.name.take().map(|name| seed.deserialize(name.into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> serde_json::Result<V::Value> {
        seed.deserialize(&mut *self.body)
    }
}

async fn resize(managed: &Managed, name: &str, size_bytes: u64, shrink: bool) -> Result<(), Failure> {
    let volumes = &managed.volumes;
    let now = volumes.info(name).await?.size_bytes;
    // The volume may have grown since `now` was read.
    if size_bytes >= now && volumes.grow(name, size_bytes).await? {
        return Ok(());
    }
    if !shrink {
        let now = volumes.info(name).await?.size_bytes;
        let line = format!(
            "the volume has {now} bytes; shrinking it drops the data beyond its new end: add \"shrink\": true"
        );
        return Err(Failure::new(409, line));
    }
    Ok(managed.served.volumes.while_unused(name, volumes.resize(name, size_bytes)).await?)
}

async fn delete(managed: &Managed, name: &str, is_damaged: bool) -> Result<(), Error> {
    if is_damaged {
        return managed.volumes.delete_damaged(name).await;
    }
    managed.volumes.delete(name).await.map_err(|error| match error {
        Error::Damaged(why) => Error::Damaged(format!("{why}; set `damaged` to delete the volume anyway")),
        error => error,
    })
}

/// Returns the settings with the values that a request gives; `null` removes a value.
fn changed(mut settings: Settings, values: &Map<String, Value>) -> Result<Settings, Failure> {
    let wrong = |key: &str, what: &str| Failure::new(400, format!("settings.{key}: must be {what}"));
    for (key, value) in values {
        let number = || match value {
            Value::Null => Ok(None),
            value => value.as_u64().map(Some).ok_or_else(|| wrong(key, "a number, or null")),
        };
        match key.as_str() {
            "is_read_only" => {
                settings.is_read_only = value.as_bool().ok_or_else(|| wrong(key, "true or false"))?;
            }
            "write" => {
                // A volume becomes read-only by `is_read_only`, not by its write mode.
                let mode = |text: &str| text.parse().ok().filter(|mode| *mode != WriteMode::ReadOnly);
                settings.write = match value {
                    Value::Null => None,
                    value => Some(value.as_str().and_then(mode).ok_or_else(|| {
                        wrong(key, "\"through\", \"around\", \"back\" or null; see also is_read_only")
                    })?),
                };
            }
            "quota_bytes_max" => settings.quota_bytes_max = number()?,
            "store_requests_per_second_max" => {
                settings.rates.store_requests_per_second_max = number()?;
            }
            "store_bytes_per_second_max" => settings.rates.store_bytes_per_second_max = number()?,
            "store_burst_ms" => settings.rates.store_burst_ms = number()?,
            "object_bytes" => settings.object_bytes = number()?,
            _ => {
                let line = format!(
                    "settings.{key}: is unknown; there are is_read_only, write, quota_bytes_max, \
                     store_requests_per_second_max, store_bytes_per_second_max, store_burst_ms and object_bytes"
                );
                return Err(Failure::new(400, line));
            }
        }
    }
    Ok(settings)
}

/// Lists at most `volumes_max` volumes, those with connections first. The usage is given of those
/// with connections: their maps are in memory.
pub(super) async fn list(managed: Arc<Managed>, volumes_max: usize) -> Outcome {
    let connections = |name: &str| managed.served.counts.connections(name);
    let all = managed.volumes.list_some(volumes_max, |name| connections(name) > 0).await?;
    let mut volumes: Vec<Value> = all.volumes.iter().map(|info| volume_json(&managed, info)).collect();
    for (info, value) in all.volumes.iter().zip(&mut volumes) {
        // A volume that was deleted or fenced off meanwhile has no usage.
        if connections(&info.name) > 0
            && let Ok(usage) = managed.volumes.usage(&info.name).await
        {
            value["usage"] = usage_json(&usage);
        }
    }
    let damaged: Vec<Value> = all.damaged.iter().map(damaged_json).collect();
    Ok(json!({ "volumes": volumes, "damaged": damaged, "volumes_other": all.others }))
}

/// Shows one volume.
pub(super) async fn show(managed: Arc<Managed>, name: String) -> Outcome {
    let info = managed.volumes.info(&name).await?;
    let snapshots = managed.volumes.snapshots(&name).await?;
    let usage = usage_json(&managed.volumes.usage(&name).await?);
    let mut value = volume_json(&managed, &info);
    value["snapshots"] = snapshots.iter().map(snapshot_json).collect();
    value["usage"] = usage;
    Ok(value)
}

/// Returns the differences between two snapshots, starting at `offset`.
pub(super) async fn diff(
    managed: Arc<Managed>,
    name: String,
    from: Option<String>,
    to: Option<String>,
    offset: u64,
) -> Outcome {
    let changes = managed.volumes.diff(&name, from.as_deref(), to.as_deref()).await?;
    let mut later = changes.iter().filter(|change| change.offset + change.length > offset);
    let extents: Vec<Value> = later.by_ref().take(EXTENTS_MAX).map(extent_json).collect();
    Ok(json!({ "extents": extents, "more": later.next().is_some() }))
}

/// Returns the description of a volume.
fn volume_json(managed: &Managed, info: &VolumeInfo) -> Value {
    let origin = info.origin.as_ref();
    json!({
        "name": info.name,
        "size_bytes": info.size_bytes,
        "object_bytes": info.object_bytes,
        "attached": info.owner.is_some(),
        "owner": info.owner,
        "connections": managed.served.counts.connections(&info.name),
        "exported": managed.has_listener && managed.served.allows(&info.name),
        "snapshot_count": info.snapshots,
        "settings": settings_json(&info.settings),
        "usage": null,
        "origin": origin.map(|origin| json!({ "volume": origin.volume, "snapshot": origin.snapshot })),
    })
}

/// Returns the description of a volume that cannot be read.
fn damaged_json(of: &DamagedVolume) -> Value {
    json!({ "name": of.name, "error": of.why })
}

fn settings_json(of: &Settings) -> Value {
    json!({
        "is_read_only": of.is_read_only,
        "write": of.write.map(|mode| mode.to_string()),
        "quota_bytes_max": of.quota_bytes_max,
        "store_requests_per_second_max": of.rates.store_requests_per_second_max,
        "store_bytes_per_second_max": of.rates.store_bytes_per_second_max,
        "store_burst_ms": of.rates.store_burst_ms,
        "object_bytes": of.object_bytes,
    })
}

fn snapshot_json(of: &SnapshotInfo) -> Value {
    json!({
        "name": of.name,
        "size_bytes": of.size_bytes,
        "created_unix_secs": of.made_unix_seconds,
        "parent": of.parent,
    })
}

fn usage_json(of: &Usage) -> Value {
    json!({
        "size_bytes": of.size_bytes,
        "referenced_bytes": of.referenced_bytes,
        "exclusive_bytes": of.exclusive_bytes,
    })
}

fn extent_json(of: &Change) -> Value {
    json!({ "offset": of.offset, "bytes": of.length, "kind": if of.is_data { "data" } else { "zero" } })
}

fn report_json(of: &Report) -> Value {
    let problems = of.problems.iter().map(|problem| {
        let kind = match problem.kind {
            ProblemKind::Missing => "missing",
            ProblemKind::Damaged => "damaged",
            ProblemKind::Shared => "shared",
            ProblemKind::Leftover => "leftover",
            _ => "other",
        };
        json!({ "kind": kind, "what": problem.what })
    });
    json!({
        "volumes": of.volumes,
        "objects": of.objects,
        "problems": problems.collect::<Vec<_>>(),
        "unlisted": of.unlisted,
        "repaired": of.repaired,
        "births_met": of.births_met,
        "skipped": of.skipped,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_read_strictly_and_an_error_states_its_place() {
        for (name, form) in CHANGES {
            VolumeRequest::parse(name, form.as_bytes()).expect(name);
        }
        for (body, why) in [
            (r#"{"name": "a", "name": "b"}"#, "duplicate field `name` at line 1 column "),
            (r#"{"name": "a", "other": 1}"#, "unknown field `other`"),
            (r#"{"name": 1}"#, "expected a string at line 1 column "),
            ("{}", "missing field `name`"),
            (r#"{"name": "a"} {}"#, "trailing characters"),
            ("", "EOF while parsing a value"),
        ] {
            let error = VolumeRequest::parse("detach", body.as_bytes()).expect_err(body).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn settings_keep_what_a_request_does_not_name() {
        let before = Settings { is_read_only: true, quota_bytes_max: Some(7), ..Settings::default() };
        let values = |value: Value| value.as_object().expect("an object").clone();
        let after =
            changed(before, &values(json!({ "write": "back", "quota_bytes_max": null }))).expect("right");
        assert_eq!(
            after,
            Settings { is_read_only: true, write: Some(WriteMode::Back), ..Settings::default() }
        );
        for (wrong, key) in [
            (json!({ "colour": 1 }), "settings.colour: is unknown"),
            (json!({ "write": "sideways" }), "settings.write: must be"),
            (json!({ "write": "read-only" }), "settings.write: must be"),
            (json!({ "is_read_only": 1 }), "settings.is_read_only: must be"),
            (json!({ "object_bytes": -1 }), "settings.object_bytes: must be"),
        ] {
            let failure = changed(before, &values(wrong)).expect_err(key);
            assert_eq!(failure.status, 400);
            assert!(failure.line.starts_with(key), "{}", failure.line);
        }
    }
}

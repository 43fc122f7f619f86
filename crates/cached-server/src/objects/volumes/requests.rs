//! The requests of the routes: each is a JSON body that states what to change. Also the JSON
//! descriptions of volumes.

use super::Managed;
use super::routes::{Failure, Outcome, Progress};
use blocker::WriteMode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use volumes::{
    Change, DamagedVolume, Error, OpenOptions, ProblemKind, Report, Settings, SnapshotInfo, Usage, VolumeInfo,
};

/// The maximum number of extents in one response.
const EXTENTS_MAX: usize = 10_000;

/// The body of a request for a change.
pub(super) trait Body: for<'de> Deserialize<'de> + std::fmt::Debug + Send + 'static {
    /// An example of the body.
    const FORM: &'static str;

    /// Executes the request.
    fn run(self, managed: Arc<Managed>, progress: Arc<Progress>) -> impl Future<Output = Outcome> + Send;
}

/// Returns the response to a request that has no result.
fn done() -> Value {
    json!({ "done": true })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Create {
    name: String,
    size_bytes: u64,
    #[serde(default)]
    settings: Map<String, Value>,
}

impl Body for Create {
    const FORM: &'static str = r#"{"name": "NAME", "size_bytes": 1073741824}"#;

    async fn run(self, managed: Arc<Managed>, _progress: Arc<Progress>) -> Outcome {
        let settings = changed(Settings::default(), &self.settings)?;
        managed.volumes.create(&self.name, self.size_bytes, settings).await?;
        Ok(done())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MakeClone {
    source: String,
    snapshot: Option<String>,
    name: String,
}

impl Body for MakeClone {
    const FORM: &'static str = r#"{"source": "NAME", "snapshot": "SNAPSHOT", "name": "NEW"}"#;

    async fn run(self, managed: Arc<Managed>, _progress: Arc<Progress>) -> Outcome {
        managed.volumes.clone_volume(&self.source, self.snapshot.as_deref(), &self.name).await?;
        Ok(done())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Resize {
    name: String,
    size_bytes: u64,
    #[serde(default)]
    shrink: bool,
}

impl Body for Resize {
    const FORM: &'static str = r#"{"name": "NAME", "size_bytes": 2147483648}"#;

    async fn run(self, managed: Arc<Managed>, _progress: Arc<Progress>) -> Outcome {
        let Resize { name, size_bytes, shrink } = self;
        let now = managed.volumes.info(&name).await?.size_bytes;
        // The volume may have grown since `now` was read.
        if size_bytes >= now && managed.volumes.grow(&name, size_bytes).await? {
            return Ok(done());
        }
        if !shrink {
            let now = managed.volumes.info(&name).await?.size_bytes;
            let line = format!(
                "the volume has {now} bytes: shrinking it drops what lies beyond its new end; add \"shrink\": true"
            );
            return Err(Failure::new(409, line));
        }
        let resized = managed.volumes.resize(&name, size_bytes);
        managed.served.volumes.while_unused(&name, resized).await?;
        Ok(done())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Set {
    name: String,
    settings: Map<String, Value>,
}

impl Body for Set {
    const FORM: &'static str = r#"{"name": "NAME", "settings": {"write": "back"}}"#;

    async fn run(self, managed: Arc<Managed>, _progress: Arc<Progress>) -> Outcome {
        let Set { name, settings } = self;
        let before = managed.volumes.info(&name).await?.settings;
        let after = changed(before, &settings)?;
        let set = managed.volumes.set(&name, after);
        managed.served.volumes.while_unused(&name, set).await?;
        Ok(done())
    }
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MakeSnapshot {
    volumes: Vec<String>,
    snapshot: String,
}

impl Body for MakeSnapshot {
    const FORM: &'static str = r#"{"volumes": ["NAME"], "snapshot": "SNAPSHOT"}"#;

    async fn run(self, managed: Arc<Managed>, _progress: Arc<Progress>) -> Outcome {
        if self.volumes.is_empty() {
            return Err(Failure::new(400, "volumes: is empty; name one at least"));
        }
        let names: Vec<&str> = self.volumes.iter().map(String::as_str).collect();
        managed.volumes.snapshot_together(&names, &self.snapshot).await?;
        Ok(done())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteSnapshot {
    name: String,
    snapshot: String,
}

impl Body for DeleteSnapshot {
    const FORM: &'static str = r#"{"name": "NAME", "snapshot": "SNAPSHOT"}"#;

    async fn run(self, managed: Arc<Managed>, _progress: Arc<Progress>) -> Outcome {
        managed.volumes.delete_snapshot(&self.name, &self.snapshot).await?;
        Ok(done())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rollback {
    name: String,
    snapshot: String,
}

impl Body for Rollback {
    const FORM: &'static str = r#"{"name": "NAME", "snapshot": "SNAPSHOT"}"#;

    async fn run(self, managed: Arc<Managed>, _progress: Arc<Progress>) -> Outcome {
        let rolled_back = managed.volumes.rollback(&self.name, &self.snapshot);
        managed.served.volumes.while_unused(&self.name, rolled_back).await?;
        Ok(done())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Delete {
    name: String,
    #[serde(default)]
    damaged: bool,
}

impl Body for Delete {
    const FORM: &'static str = r#"{"name": "NAME", "damaged": false}"#;

    async fn run(self, managed: Arc<Managed>, _progress: Arc<Progress>) -> Outcome {
        let volumes = &managed.volumes;
        let deleted = async {
            match self.damaged {
                true => volumes.delete_damaged(&self.name).await,
                false => match volumes.delete(&self.name).await {
                    Err(Error::Damaged(why)) => {
                        Err(Error::Damaged(format!("{why}; with `damaged` it is deleted all the same")))
                    }
                    deleted => deleted,
                },
            }
        };
        managed.served.volumes.while_unused(&self.name, deleted).await?;
        managed.served.counts.forget(&self.name);
        Ok(done())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Detach {
    name: String,
}

impl Body for Detach {
    const FORM: &'static str = r#"{"name": "NAME"}"#;

    async fn run(self, managed: Arc<Managed>, _progress: Arc<Progress>) -> Outcome {
        let is_there = async { managed.volumes.info(&self.name).await.map(drop) };
        managed.served.volumes.while_unused(&self.name, is_there).await?;
        Ok(done())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HandOver {
    name: String,
    to: String,
}

impl Body for HandOver {
    const FORM: &'static str = r#"{"name": "NAME", "to": "OWNER"}"#;

    async fn run(self, managed: Arc<Managed>, _progress: Arc<Progress>) -> Outcome {
        managed.served.volumes.hand_over(&self.name, &self.to).await?;
        Ok(done())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TakeOver {
    name: String,
}

impl Body for TakeOver {
    const FORM: &'static str = r#"{"name": "NAME"}"#;

    async fn run(self, managed: Arc<Managed>, _progress: Arc<Progress>) -> Outcome {
        let taken = async {
            let volume = managed.volumes.open(&self.name, OpenOptions { take_over: true }).await?;
            // The next connection attaches the volume.
            volume.close().await
        };
        managed.served.volumes.while_unused(&self.name, taken).await?;
        Ok(done())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Flatten {
    name: String,
}

impl Body for Flatten {
    const FORM: &'static str = r#"{"name": "NAME"}"#;

    async fn run(self, managed: Arc<Managed>, progress: Arc<Progress>) -> Outcome {
        let progress = |done, total| progress.set(done, total);
        managed.volumes.flatten_with(&self.name, &progress).await?;
        Ok(done())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    #[serde(default)]
    repair: bool,
}

impl Body for Check {
    const FORM: &'static str = r#"{"repair": false}"#;

    async fn run(self, managed: Arc<Managed>, _progress: Arc<Progress>) -> Outcome {
        Ok(report_json(&managed.volumes.check(self.repair).await?))
    }
}

/// Lists all volumes.
pub(super) async fn list(managed: Arc<Managed>) -> Outcome {
    let all = managed.volumes.list().await?;
    let volumes: Vec<Value> = all.volumes.iter().map(|info| volume_json(&managed, info)).collect();
    let damaged: Vec<Value> = all.damaged.iter().map(damaged_json).collect();
    Ok(json!({ "volumes": volumes, "damaged": damaged }))
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

//! `volume`: disks. A running server creates and changes them through its admin listener
//! (`manage`), whose responses are shown here as text; contents are imported and exported directly
//! in the store (`import`, `export`).

mod export;
mod import;
mod manage;
mod name;

use std::time::{Duration, UNIX_EPOCH};

use clap::{Args, Subcommand};
use manage::Server;
use name::{Setting, SnapshotName, snapshot_name, volume_name};
pub(crate) use name::{Source, shown_size};
use serde_json::{Value, json};

use super::{Call, Context, size};
use crate::admin::{line_of, list, plain};
use crate::output::Failure;

#[derive(Subcommand)]
pub(crate) enum Volume {
    /// Create a volume, which reads as zeros and takes no space: volume create disk 20G.
    Create {
        #[command(flatten)]
        name: Name,
        /// The size, for example 20G.
        #[arg(value_parser = size)]
        size: u64,
        /// Settings: is_read_only=true, write=back (through, around), quota_bytes_max=40G,
        /// object_bytes=4M, and those of `volume set`.
        #[arg(value_name = "KEY=VALUE")]
        settings: Vec<Setting>,
    },
    /// List the volumes.
    List,
    /// Show one volume with its snapshots and its space usage.
    Show(Name),
    /// Create a volume from a snapshot, or from the current content of a volume. No data are copied.
    Clone {
        /// The snapshot, or the volume with its current content.
        #[arg(value_name = "VOLUME[@SNAPSHOT]")]
        source: Source,
        /// The name of the new volume.
        #[arg(value_name = "NAME", value_parser = volume_name)]
        name: String,
    },
    /// Change the size of a volume. New space reads as zeros; a smaller size requires --yes.
    ///
    /// Clients of the volume see the new size when they reconnect.
    Resize {
        #[command(flatten)]
        name: Name,
        /// The new size, for example 20G.
        #[arg(value_parser = size)]
        size: u64,
        /// Make the volume smaller: the data beyond the new end are lost.
        #[arg(long)]
        yes: bool,
    },
    /// Change the settings of a volume, which are kept with it. Refused while connections use it.
    Set {
        #[command(flatten)]
        name: Name,
        /// Settings: is_read_only=true, write=back (through, around, none), quota_bytes_max=40G
        /// (none); store_requests_per_second_max=500, store_bytes_per_second_max=50M,
        /// store_burst_ms="1 s" (none).
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<Setting>,
    },
    /// Create a snapshot of a volume, or of several volumes at one instant: volume snapshot
    /// disk@monday data log.
    Snapshot {
        /// The snapshot to create.
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        snapshot: SnapshotName,
        /// Further volumes of which a snapshot is created at the same instant.
        #[arg(value_name = "VOLUME", value_parser = volume_name)]
        more: Vec<String>,
    },
    /// Delete a snapshot. Clones of it, and other snapshots, keep their data.
    DeleteSnapshot {
        /// The snapshot to delete.
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        snapshot: SnapshotName,
        /// Confirm the deletion.
        #[arg(long)]
        yes: bool,
    },
    /// Restore a volume to one of its snapshots. Data written since are lost, unless another
    /// snapshot contains them.
    ///
    /// Refused while connections use the volume.
    Rollback {
        /// The snapshot to which the volume is restored.
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        snapshot: SnapshotName,
        /// Confirm that the data written since are dropped.
        #[arg(long)]
        yes: bool,
    },
    /// Make a clone independent of its origin by copying the data that they share. The clone may be
    /// in use during that time.
    Flatten(Name),
    /// Delete a volume with its snapshots. Refused while connections use it. Clones keep their data.
    Delete {
        #[command(flatten)]
        name: Name,
        /// Confirm the deletion, including the snapshots.
        #[arg(long)]
        yes: bool,
        /// Delete the volume even if its map is damaged, by listing its objects. No other host may
        /// have the volume attached.
        #[arg(long)]
        damaged: bool,
    },
    /// Check all volumes; with --repair, remove leftovers of interrupted operations.
    ///
    /// Exit codes: 0 in order, 1 leftovers that --repair removes, 6 data are missing or damaged.
    Check {
        /// Remove the leftovers of interrupted operations.
        #[arg(long)]
        repair: bool,
    },
    /// List the differences between a volume, or a snapshot, and an earlier snapshot: offset, bytes,
    /// and data or zero.
    Diff {
        /// The volume with its current content, or a snapshot of it.
        #[arg(value_name = "VOLUME[@SNAPSHOT]")]
        to: Source,
        /// The snapshot to compare with; without it, everything that was ever written is listed.
        #[arg(long, value_name = "SNAPSHOT", value_parser = snapshot_name)]
        from: Option<String>,
    },
    /// Store everything that clients have written to a volume. They are not interrupted.
    Flush(Name),
    /// Store all data of a volume and detach it, so that another host may attach it. Refused while
    /// connections use it.
    Detach(Name),
    /// Hand a volume over to the server of another host, named by its owner name, even while clients
    /// use the volume.
    ///
    /// All data are stored; the other server attaches the volume when the next client connects
    /// there. From then on, clients of this server get the error ESHUTDOWN, and are refused when
    /// they reconnect.
    HandOver {
        #[command(flatten)]
        name: Name,
        /// The new owner: `owner` in [volumes] of its configuration, or the name of its host.
        #[arg(value_name = "OWNER")]
        to: String,
    },
    /// Detach a volume from an owner that is gone without having detached it. That owner is fenced
    /// off.
    TakeOver {
        #[command(flatten)]
        name: Name,
        /// Confirm that the owner is gone.
        #[arg(long)]
        yes: bool,
    },
    /// Wait for a job that is still running on the server.
    Job {
        /// The number of the job, as the interrupted command has printed it.
        #[arg(value_name = "NUMBER")]
        number: u64,
    },
    /// Fill a volume with a raw image, directly in the store (--backend): a new volume unless
    /// --existing is given.
    ///
    /// Holes of a sparse file, and zeros, take no space. If the import fails or is interrupted, a
    /// new volume is removed again.
    Import(import::Import),
    /// Write a volume that is not in use, or a snapshot, as a raw image, directly from the store
    /// (--backend).
    ///
    /// A file becomes sparse, and gets its name only when it is complete.
    Export(export::Export),
    /// Apply a stream of export-diff, or of `rbd export-diff`, to a volume, directly in the store
    /// (--backend).
    ///
    /// The volume must have the content at which the stream begins: that of its snapshot of this
    /// name. A stream that begins at nothing creates the volume. At the end, the snapshot at which
    /// the stream ends is created. If the import fails or is interrupted, the volume is restored.
    ImportDiff(export::ImportDiff),
    /// Write a snapshot, or its changes since another one, as a stream in the format of `rbd
    /// export-diff`, directly from the store (--backend).
    ExportDiff(export::ExportDiff),
}

#[derive(Args)]
pub(crate) struct Name {
    /// The name of the volume.
    #[arg(value_name = "VOLUME", value_parser = volume_name)]
    name: String,
}

impl Volume {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        let server = || Server::new(call);
        match self {
            Self::Create { name: Name { name }, size, settings } => {
                let body = json!({ "name": name, "size_bytes": size, "settings": Setting::values(settings) });
                let done = format!("{name} is a volume of {}", shown_size(*size));
                server()?.change("/volumes/create", &body, done)
            }
            Self::List => server()?.list(),
            Self::Show(Name { name }) => server()?.show(name),
            Self::Clone { source, name } => {
                let body = json!({ "source": source.volume, "snapshot": source.snapshot, "name": name });
                let done = format!("{name} is a clone of {}", source.shown());
                server()?.change("/volumes/clone", &body, done)
            }
            Self::Resize { name: Name { name }, size, yes } => server()?.resize(name, *size, *yes),
            Self::Set { name: Name { name }, settings } => {
                let body = json!({ "name": name, "settings": Setting::values(settings) });
                server()?.change("/volumes/set", &body, format!("{name} is set"))
            }
            Self::Snapshot { snapshot, more } => server()?.snapshot(snapshot, more),
            Self::DeleteSnapshot { snapshot, yes } => server()?.delete_snapshot(snapshot, *yes),
            Self::Rollback { snapshot, yes } => server()?.rollback(snapshot, *yes),
            Self::Flatten(Name { name }) => {
                let done = format!("{name} depends on no other volume");
                server()?.change("/volumes/flatten", &json!({ "name": name }), done)
            }
            Self::Delete { name: Name { name }, yes, damaged } => server()?.delete(name, *yes, *damaged),
            Self::Check { repair } => server()?.check(*repair),
            Self::Diff { to, from } => server()?.diff(to, from.as_deref()),
            Self::Flush(Name { name }) => {
                let done = format!("everything written to {name} is stored");
                server()?.change("/volumes/flush", &json!({ "name": name }), done)
            }
            Self::Detach(Name { name }) => {
                let done = format!("{name} is stored and detached: another host may attach it");
                server()?.change("/volumes/detach", &json!({ "name": name }), done)
            }
            Self::HandOver { name: Name { name }, to } => {
                let done = format!("{name} is stored and handed over to {}", line_of(to));
                server()?.change("/volumes/hand-over", &json!({ "name": name, "to": to }), done)
            }
            Self::TakeOver { name: Name { name }, yes } => server()?.take_over(name, *yes),
            Self::Job { number } => server()?.job(*number),
            // Even reading a volume writes to the store: the volume's owner, or a note that a
            // snapshot is being read.
            Self::Import(import) => call.changes(|context| import.run(context)),
            Self::Export(export) => call.changes(|context| export.run(context)),
            Self::ImportDiff(import) => call.changes(|context| import.run(context)),
            Self::ExportDiff(export) => call.changes(|context| export.run(context)),
        }
    }
}

/// Returns text from a response without characters that a terminal would interpret.
fn text(value: &Value) -> String {
    plain(value.as_str().unwrap_or_default())
}

fn bytes(value: &Value) -> String {
    value.as_u64().map_or_else(|| "unknown".to_owned(), shown_size)
}

/// Returns the volumes of a list, one line each.
fn lines_of(answer: &Value) -> String {
    let all = list(answer, "volumes");
    let names: Vec<String> = all.iter().map(|of| text(&of["name"])).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let line = |(name, of): (&String, &Value)| format!("{name:<width$}  {}", summary(of));
    let damaged = list(answer, "damaged").iter();
    let damaged = damaged.map(|of| format!("{}  damaged: {}", text(&of["name"]), text(&of["error"])));
    names.iter().zip(all).map(line).chain(damaged).collect::<Vec<_>>().join("\n")
}

fn summary(of: &Value) -> String {
    let mut parts = vec![format!("{:>9}", bytes(&of["size_bytes"]))];
    parts.push(state(of));
    if of["settings"]["is_read_only"] == true {
        parts.push("read-only".into());
    }
    if of["origin"].is_object() {
        parts.push(format!("clone of {}", origin(&of["origin"])));
    }
    match of["snapshot_count"].as_u64().unwrap_or(0) {
        0 => {}
        1 => parts.push("1 snapshot".into()),
        count => parts.push(format!("{count} snapshots")),
    }
    if of["exported"] == false {
        parts.push("not exported".into());
    }
    parts.join(", ")
}

/// Returns the owner of a volume.
fn state(of: &Value) -> String {
    match (of["connections"].as_u64().unwrap_or(0), of["attached"] == true) {
        (1, _) => "1 connection".to_owned(),
        (connections @ 2.., _) => format!("{connections} connections"),
        (_, true) if of["owner"].is_string() => format!("attached by {}", text(&of["owner"])),
        (_, true) => "attached".to_owned(),
        (_, false) => "not in use".to_owned(),
    }
}

/// Returns the snapshot from which a volume was cloned; one that has been deleted since has no
/// name.
fn origin(of: &Value) -> String {
    match (of["volume"].is_string(), of["snapshot"].is_string()) {
        (true, true) => format!("{}@{}", text(&of["volume"]), text(&of["snapshot"])),
        (true, false) => text(&of["volume"]),
        (false, _) => "a volume that was deleted".to_owned(),
    }
}

/// Returns the description of one volume.
fn volume(of: &Value) -> String {
    let mut lines = vec![text(&of["name"])];
    let mut add = |key: &str, value: String| lines.push(format!("  {key:<16} {value}"));
    add("size", format!("{} ({} bytes)", bytes(&of["size_bytes"]), of["size_bytes"]));
    add("objects of", bytes(&of["object_bytes"]));
    add("state", state(of));
    add("exported", if of["exported"] == true { "yes" } else { "no" }.to_owned());
    if of["origin"].is_object() {
        add("clone of", origin(&of["origin"]));
    }
    for (key, label) in [("referenced_bytes", "data"), ("exclusive_bytes", "since snapshot")] {
        if let Some(found) = of["usage"][key].as_u64() {
            add(label, shown_size(found));
        }
    }
    // These are the settings that are set.
    for (key, value) in of["settings"].as_object().into_iter().flatten() {
        match value {
            Value::Null | Value::Bool(false) => {}
            _ if key == "object_bytes" => {}
            Value::String(_) => add(key, text(value)),
            other => add(key, other.to_string()),
        }
    }
    for snapshot in list(of, "snapshots") {
        let made = snapshot["created_unix_secs"].as_u64().map_or_else(String::new, date);
        add("snapshot", format!("{}  {}  {made}", text(&snapshot["name"]), bytes(&snapshot["size_bytes"])));
    }
    lines.join("\n")
}

/// Returns the ranges of a difference, one per line: offset, length, and the type of the current
/// content.
fn extents(all: &[Value]) -> String {
    let line = |of: &Value| {
        let [offset, bytes] = ["offset", "bytes"].map(|key| of[key].as_u64().unwrap_or(0));
        format!("{offset:>16} {bytes:>14}  {}", text(&of["kind"]))
    };
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the findings of a check.
fn report(of: &Value) -> String {
    let line = |problem: &Value| format!("{}: {}", text(&problem["kind"]), text(&problem["what"]));
    let mut lines: Vec<String> = list(of, "problems").iter().map(line).collect();
    let count = |key: &str| of[key].as_u64().unwrap_or(0);
    if count("unlisted") > 0 {
        lines.push(format!("and {} more", count("unlisted")));
    }
    for skipped in list(of, "skipped") {
        lines.push(format!("{} was not checked: another owner has it", text(skipped)));
    }
    let repaired = match count("repaired") {
        0 => String::new(),
        1 => ", 1 leftover removed".to_owned(),
        repaired => format!(", {repaired} leftovers removed"),
    };
    let verdict = match problems(of).0 {
        0 => "in order".to_owned(),
        1 => "1 problem".to_owned(),
        problems => format!("{problems} problems"),
    };
    lines.push(format!("{} volumes, {} objects: {verdict}{repaired}", count("volumes"), count("objects")));
    lines.join("\n")
}

/// Returns the number of problems that a check has found and not repaired, and whether they cause
/// data loss.
fn problems(of: &Value) -> (u64, bool) {
    let count = |key: &str| of[key].as_u64().unwrap_or(0);
    let listed = list(of, "problems");
    let found = listed.len() as u64 + count("unlisted") + count("births_met");
    let is_loss = listed.iter().any(|problem| problem["kind"].as_str() != Some("leftover"));
    (found.saturating_sub(count("repaired")), is_loss || count("births_met") > 0)
}

/// Returns a time in seconds since 1970 as a date.
pub(crate) fn date(unix_secs: u64) -> String {
    /// The last second of the year 9999, after which there is no such date.
    const UNIX_SECS_MAX: u64 = 253_402_300_799;
    let since = Duration::from_secs(unix_secs.min(UNIX_SECS_MAX));
    let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + since);
    time.to_string().replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix_secs, wanted) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_795_437_605, "2026-11-23 12:40:05 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (u64::MAX, "9999-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(date(unix_secs), wanted);
        }
    }

    #[test]
    fn volumes_are_listed_and_shown() {
        let base = json!({
            "name": "base", "size_bytes": 20_u64 << 30, "object_bytes": 4 << 20, "attached": false, "connections": 0,
            "exported": true, "snapshot_count": 3, "settings": { "is_read_only": true, "write": null }, "origin": null,
        });
        let clone = json!({
            "name": "a\u{1b}[2J", "size_bytes": 512 << 20, "object_bytes": 65536, "attached": true, "connections": 2,
            "exported": false, "settings": { "is_read_only": false, "write": "back", "object_bytes": 65536 },
            "origin": { "volume": "base", "snapshot": "gold" },
            "usage": { "referenced_bytes": 8 << 20, "exclusive_bytes": 65536 },
            "snapshots": [{ "name": "monday", "size_bytes": 512 << 20, "created_unix_secs": 1_795_437_605 }],
        });
        let listed = lines_of(&json!({ "volumes": [base, clone] }));
        let wanted = "base      20 GiB, not in use, read-only, 3 snapshots\n\
                      a\u{fffd}[2J    512 MiB, 2 connections, clone of base@gold, not exported";
        assert_eq!(listed, wanted);
        let wanted = "a\u{fffd}[2J\n  size             512 MiB (536870912 bytes)\n  objects of       64 KiB\n  \
                      state            2 connections\n  exported         no\n  clone of         base@gold\n  \
                      data             8 MiB\n  since snapshot   64 KiB\n  write            back\n  \
                      snapshot         monday  512 MiB  2026-11-23 12:40:05 UTC";
        assert_eq!(volume(&clone), wanted);
        let owner = json!({ "attached": true, "owner": "node2" });
        assert_eq!(state(&owner), "attached by node2");
        assert_eq!(origin(&json!({ "volume": null, "snapshot": null })), "a volume that was deleted");
    }

    #[test]
    fn a_check_counts_what_is_left() {
        let leftover = json!({ "kind": "leftover", "what": "volumes.0000001/d/1" });
        let found = json!({ "volumes": 2, "objects": 7, "problems": [leftover], "unlisted": 0, "repaired": 0,
            "births_met": 0, "skipped": ["disk"] });
        assert_eq!(problems(&found), (1, false));
        let wanted = "leftover: volumes.0000001/d/1\ndisk was not checked: another owner has it\n2 volumes, 7 \
                      objects: 1 problem";
        assert_eq!(report(&found), wanted);
        let mut repaired = found.clone();
        repaired["repaired"] = json!(1);
        assert_eq!(problems(&repaired), (0, false));
        assert!(report(&repaired).ends_with("in order, 1 leftover removed"));
        let lost = json!({ "problems": [{ "kind": "missing", "what": "x" }], "unlisted": 3 });
        assert_eq!(problems(&lost), (4, true));
    }
}

//! What the routes show.

use super::Managed;
use serde_json::{Value, json};
use volumes::{Change, DamagedVolume, ProblemKind, Report, Settings, SnapshotInfo, Usage, VolumeInfo};

/// Returns what is shown of a volume.
pub(super) fn volume(managed: &Managed, info: &VolumeInfo) -> Value {
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
        "settings": settings(&info.settings),
        "origin": origin.map(|origin| json!({ "volume": origin.volume, "snapshot": origin.snapshot })),
    })
}

/// Returns what is shown of a volume that cannot be read.
pub(super) fn damaged(of: &DamagedVolume) -> Value {
    json!({ "name": of.name, "error": of.why })
}

fn settings(of: &Settings) -> Value {
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

pub(super) fn snapshot(of: &SnapshotInfo) -> Value {
    json!({
        "name": of.name,
        "size_bytes": of.size_bytes,
        "created_unix_secs": of.made_unix_seconds,
        "parent": of.parent,
    })
}

pub(super) fn usage(of: &Usage) -> Value {
    json!({
        "size_bytes": of.size_bytes,
        "referenced_bytes": of.referenced_bytes,
        "exclusive_bytes": of.exclusive_bytes,
    })
}

pub(super) fn extent(of: &Change) -> Value {
    json!({ "offset": of.offset, "bytes": of.length, "kind": if of.is_data { "data" } else { "zero" } })
}

pub(super) fn report(of: &Report) -> Value {
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

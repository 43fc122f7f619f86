//! `journal inspect`: what a journal consists of, and what the next start would do with it.

use std::collections::BTreeMap;
use std::path::Path;

use blocker::Namespace;
use cached_core::object::journal_records;
use cached_journal::tools::{self, Inspection, SegmentReport};
use serde_json::{Value, json};

use super::{Verdict, damage_value, failure, open};
use crate::output::Output;

/// What the next start would replay of one namespace.
struct NamespaceReport {
    records: u64,
    payload_bytes: u64,
    epoch_min: u64,
    epoch_max: u64,
}

pub(super) fn run(directory: &Path, output: &Output) -> Verdict {
    let disk = open(directory)?;
    let inspection = tools::inspect(&disk).map_err(|error| failure(directory, error))?;
    let mut namespaces: BTreeMap<Option<Namespace>, NamespaceReport> = BTreeMap::new();
    if inspection.problem.is_none() {
        let each = |_, head: &cached_journal::Head<'_>, payload_bytes| {
            let namespace = journal_records::namespace_of(head);
            let report = namespaces.entry(namespace).or_insert(NamespaceReport {
                records: 0,
                payload_bytes: 0,
                epoch_min: head.epoch,
                epoch_max: head.epoch,
            });
            report.records += 1;
            report.payload_bytes += payload_bytes;
            report.epoch_min = report.epoch_min.min(head.epoch);
            report.epoch_max = report.epoch_max.max(head.epoch);
        };
        tools::heads(&disk, each).map_err(|error| failure(directory, error))?;
    }
    let text = text(directory, &inspection, &namespaces);
    output.write(text, &value(directory, &inspection, &namespaces))?;
    Ok(inspection.problem.is_none())
}

fn shown(namespace: Option<&Namespace>) -> String {
    namespace.map_or_else(|| "(unreadable)".to_owned(), ToString::to_string)
}

fn text(
    directory: &Path,
    inspection: &Inspection,
    namespaces: &BTreeMap<Option<Namespace>, NamespaceReport>,
) -> String {
    let Inspection {
        journal, segment_bytes, segments, records, payload_bytes, end, problem, cut_off, ..
    } = inspection;
    let live = segments.iter().filter(|segment| segment.is_in_log).count();
    let mut lines = vec![
        format!("journal      {journal:016x} in {}", directory.display()),
        format!("segments     {} of {segment_bytes} bytes, {live} of them in the log", segments.len()),
    ];
    if let (Some(records), Some(payload_bytes), Some(end)) = (records, payload_bytes, end) {
        lines.push(format!(
            "to replay    {records} records with {payload_bytes} bytes of payload, before position {}",
            end.0
        ));
    }
    for (namespace, report) in namespaces {
        let NamespaceReport { records, payload_bytes, epoch_min, epoch_max } = report;
        let epochs = match epoch_min == epoch_max {
            true => format!("epoch {epoch_min}"),
            false => format!("epochs {epoch_min} to {epoch_max}"),
        };
        let name = shown(namespace.as_ref());
        lines.push(format!("  namespace  {name}: {records} records, {payload_bytes} bytes, {epochs}"));
    }
    lines.push(format!(
        "{:15} {:>8} {:>4} {:>9} {:>10} {:>12}",
        "file", "life", "log", "batches", "records", "used bytes"
    ));
    for segment in segments {
        let SegmentReport { file, life, is_in_log, batches, records, used_bytes, header_problem } = segment;
        let is_in_log = if *is_in_log { "yes" } else { "no" };
        lines.push(format!("{file:15} {life:>8} {is_in_log:>4} {batches:>9} {records:>10} {used_bytes:>12}"));
        if let Some(problem) = header_problem {
            lines.push(format!("  a header of it is damaged: {problem}"));
        }
    }
    lines.push(match (problem, records) {
        (Some(problem), _) => format!(
            "verdict      damaged, the next start refuses it: {problem}; verify lists all damage, export saves \
             what is readable, discard starts anew"
        ),
        (None, _) if cut_off.is_some() => format!(
            "verdict      the next start replays it but for a last batch: {}",
            cut_off.as_ref().map(ToString::to_string).unwrap_or_default()
        ),
        (None, Some(0)) => "verdict      intact, nothing to replay".to_owned(),
        (None, _) => "verdict      intact, the next start replays it".to_owned(),
    });
    lines.join("\n")
}

fn value(
    directory: &Path,
    inspection: &Inspection,
    namespaces: &BTreeMap<Option<Namespace>, NamespaceReport>,
) -> Value {
    let segments: Vec<_> = inspection.segments.iter().map(segment_value).collect();
    let namespaces: Vec<_> = namespaces
        .iter()
        .map(|(namespace, report)| {
            json!({
                "namespace": namespace.as_ref().map(ToString::to_string),
                "records": report.records,
                "payload_bytes": report.payload_bytes,
                "epoch_min": report.epoch_min,
                "epoch_max": report.epoch_max,
            })
        })
        .collect();
    json!({
        "directory": directory.to_string_lossy(),
        "journal": format!("{:016x}", inspection.journal),
        "segment_bytes": inspection.segment_bytes,
        "records": inspection.records,
        "payload_bytes": inspection.payload_bytes,
        "begin": inspection.begin.map(|position| position.0),
        "end": inspection.end.map(|position| position.0),
        "namespaces": namespaces,
        "segments": segments,
        "cut_off": inspection.cut_off.as_ref().map(damage_value),
        "problem": inspection.problem.as_ref().map(damage_value),
    })
}

fn segment_value(segment: &SegmentReport) -> Value {
    json!({
        "file": segment.file,
        "life": segment.life,
        "in_log": segment.is_in_log,
        "batches": segment.batches,
        "records": segment.records,
        "used_bytes": segment.used_bytes,
        "header_problem": segment.header_problem,
    })
}

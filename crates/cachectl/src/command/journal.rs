//! `journal`: operations on a journal that no process has open. Like `fsck`, they open no backend,
//! except for the one that `export` fills.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use blocker::Namespace;
use cached_core::object::journal_records;
use cached_journal::disk::RealDisk;
use cached_journal::tools::{self, Inspection, SegmentReport};
use cached_journal::{Corruption, DiskError, OpenError};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::command::journal_export::Export;
use crate::output::{Failure, Output};

#[derive(Subcommand)]
pub(crate) enum Journal {
    /// Create an empty journal, which a start does not do by itself unless create = true.
    ///
    /// The directory is created with its parents if it is missing, and must be empty otherwise.
    /// Files created by root belong to the directory's owner.
    Init(Directory),
    /// Show the segments of a journal, and the records that the next start would replay.
    ///
    /// Reads the heads of all records, and changes nothing. The last line is the verdict: whether
    /// the next start accepts the journal, or why it refuses the journal.
    Inspect(Directory),
    /// Read a whole journal, payloads included, and list everything that is damaged.
    ///
    /// Prints one line for each damaged place, with file and byte. Changes nothing.
    Verify(Directory),
    /// Save the readable records, even of a damaged journal, as objects in an empty store.
    ///
    /// Applies the records to the store in order: each object then contains the ranges that the
    /// journal contains, and zeros in between. One line for each object lists the ranges that come
    /// from the journal, so that they can be merged into the object in the cache's own store.
    /// Changes nothing in the journal.
    Export(Export),
    /// Remove a journal with all its records: acknowledged changes that are not stored are lost.
    ///
    /// Leaves an empty journal, which the next start uses. Export records that may still be needed
    /// first. Journals that a start has set aside, such as overtaken-1, are kept.
    Discard {
        #[command(flatten)]
        directory: Directory,
        /// Confirm that the records are discarded.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args)]
pub(crate) struct Directory {
    /// The journal's directory. No process may have it open.
    #[arg(value_name = "DIR")]
    pub(super) directory: PathBuf,
}

/// Whether everything is in order, or the reason why that could not be determined.
pub(super) type Verdict = Result<bool, Failure>;

impl Journal {
    /// Exit codes: 0 if in order, 1 if damaged, 2 if the journal could not be read.
    pub(crate) fn run(&self, output: &Output) -> ExitCode {
        output.verdict(match self {
            Self::Init(Directory { directory }) => init(directory, output),
            Self::Inspect(Directory { directory }) => inspect(directory, output),
            Self::Verify(Directory { directory }) => verify(directory, output),
            Self::Export(export) => export.run(output),
            Self::Discard { directory: Directory { directory }, yes } => discard(directory, *yes, output),
        })
    }
}

fn init(directory: &Path, output: &Output) -> Verdict {
    let shown = directory.display();
    std::fs::create_dir_all(directory).map_err(Failure::io(&shown))?;
    let disk = RealDisk::open(directory, false).map_err(Failure::io(&shown))?;
    tools::init(&disk).map_err(|error| match error {
        OpenError::Disk(DiskError { error, .. }) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            Failure::usage(format!("{shown} already contains a journal"))
        }
        error => failure(directory, error),
    })?;
    output.write(format!("{shown} is an empty journal now"), &json!({}))?;
    Ok(true)
}

/// Opens a directory that must contain a journal, for reading.
pub(super) fn open(directory: &Path) -> Result<RealDisk, Failure> {
    check_is_journal(directory)?;
    Ok(RealDisk::read_only(directory))
}

/// Checks that a directory contains a journal: nothing is created or removed in any other
/// directory.
fn check_is_journal(directory: &Path) -> Result<(), Failure> {
    let shown = directory.display();
    if !directory.is_dir() {
        return Err(Failure::usage(format!("{shown} is not a directory")));
    }
    // Segments without a superblock are the remains of a journal.
    let is_own = |name: &str| ["journal", "discarded"].contains(&name) || name.starts_with("segment-");
    let entries = std::fs::read_dir(directory).map_err(Failure::io(&shown))?;
    let mut has_journal = false;
    for entry in entries {
        let name = entry.map_err(Failure::io(&shown))?.file_name();
        has_journal |= is_own(&name.to_string_lossy());
    }
    if !has_journal {
        let text = format!(
            "{shown} contains no journal: name the `directory` in [objects.journal] of the configuration"
        );
        return Err(Failure::usage(text));
    }
    Ok(())
}

/// Returns the reason why a tool could not read a journal, as a line that names the directory.
pub(super) fn failure(directory: &Path, error: OpenError) -> Failure {
    let shown = directory.display();
    Failure::unread(match error {
        OpenError::Locked => format!("{shown} is in use: a process has the journal open; stop it first"),
        OpenError::Corrupt(corruption) => format!("{shown}: {corruption}"),
        OpenError::Disk(error) => format!("{shown} could not be read: {error}"),
        error => format!("{shown}: {error}"),
    })
}

/// Reports a damaged place.
pub(super) fn write_damage(output: &Output, corruption: &Corruption) -> Result<(), Failure> {
    output.write(format!("damage: {corruption}"), &damage_value(corruption))
}

fn damage_value(Corruption { file, offset, reason }: &Corruption) -> Value {
    json!({ "file": file, "offset": offset, "reason": reason })
}

fn verify(directory: &Path, output: &Output) -> Verdict {
    let damaged = tools::verify(&open(directory)?).map_err(|error| failure(directory, error))?;
    for corruption in &damaged {
        write_damage(output, corruption)?;
    }
    let text = match damaged.len() {
        0 => "all batches and payloads are intact".to_owned(),
        1 => "1 place is damaged; export saves what is readable".to_owned(),
        count => format!("{count} places are damaged; export saves what is readable"),
    };
    output.write(text, &json!({ "damaged": damaged.len() }))?;
    Ok(damaged.is_empty())
}

fn discard(directory: &Path, yes: bool, output: &Output) -> Verdict {
    let disk = open(directory)?;
    let shown = directory.display();
    if !yes {
        let lost = match tools::inspect(&disk) {
            Ok(tools::Inspection { records: Some(0), cut_off: None, .. }) => {
                "it contains no record to replay".to_owned()
            }
            Ok(tools::Inspection { records: Some(records), payload_bytes, .. }) => {
                format!("{records} records, {} bytes, would be lost", payload_bytes.unwrap_or(0))
            }
            Ok(_) | Err(OpenError::Corrupt(_)) => {
                "it is damaged, and its readable records would be lost".to_owned()
            }
            Err(error) => return Err(failure(directory, error)),
        };
        let text = format!("{shown} is kept: {lost}; --yes discards it (export saves it first)");
        return Err(Failure::usage(text));
    }
    // The tools use buffered I/O, so that they work on any file system.
    let disk = RealDisk::open(directory, false).map_err(Failure::io(&shown))?;
    tools::discard(&disk).map_err(|error| failure(directory, error))?;
    output.write(format!("{shown} is an empty journal now"), &json!({}))?;
    Ok(true)
}

/// The records of one namespace that the next start would replay.
struct NamespaceReport {
    records: u64,
    payload_bytes: u64,
    epoch_min: u64,
    epoch_max: u64,
}

fn inspect(directory: &Path, output: &Output) -> Verdict {
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
    let text = inspection_text(directory, &inspection, &namespaces);
    output.write(text, &inspection_value(directory, &inspection, &namespaces))?;
    Ok(inspection.problem.is_none())
}

fn namespace_name(namespace: Option<&Namespace>) -> String {
    namespace.map_or_else(|| "(unreadable)".to_owned(), ToString::to_string)
}

fn inspection_text(
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
        let name = namespace_name(namespace.as_ref());
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
            lines.push(format!("  its header is damaged: {problem}"));
        }
    }
    lines.push(match (problem, records) {
        (Some(problem), _) => format!(
            "verdict      damaged, the next start refuses it: {problem}; verify lists all damage, export saves \
             what is readable, discard starts anew"
        ),
        (None, _) if cut_off.is_some() => format!(
            "verdict      the next start replays it except for the last batch: {}",
            cut_off.as_ref().map(ToString::to_string).unwrap_or_default()
        ),
        (None, Some(0)) => "verdict      intact, nothing to replay".to_owned(),
        (None, _) => "verdict      intact, the next start replays it".to_owned(),
    });
    lines.join("\n")
}

fn inspection_value(
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

//! `journal export`: the readable records of a journal become objects of a store.
//!
//! There are two passes: the first finds the marks, and the second applies to the store every
//! change that no mark covers. The destination is a store, rather than a file for each record,
//! because the records of an object are useful only together; the listed ranges distinguish the
//! saved data from the zeros in between.

use std::collections::BTreeMap;
use std::path::PathBuf;

use blocker::executor::block_on;
use blocker::{Blocker, Error, FlushRequest, InfoRequest, ObjectId, Scope};
use cached_core::object::journal_records::{RecordReader, RecordedChange};
use cached_journal::{Kind, Marks, OpenError, Position, tools};
use clap::Args;
use serde_json::json;

use crate::backend::{BackendSpec, Opened};
use crate::command::journal::{Directory, Verdict, failure, open, write_damage};
use crate::output::{Failure, Output};

#[derive(Args)]
pub(crate) struct Export {
    #[command(flatten)]
    directory: Directory,
    /// The destination: a directory, which becomes a store if it is missing or empty, or any backend
    /// as for --backend. It must contain none of the objects.
    #[arg(value_name = "TO")]
    to: String,
    /// Also save records that the log no longer needs because their changes are stored.
    #[arg(long)]
    all: bool,
}

/// The saved part of an object.
#[derive(Default)]
struct Saved {
    records: u64,
    /// The ranges that come from the journal, each with its start and its end.
    ranges: BTreeMap<u64, u64>,
    /// Whether no part of the object is older than the journal.
    is_whole: bool,
    is_removed: bool,
}

impl Export {
    pub(super) fn run(&self, output: &Output) -> Verdict {
        let directory: &PathBuf = &self.directory.directory;
        let disk = open(directory)?;
        // A path names a file store.
        let spec: BackendSpec = match self.to.contains(':') {
            true => self.to.parse().map_err(Failure::usage)?,
            false => format!("file:{}", self.to).parse().map_err(Failure::usage)?,
        };
        let (mut marks, mut begin) = (Marks::default(), Position(0));
        if !self.all {
            begin = match tools::inspect(&disk) {
                Ok(inspection) => inspection.begin.unwrap_or_default(),
                // Even if the superblock is unreadable, the segments may be readable.
                Err(OpenError::Corrupt(_)) => Position(0),
                Err(error) => return Err(failure(directory, error)),
            };
            let mark = |record: &cached_journal::Recovered, _: &[u8]| {
                marks.add(&record.head);
                Ok(())
            };
            tools::export(&disk, mark).map_err(|error| failure(directory, error))?;
        }
        let opened = Opened::open(&spec.creating(), None, None, false)?;
        let mut export = Exporting {
            store: &*opened.backend,
            reader: RecordReader::default(),
            saved: BTreeMap::new(),
            malformed: Vec::new(),
            refused: None,
        };
        let damage = tools::export(&disk, |record, payload| {
            let is_wanted = record.head.kind != Kind::MARK
                && record.position >= begin
                && !marks.covers(record.position, &record.head);
            if is_wanted { export.record(record.position, &record.head, payload) } else { Ok(()) }
        });
        let Exporting { saved, malformed, refused, .. } = export;
        if let Some(failure) = refused {
            return Err(failure);
        }
        let damage = damage.map_err(|error| failure(directory, error))?;
        block_on(opened.backend.flush(FlushRequest::new(Scope::All)))?;
        opened.close()?;
        for (object, saved) in &saved {
            write_saved(output, object, saved)?;
        }
        for corruption in &damage {
            write_damage(output, corruption)?;
        }
        for line in &malformed {
            output.write(format!("damage: {line}"), &json!({ "malformed": line }))?;
        }
        let records: u64 = saved.values().map(|saved| saved.records).sum();
        let unread = damage.len() + malformed.len();
        let text = format!(
            "{records} records of {} objects saved to {}, {unread} places could not be read",
            saved.len(),
            self.to
        );
        let value = json!({ "objects": saved.len(), "records": records, "unreadable": unread });
        output.write(text, &value)?;
        Ok(unread == 0)
    }
}

struct Exporting<'a> {
    store: &'a dyn Blocker,
    reader: RecordReader,
    saved: BTreeMap<ObjectId, Saved>,
    malformed: Vec<String>,
    /// The reason why the store cannot accept the change.
    refused: Option<Failure>,
}

impl Exporting<'_> {
    /// Applies the change of one record. An error ends the export; `refused` then holds the reason.
    fn record(
        &mut self,
        position: Position,
        head: &cached_journal::Head<'_>,
        payload: &[u8],
    ) -> std::io::Result<()> {
        let change = match self.reader.read(head, payload.to_vec()) {
            Ok(Some(change)) => change,
            Ok(None) => return Ok(()),
            Err(malformed) => {
                self.malformed.push(format!("position {}: {malformed}", position.0));
                return Ok(());
            }
        };
        self.make(&change).map_err(|failure| {
            self.refused = Some(failure);
            std::io::Error::other("the store refuses it")
        })
    }

    fn make(&mut self, change: &RecordedChange) -> Result<(), Failure> {
        let object = &change.object;
        if !self.saved.contains_key(object) {
            match block_on(self.store.info(InfoRequest::new(object.clone()))) {
                Err(Error::Missing) => {}
                Ok(_) => {
                    let text = format!(
                        "{object} already exists; export into a store that contains none of the objects"
                    );
                    return Err(Failure::usage(text));
                }
                Err(error) => return Err(Failure::backend(object, &error)),
            }
        }
        block_on(change.make(self.store)).map_err(|error| Failure::backend(object, &error))?;
        let saved = self.saved.entry(object.clone()).or_default();
        saved.records += 1;
        saved.is_whole |= change.is_whole();
        saved.is_removed = change.is_removal();
        change.ranges(|offset, len, is_known| saved.change(offset, len, is_known));
        Ok(())
    }
}

impl Saved {
    /// Marks a range as known, or removes it.
    fn change(&mut self, offset: u64, len: u64, is_known: bool) {
        if len == 0 {
            return;
        }
        let (mut begin, mut end) = (offset, offset.saturating_add(len));
        // Adjacent ranges are merged; the parts outside a removed range stay.
        let met: Vec<_> = self
            .ranges
            .range(..=end)
            .rev()
            .take_while(|(_, met_end)| **met_end >= begin)
            .map(|(begin, end)| (*begin, *end))
            .collect();
        let mut outside = Vec::new();
        for (met_begin, met_end) in met {
            self.ranges.remove(&met_begin);
            if is_known {
                (begin, end) = (begin.min(met_begin), end.max(met_end));
            } else {
                outside.extend([(met_begin, met_end.min(begin)), (met_begin.max(end), met_end)]);
            }
        }
        outside.push(if is_known { (begin, end) } else { (0, 0) });
        self.ranges.extend(outside.into_iter().filter(|(begin, end)| begin < end));
    }
}

fn write_saved(output: &Output, object: &ObjectId, saved: &Saved) -> Result<(), Failure> {
    let Saved { records, ranges, is_whole, is_removed } = saved;
    let state = match (is_removed, is_whole) {
        (true, _) => "removed",
        (false, true) => "whole",
        (false, false) => "in part",
    };
    let shown: Vec<_> = ranges.iter().map(|(begin, end)| format!("{begin}-{end}")).collect();
    let text = format!("{object}: {state}, {records} records, bytes {}", shown.join(" "));
    let ranges: Vec<_> = ranges.iter().map(|(begin, end)| json!([begin, end])).collect();
    let value = json!({
        "object": object.to_string(), "state": state, "records": records, "ranges": ranges,
    });
    output.write(text, &value)
}

#[cfg(test)]
mod tests {
    use super::Saved;

    #[test]
    fn ranges_are_joined_and_cut() {
        let mut saved = Saved::default();
        for (offset, len, is_known, expected) in [
            (10, 10, true, &[(10, 20)][..]),
            (30, 10, true, &[(10, 20), (30, 40)]),
            (20, 10, true, &[(10, 40)]),
            (15, 5, false, &[(10, 15), (20, 40)]),
            (0, 12, true, &[(0, 15), (20, 40)]),
            (25, u64::MAX - 25, false, &[(0, 15), (20, 25)]),
            (12, 10, true, &[(0, 25)]),
            (0, u64::MAX, false, &[]),
            (5, 0, true, &[]),
        ] {
            saved.change(offset, len, is_known);
            assert_eq!(saved.ranges.iter().map(|(a, b)| (*a, *b)).collect::<Vec<_>>(), expected);
        }
    }
}

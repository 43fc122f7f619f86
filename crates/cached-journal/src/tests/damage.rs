//! Flipped bits: each is detected, or changes nothing that a recovery returns.

use std::io;
use std::sync::Arc;

use super::kit::{Kit, SEGMENT_BYTES, append};
use crate::disk::simulated::{Faults, SimulatedDisk};
use crate::disk::{Disk, DiskFile, FileId};
use crate::{Environment, Journal, OpenError, Position, tools};
use blocker::rng::Rng;

const SEGMENTS: u64 = 6;

type Content = Vec<(Position, Vec<u8>)>;

fn segments(disk: &SimulatedDisk) -> impl Iterator<Item = String> {
    disk.names().unwrap().into_iter().filter(|name| name.starts_with("segment"))
}

/// Reads everything; `None` if damage was reported.
fn content(disk: &SimulatedDisk) -> Option<Content> {
    let environment = Environment::new(disk.clone());
    let (_journal, replay) = match Journal::open_stepped(&super::kit::config(SEGMENTS), environment) {
        Ok(opened) => opened,
        Err(OpenError::Corrupt(corruption)) => {
            assert!(corruption.offset <= SEGMENT_BYTES && !corruption.reason.is_empty());
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let mut content = Vec::new();
    for record in replay.records() {
        let record = record.unwrap();
        content.push((record.position, record.payload().ok()?));
    }
    Some(content)
}

/// Returns a journal in which every segment has been reused several times, and whose log spans
/// several.
fn journal() -> (SimulatedDisk, Content) {
    let kit = Kit::new(SEGMENTS);
    let journal = kit.open_ready();
    let mut held = std::collections::VecDeque::new();
    for number in 0..150 {
        held.push_back(append(&journal, number, 3000).unwrap().1);
        journal.step_commit();
        if held.len() > 20 {
            held.pop_front();
        }
    }
    // An empty batch, as closing a journal writes.
    journal.close_stepped();
    let content = content(&kit.disk.copy()).unwrap();
    assert!(content.len() >= 20);
    drop(held);
    (kit.disk, content)
}

#[test]
fn every_flipped_bit_is_detected_or_harmless() {
    let (disk, intact) = journal();
    let mut random = Rng::new(1);
    let (mut detected, mut harmless) = (0, 0);
    for name in disk.names().unwrap() {
        let name = name.as_str();
        let bytes = disk.content(name).unwrap();
        // One bit in each 64 bytes, so in every batch header and every head; in a short run, in
        // each fourth of them.
        let step = if super::kit::times() == 1 { 4 } else { 1 };
        for run in (random.below(step) as usize..bytes.len() / 64).step_by(step as usize) {
            let mut damaged = bytes.clone();
            let byte = run * 64 + random.below(64) as usize;
            damaged[byte] ^= 1 << random.below(8);
            let copy = disk.copy();
            copy.set_content(name, &damaged);
            match content(&copy) {
                None => detected += 1,
                Some(found) => {
                    assert!(
                        found == intact,
                        "{name}, byte {byte}: {} of {} records",
                        found.len(),
                        intact.len()
                    );
                    harmless += 1;
                }
            }
        }
    }
    println!("{detected} detected, {harmless} harmless");
    assert!(detected > 250 && harmless > 25);
}

#[test]
fn a_damaged_journal_is_reported_with_file_and_offset_and_can_be_exported() {
    let (disk, intact) = journal();
    // The first batch of each segment.
    for name in segments(&disk) {
        let name = name.as_str();
        let copy = disk.copy();
        let mut bytes = copy.content(name).unwrap();
        bytes[8192 + 70] ^= 1;
        copy.set_content(name, &bytes);
        let Err(OpenError::Corrupt(corruption)) =
            Journal::open_stepped(&super::kit::config(SEGMENTS), Environment::new(copy.clone()))
        else {
            // The segment was not part of the log.
            continue;
        };
        assert_eq!((corruption.file.as_str(), corruption.offset), (name, 8192));
        assert_eq!(tools::inspect(&copy).unwrap().problem, Some(corruption.clone()));
        assert_eq!(tools::verify(&copy).unwrap(), std::slice::from_ref(&corruption));
        let mut exported = 0;
        let problems = tools::export(&copy, |_, _| {
            exported += 1;
            Ok(())
        });
        let is_reported =
            |problem: &crate::Corruption| (&problem.file, problem.offset) == (&corruption.file, 8192);
        assert!(problems.unwrap().iter().any(is_reported));
        assert!(exported > 0 && exported < 150);
    }
    assert_eq!(content(&disk.copy()).unwrap(), intact);
}

fn exported(disk: &SimulatedDisk) -> (Vec<Position>, usize) {
    let mut positions = Vec::new();
    let problems = tools::export(disk, |record, _| {
        positions.push(record.position);
        Ok(())
    });
    (positions, problems.unwrap().len())
}

#[test]
fn an_export_needs_no_superblock_and_no_header_and_goes_on_behind_damage() {
    let (disk, _) = journal();
    let (all, problems) = exported(&disk);
    assert_eq!(problems, 0);
    for superblock in [None, Some(vec![0; 4096]), Some(b"short".to_vec())] {
        let copy = disk.copy();
        match superblock {
            None => copy.remove("journal").unwrap(),
            Some(bytes) => copy.set_content("journal", &bytes),
        }
        assert_eq!(exported(&copy), (all.clone(), 1));
    }
    for name in segments(&disk) {
        // Both headers, then the first batch.
        let copy = disk.copy();
        let mut bytes = copy.content(&name).unwrap();
        bytes[..8192].fill(0);
        copy.set_content(&name, &bytes);
        assert_eq!(exported(&copy).0, all, "{name}");
        let copy = disk.copy();
        let mut bytes = copy.content(&name).unwrap();
        bytes[8192 + 70] ^= 1;
        copy.set_content(&name, &bytes);
        let (found, problems) = exported(&copy);
        let lost = all.iter().filter(|position| !found.contains(position)).count();
        assert!(lost <= 1 && problems == 1, "{name}: {lost} lost, {problems}");
        assert!(found.is_sorted());
    }
}

#[test]
fn a_truncated_or_missing_segment_is_refused() {
    let (disk, _) = journal();
    let mut refused = 0;
    for name in segments(&disk) {
        let name = name.as_str();
        let copy = disk.copy();
        let bytes = copy.content(name).unwrap();
        copy.set_content(name, &bytes[..bytes.len() - 4096]);
        assert!(content(&copy).is_none(), "{name} truncated");
        let copy = disk.copy();
        copy.set_content(name, &[0; SEGMENT_BYTES as usize]);
        refused += usize::from(content(&copy).is_none());
    }
    assert!(refused > 0, "a segment inside the log is missed");
}

#[test]
fn a_header_that_is_destroyed_while_it_is_written_leaves_the_segment_as_it_was() {
    let kit = Kit::new(3);
    let journal = kit.open_ready();
    let mut holds = std::collections::VecDeque::new();
    while let Ok((_, hold)) = append(&journal, holds.len() as u64, 12_000) {
        holds.push_back(hold);
        journal.step_commit();
    }
    let oldest = journal.oldest().unwrap();
    while holds.front().is_some_and(|hold| oldest.contains(&hold.position())) {
        holds.pop_front();
    }
    // No batch states the new tail: the log on disk still begins with the segment that the restart
    // reuses.
    kit.disk.set_faults(1, Faults { write: 1000, ..Faults::default() });
    append(&journal, 1, 12_000).unwrap();
    journal.step_commit();
    kit.disk.set_faults(1, Faults::default());
    kit.clock.advance(std::time::Duration::from_secs(5));
    let before: Vec<_> = segments(&kit.disk).map(|name| (name.clone(), kit.disk.content(&name))).collect();
    // The header is written, but not synced.
    kit.disk.cut_power_in(Some(2));
    journal.step_commit();
    kit.disk.kill_process();
    let mut destroyed = 0;
    for (name, old) in before {
        let (old, mut new) = (old.unwrap(), kit.disk.content(&name).unwrap());
        for block in [0, 4096] {
            if old[block..block + 4096] != new[block..block + 4096] {
                new[block] ^= 1;
                destroyed += 1;
            }
        }
        kit.disk.set_content(&name, &new);
    }
    assert_eq!(destroyed, 1);
    let (_journal, replay) = kit.open().unwrap();
    let found: Vec<_> = replay.records().map(|record| record.unwrap().position).collect();
    assert!(holds.iter().all(|hold| found.contains(&hold.position())));
}

/// A disk on which one file cannot be opened, or not completely read.
struct Refusing {
    disk: SimulatedDisk,
    name: String,
    /// The readable bytes of the file; `None` if it cannot be opened.
    readable_bytes: Option<u64>,
    code: i32,
}

struct Unreadable {
    file: Arc<dyn DiskFile>,
    readable_bytes: u64,
    code: i32,
}

impl Disk for Refusing {
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        self.disk.lock()
    }
    fn names(&self) -> io::Result<Vec<String>> {
        if self.name == "." { Err(io::Error::from_raw_os_error(self.code)) } else { self.disk.names() }
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        panic!("{name} is made")
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let code = self.code;
        match self.readable_bytes {
            _ if name != self.name => self.disk.open(name),
            None => Err(io::Error::from_raw_os_error(code)),
            Some(readable_bytes) => {
                Ok(Arc::new(Unreadable { file: self.disk.open(name)?, readable_bytes, code }))
            }
        }
    }
    fn id(&self, name: &str) -> io::Result<FileId> {
        self.disk.id(name)
    }
    fn rename(&self, from: &str, _: &str) -> io::Result<()> {
        panic!("{from} is renamed")
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        panic!("{name} is removed")
    }
    fn sync_names(&self) -> io::Result<()> {
        panic!("something is synced")
    }
    fn directory(&self, name: &str) -> io::Result<Box<dyn Disk>> {
        panic!("{name} is made")
    }
    fn random(&self) -> io::Result<u64> {
        self.disk.random()
    }
}

impl DiskFile for Unreadable {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn id(&self) -> io::Result<FileId> {
        self.file.id()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match offset + buffer.len() as u64 <= self.readable_bytes {
            true => self.file.read_at(offset, buffer),
            false => Err(io::Error::from_raw_os_error(self.code)),
        }
    }
    fn write_at(&self, _: u64, _: &[&[u8]]) -> io::Result<()> {
        panic!("something is written")
    }
    fn sync(&self) -> io::Result<()> {
        panic!("something is synced")
    }
}

#[test]
fn no_tool_takes_a_failure_of_the_system_for_damage() {
    let (disk, _) = journal();
    let mut names = disk.names().unwrap();
    names.push(".".into());
    // EACCES, EROFS, EIO, EMFILE, ENOSPC.
    for code in [13, 30, 5, 24, 28] {
        for (name, readable_bytes) in names.iter().flat_map(|name| [(name, None), (name, Some(0))]) {
            if readable_bytes.is_some() && name == "." {
                continue;
            }
            let disk = Refusing { disk: disk.copy(), name: name.clone(), readable_bytes, code };
            let answers = [
                tools::inspect(&disk).map(drop),
                tools::heads(&disk, |_, _, _| {}),
                tools::verify(&disk).map(drop),
                tools::export(&disk, |_, _| Ok(())).map(drop),
            ];
            for answer in answers {
                let Err(OpenError::Disk(error)) = answer else {
                    panic!("{name} with {code}, readable {readable_bytes:?}: {answer:?}")
                };
                assert_eq!((&error.file, error.error.raw_os_error()), (name, Some(code)));
            }
        }
    }
}

/// A read error after a part of a segment was read, up to the search behind the end of the log, is
/// not damage either.
#[test]
fn a_segment_that_cannot_be_read_to_its_end_is_not_damaged() {
    let (disk, _) = journal();
    let mut failures = 0;
    for name in segments(&disk) {
        for block in 2..16 {
            let disk = Refusing {
                disk: disk.copy(),
                name: name.clone(),
                readable_bytes: Some(block * 4096),
                code: 5,
            };
            let inspected = tools::inspect(&disk).map(|found| Vec::from_iter(found.problem));
            for answer in [inspected, tools::verify(&disk)] {
                match answer {
                    Ok(damage) => assert!(damage.is_empty(), "{name}, block {block}: {damage:?}"),
                    Err(OpenError::Disk(error)) => {
                        assert_eq!((&error.file, error.error.raw_os_error()), (&name, Some(5)));
                        failures += 1;
                    }
                    Err(error) => panic!("{name}, block {block}: {error}"),
                }
            }
        }
    }
    assert!(failures > 20, "{failures}");
}

//! Operators' tools for a journal that no process has open.
//!
//! Every function takes the directory's lock, and refuses with [`OpenError::Locked`] while another
//! process holds it. Only [`init`] and [`discard`] change anything.
//!
//! The larger functions are inlined or generic, so that only programs that use them compile them.

use crate::config::JournalConfig;
use crate::disk::Disk;
use crate::error::{Corruption, DiskError, OpenError, ReadError};
use crate::format::{BLOCK_BYTES, HeaderBlock, Superblock};
use crate::record::{Epochs, Head, Kind, Position};
use crate::recovery;
use crate::replay::Recovered;
use crate::scan::{OpenSegment, Scanner};
use crate::survey::{SUPERBLOCK_NAME, Survey, find_segments, read_superblock};

/// A segment's file, in the result of [`inspect`].
#[derive(Clone, Debug, Default)]
pub struct SegmentReport {
    /// The name of the file.
    pub file: String,
    /// The number of the segment's life, or 0 if the segment has not been used.
    pub life: u64,
    /// Whether the segment's records are part of the log. If the log is damaged, this is unknown
    /// and therefore false.
    pub is_in_log: bool,
    /// The number of consecutive batches from the segment's beginning.
    pub batches: u64,
    /// The number of records in these batches.
    pub records: u64,
    /// The number of bytes up to the end of these batches.
    pub used_bytes: u64,
    /// The damage to the segment's headers.
    pub header_problem: Option<String>,
}

/// The result of [`inspect`].
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The random number that identifies the journal.
    pub journal: u64,
    /// The size of each segment.
    pub segment_bytes: u64,
    /// The segments, in the order of their lives.
    pub segments: Vec<SegmentReport>,
    /// The number of records that the next open would replay, or `None` if the log is damaged.
    pub records: Option<u64>,
    /// The total length of the payloads of these records, in bytes.
    pub payload_bytes: Option<u64>,
    /// The first position of the log, or `None` if the log is empty or damaged.
    pub begin: Option<Position>,
    /// The position after the last record.
    pub end: Option<Position>,
    /// The epochs of the records.
    pub epochs: Epochs,
    /// The reason why the next open would refuse the journal.
    pub problem: Option<Corruption>,
    /// A last batch that the next open would treat as a torn write, of which nothing was
    /// acknowledged. The batch may also have been damaged later.
    pub cut_off: Option<Corruption>,
}

fn superblock_of(disk: &dyn Disk) -> Result<Superblock, OpenError> {
    match read_superblock(disk)? {
        Some(superblock) => Ok(superblock),
        None => Err(Corruption::new(SUPERBLOCK_NAME, 0, "there is no journal in this directory").into()),
    }
}

/// Returns the content of a journal, even a damaged one.
///
/// # Errors
/// If the directory is in use or has no journal, or the disk fails.
#[inline]
pub fn inspect(disk: &dyn Disk) -> Result<Inspection, OpenError> {
    let _lock = recovery::lock(disk)?;
    let superblock = superblock_of(disk)?;
    let (survey, problem) = match Survey::new(disk, superblock) {
        Ok(survey) => (Some(survey), None),
        Err(OpenError::Corrupt(corruption)) => (None, Some(corruption)),
        Err(error) => return Err(error),
    };
    let mut segments = Vec::new();
    for (at, found) in find_segments(disk)?.into_iter().enumerate() {
        let header_problem = found.blocks.iter().find_map(|block| match block {
            HeaderBlock::Invalid(reason) => Some(reason.clone()),
            HeaderBlock::Unused | HeaderBlock::Valid(_) => None,
        });
        let mut report = SegmentReport {
            file: found.name.clone(),
            is_in_log: survey.iter().any(|survey| survey.log.iter().any(|log| log.at == at)),
            header_problem,
            ..SegmentReport::default()
        };
        if let Some((header, _)) = found.header() {
            let segment_bytes = superblock.segment_bytes;
            let segment = OpenSegment { name: found.name, file: found.file, header, segment_bytes };
            let mut scanner = Scanner::new(&segment);
            report.life = header.life;
            while let Some(batch) = scanner.next()? {
                report.batches += 1;
                report.records += batch.heads.len() as u64;
            }
            report.used_bytes = scanner.offset;
        }
        segments.push(report);
    }
    segments.sort_by_key(|report| report.life);
    let Superblock { journal, segment_bytes } = superblock;
    let mut inspection = Inspection { journal, segment_bytes, segments, problem, ..Inspection::default() };
    if let Some(survey) = survey {
        inspection.records = Some(survey.records);
        inspection.payload_bytes = Some(survey.payload_bytes);
        inspection.begin = survey.log.first().map(|log| Position(log.segment.header.first_position));
        inspection.end = Some(Position(survey.next_position));
        (inspection.cut_off, inspection.epochs) = (survey.cut_off, survey.epochs);
    }
    Ok(inspection)
}

/// Passes the head of every record that the next open would replay to `each`, oldest first, with
/// the record's position and the length of its payload.
///
/// # Errors
/// If the directory is in use or has no journal, or the disk fails; `Corrupt` if the log is
/// damaged.
pub fn heads(disk: &dyn Disk, mut each: impl FnMut(Position, &Head<'_>, u64)) -> Result<(), OpenError> {
    let _lock = recovery::lock(disk)?;
    let survey = Survey::new(disk, superblock_of(disk)?)?;
    survey.each_batch(|segment, batch| {
        for (position, head, place) in segment.records(batch) {
            if head.kind != Kind::MARK && !survey.marks.covers(position, head) {
                each(position, head, place.sum.bytes.into());
            }
        }
    })
}

/// Reads a whole journal, including payloads, and returns all damage. An incomplete last batch is
/// also returned, because it may be damage. For an intact journal the result is empty.
///
/// # Errors
/// If the directory is in use, or the disk fails.
#[inline]
pub fn verify(disk: &dyn Disk) -> Result<Vec<Corruption>, OpenError> {
    let _lock = recovery::lock(disk)?;
    let survey = match superblock_of(disk).and_then(|superblock| Survey::new(disk, superblock)) {
        Ok(survey) => survey,
        Err(OpenError::Corrupt(corruption)) => return Ok(vec![corruption]),
        Err(error) => return Err(error),
    };
    let (mut problems, mut failure) = (Vec::from_iter(survey.cut_off.clone()), None);
    survey.each_batch(|segment, batch| {
        for (_, _, place) in segment.records(batch) {
            match place.read() {
                Ok(_) => {}
                Err(ReadError::Corrupt(corruption)) => problems.push(corruption),
                Err(ReadError::Disk(error)) => failure = Some(error),
            }
        }
    })?;
    match failure {
        Some(error) => Err(error.into()),
        None => Ok(problems),
    }
}

/// Returns the superblock. If it is damaged or missing, returns the one that most segments imply,
/// and the damage.
#[inline]
fn superblock_or_likely(disk: &dyn Disk) -> Result<(Superblock, Option<Corruption>), OpenError> {
    let damage = match superblock_of(disk) {
        Ok(superblock) => return Ok((superblock, None)),
        Err(OpenError::Corrupt(damage)) => damage,
        Err(error) => return Err(error),
    };
    let mut journals = std::collections::BTreeMap::<_, u32>::new();
    for found in find_segments(disk)?.iter().filter(|found| Superblock::is_possible(found.bytes)) {
        if let Some((header, _)) = found.header() {
            *journals.entry((header.journal, found.bytes)).or_default() += 1;
        }
    }
    match journals.into_iter().max_by_key(|(_, count)| *count) {
        Some(((journal, segment_bytes), _)) => Ok((Superblock { journal, segment_bytes }, Some(damage))),
        None => Err(damage.into()),
    }
}

/// Passes every readable record to `each`, with its payload, segment by segment in the order of
/// their lives, including those that the log no longer needs. Returns the places of unreadable
/// records.
///
/// This saves the readable records of a damaged journal: it needs no superblock and no header,
/// follows no chain from one segment to the next, and continues behind an unreadable batch.
///
/// # Errors
/// If the directory is in use or has no journal, or the disk fails; and the errors of `each`.
pub fn export(
    disk: &dyn Disk,
    mut each: impl FnMut(&Recovered, &[u8]) -> std::io::Result<()>,
) -> Result<Vec<Corruption>, OpenError> {
    let _lock = recovery::lock(disk)?;
    let (superblock, damage) = superblock_or_likely(disk)?;
    let mut problems: Vec<_> = damage.into_iter().collect();
    let mut segments = Vec::new();
    for found in find_segments(disk)? {
        if found.bytes != superblock.segment_bytes {
            let reason = format!(
                "the file has {} bytes, its journal's segments have {}",
                found.bytes, superblock.segment_bytes
            );
            problems.push(Corruption::new(&found.name, found.bytes, reason));
        }
        let mut header = match found.header() {
            Some((header, _)) if header.journal == superblock.journal => Some(header),
            Some(_) => {
                problems.push(Corruption::new(&found.name, 0, "the segment belongs to another journal"));
                None
            }
            None => None,
        };
        if let Some(likely) = found.likely_header(&superblock)? {
            header = Some(likely);
        }
        if let Some(header) = header {
            segments.push(found.open(header, superblock.segment_bytes));
        }
        for (at, block) in found.blocks.iter().enumerate() {
            if let HeaderBlock::Invalid(reason) = block {
                let name = crate::segments::segment_name(found.index);
                problems.push(Corruption::new(&name, (at * BLOCK_BYTES) as u64, reason.clone()));
            }
        }
    }
    segments.sort_by_key(|segment| segment.header.life);
    for (at, segment) in segments.iter().enumerate() {
        let mut scanner = Scanner::new(segment);
        loop {
            let Some(batch) = scanner.next()? else {
                if let Some(corruption) = scanner.skip_damage()? {
                    problems.push(corruption);
                    continue;
                }
                // In an earlier segment, these bytes are the remains of a failed write.
                if at + 1 == segments.len() {
                    problems.extend(scanner.find_cut_off()?);
                }
                break;
            };
            for (position, head, place) in segment.records(&batch) {
                let record = Recovered { position, head: head.clone(), place };
                match record.place.read() {
                    Ok(payload) => {
                        each(&record, &payload).map_err(DiskError::in_file("the export", "write"))?;
                    }
                    Err(ReadError::Corrupt(corruption)) => problems.push(corruption),
                    Err(ReadError::Disk(error)) => return Err(error.into()),
                }
            }
        }
    }
    Ok(problems)
}

/// Creates an empty journal in a directory without one. The first open decides the size of its
/// segments.
///
/// # Errors
/// If the directory is in use or not empty, or the disk fails.
pub fn init(disk: &dyn Disk) -> Result<(), OpenError> {
    let _lock = recovery::lock(disk)?;
    if read_superblock(disk)?.is_some() {
        let error = std::io::ErrorKind::AlreadyExists.into();
        return Err(DiskError::new(SUPERBLOCK_NAME, "make", error).into());
    }
    recovery::create(disk, JournalConfig::new("").segment_bytes).map(drop)
}

/// Removes all records of the journal, and leaves an empty journal. Journals that were set aside
/// stay.
///
/// # Errors
/// If the directory is in use, or the disk fails. An interrupted call can be repeated.
pub fn discard(disk: &dyn Disk) -> Result<(), OpenError> {
    let _lock = recovery::lock(disk)?;
    recovery::discard(disk)
}

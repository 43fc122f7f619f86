//! Reads a whole journal without changing it, to find where its log begins and ends, and whether
//! the log is intact.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::append::AlignedBuffer;
use crate::disk::{Disk, DiskFile};
use crate::error::{Corruption, DiskError, OpenError, ReadError};
use crate::format::{
    BLOCK_BYTES, BatchHeader, HeaderBlock, SEGMENT_DATA_AT, SegmentHeader, Superblock, salt,
};
use crate::record::{Epochs, Kind, Marks};
use crate::scan::{Chain, OpenSegment, ReadBatch, ScanError, Scanner};
use crate::segments::{NEW_SUFFIX, segment_name};

/// The name of the superblock's file.
pub(crate) const SUPERBLOCK_NAME: &str = "journal";
/// The maximum number of overtaken journals that are set aside. Each may take as much disk space as
/// the journal.
pub const KEPT_ASIDE_MAX: u32 = 3;
/// The superblock's file name while the journal is being discarded.
pub(crate) const DISCARDED_NAME: &str = "discarded";

/// A segment's file as found.
pub(crate) struct FoundSegment {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) bytes: u64,
    pub(crate) blocks: [HeaderBlock; 2],
}

impl FoundSegment {
    /// Returns the newest header and the number of its block.
    pub(crate) fn header(&self) -> Option<(SegmentHeader, usize)> {
        let valid = self.blocks.iter().enumerate().filter_map(|(at, block)| match block {
            HeaderBlock::Valid(header) => Some((*header, at)),
            HeaderBlock::Unused | HeaderBlock::Invalid(_) => None,
        });
        valid.max_by_key(|(header, _)| header.life)
    }

    /// Reconstructs a header from the segment's first batch, if the batch belongs to a newer life
    /// than every intact header. In that case the header of the newer life is damaged.
    ///
    /// A life's header is durable before its first batch is written.
    pub(crate) fn likely_header(&self, superblock: &Superblock) -> Result<Option<SegmentHeader>, DiskError> {
        let header = SegmentHeader { journal: superblock.journal, ..SegmentHeader::default() };
        let segment = self.open(header, superblock.segment_bytes);
        let mut block = vec![0; BLOCK_BYTES];
        segment.read(SEGMENT_DATA_AT, &mut block)?;
        let room = superblock.segment_bytes.saturating_sub(SEGMENT_DATA_AT);
        let Ok(batch) = BatchHeader::peek(&block, room) else { return Ok(None) };
        if batch.life <= self.header().map_or(0, |(header, _)| header.life) {
            return Ok(None);
        }
        match segment.read_batch(SEGMENT_DATA_AT, salt(superblock.journal, batch.life)) {
            Ok(ReadBatch { header: batch, .. }) => Ok(Some(SegmentHeader {
                life: batch.life,
                tail: batch.tail,
                first_number: batch.number,
                first_position: batch.first_position,
                previous_check: batch.previous_check,
                ..header
            })),
            Err(ScanError::Break(_)) => Ok(None),
            Err(ScanError::Disk(error)) => Err(error),
        }
    }

    pub(crate) fn open(&self, header: SegmentHeader, segment_bytes: u64) -> OpenSegment {
        OpenSegment { name: self.name.clone(), file: Arc::clone(&self.file), header, segment_bytes }
    }
}

/// A segment of the log, as found.
pub(crate) struct LogSegment {
    /// The index of the segment in `Survey::found`.
    pub(crate) at: usize,
    pub(crate) segment: OpenSegment,
    pub(crate) header_block: usize,
    /// The number of the batch with which the next segment continues, or at which the log ends.
    pub(crate) end_number: u64,
    /// The offset at which that batch would be.
    pub(crate) end: u64,
}

/// The content of a journal.
#[derive(Default)]
pub(crate) struct Survey {
    pub(crate) superblock: Superblock,
    pub(crate) found: Vec<FoundSegment>,
    /// The log, oldest segment first.
    pub(crate) log: Vec<LogSegment>,
    /// The offset and the header of the log's last batch, if that batch is in the last segment.
    pub(crate) last_batch: Option<(u64, BatchHeader)>,
    /// An incomplete batch after the end of the log.
    pub(crate) cut_off: Option<Corruption>,
    pub(crate) next_number: u64,
    pub(crate) last_check: u32,
    pub(crate) next_position: u64,
    pub(crate) life_max: u64,
    pub(crate) tail: u64,
    pub(crate) marks: Marks,
    pub(crate) epochs: Epochs,
    /// The number of records, not counting marks and the records that marks cover.
    pub(crate) records: u64,
    pub(crate) payload_bytes: u64,
}

/// Reads a file's first bytes.
fn read_start(name: &str, file: &dyn DiskFile, bytes: usize) -> Result<Vec<u8>, DiskError> {
    let mut start = vec![0; bytes];
    let read = file.read_at(0, &mut start).map_err(DiskError::in_file(name, "read"))?;
    start.truncate(read);
    Ok(start)
}

/// Returns the number in a segment's file name.
pub(crate) fn segment_index(name: &str) -> Option<u32> {
    let index = name.strip_prefix("segment-")?.parse().ok()?;
    (segment_name(index) == name).then_some(index)
}

/// Reads the superblock, or returns `None` if there is none.
pub(crate) fn read_superblock(disk: &dyn Disk) -> Result<Option<Superblock>, OpenError> {
    let file = match disk.open(SUPERBLOCK_NAME) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DiskError::new(SUPERBLOCK_NAME, "open", error).into()),
    };
    let block = read_start(SUPERBLOCK_NAME, &*file, BLOCK_BYTES + 1)?;
    let superblock =
        Superblock::decode(&block).map_err(|reason| Corruption::new(SUPERBLOCK_NAME, 0, reason))?;
    Ok(Some(superblock))
}

/// Writes a superblock; its name appears only after its bytes are durable.
pub(crate) fn put_superblock(disk: &dyn Disk, superblock: &Superblock) -> Result<(), DiskError> {
    let new_name = format!("{SUPERBLOCK_NAME}{NEW_SUFFIX}");
    let failed = |operation| DiskError::in_file(&new_name, operation);
    let file = disk.create(&new_name).map_err(failed("create"))?;
    let mut block = AlignedBuffer::default();
    block.extend(&superblock.encode());
    file.write_at(0, &[block.as_slice()]).map_err(failed("write"))?;
    file.sync().map_err(failed("sync"))?;
    disk.rename(&new_name, SUPERBLOCK_NAME).map_err(failed("rename"))?;
    disk.sync_names().map_err(DiskError::in_file(".", "sync"))
}

/// Reads the headers of all segments, in the order of their numbers.
pub(crate) fn find_segments(disk: &dyn Disk) -> Result<Vec<FoundSegment>, OpenError> {
    let names = disk.names().map_err(DiskError::in_file(".", "list"))?;
    let mut found = BTreeMap::new();
    for name in names {
        let Some(index) = segment_index(&name) else { continue };
        let failed = |operation| DiskError::in_file(&name, operation);
        let file = disk.open(&name).map_err(failed("open"))?;
        let bytes = file.len().map_err(failed("measure"))?;
        let start = read_start(&name, &*file, SEGMENT_DATA_AT as usize)?;
        let (first, second) = start.split_at(start.len().min(BLOCK_BYTES));
        let blocks = [HeaderBlock::decode(first), HeaderBlock::decode(second)];
        found.insert(index, FoundSegment { index, name, file, bytes, blocks });
    }
    Ok(found.into_values().collect())
}

/// Returns whether a directory with this name holds a journal that another writer has overtaken.
pub(crate) fn is_aside(name: &str) -> bool {
    (1..=KEPT_ASIDE_MAX).any(|number| name == aside_name(number))
}

/// Returns the directories of the overtaken journals that are kept within a journal's directory.
#[must_use]
pub fn kept_aside(directory: &Path) -> Vec<PathBuf> {
    let all = (1..=KEPT_ASIDE_MAX).map(|number| directory.join(aside_name(number)));
    // The superblock is written last.
    all.filter(|kept| kept.join(SUPERBLOCK_NAME).exists()).collect()
}

/// Returns the name of a directory for an overtaken journal.
pub(crate) fn aside_name(number: u32) -> String {
    format!("overtaken-{number}")
}

/// Returns an error unless the directory is empty, except for journals set aside and remains of an
/// interrupted first open.
pub(crate) fn check_empty(disk: &dyn Disk) -> Result<(), OpenError> {
    let names = disk.names().map_err(DiskError::in_file(".", "list"))?;
    if names.iter().any(|name| segment_index(name).is_some()) {
        let reason = "the superblock is missing, and there are segments";
        return Err(Corruption::new(SUPERBLOCK_NAME, 0, reason).into());
    }
    let is_known = |name: &str| name.ends_with(NEW_SUFFIX) || name == "lost+found" || is_aside(name);
    let foreign = names.into_iter().find(|name| !is_known(name));
    foreign.map_or(Ok(()), |file| Err(OpenError::Foreign { file }))
}

impl Survey {
    /// Reads all heads of the log, and the payloads of its last batch.
    pub(crate) fn new(disk: &dyn Disk, superblock: Superblock) -> Result<Self, OpenError> {
        let found = find_segments(disk)?;
        check_segments(&found, &superblock)?;
        let mut survey = Self { superblock, found, next_number: 1, next_position: 1, ..Self::default() };
        survey.life_max = survey.newest().map_or(0, |(_, header, _)| header.life);
        if let Some(end) = survey.read_last()? {
            survey.read_others(end)?;
        }
        survey.check_rest()?;
        survey.leave_out_covered()?;
        Ok(survey)
    }

    fn newest(&self) -> Option<(usize, SegmentHeader, usize)> {
        let headers = self.found.iter().enumerate();
        let headers =
            headers.filter_map(|(at, found)| found.header().map(|(header, block)| (at, header, block)));
        headers.max_by_key(|(_, header, _)| header.life)
    }

    /// Finds the end of the log in the newest segment, if there is one.
    fn read_last(&mut self) -> Result<Option<Chain>, OpenError> {
        let Some((at, header, header_block)) = self.newest() else { return Ok(None) };
        let segment = self.found[at].open(header, self.superblock.segment_bytes);
        let mut scanner = Scanner::new(&segment);
        // The last two batches are kept, because the payloads of the last one may be torn.
        let (mut before, mut last): (Option<ReadBatch>, Option<ReadBatch>) = (None, None);
        let mut counted = Counted::default();
        while let Some(batch) = scanner.next()? {
            before.iter().for_each(|batch| counted.add(batch));
            before = last.replace(batch);
        }
        let torn_at = match &last {
            Some(batch) => torn_payload(&segment, batch)?.then_some(batch.offset),
            None => None,
        };
        before.iter().chain(last.iter().filter(|_| torn_at.is_none())).for_each(|batch| counted.add(batch));
        if let Some(torn_at) = torn_at {
            last = before;
            scanner = Scanner::new(&segment);
            while scanner.offset < torn_at && scanner.next()?.is_some() {}
            self.cut_off = Some(scanner.cut_off());
        } else {
            self.cut_off = scanner.find_cut_off()?;
        }
        self.count(counted);
        self.tail = last.as_ref().map_or(header.tail, |batch| batch.header.tail);
        self.last_batch = last.map(|batch| (batch.offset, batch.header));
        self.next_number = scanner.next_number;
        self.last_check = scanner.last_check;
        self.next_position = scanner.next_position;
        let (end_number, end) = (scanner.next_number, scanner.offset);
        let chain = scanner.into_chain();
        self.log = vec![LogSegment { at, segment, header_block, end_number, end }];
        Ok(Some(chain))
    }

    /// Reads the other segments of the log, and checks that nothing is behind its end.
    fn read_others(&mut self, end: Chain) -> Result<(), OpenError> {
        let Some(last) = self.log.pop() else { return Ok(()) };
        let (others, problem) = self.find_others(&last.segment);
        // Each segment is counted as soon as it has been read: several may contain the same marks.
        let survey = Mutex::new(&mut *self);
        let job = |at: usize| -> Result<(u64, u64), OpenError> {
            let counted = match at.checked_sub(1) {
                None => {
                    Scanner::at(&last.segment, end.clone()).check_nothing_behind()?;
                    return Ok((last.end_number, last.end));
                }
                Some(0) => read_up_to(&others[0].segment, &last.segment)?,
                Some(at) => read_up_to(&others[at].segment, &others[at - 1].segment)?,
            };
            let end = (counted.end_number, counted.end);
            survey.lock().count(counted);
            Ok(end)
        };
        // The first error is that of the newest segment.
        let ends = in_parallel(1 + others.len(), job)?;
        if let Some(problem) = problem {
            return Err(problem.into());
        }
        let others = others.into_iter().zip(ends.into_iter().skip(1));
        self.log = others.map(|(log, (end_number, end))| LogSegment { end_number, end, ..log }).collect();
        self.log.reverse();
        self.log.push(last);
        Ok(())
    }

    /// Follows the headers back from the last segment of the log to its tail. Returns the other
    /// segments of the log, the newest first, and what is wrong with the oldest.
    fn find_others(&self, last: &OpenSegment) -> (Vec<LogSegment>, Option<Corruption>) {
        let (mut next, mut next_name) = (last.header, last.name.clone());
        if self.tail > next.life {
            let reason = format!("the log's tail, life {}, is behind its end, life {}", self.tail, next.life);
            return (Vec::new(), Some(Corruption::new(&next_name, SEGMENT_DATA_AT, reason)));
        }
        let mut others = Vec::new();
        while next.life > self.tail {
            let previous = self.found.iter().enumerate().find_map(|(at, found)| {
                let (header, block) = found.header()?;
                (header.life == next.previous_life).then_some((at, header, block))
            });
            let Some((at, header, header_block)) = previous else {
                return (others, Some(self.missing(&next_name, &next)));
            };
            let segment = self.found[at].open(header, self.superblock.segment_bytes);
            (next, next_name) = (header, segment.name.clone());
            others.push(LogSegment { at, segment, header_block, end_number: 0, end: 0 });
        }
        (others, None)
    }

    fn missing(&self, next_name: &str, next: &SegmentHeader) -> Corruption {
        let is_invalid = |block: &HeaderBlock| matches!(block, HeaderBlock::Invalid(_));
        let damaged = self.found.iter().filter(|found| found.blocks.iter().any(is_invalid));
        let damaged: Vec<_> = damaged.map(|found| found.name.as_str()).collect();
        let suspects = if damaged.is_empty() {
            "a file is missing".to_owned()
        } else {
            format!("damaged headers: {}", damaged.join(", "))
        };
        let reason = format!(
            "the segment with life number {}, the predecessor of life {}, is missing: {suspects}",
            next.previous_life, next.life
        );
        Corruption::new(next_name, 0, reason)
    }

    /// Checks the segments outside the log: no batch in them may be newer than the log.
    ///
    /// A life's header is durable before its first batch is written. So if a newer batch is found,
    /// its header was damaged later.
    fn check_rest(&self) -> Result<(), OpenError> {
        for (at, found) in self.found.iter().enumerate() {
            if self.log.iter().any(|log| log.at == at) {
                continue;
            }
            let Some(header) = found.likely_header(&self.superblock)? else { continue };
            if header.life <= self.life_max {
                continue;
            }
            let reason = format!("the header of life {} is damaged: its batches are there", header.life);
            return Err(Corruption::new(&found.name, 0, reason).into());
        }
        Ok(())
    }

    /// Adds what a segment of the log contains.
    fn count(&mut self, counted: Counted) {
        self.marks.merge(counted.marks);
        self.epochs.merge(counted.epochs);
        self.records += counted.records;
        self.payload_bytes += counted.payload_bytes;
    }

    /// Subtracts the records that marks cover. Only the part of the log up to the last covered
    /// position is read again.
    fn leave_out_covered(&mut self) -> Result<(), OpenError> {
        let Some(up_to) = self.marks.last_covered() else { return Ok(()) };
        let (mut records, mut payload_bytes) = (0, 0);
        'log: for log in &self.log {
            let mut scanner = Scanner::new(&log.segment);
            while scanner.next_number < log.end_number {
                let batch = scanner.expect_next()?;
                if batch.header.first_position > up_to.0 {
                    break 'log;
                }
                for (position, head, sum) in batch.records() {
                    if head.kind != Kind::MARK && self.marks.covers(position, head) {
                        records += 1;
                        payload_bytes += u64::from(sum.bytes);
                    }
                }
            }
        }
        self.records -= records;
        self.payload_bytes -= payload_bytes;
        Ok(())
    }

    /// Reads every batch of the log, in order.
    pub(crate) fn each_batch(&self, mut each: impl FnMut(&OpenSegment, &ReadBatch)) -> Result<(), OpenError> {
        for log in &self.log {
            let mut scanner = Scanner::new(&log.segment);
            while scanner.next_number < log.end_number {
                each(&log.segment, &scanner.expect_next()?);
            }
        }
        Ok(())
    }
}

/// The number of segments that are read at the same time.
const SCANS_MAX: usize = 4;

/// Executes the jobs with the numbers below `count` on a few threads, and returns their results.
/// After an error, no further job begins.
///
/// # Errors
/// Returns the error of the failed job with the lowest number.
fn in_parallel<T: Send, E: Send>(
    count: usize,
    job: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new((0..count).map(|_| None).collect::<Vec<Option<Result<T, E>>>>());
    let work = || {
        while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < count) {
            let result = job(at);
            if result.is_err() {
                // Jobs begin in order, so all jobs before this one have begun, and will end.
                next.store(count, Ordering::Relaxed);
            }
            results.lock()[at] = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..SCANS_MAX.min(count) {
            // If the system refuses the thread, the others do its jobs.
            let _ = std::thread::Builder::new().name("journal-scan".into()).spawn_scoped(scope, work);
        }
        work();
    });
    results.into_inner().into_iter().flatten().collect()
}

/// Reads a segment of the log up to the batch with which the segment `next` continues.
fn read_up_to(segment: &OpenSegment, next: &OpenSegment) -> Result<Counted, OpenError> {
    let mut scanner = Scanner::new(segment);
    let mut counted = Counted::default();
    while scanner.next_number < next.header.first_number {
        let batch = scanner.expect_next().map_err(|error| match error {
            ReadError::Corrupt(mut damage) => {
                damage.reason = format!(
                    "{}; the log has batches up to {} here, and continues in {}",
                    damage.reason,
                    next.header.first_number - 1,
                    next.name
                );
                damage.into()
            }
            disk => disk,
        })?;
        counted.add(&batch);
    }
    if (scanner.next_number, scanner.last_check) != (next.header.first_number, next.header.previous_check) {
        let reason = format!("the last batch is not the one that {} follows", next.name);
        return Err(Corruption::new(&segment.name, scanner.offset, reason).into());
    }
    (counted.end_number, counted.end) = (scanner.next_number, scanner.offset);
    Ok(counted)
}

/// The content of batches, counted while they are read.
#[derive(Default)]
struct Counted {
    /// The number and the offset of the batch after them.
    end_number: u64,
    end: u64,
    marks: Marks,
    epochs: Epochs,
    /// The number of records that are not marks, whether or not a mark covers them.
    records: u64,
    payload_bytes: u64,
}

impl Counted {
    fn add(&mut self, batch: &ReadBatch) {
        for (head, sum) in &batch.heads {
            self.marks.add(head);
            self.epochs.add(head);
            if head.kind != Kind::MARK {
                self.records += 1;
                self.payload_bytes += u64::from(sum.bytes);
            }
        }
    }
}

/// Returns whether a payload of the batch does not match its head.
fn torn_payload(segment: &OpenSegment, batch: &ReadBatch) -> Result<bool, DiskError> {
    for (_, _, place) in segment.records(batch) {
        match place.read() {
            Ok(_) => {}
            Err(ReadError::Corrupt(_)) => return Ok(true),
            Err(ReadError::Disk(error)) => return Err(error),
        }
    }
    Ok(false)
}

/// Checks each segment separately.
fn check_segments(found: &[FoundSegment], superblock: &Superblock) -> Result<(), Corruption> {
    let mut lives = BTreeMap::new();
    for segment in found {
        if segment.bytes != superblock.segment_bytes {
            let reason = format!(
                "the file has {} bytes, its journal's segments have {}",
                segment.bytes, superblock.segment_bytes
            );
            return Err(Corruption::new(&segment.name, segment.bytes, reason));
        }
        let Some((header, block)) = segment.header() else { continue };
        let offset = (block * BLOCK_BYTES) as u64;
        if header.journal != superblock.journal {
            return Err(Corruption::new(&segment.name, offset, "the segment belongs to another journal"));
        }
        if let Some(other) = lives.insert(header.life, &segment.name) {
            let reason = format!("life {} is that of {other}, too: one of the files is a copy", header.life);
            return Err(Corruption::new(&segment.name, offset, reason));
        }
    }
    Ok(())
}

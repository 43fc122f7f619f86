//! The records that a recovery has found, for the caller to apply.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::append::{AlignedBuffer, Hold};
use crate::disk::Disk;
use crate::error::{Corruption, DiskError, OpenError, ReadError};
use crate::format::{BLOCK_BYTES, PayloadSum, checksum};
use crate::record::{Epochs, Head, Kind, Position};
use crate::scan::{Chain, Extent, OpenSegment, PIECE_BYTES, PayloadPlace, ReadBatch, Scanner, Window};
use crate::shared::Shared;
use crate::survey::{KEPT_ASIDE_MAX, SUPERBLOCK_NAME, Survey, aside_name, put_superblock, segment_index};

/// The size of the pieces in which a journal is copied when it is set aside.
const COPY_BYTES: u64 = 256 << 10;

/// A record found by a recovery. Its payload is read on demand.
#[derive(Clone)]
pub struct Recovered {
    /// The record's position.
    pub position: Position,
    /// The record's description of its change.
    pub head: Head<'static>,
    pub(crate) place: PayloadPlace,
}

impl Recovered {
    /// Returns the length of the payload.
    pub fn payload_bytes(&self) -> u64 {
        self.place.sum.bytes.into()
    }

    /// Reads the payload from disk and verifies it. Call this before the record's segment is
    /// released, that is, while the replay or a hold of the record's position exists.
    ///
    /// # Errors
    /// If the payload does not match its checksum, with the file and the offset, or if the disk
    /// fails.
    pub fn payload(&self) -> Result<Vec<u8>, ReadError> {
        self.place.read()
    }
}

impl std::fmt::Debug for Recovered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recovered").field("position", &self.position).field("head", &self.head).finish()
    }
}

/// The records of an earlier process, in the order in which they were appended.
///
/// The journal can be used immediately. Every recovered segment is held until its records are
/// [`applied`](Self::applied), or the replay is dropped. Applying a record twice is harmless: if
/// the records are applied in order, every byte ends up as the last record states.
pub struct Replay {
    shared: Arc<Shared>,
    survey: Arc<Survey>,
    /// A hold for each recovered segment, with the position after the segment's records.
    holds: VecDeque<(Position, Hold)>,
    applied: u64,
}

impl Replay {
    pub(crate) fn new(shared: Arc<Shared>, survey: Survey) -> Self {
        let mut holds = VecDeque::new();
        let state = shared.state.lock();
        for (at, segment) in state.table.live.iter().enumerate() {
            let end = state.table.live.get(at + 1).map_or(state.next_position, |next| next.first_position);
            let hold =
                Hold::new(Arc::clone(&shared), Arc::clone(&segment.holds), Position(segment.first_position));
            holds.push_back((Position(end), hold));
        }
        drop(state);
        Self { shared, survey: Arc::new(survey), holds, applied: 0 }
    }

    /// Returns the number of records to apply.
    pub fn len(&self) -> u64 {
        self.survey.records
    }

    /// Returns whether there is nothing to apply.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the total length of the payloads to apply.
    pub fn payload_bytes(&self) -> u64 {
        self.survey.payload_bytes
    }

    /// Returns the epochs of the records. Query the store before applying records: records with a
    /// superseded epoch must not be applied.
    pub fn epochs(&self) -> &Epochs {
        &self.survey.epochs
    }

    /// Returns the position after the last recovered record.
    pub fn end(&self) -> Position {
        Position(self.survey.next_position)
    }

    /// Returns the records to apply, oldest first: all records except marks and those that marks
    /// cover. The iterator reads the heads from disk as it advances.
    pub fn records(&self) -> Records<'_> {
        Records { replay: self, is_all: false, log: 0, scanner: None, batch: VecDeque::new() }
    }

    /// Returns all records, oldest first, including marks and the records that marks cover.
    pub fn all_records(&self) -> Records<'_> {
        Records { is_all: true, ..self.records() }
    }

    /// Returns a reader of the records to apply with their payloads, from the oldest on, in large
    /// sequential reads.
    pub fn reader(&self) -> Reader {
        let survey = Arc::clone(&self.survey);
        Reader { survey, log: 0, chain: None, window: Window::new(PIECE_BYTES), current: None }
    }

    /// Returns a reader of single records by their places. The reader does not hold the segments;
    /// the replay does.
    pub fn source(&self) -> Source {
        Source { survey: Arc::clone(&self.survey) }
    }

    /// Returns a job that copies the journal, as found, into a directory within the journal's:
    /// `overtaken-1` to `overtaken-3`. The tools can read the copy, and no open replays it. The job
    /// blocks, and returns the directory's name, or `None` if the limit of copies is reached. It
    /// must end before anything is [`applied`](Self::applied).
    ///
    /// # Errors
    /// The job's: the disk failed, or is full. The job may be repeated, and then starts from the
    /// beginning.
    pub fn keep_aside(&self) -> impl FnOnce() -> Result<Option<String>, DiskError> + Send + 'static {
        let (shared, survey) = (Arc::clone(&self.shared), Arc::clone(&self.survey));
        move || {
            for number in 1..=KEPT_ASIDE_MAX {
                let name = aside_name(number);
                let failed = |operation| DiskError::in_file(&name, operation);
                let aside = shared.disk.directory(&name).map_err(failed("make"))?;
                let names = aside.names().map_err(failed("list"))?;
                // The superblock is written last. A directory that was emptied has no segments.
                let is_taken = names.iter().any(|name| name == SUPERBLOCK_NAME)
                    && names.iter().any(|name| segment_index(name).is_some());
                if !is_taken {
                    copy_log(&survey, &*aside, &names, &name)?;
                    shared.disk.sync_names().map_err(failed("sync the directory of"))?;
                    return Ok(Some(name));
                }
            }
            Ok(None)
        }
    }

    /// Records that all records up to and including `position` have been applied, and that their
    /// data are stored or held by the caller. Releases older segments.
    pub fn applied(&mut self, position: Position, records: u64) {
        let records = records.min(self.survey.records - self.applied);
        self.applied += records;
        self.shared.counters.counts.replay_applied.add(records);
        while self.holds.len() > 1 && self.holds[0].0 <= Position(position.0 + 1) {
            self.holds.pop_front();
        }
    }
}

impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").field("records", &self.len()).field("applied", &self.applied).finish()
    }
}

/// Copies the segments of the log, and the superblock last, into a directory with these file names.
fn copy_log(survey: &Survey, to: &dyn Disk, names: &[String], directory: &str) -> Result<(), DiskError> {
    for name in names.iter().filter(|name| *name == SUPERBLOCK_NAME || segment_index(name).is_some()) {
        to.remove(name).map_err(DiskError::in_file(&format!("{directory}/{name}"), "remove"))?;
    }
    let mut buffer = AlignedBuffer::default();
    for log in &survey.log {
        let segment = &log.segment;
        let name = format!("{directory}/{}", segment.name);
        let failed = |operation| DiskError::in_file(&name, operation);
        let file = to.create(&segment.name).map_err(failed("create"))?;
        let mut at = 0;
        while at < segment.segment_bytes {
            // Behind the end of the log nothing needs to be kept: the last block gives the file its
            // length.
            if at >= log.end {
                at = segment.segment_bytes - BLOCK_BYTES as u64;
            }
            let run = COPY_BYTES.min(segment.segment_bytes - at);
            buffer.clear();
            buffer.extend_zeros(run as usize);
            if at < log.end {
                let wanted = run.min(log.end - at) as usize;
                segment.read(at, &mut buffer.as_mut_slice()[..wanted])?;
            }
            file.write_at(at, &[buffer.as_slice()]).map_err(failed("write"))?;
            at += run;
        }
        file.sync().map_err(failed("sync"))?;
    }
    to.sync_names().map_err(DiskError::in_file(directory, "sync"))?;
    put_superblock(to, &survey.superblock)
        .map_err(|error| DiskError { file: format!("{directory}/{}", error.file), ..error })
}

/// The iterator over recovered records, returned by [`Replay::records`].
///
/// The iterator ends after an error: the disk failed, or the journal's files have changed since the
/// journal was opened.
pub struct Records<'a> {
    replay: &'a Replay,
    is_all: bool,
    log: usize,
    scanner: Option<Scanner<'a>>,
    batch: VecDeque<(RecordPlace, Recovered)>,
}

impl Records<'_> {
    fn is_wanted(&self, position: Position, head: &Head<'_>) -> bool {
        self.is_all || (head.kind != Kind::MARK && !self.replay.survey.marks.covers(position, head))
    }

    /// Reads the next batch. Returns false at the end of the log.
    fn read_batch(&mut self) -> Result<bool, OpenError> {
        let log = &self.replay.survey.log;
        while let Some(current) = log.get(self.log) {
            let segment: &OpenSegment = &current.segment;
            let scanner = self.scanner.get_or_insert_with(|| Scanner::new(segment));
            if scanner.next_number >= current.end_number {
                self.scanner = None;
                self.log += 1;
                continue;
            }
            let batch = scanner.expect_next()?;
            let records =
                segment.records(&batch).filter(|(position, head, _)| self.is_wanted(*position, head));
            let (log, block) = (self.log as u32, (batch.offset / BLOCK_BYTES as u64) as u32);
            let first = batch.header.first_position;
            let recovered = |(position, head, place): (Position, &Head<'static>, PayloadPlace)| {
                let ordinal = (position.0 - first) as u32;
                let record_place = RecordPlace { log, block, ordinal };
                (record_place, Recovered { position, head: head.clone(), place })
            };
            self.batch = records.map(recovered).collect();
            return Ok(true);
        }
        Ok(false)
    }

    /// Returns the next record with its place, for [`Source::read`].
    pub fn next_placed(&mut self) -> Option<Result<(RecordPlace, Recovered), OpenError>> {
        loop {
            if let Some(record) = self.batch.pop_front() {
                return Some(Ok(record));
            }
            match self.read_batch() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.log = usize::MAX;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Recovered, OpenError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_placed().map(|next| next.map(|(_, record)| record))
    }
}

/// The place of a record in a recovered log. Valid for the [`Source`] and the [`Reader`] of the
/// same replay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RecordPlace {
    /// The index of the segment in the log.
    pub(crate) log: u32,
    /// The block of the segment in which the record's batch begins.
    pub(crate) block: u32,
    /// The record's index in its batch.
    pub(crate) ordinal: u32,
}

/// Reads single records of a recovered log. Clones are cheap.
#[derive(Clone)]
pub struct Source {
    survey: Arc<Survey>,
}

impl Source {
    /// Reads a record, and verifies its head and its payload. Call this while the replay or a hold
    /// of the record exists.
    ///
    /// # Errors
    /// If the head or the payload does not match its checksum, with the file and the offset, or if
    /// the disk fails.
    pub fn read(&self, place: RecordPlace) -> Result<(Position, Head<'static>, Vec<u8>), ReadError> {
        let segment = &self.survey.log[place.log as usize].segment;
        let offset = u64::from(place.block) * BLOCK_BYTES as u64;
        let salt = Chain::new(segment).salt;
        let batch = segment.read_batch(offset, salt).map_err(|error| error.at(segment, offset))?;
        let Some((position, head, payload)) = segment.records(&batch).nth(place.ordinal as usize) else {
            let reason = "the batch has fewer records than when the journal was opened";
            return Err(Corruption::new(&segment.name, offset, reason).into());
        };
        Ok((position, head.clone(), payload.read()?))
    }
}

/// A record that a [`Reader`] has read.
#[derive(Debug)]
pub struct Read<'a> {
    /// The position of the record.
    pub position: Position,
    /// The record's description of its change.
    pub head: &'a Head<'static>,
    /// The verified payload, or the damage found.
    pub payload: Result<&'a [u8], Corruption>,
}

/// The batch that is being returned, record by record.
struct Current {
    offset: u64,
    heads: Vec<(Head<'static>, PayloadSum)>,
    first_position: u64,
    next: usize,
    payload_at: u64,
}

/// Reads the records of a recovered log in order, by large sequential reads. Made by
/// [`Replay::reader`](crate::Replay::reader).
///
/// It skips marks, and records that they cover. It holds one batch in memory, at most 4 MiB, and
/// little more than a piece of 1 MiB if batches are smaller. The replay holds the segments that it
/// reads.
pub struct Reader {
    survey: Arc<Survey>,
    log: usize,
    chain: Option<Chain>,
    window: Window,
    current: Option<Current>,
}

impl Reader {
    /// Reads the next record to apply, or returns `None` at the end of the log.
    ///
    /// # Errors
    /// If the chain of batches, which was intact when the journal was opened, is now broken, or if
    /// the disk fails. In both cases the next call tries the same batch again. A damaged payload is
    /// part of the returned record.
    #[allow(clippy::should_implement_trait, reason = "what it returns borrows from it")]
    pub fn next(&mut self) -> Result<Option<Read<'_>>, ReadError> {
        loop {
            let found = match &mut self.current {
                Some(current) => current.advance(&self.survey),
                None => None,
            };
            if let Some((at, payload_at)) = found {
                return Ok(Some(self.record(at, payload_at)));
            }
            self.current = None;
            if !self.read_batch()? {
                return Ok(None);
            }
        }
    }

    /// Returns the record with index `at` in the current batch.
    fn record(&self, at: usize, payload_at: u64) -> Read<'_> {
        // `next` passes the place of a record of the current batch.
        let current = self.current.as_ref().expect("a batch is being returned");
        let (head, sum) = &current.heads[at];
        let bytes = self.window.get(payload_at, sum.bytes as usize);
        let payload = if bytes.len() == sum.bytes as usize && checksum(0, &[bytes]) == sum.crc {
            Ok(bytes)
        } else {
            let name = &self.survey.log[self.log].segment.name;
            Err(PayloadPlace::damage(name, payload_at, sum.bytes))
        };
        Read { position: Position(current.first_position + at as u64), head, payload }
    }

    /// Reads the next batch. Returns false at the end of the log.
    fn read_batch(&mut self) -> Result<bool, ReadError> {
        let survey = Arc::clone(&self.survey);
        while let Some(log) = survey.log.get(self.log) {
            let segment = &log.segment;
            let chain = self.chain.get_or_insert_with(|| Chain::new(segment));
            if chain.next_number >= log.end_number {
                self.chain = None;
                self.window.clear();
                self.log += 1;
                continue;
            }
            let offset = chain.offset;
            let batch = self.window.read_batch(segment, offset, chain.salt, Extent::Whole);
            let ReadBatch { header, heads, .. } = batch.map_err(|error| error.at(segment, offset))?;
            chain.follow(&header).map_err(|reason| Corruption::new(&segment.name, offset, reason))?;
            self.current = Some(Current {
                offset,
                heads,
                first_position: header.first_position,
                next: 0,
                payload_at: offset + header.layout().payload_at,
            });
            return Ok(true);
        }
        Ok(false)
    }

    /// Returns the place of the record returned last.
    pub fn place(&self) -> Option<RecordPlace> {
        let current = self.current.as_ref()?;
        let block = (current.offset / BLOCK_BYTES as u64) as u32;
        Some(RecordPlace { log: self.log as u32, block, ordinal: current.next.checked_sub(1)? as u32 })
    }
}

impl Current {
    /// Moves to the next record to apply. Returns its number in the batch and the offset of its payload.
    fn advance(&mut self, survey: &Survey) -> Option<(usize, u64)> {
        loop {
            let at = self.next;
            let (head, sum) = self.heads.get(at)?;
            let payload_at = self.payload_at;
            self.next += 1;
            self.payload_at += u64::from(sum.bytes);
            let position = Position(self.first_position + at as u64);
            if head.kind != Kind::MARK && !survey.marks.covers(position, head) {
                return Some((at, payload_at));
            }
        }
    }
}

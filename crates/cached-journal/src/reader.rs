//! Reading what a recovery found: all of it in order, in large pieces, or one record by its place.

use std::sync::Arc;

use crate::error::{Corruption, ReadError};
use crate::format::batch::{BATCH_HEADER_BYTES, BatchHeader};
use crate::format::head::{PayloadSum, decode_all};
use crate::format::{BLOCK_BYTES, batch_bytes_max, checksum};
use crate::record::{Head, Kind, Position};
use crate::scan::{Chain, OpenSegment, PayloadPlace, ReadBatch, ScanError};
use crate::survey::Survey;

/// How much is read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Where a record of a recovered log lies. Valid for the [`Source`] and the [`Reader`] of the same replay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RecordPlace {
    /// The segment's place in the log.
    pub(crate) log: u32,
    /// The block of the segment in which the record's batch begins.
    pub(crate) block: u32,
    /// The record's number in its batch.
    pub(crate) ordinal: u32,
}

/// Reads single records of a recovered log. Clones are cheap.
#[derive(Clone)]
pub struct Source {
    survey: Arc<Survey>,
}

impl Source {
    pub(crate) fn new(survey: Arc<Survey>) -> Self {
        Self { survey }
    }

    /// Reads a record, and verifies head and payload. Call it as long as the replay, or a hold of the record,
    /// is there.
    ///
    /// # Errors
    /// If head or payload does not match its checksum, with file and offset, and if the disk fails.
    pub fn read(&self, place: RecordPlace) -> Result<(Position, Head<'static>, Vec<u8>), ReadError> {
        let segment = &self.survey.log[place.log as usize].segment;
        let offset = u64::from(place.block) * BLOCK_BYTES as u64;
        let salt = Chain::new(segment).salt;
        let corrupt = |reason| ReadError::Corrupt(Corruption::new(&segment.name, offset, reason));
        let (header, heads) = segment.read_batch(offset, salt).map_err(|error| match error {
            ScanError::Break(reason) => corrupt(reason),
            ScanError::Disk(error) => error.into(),
        })?;
        let batch = ReadBatch { offset, header, heads };
        let Some((position, head, payload)) = segment.records(&batch).nth(place.ordinal as usize) else {
            return Err(corrupt("the batch has fewer records than when the journal was opened"));
        };
        Ok((position, head.clone(), payload.read()?))
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Source").finish_non_exhaustive()
    }
}

/// A record that a [`Reader`] has read.
#[derive(Debug)]
pub struct Read<'a> {
    /// The record's place in the order of the appends.
    pub position: Position,
    /// What the record states.
    pub head: &'a Head<'static>,
    /// The payload, verified; or the damage that was found.
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
/// It skips marks, and what they cover. It holds one batch in memory, 4 MiB at most, and little more than a
/// piece of 1 MiB if batches are smaller. The segments that it reads are held by the replay.
pub struct Reader {
    survey: Arc<Survey>,
    log: usize,
    chain: Option<Chain>,
    window: Window,
    current: Option<Current>,
}

/// The bytes of the current segment that have been read.
#[derive(Default)]
struct Window {
    bytes: Vec<u8>,
    /// The offset of the first of them in the segment.
    at: u64,
    len: usize,
}

impl Window {
    /// Makes sure that `len` bytes from `offset` on are here, as far as the segment has them; reads ahead.
    fn fetch(&mut self, segment: &OpenSegment, offset: u64, len: usize) -> Result<(), ReadError> {
        let end = self.at + self.len as u64;
        if self.at <= offset && offset + len as u64 <= end {
            return Ok(());
        }
        let kept = if (self.at..end).contains(&offset) {
            let skip = (offset - self.at) as usize;
            self.bytes.copy_within(skip..self.len, 0);
            self.len - skip
        } else {
            0
        };
        let wanted = kept.max(len).max(PIECE_BYTES);
        let left = segment.segment_bytes.saturating_sub(offset);
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(wanted);
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted, 0);
        }
        (self.at, self.len) = (offset, kept);
        if wanted > kept {
            self.len += segment.read(offset + kept as u64, &mut self.bytes[kept..wanted])?;
        }
        Ok(())
    }

    /// Returns `len` bytes from `offset` on, fewer if they have not been fetched.
    fn get(&self, offset: u64, len: usize) -> &[u8] {
        let from = usize::try_from(offset - self.at).unwrap_or(usize::MAX).min(self.len);
        &self.bytes[from..from.saturating_add(len).min(self.len)]
    }
}

impl Reader {
    pub(crate) fn new(survey: Arc<Survey>) -> Self {
        Self { survey, log: 0, chain: None, window: Window::default(), current: None }
    }

    /// Reads the next record to apply; nothing at the end of the log.
    ///
    /// # Errors
    /// If the chain of batches is broken that was intact when the journal was opened, and if the disk fails:
    /// the next call tries the same batch again. A damaged payload is part of the record returned.
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

    /// Returns the record `at` of the current batch.
    fn record(&self, at: usize, payload_at: u64) -> Read<'_> {
        // `next` calls it with the place of a record of the current batch.
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
                (self.chain, self.window.len) = (None, 0);
                self.log += 1;
                continue;
            }
            let offset = chain.offset;
            let broken = |reason| ReadError::Corrupt(Corruption::new(&segment.name, offset, reason));
            self.window.fetch(segment, offset, BLOCK_BYTES)?;
            let room = segment.segment_bytes.saturating_sub(offset);
            let room = room.min(batch_bytes_max(segment.segment_bytes));
            let header = BatchHeader::peek(self.window.get(offset, BLOCK_BYTES), room).map_err(broken)?;
            let layout = header.layout();
            self.window.fetch(segment, offset, layout.total as usize)?;
            let intact = self.window.get(offset, layout.heads_end as usize);
            if !header.is_intact(chain.salt, intact) {
                return Err(broken("the batch does not match its checksum"));
            }
            let heads = decode_all(&header, &intact[BATCH_HEADER_BYTES..]);
            let heads = heads.ok_or_else(|| broken("the batch's heads are not what its header describes"))?;
            match chain.follow(&header) {
                Ok(()) => {}
                Err(ScanError::Break(reason)) => return Err(broken(reason)),
                Err(ScanError::Disk(error)) => return Err(error.into()),
            }
            self.current = Some(Current {
                offset,
                heads,
                first_position: header.first_position,
                next: 0,
                payload_at: offset + layout.payload_at,
            });
            return Ok(true);
        }
        Ok(false)
    }

    /// Returns where the record returned last lies.
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

impl std::fmt::Debug for Reader {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Reader").field("segment", &self.log).finish_non_exhaustive()
    }
}

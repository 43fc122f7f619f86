//! Reading one segment, batch by batch.

use std::ops::Deref;
use std::sync::Arc;

use thiserror::Error;

use crate::disk::DiskFile;
use crate::error::{Corruption, DiskError, ReadError};
use crate::format::{
    BLOCK_BYTES, BatchHeader, PayloadSum, SEGMENT_DATA_AT, SegmentHeader, batch_bytes_max, checksum,
    decode_heads, salt,
};
use crate::record::{Head, Position};

/// The length of one read while searching for batches, in bytes.
const SEARCH_BYTES: u64 = 1 << 20;

/// The number of bytes that a scan reads ahead of its current batch.
const AHEAD_BYTES: u64 = 8 << 20;
/// Batches larger than this are not read ahead. A scan needs only the heads of the batches, and
/// reading the heads individually is then faster than reading everything between them.
const AHEAD_BATCH_BYTES_MAX: u64 = 256 << 10;

/// A segment whose header is known.
#[derive(Clone)]
pub(crate) struct OpenSegment {
    pub(crate) name: String,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) header: SegmentHeader,
    pub(crate) segment_bytes: u64,
}

/// A batch without its payloads.
pub(crate) struct ReadBatch {
    pub(crate) offset: u64,
    pub(crate) header: BatchHeader,
    pub(crate) heads: Vec<(Head<'static>, PayloadSum)>,
}

impl ReadBatch {
    /// Returns the records with their positions.
    pub(crate) fn records(&self) -> impl Iterator<Item = (Position, &Head<'static>, PayloadSum)> {
        let positions = (self.header.first_position..).map(Position);
        self.heads.iter().zip(positions).map(|((head, sum), position)| (position, head, *sum))
    }
}

/// The location of a payload.
#[derive(Clone)]
pub(crate) struct PayloadPlace {
    pub(crate) name: Arc<str>,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) offset: u64,
    pub(crate) sum: PayloadSum,
}

/// The reason why a batch of a segment could not be read.
#[derive(Debug, Error)]
pub(crate) enum ScanError {
    /// No batch continues the chain here. At the end of the log this is not an error.
    #[error("{0}")]
    Break(&'static str),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl ScanError {
    /// Returns the error for a place where a batch must be.
    pub(crate) fn at(self, segment: &OpenSegment, offset: u64) -> ReadError {
        match self {
            Self::Break(reason) => Corruption::new(&segment.name, offset, reason).into(),
            Self::Disk(error) => error.into(),
        }
    }
}

/// The position in a segment's chain of batches.
#[derive(Clone)]
pub(crate) struct Chain {
    pub(crate) salt: u32,
    pub(crate) offset: u64,
    pub(crate) next_number: u64,
    pub(crate) last_check: u32,
    pub(crate) next_position: u64,
}

impl Chain {
    pub(crate) fn new(segment: &OpenSegment) -> Self {
        let header = &segment.header;
        Self {
            salt: salt(header.journal, header.life),
            offset: SEGMENT_DATA_AT,
            next_number: header.first_number,
            last_check: header.previous_check,
            next_position: header.first_position,
        }
    }

    /// Advances past a batch if it is the next one.
    pub(crate) fn follow(&mut self, header: &BatchHeader) -> Result<(), &'static str> {
        if header.number != self.next_number {
            return Err("the batch's number is not the expected one");
        }
        if header.previous_check != self.last_check {
            return Err("the batch does not follow the batch before it");
        }
        if header.first_position < self.next_position {
            return Err("the batch's positions are already taken");
        }
        self.offset += header.layout().total;
        self.next_number += 1;
        self.last_check = header.check;
        self.next_position = header.first_position + u64::from(header.count);
        Ok(())
    }
}

/// Reads the chain of a segment.
pub(crate) struct Scanner<'a> {
    pub(crate) segment: &'a OpenSegment,
    chain: Chain,
    /// The offset up to which the segment has been read ahead.
    ahead_to: u64,
}

impl Deref for Scanner<'_> {
    type Target = Chain;
    fn deref(&self) -> &Chain {
        &self.chain
    }
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(segment: &'a OpenSegment) -> Self {
        Self::at(segment, Chain::new(segment))
    }

    /// Returns a scanner that continues at a position in the chain.
    pub(crate) fn at(segment: &'a OpenSegment, chain: Chain) -> Self {
        Self { segment, chain, ahead_to: 0 }
    }

    /// Returns the position in the chain.
    pub(crate) fn into_chain(self) -> Chain {
        self.chain
    }

    fn try_next(&mut self) -> Result<ReadBatch, ScanError> {
        let offset = self.chain.offset;
        let batch = self.segment.read_batch(offset, self.chain.salt)?;
        self.chain.follow(&batch.header).map_err(ScanError::Break)?;
        self.read_ahead(self.chain.offset - offset);
        Ok(batch)
    }

    /// Reads the next batch and advances past it, or returns `None` if no batch continues the chain
    /// here.
    pub(crate) fn next(&mut self) -> Result<Option<ReadBatch>, DiskError> {
        match self.try_next() {
            Ok(batch) => Ok(Some(batch)),
            Err(ScanError::Break(_)) => Ok(None),
            Err(ScanError::Disk(error)) => Err(error),
        }
    }

    /// Reads the next batch, which must exist, and advances past it.
    pub(crate) fn expect_next(&mut self) -> Result<ReadBatch, ReadError> {
        self.try_next().map_err(|error| error.at(self.segment, self.chain.offset))
    }

    /// Reads the following bytes in the background if the batches are small. `batch_bytes` is the
    /// length of the last batch.
    fn read_ahead(&mut self, batch_bytes: u64) {
        let (here, end) = (self.chain.offset, self.segment.segment_bytes);
        if batch_bytes > AHEAD_BATCH_BYTES_MAX || (here + AHEAD_BYTES / 2).min(end) <= self.ahead_to {
            return;
        }
        let from = self.ahead_to.max(here);
        self.ahead_to = (here + AHEAD_BYTES).min(end);
        if from < self.ahead_to {
            self.segment.file.read_ahead(from, self.ahead_to - from);
        }
    }

    /// Searches for a later batch after the end of the log.
    ///
    /// A batch is written only when the previous batch is durable. So if a later batch is found,
    /// the chain was not broken by a crash.
    pub(crate) fn check_nothing_behind(&self) -> Result<(), ReadError> {
        match self.find_behind()? {
            Some((offset, header)) => Err(self.damage(offset, &header).into()),
            None => Ok(()),
        }
    }

    /// Examines the end of the log for an incomplete further batch, which was torn while it was
    /// written, or damaged later.
    pub(crate) fn find_cut_off(&self) -> Result<Option<Corruption>, DiskError> {
        let mut block = vec![0; BLOCK_BYTES];
        let read = self.segment.read(self.offset, &mut block)?;
        let life = self.segment.header.life;
        let is_due = BatchHeader::begins(&block[..read], self.next_number, self.last_check, life);
        Ok(is_due.then(|| self.cut_off()))
    }

    /// Returns the damage report for an incomplete next batch.
    pub(crate) fn cut_off(&self) -> Corruption {
        let reason = format!(
            "batch {}, the last one, is incomplete: the power went while it was written, and nothing in it was \
             acknowledged; or it was damaged, and its records are lost",
            self.next_number
        );
        Corruption::new(&self.segment.name, self.offset, reason)
    }

    /// Advances to the next batch after a break, and returns the damage, or `None` if there is no
    /// further batch.
    pub(crate) fn skip_damage(&mut self) -> Result<Option<Corruption>, DiskError> {
        let Some((offset, header)) = self.find_behind()? else { return Ok(None) };
        let damage = self.damage(offset, &header);
        self.chain.offset = offset;
        self.chain.next_number = header.number;
        self.chain.last_check = header.previous_check;
        self.chain.next_position = header.first_position;
        Ok(Some(damage))
    }

    fn damage(&self, offset: u64, behind: &BatchHeader) -> Corruption {
        let reason = format!(
            "batch {} is damaged: batch {} at byte {offset} was written after it had been synced",
            self.next_number, behind.number
        );
        Corruption::new(&self.segment.name, self.offset, reason)
    }

    /// Returns the offset and the header of the first batch after this position that is later than
    /// the expected one.
    fn find_behind(&self) -> Result<Option<(u64, BatchHeader)>, DiskError> {
        let segment = self.segment;
        let mut window = Vec::new();
        let mut at = self.offset + BLOCK_BYTES as u64;
        while at < segment.segment_bytes {
            window.resize(SEARCH_BYTES.min(segment.segment_bytes - at) as usize, 0);
            let read = segment.read(at, &mut window)?;
            for (block, offset) in window[..read].chunks(BLOCK_BYTES).zip((at..).step_by(BLOCK_BYTES)) {
                // Avoids reading most payloads that only look like batches.
                let is_possible = |header: BatchHeader| header.life == segment.header.life;
                if !BatchHeader::peek(block, segment.segment_bytes - offset).is_ok_and(is_possible) {
                    continue;
                }
                match segment.read_batch(offset, self.salt) {
                    Ok(batch) if batch.header.number > self.next_number => {
                        return Ok(Some((offset, batch.header)));
                    }
                    Err(ScanError::Disk(error)) => return Err(error),
                    _ => {}
                }
            }
            at += window.len() as u64;
        }
        Ok(None)
    }
}

impl OpenSegment {
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.file.read_at(offset, buffer).map_err(DiskError::in_file(&self.name, "read"))
    }

    /// Reads a batch's header and heads, if they are intact under a salt.
    pub(crate) fn read_batch(&self, offset: u64, salt: u32) -> Result<ReadBatch, ScanError> {
        let mut bytes = vec![0; BLOCK_BYTES];
        let read = self.read(offset, &mut bytes)?;
        let room = self.segment_bytes.saturating_sub(offset).min(batch_bytes_max(self.segment_bytes));
        let header = BatchHeader::peek(&bytes[..read], room).map_err(ScanError::Break)?;
        let heads_end = header.layout().heads_end as usize;
        if heads_end > bytes.len() {
            bytes.resize(heads_end, 0);
            let more = self.read(offset + BLOCK_BYTES as u64, &mut bytes[BLOCK_BYTES..])?;
            bytes.truncate(BLOCK_BYTES + more);
        }
        let heads = decode_heads(&header, salt, bytes.get(..heads_end).unwrap_or(&bytes));
        let heads = heads.map_err(ScanError::Break)?;
        Ok(ReadBatch { offset, header, heads })
    }

    /// Returns the records of a batch with the locations of their payloads.
    pub(crate) fn records<'a>(
        &'a self,
        batch: &'a ReadBatch,
    ) -> impl Iterator<Item = (Position, &'a Head<'static>, PayloadPlace)> + 'a {
        let name: Arc<str> = self.name.as_str().into();
        let mut offset = batch.offset + batch.header.layout().payload_at;
        batch.records().map(move |(position, head, sum)| {
            let place = PayloadPlace { name: Arc::clone(&name), file: Arc::clone(&self.file), offset, sum };
            offset += u64::from(sum.bytes);
            (position, head, place)
        })
    }
}

impl PayloadPlace {
    pub(crate) fn damage(name: &str, offset: u64, bytes: u32) -> Corruption {
        let reason = format!("a payload of {bytes} bytes does not match its checksum");
        Corruption::new(name, offset, reason)
    }

    /// Reads the payload and compares it with its checksum.
    pub(crate) fn read(&self) -> Result<Vec<u8>, ReadError> {
        let mut payload = vec![0; self.sum.bytes as usize];
        let read =
            self.file.read_at(self.offset, &mut payload).map_err(DiskError::in_file(&self.name, "read"))?;
        if read < payload.len() || checksum(0, &[&payload]) != self.sum.crc {
            return Err(Self::damage(&self.name, self.offset, self.sum.bytes).into());
        }
        Ok(payload)
    }
}

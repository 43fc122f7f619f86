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

/// The length of one read of consecutive batches, in bytes.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
/// The heads of batches larger than this are read individually: this is then faster than reading
/// everything between them.
const PIECES_BATCH_BYTES_MAX: u64 = 256 << 10;

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
    window: Window,
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
        Self { segment, chain, window: Window::new(PIECE_BYTES) }
    }

    /// Returns the position in the chain.
    pub(crate) fn into_chain(self) -> Chain {
        self.chain
    }

    fn try_next(&mut self) -> Result<ReadBatch, ScanError> {
        let offset = self.chain.offset;
        let batch = self.window.read_batch(self.segment, offset, self.chain.salt, Extent::Heads)?;
        self.chain.follow(&batch.header).map_err(ScanError::Break)?;
        let is_small = batch.header.layout().total <= PIECES_BATCH_BYTES_MAX;
        self.window.piece_bytes = if is_small { PIECE_BYTES } else { BLOCK_BYTES };
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
        Window::new(BLOCK_BYTES).read_batch(self, offset, salt, Extent::Heads)
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

/// The part of a batch to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    Heads,
    /// Also the payloads, which are then in the window.
    Whole,
}

/// The bytes of a segment that have been read. The reads are large and sequential, so the system
/// reads ahead at the full speed of the disk.
pub(crate) struct Window {
    bytes: Vec<u8>,
    /// The offset of these bytes in the segment.
    at: u64,
    len: usize,
    /// The minimum length of a read.
    piece_bytes: usize,
}

impl Window {
    /// Returns an empty window that reads at least `piece_bytes` at once.
    pub(crate) fn new(piece_bytes: usize) -> Self {
        Self { bytes: Vec::new(), at: 0, len: 0, piece_bytes }
    }

    /// Forgets the bytes, because the next ones are of another segment.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Reads a batch's header and heads, if they are intact under a salt.
    pub(crate) fn read_batch(
        &mut self,
        segment: &OpenSegment,
        offset: u64,
        salt: u32,
        extent: Extent,
    ) -> Result<ReadBatch, ScanError> {
        self.fetch(segment, offset, BLOCK_BYTES)?;
        let room = segment.segment_bytes.saturating_sub(offset).min(batch_bytes_max(segment.segment_bytes));
        let header = BatchHeader::peek(self.get(offset, BLOCK_BYTES), room).map_err(ScanError::Break)?;
        let layout = header.layout();
        let end = if extent == Extent::Whole { layout.total } else { layout.heads_end };
        self.fetch(segment, offset, end as usize)?;
        let header_and_heads = self.get(offset, layout.heads_end as usize);
        let heads = decode_heads(&header, salt, header_and_heads).map_err(ScanError::Break)?;
        Ok(ReadBatch { offset, header, heads })
    }

    /// Ensures that `len` bytes from `offset` on are in memory, as far as the segment has them.
    fn fetch(&mut self, segment: &OpenSegment, offset: u64, len: usize) -> Result<(), DiskError> {
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
        let wanted = kept.max(len).max(self.piece_bytes);
        let left = segment.segment_bytes.saturating_sub(offset);
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(wanted);
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted, 0);
        }
        (self.at, self.len) = (offset, kept);
        if wanted > kept {
            let from = offset + kept as u64;
            self.len += match segment.read(from, &mut self.bytes[kept..wanted]) {
                // The disk may have failed at bytes that are not needed now.
                Err(_) if len < wanted => segment.read(from, &mut self.bytes[kept..len])?,
                read => read?,
            };
        }
        Ok(())
    }

    /// Returns `len` bytes from `offset` on, or fewer if they have not all been fetched.
    pub(crate) fn get(&self, offset: u64, len: usize) -> &[u8] {
        let from = usize::try_from(offset - self.at).unwrap_or(usize::MAX).min(self.len);
        &self.bytes[from..from.saturating_add(len).min(self.len)]
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

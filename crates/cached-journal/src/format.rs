//! The bytes on disk, as pure functions. `docs/journal-format.md` describes them.
//!
//! No function panics, whatever the bytes are.

use std::borrow::Cow;

use crate::record::{Head, Kind, NAME_BYTES_MAX, Object, Scope};

/// The unit of all writes, which `O_DIRECT` requires on all common disks.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// The offset at which batches begin in a segment: after two blocks for its header.
pub(crate) const SEGMENT_DATA_AT: u64 = 2 * BLOCK_BYTES as u64;
/// The version of the format.
pub(crate) const VERSION: u32 = 1;

/// Returns the maximum length of a record's payload in a journal with segments of this size.
pub(crate) const fn record_payload_max(segment_bytes: u64) -> u64 {
    let quarter = segment_bytes / 4;
    if quarter < 1 << 20 { quarter } else { 1 << 20 }
}

/// Returns the maximum length of a batch in a journal with segments of this size, including
/// padding.
pub(crate) const fn batch_bytes_max(segment_bytes: u64) -> u64 {
    let half = segment_bytes / 2;
    if half < 4 << 20 { half } else { 4 << 20 }
}

pub(crate) const fn round_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES as u64)
}

/// Returns the initial value of a life's checksums. It depends on the journal's random number, so
/// that a client cannot forge a batch within a payload, and on the life, so that bytes of an
/// earlier life do not match.
pub(crate) fn salt(journal: u64, life: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&journal.to_le_bytes());
    hasher.update(&life.to_le_bytes());
    hasher.finalize()
}

/// Returns the CRC-32 of consecutive parts.
pub(crate) fn checksum(salt: u32, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// Reads consecutive numbers. Beyond the end it reads zeros.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((array, rest)) => {
                self.0 = rest;
                *array
            }
            None => [0; N],
        }
    }
    pub(crate) fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }
    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }
    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }
    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

/// Writes consecutive numbers into a block that is large enough.
pub(crate) struct FieldsMut<'a> {
    block: &'a mut [u8],
    at: usize,
}

impl<'a> FieldsMut<'a> {
    pub(crate) fn new(block: &'a mut [u8]) -> Self {
        Self { block, at: 0 }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.block[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    pub(crate) fn u32(&mut self, number: u32) -> &mut Self {
        self.put(&number.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, number: u64) -> &mut Self {
        self.put(&number.to_le_bytes())
    }
}

const SUPERBLOCK_MAGIC: &[u8; 8] = b"CACHEDJ\n";

/// The parameters with which a journal was created. The superblock is written only once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Superblock {
    /// A random number that identifies the journal's segments, and salts their checksums.
    pub(crate) journal: u64,
    pub(crate) segment_bytes: u64,
}

const SUPERBLOCK_USED_BYTES: usize = 8 + 4 + 8 + 8;

impl Superblock {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        FieldsMut::new(&mut block)
            .put(SUPERBLOCK_MAGIC)
            .u32(VERSION)
            .u64(self.journal)
            .u64(self.segment_bytes);
        let check = checksum(0, &[&block[..SUPERBLOCK_USED_BYTES]]);
        block[SUPERBLOCK_USED_BYTES..SUPERBLOCK_USED_BYTES + 4].copy_from_slice(&check.to_le_bytes());
        block
    }

    /// Returns whether this is a valid size of segments.
    pub(crate) fn is_possible(segment_bytes: u64) -> bool {
        segment_bytes.is_multiple_of(BLOCK_BYTES as u64)
            && (16 * BLOCK_BYTES as u64..=1 << 30).contains(&segment_bytes)
    }

    /// Decodes a superblock. The error names the mistake.
    pub(crate) fn decode(block: &[u8]) -> Result<Self, String> {
        if block.len() != BLOCK_BYTES {
            return Err(format!("the superblock has {} bytes, not 4096", block.len()));
        }
        if !block.starts_with(SUPERBLOCK_MAGIC) {
            return Err("this is not the superblock of a journal: its first bytes differ".into());
        }
        let mut fields = Fields(&block[SUPERBLOCK_MAGIC.len()..]);
        let (version, journal, segment_bytes, check) =
            (fields.u32(), fields.u64(), fields.u64(), fields.u32());
        if check != checksum(0, &[&block[..SUPERBLOCK_USED_BYTES]]) {
            return Err("the superblock does not match its checksum".into());
        }
        if version != VERSION {
            return Err(format!("format version {version}; this program reads version {VERSION}"));
        }
        if !Self::is_possible(segment_bytes) {
            return Err(format!("the segment size is invalid: {segment_bytes} bytes"));
        }
        Ok(Self { journal, segment_bytes })
    }
}

const HEADER_MAGIC: &[u8; 8] = b"CACHEDS\n";
const HEADER_USED_BYTES: usize = 8 + 4 + 4 + 7 * 8;

/// The beginning of a segment's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SegmentHeader {
    pub(crate) journal: u64,
    /// The number of the life. It is higher than the number of every earlier life in any segment.
    pub(crate) life: u64,
    /// The life of the previous segment in the log, or 0 if there is none.
    pub(crate) previous_life: u64,
    /// The life of the oldest segment that the log needed when this life began.
    pub(crate) tail: u64,
    /// The number of the first batch.
    pub(crate) first_number: u64,
    /// A lower bound of the first record's position.
    pub(crate) first_position: u64,
    /// The check of the batch before the first one.
    pub(crate) previous_check: u32,
}

/// The content of a header's block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum HeaderBlock {
    /// The block consists of zeros, because no life has used it.
    Unused,
    Valid(SegmentHeader),
    /// The block was torn by a crash, or damaged.
    Invalid(String),
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut fields = FieldsMut::new(&mut block);
        fields.put(HEADER_MAGIC).u32(VERSION).u32(self.previous_check).u64(self.journal).u64(self.life);
        fields.u64(self.previous_life).u64(self.tail).u64(self.first_number).u64(self.first_position).u64(0);
        let check = checksum(0, &[&block[..HEADER_USED_BYTES]]);
        block[HEADER_USED_BYTES..HEADER_USED_BYTES + 4].copy_from_slice(&check.to_le_bytes());
        block
    }
}

impl HeaderBlock {
    pub(crate) fn decode(block: &[u8]) -> Self {
        if block.iter().all(|byte| *byte == 0) {
            return Self::Unused;
        }
        if block.len() != BLOCK_BYTES || !block.starts_with(HEADER_MAGIC) {
            return Self::Invalid("this is not the header of a segment: its first bytes differ".into());
        }
        let mut fields = Fields(&block[HEADER_MAGIC.len()..]);
        let version = fields.u32();
        let previous_check = fields.u32();
        let header = SegmentHeader {
            previous_check,
            journal: fields.u64(),
            life: fields.u64(),
            previous_life: fields.u64(),
            tail: fields.u64(),
            first_number: fields.u64(),
            first_position: fields.u64(),
        };
        let _reserved = fields.u64();
        if fields.u32() != checksum(0, &[&block[..HEADER_USED_BYTES]]) {
            return Self::Invalid("the header does not match its checksum".into());
        }
        if version != VERSION {
            return Self::Invalid(format!("format version {version}; this program reads version {VERSION}"));
        }
        // Later code adds to these numbers, so they must be below their maximum.
        let is_possible = header.life > 0
            && header.previous_life < header.life
            && (1..=header.life).contains(&header.tail)
            && [header.life, header.first_number, header.first_position]
                .iter()
                .all(|number| *number < 1 << 62);
        if is_possible {
            Self::Valid(header)
        } else {
            Self::Invalid("the header's numbers contradict each other".into())
        }
    }
}

const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"CJB1");
/// The bytes of a batch's header, before the heads of its records.
pub(crate) const BATCH_HEADER_BYTES: usize = 64;

/// The header of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct BatchHeader {
    /// The checksum over the header and the heads, and therefore over the payloads' checksums. The
    /// next batch repeats it.
    pub(crate) check: u32,
    pub(crate) number: u64,
    pub(crate) previous_check: u32,
    pub(crate) count: u32,
    pub(crate) heads_bytes: u32,
    pub(crate) payload_bytes: u32,
    /// The position of the first record. The positions of the other records follow without gaps.
    pub(crate) first_position: u64,
    /// The life of the oldest segment that the log needs.
    pub(crate) tail: u64,
    pub(crate) life: u64,
}

/// The positions of a batch's parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) heads_end: u64,
    pub(crate) payload_at: u64,
    pub(crate) total: u64,
}

impl Layout {
    /// Payloads begin in a new block, unless all of them fit into the rest of the heads' last
    /// block.
    pub(crate) fn new(heads_bytes: u64, payload_bytes: u64) -> Self {
        let heads_end = BATCH_HEADER_BYTES as u64 + heads_bytes;
        let heads_blocks = round_up(heads_end);
        if payload_bytes <= heads_blocks - heads_end {
            return Self { heads_end, payload_at: heads_end, total: heads_blocks };
        }
        Self { heads_end, payload_at: heads_blocks, total: heads_blocks + round_up(payload_bytes) }
    }
}

impl BatchHeader {
    pub(crate) fn layout(&self) -> Layout {
        Layout::new(self.heads_bytes.into(), self.payload_bytes.into())
    }

    /// Writes the header to the beginning of `batch`, in which the heads follow the header, and
    /// returns the check.
    pub(crate) fn encode_into(&self, salt: u32, batch: &mut [u8]) -> u32 {
        let mut fields = FieldsMut::new(&mut batch[..BATCH_HEADER_BYTES]);
        fields.u32(BATCH_MAGIC).u32(0).u64(self.number).u32(self.previous_check).u32(self.count);
        fields.u32(self.heads_bytes).u32(self.payload_bytes).u64(self.first_position).u64(self.tail);
        fields.u64(self.life).u64(0);
        let check = Self::check_of(salt, &batch[..BATCH_HEADER_BYTES + self.heads_bytes as usize]);
        batch[4..8].copy_from_slice(&check.to_le_bytes());
        check
    }

    /// Decodes a header without verifying it. Only checks that its lengths fit into a segment with
    /// `room` more bytes.
    pub(crate) fn peek(block: &[u8], room: u64) -> Result<Self, &'static str> {
        if block.len() < BATCH_HEADER_BYTES {
            return Err("the segment ends here");
        }
        let mut fields = Fields(block);
        if fields.u32() != BATCH_MAGIC {
            return Err("no batch begins here");
        }
        let check = fields.u32();
        let number = fields.u64();
        let header = Self {
            check,
            number,
            previous_check: fields.u32(),
            count: fields.u32(),
            heads_bytes: fields.u32(),
            payload_bytes: fields.u32(),
            first_position: fields.u64(),
            tail: fields.u64(),
            life: fields.u64(),
        };
        if header.layout().total > room {
            return Err("the batch is longer than its segment");
        }
        if header.number >= 1 << 62 || header.first_position >= 1 << 62 {
            return Err("the batch's numbers are impossible");
        }
        Ok(header)
    }

    /// Returns whether a block, which may be torn or damaged, looks like the beginning of the next
    /// batch: three of its four identifying fields must match. Bytes of an earlier life match at
    /// most one.
    pub(crate) fn begins(block: &[u8], number: u64, previous_check: u32, life: u64) -> bool {
        if block.len() < BATCH_HEADER_BYTES {
            return false;
        }
        let is_magic = Fields(block).u32() == BATCH_MAGIC;
        let mut fields = Fields(&block[8..]);
        let is_number = fields.u64() == number;
        let is_previous = fields.u32() == previous_check;
        let is_life = Fields(&block[48..]).u64() == life;
        [is_magic, is_number, is_previous, is_life].iter().filter(|is_same| **is_same).count() >= 3
    }

    fn check_of(salt: u32, header_and_heads: &[u8]) -> u32 {
        checksum(salt, &[&header_and_heads[..4], &header_and_heads[8..]])
    }
}

const _: () = assert!(BATCH_HEADER_BYTES < BLOCK_BYTES);

/// The bytes of a head without its name.
pub(crate) const HEAD_BYTES: usize = 80;

/// The description of a record's payload in its head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PayloadSum {
    pub(crate) bytes: u32,
    pub(crate) crc: u32,
}

const fn padded(name_bytes: usize) -> usize {
    name_bytes.next_multiple_of(8)
}

/// Returns the number of bytes that a head takes.
pub(crate) fn head_bytes(head: &Head<'_>) -> usize {
    match &head.object {
        Object::Name(name) => HEAD_BYTES + padded(name.len()),
        Object::None | Object::Number(_) => HEAD_BYTES,
    }
}

/// Returns the fixed part of a head, which is followed by the name, padded with zeros to 8 bytes.
pub(crate) fn encode_head(head: &Head<'_>, payload: PayloadSum) -> [u8; HEAD_BYTES] {
    let (tag, number, name_bytes) = match &head.object {
        Object::None => (0, 0, 0),
        Object::Number(number) => (1, *number, 0),
        Object::Name(name) => (2, 0, name.len()),
    };
    let scope = match head.scope {
        Scope::Object => 0,
        Scope::Domain => 1,
        Scope::Namespace => 2,
        Scope::All => 3,
    };
    let mut out = [0; HEAD_BYTES];
    let mut fields = FieldsMut::new(&mut out);
    fields.put(&[head.kind.0, scope, tag, 0]).put(&(name_bytes as u16).to_le_bytes()).put(&[0, 0]);
    fields.u32(payload.bytes).u32(payload.crc).u64(head.namespace).u64(head.domain).u64(number);
    fields.u64(head.offset).u64(head.len).u64(head.sequence).u64(head.epoch).u64(head.generation);
    out
}

/// Decodes the next head in `heads` and advances, or returns `None` if the bytes are not a head.
pub(crate) fn decode_head<'a>(heads: &mut &'a [u8]) -> Option<(Head<'a>, PayloadSum)> {
    let (fixed, rest) = heads.split_first_chunk::<HEAD_BYTES>()?;
    let mut fields = Fields(fixed);
    let (kind, scope, tag, _) = (Kind(fields.u8()), fields.u8(), fields.u8(), fields.u8());
    let name_bytes = usize::from(fields.u16());
    let _reserved = fields.u16();
    let payload = PayloadSum { bytes: fields.u32(), crc: fields.u32() };
    let (namespace, domain, number) = (fields.u64(), fields.u64(), fields.u64());
    let scope = match scope {
        0 => Scope::Object,
        1 => Scope::Domain,
        2 => Scope::Namespace,
        3 => Scope::All,
        _ => return None,
    };
    let (name, rest) = rest.split_at_checked(padded(name_bytes))?;
    let object = match tag {
        0 if name_bytes == 0 => Object::None,
        1 if name_bytes == 0 => Object::Number(number),
        2 if name_bytes <= NAME_BYTES_MAX => Object::Name(Cow::Borrowed(&name[..name_bytes])),
        _ => return None,
    };
    let head = Head {
        kind,
        scope,
        namespace,
        domain,
        object,
        offset: fields.u64(),
        len: fields.u64(),
        sequence: fields.u64(),
        epoch: fields.u64(),
        generation: fields.u64(),
    };
    *heads = rest;
    Some((head, payload))
}

/// Decodes the heads of a batch. `header_and_heads` are its first bytes, as read from the disk; the
/// error is the reason why they are not those of an intact batch of the life with this salt.
pub(crate) fn decode_heads(
    header: &BatchHeader,
    salt: u32,
    header_and_heads: &[u8],
) -> Result<Vec<(Head<'static>, PayloadSum)>, &'static str> {
    let is_whole = header_and_heads.len() == header.layout().heads_end as usize;
    if !is_whole || header.check != BatchHeader::check_of(salt, header_and_heads) {
        return Err("the batch does not match its checksum");
    }
    let wrong = "the batch's heads do not match its header";
    let mut heads = &header_and_heads[BATCH_HEADER_BYTES..];
    let mut found = Vec::with_capacity((header.count as usize).min(heads.len() / HEAD_BYTES));
    let mut payload_bytes = 0;
    for _ in 0..header.count {
        let (head, payload) = decode_head(&mut heads).ok_or(wrong)?;
        payload_bytes += u64::from(payload.bytes);
        found.push((head.into_owned(), payload));
    }
    let is_right = heads.is_empty() && payload_bytes == u64::from(header.payload_bytes);
    if is_right { Ok(found) } else { Err(wrong) }
}

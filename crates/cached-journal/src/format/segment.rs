//! The header of a segment: one of two blocks at its beginning, each life writing the block that the life
//! before did not.

use super::{BLOCK_BYTES, Fields, FieldsMut, VERSION, checksum};

const MAGIC: &[u8; 8] = b"CACHEDS\n";
const USED_BYTES: usize = 8 + 4 + 4 + 7 * 8;

/// The beginning of a segment's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SegmentHeader {
    pub(crate) journal: u64,
    /// The number of the life: higher than that of any life begun before, in any segment.
    pub(crate) life: u64,
    /// The life of the segment before this one in the log, 0 if there is none.
    pub(crate) previous_life: u64,
    /// The life of the oldest segment that the log needed when this life began.
    pub(crate) tail: u64,
    /// The number of the first batch.
    pub(crate) first_number: u64,
    /// The position that the first record has or a later one.
    pub(crate) first_position: u64,
    /// The check of the batch before the first one.
    pub(crate) previous_check: u32,
}

/// What a header's block holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum HeaderBlock {
    /// Zeros: no life has used the block.
    Unused,
    Valid(SegmentHeader),
    /// Torn by a crash, or damaged.
    Invalid(String),
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut fields = FieldsMut::new(&mut block);
        fields.put(MAGIC).u32(VERSION).u32(self.previous_check).u64(self.journal).u64(self.life);
        fields.u64(self.previous_life).u64(self.tail).u64(self.first_number).u64(self.first_position).u64(0);
        let check = checksum(0, &[&block[..USED_BYTES]]);
        block[USED_BYTES..USED_BYTES + 4].copy_from_slice(&check.to_le_bytes());
        block
    }
}

impl HeaderBlock {
    pub(crate) fn decode(block: &[u8]) -> Self {
        if block.iter().all(|byte| *byte == 0) {
            return Self::Unused;
        }
        if block.len() != BLOCK_BYTES || !block.starts_with(MAGIC) {
            return Self::Invalid("this is no header of a segment: other first bytes".into());
        }
        let mut fields = Fields(&block[MAGIC.len()..]);
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
        if fields.u32() != checksum(0, &[&block[..USED_BYTES]]) {
            return Self::Invalid("the header does not match its checksum".into());
        }
        if version != VERSION {
            return Self::Invalid(format!("format version {version}; this program reads version {VERSION}"));
        }
        // The rest counts on numbers that can still be added to.
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

//! A batch: what one write and one sync make durable.

use super::{BLOCK_BYTES, Fields, FieldsMut, checksum, round_up};

const MAGIC: u32 = u32::from_le_bytes(*b"CJB1");
/// The bytes of a batch's header, before the heads of its records.
pub(crate) const BATCH_HEADER_BYTES: usize = 64;

/// The header of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct BatchHeader {
    /// Covers header and heads, hence the payloads' checksums too. The next batch repeats it.
    pub(crate) check: u32,
    pub(crate) number: u64,
    pub(crate) previous_check: u32,
    pub(crate) count: u32,
    pub(crate) heads_bytes: u32,
    pub(crate) payload_bytes: u32,
    /// The position of the first record; the others follow it without gap.
    pub(crate) first_position: u64,
    /// The life of the oldest segment that the log needs.
    pub(crate) tail: u64,
    pub(crate) life: u64,
}

/// Where the parts of a batch lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) heads_end: u64,
    pub(crate) payload_at: u64,
    pub(crate) total: u64,
}

impl Layout {
    /// Payloads begin at a block of their own, unless they all fit into what is left of the heads' last
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

    /// Writes the header to the beginning of `batch`, which holds the heads behind it, and returns the check.
    pub(crate) fn encode_into(&self, salt: u32, batch: &mut [u8]) -> u32 {
        let mut fields = FieldsMut::new(&mut batch[..BATCH_HEADER_BYTES]);
        fields.u32(MAGIC).u32(0).u64(self.number).u32(self.previous_check).u32(self.count);
        fields.u32(self.heads_bytes).u32(self.payload_bytes).u64(self.first_position).u64(self.tail);
        fields.u64(self.life).u64(0);
        let check = Self::check_of(salt, &batch[..BATCH_HEADER_BYTES + self.heads_bytes as usize]);
        batch[4..8].copy_from_slice(&check.to_le_bytes());
        check
    }

    /// Reads a header. The result is not verified: only its lengths are possible in a segment with `room`
    /// bytes from here on.
    pub(crate) fn peek(block: &[u8], room: u64) -> Result<Self, &'static str> {
        if block.len() < BATCH_HEADER_BYTES {
            return Err("the segment ends here");
        }
        let mut fields = Fields(block);
        if fields.u32() != MAGIC {
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

    /// Returns whether a block, which may be torn or damaged, looks like the begin of the batch that is due: of the four
    /// fields that only that batch has together, three are enough. What an earlier life has left has one.
    pub(crate) fn begins(block: &[u8], number: u64, previous_check: u32, life: u64) -> bool {
        if block.len() < BATCH_HEADER_BYTES {
            return false;
        }
        let is_magic = Fields(block).u32() == MAGIC;
        let mut fields = Fields(&block[8..]);
        let is_number = fields.u64() == number;
        let is_previous = fields.u32() == previous_check;
        let is_life = Fields(&block[48..]).u64() == life;
        [is_magic, is_number, is_previous, is_life].iter().filter(|is_same| **is_same).count() >= 3
    }

    /// Returns whether header and heads, given as read from the disk, match the check under a life's salt.
    pub(crate) fn is_intact(&self, salt: u32, header_and_heads: &[u8]) -> bool {
        header_and_heads.len() == self.layout().heads_end as usize
            && self.check == Self::check_of(salt, header_and_heads)
    }

    fn check_of(salt: u32, header_and_heads: &[u8]) -> u32 {
        checksum(salt, &[&header_and_heads[..4], &header_and_heads[8..]])
    }
}

const _: () = assert!(BATCH_HEADER_BYTES < BLOCK_BYTES);

//! The file `journal`: what holds for the whole directory.

use super::{BLOCK_BYTES, Fields, FieldsMut, VERSION, checksum};

const MAGIC: &[u8; 8] = b"CACHEDJ\n";

/// What a journal was made with. Written once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Superblock {
    /// A random number, by which the journal's segments are known, and which salts their checksums.
    pub(crate) journal: u64,
    pub(crate) segment_bytes: u64,
}

const USED_BYTES: usize = 8 + 4 + 8 + 8;

impl Superblock {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        FieldsMut::new(&mut block).put(MAGIC).u32(VERSION).u64(self.journal).u64(self.segment_bytes);
        let check = checksum(0, &[&block[..USED_BYTES]]);
        block[USED_BYTES..USED_BYTES + 4].copy_from_slice(&check.to_le_bytes());
        block
    }

    /// Returns whether segments of this size can be.
    pub(crate) fn is_possible(segment_bytes: u64) -> bool {
        segment_bytes.is_multiple_of(BLOCK_BYTES as u64)
            && (16 * BLOCK_BYTES as u64..=1 << 30).contains(&segment_bytes)
    }

    /// Reads a superblock; the error is what is wrong with it.
    pub(crate) fn decode(block: &[u8]) -> Result<Self, String> {
        if block.len() != BLOCK_BYTES {
            return Err(format!("the superblock has {} bytes, not 4096", block.len()));
        }
        if !block.starts_with(MAGIC) {
            return Err("this is no superblock of a journal: other first bytes".into());
        }
        let mut fields = Fields(&block[MAGIC.len()..]);
        let (version, journal, segment_bytes, check) =
            (fields.u32(), fields.u64(), fields.u64(), fields.u32());
        if check != checksum(0, &[&block[..USED_BYTES]]) {
            return Err("the superblock does not match its checksum".into());
        }
        if version != VERSION {
            return Err(format!("format version {version}; this program reads version {VERSION}"));
        }
        if !Self::is_possible(segment_bytes) {
            return Err(format!("segments of {segment_bytes} bytes are impossible"));
        }
        Ok(Self { journal, segment_bytes })
    }
}

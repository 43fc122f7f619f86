//! The bytes on disk, as pure functions. `docs/journal-format.md` draws them.
//!
//! Nothing here panics, whatever the bytes are.

pub(crate) mod batch;
pub(crate) mod head;
pub(crate) mod segment;
pub(crate) mod superblock;

/// The unit of everything that is written: what `O_DIRECT` wants on any common disk.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Where batches begin in a segment: behind two blocks for its header.
pub(crate) const SEGMENT_DATA_AT: u64 = 2 * BLOCK_BYTES as u64;
/// The version of the format.
pub(crate) const VERSION: u32 = 1;

/// The longest payload of a record in a journal with segments of this size.
pub(crate) const fn record_payload_max(segment_bytes: u64) -> u64 {
    let quarter = segment_bytes / 4;
    if quarter < 1 << 20 { quarter } else { 1 << 20 }
}

/// The longest batch in a journal with segments of this size, padding included.
pub(crate) const fn batch_bytes_max(segment_bytes: u64) -> u64 {
    let half = segment_bytes / 2;
    if half < 4 << 20 { half } else { 4 << 20 }
}

pub(crate) const fn round_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES as u64)
}

/// Returns the initial value of a life's checksums. It depends on the journal's random number, so that a
/// party that only writes payloads cannot write one that looks like a batch, and on the life, so that what an
/// earlier life left in the segment does not match.
pub(crate) fn salt(journal: u64, life: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&journal.to_le_bytes());
    hasher.update(&life.to_le_bytes());
    hasher.finalize()
}

/// Returns the CRC-32 of a run of parts.
pub(crate) fn checksum(salt: u32, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// Reads numbers one after the other; past the end it reads zeros.
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

/// Writes numbers one after the other into a block that has room for them.
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
